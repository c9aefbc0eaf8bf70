"""formers demo: in small, stopped and resumed, fitted to the machine, and only in folders of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time

import pytest

import formers
from formers.cli import demo as demo_module
from tests.command_line import run_command


@pytest.fixture
def small_demo(monkeypatch):
    """A demo of a tenth of the text and a few steps; make demo runs it whole."""
    from formers.data import readers
    from formers.models import bert
    from formers.training import recipes

    for table in (recipes.QUICK_TRAIN, bert.QUICK_TRAIN):
        monkeypatch.setitem(table, "steps", 8)
    whole = readers.load_bundled_corpus

    def some(language):
        documents, changes = whole(language)
        return ([d[:7000] for d in documents] if language == "en" else documents[::10]), changes

    monkeypatch.setattr(readers, "load_bundled_corpus", some)
    monkeypatch.setattr(demo_module, "EVALS_PER_MODEL", 1)


def test_demo_in_small(capsys, tmp_path, small_demo):
    out = tmp_path / "en"
    code, text, _ = run_command(capsys, "demo", "--train", "--out", str(out))
    assert code == 0
    assert "chosen for this machine: gpt2 8 steps" in text
    assert "left in all" in text
    assert "unigram" in text
    assert "BERT fills" in text
    assert "�" not in text
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "�" not in page
    assert '<html lang="en">' in page
    assert "validation text" in page
    assert formers.load(out / "gpt2").tokenizer is not None
    assert formers.load(out / "bert").head == "mlm"
    code, _, err = run_command(capsys, "demo", "--train", "--out", str(out), "--resume")
    assert code == 2
    assert "there is no unfinished demo here. Leave --resume out" in err


def test_demo_continues_after_ctrl_c_at_any_stage(capsys, tmp_path, small_demo, monkeypatch):
    """While a tokenizer is trained, while either model is, and while the report is written."""
    from formers.reports import run_report

    told, stops = [], [("gpt2", "tokenizer", 1), ("gpt2", "training", 5), ("bert", "training", 6)]

    @contextlib.contextmanager
    def listening(console, title, delay_seconds=0.0):
        def tell(what, done, of, detail):
            told.append((title, what, done))
            if stops and (title, what, done) == stops[0]:
                del stops[0]
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.01)  # a signal is delivered between two instructions

        yield tell

    write = run_report.write_runs_page
    monkeypatch.setattr(demo_module, "show_progress", listening)
    monkeypatch.setattr(
        run_report, "write_runs_page", lambda *_: os.kill(os.getpid(), signal.SIGINT) or time.sleep(0.1)
    )
    out = tmp_path / "demo"
    words = ("demo", "--train", "--language", "ko", "--out", str(out))
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
    try:
        for said in ("interrupted", "after step 5; saved", "after step 6; saved", "interrupted"):
            told.clear()
            code, _, err = run_command(capsys, *words)
            assert code == 130
            assert said in err
            assert f"Continue with formers demo --train --language ko --out {out}" in err
            assert len(err.splitlines()) == 1
        monkeypatch.setattr(run_report, "write_runs_page", write)
        told.clear()
        code, text, _ = run_command(capsys, *words, "--resume")
    finally:
        signal.signal(signal.SIGINT, handler)
    assert code == 0
    assert "continuing where it stopped: gpt2 8 of 8 steps, bert 8 of 8 steps" in text
    assert not [one for one in told if one[1] in ("tokenizer", "training")], "nothing is done twice"
    assert formers.load(out / "bert").tokenizer is not None
    assert sorted(p.name for p in out.iterdir()) == [".formers-demo", "bert", "gpt2", "report.html"]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert '<html lang="ko">' in page
    assert "검증 텍스트" in page


def test_demo_fits_its_steps_to_the_machine(tmp_path, monkeypatch):
    """Enough to beat a unigram on a slow one, those of the recipe on a fast one, and in between the time is used."""
    from rich.console import Console

    from formers.training.runs import dry_run

    def choose_for(seconds):
        monkeypatch.setattr(dry_run, "measure_step_seconds", lambda *_, **__: seconds)
        tables = {name: {} for name in demo_module.DEMO_OBJECTIVES}
        plan = demo_module.DemoPlan("en", 0)
        return demo_module.choose_steps(Console(quiet=True), tmp_path, [], [], plan, tables, time.perf_counter())

    assert choose_for(60.0).steps == demo_module.MIN_STEPS
    assert choose_for(0.001).steps == {"gpt2": 500, "bert": 1500}
    between = choose_for(0.1)
    assert demo_module.MIN_STEPS["bert"] < between.steps["bert"] < 1500
    assert sum(between.seconds.values()) + demo_module.FINISH_SECONDS == pytest.approx(
        demo_module.TIME_BUDGET_SECONDS, rel=0.05
    )


def test_demo_counts_all_that_is_left_from_the_first_step_on():
    said = []
    tell = demo_module.add_time_left(lambda *words: said.append(words), step_seconds=0.5, seconds_after=20.0)
    tell("training", 1, 101, "loss 7")
    tell("evaluating", 1, 2, "")
    assert said == [("training", 1, 101, "loss 7, about 70 s left in all"), ("evaluating", 1, 2, "")]


def test_demo_continues_only_with_its_own(tmp_path):
    plan = demo_module.DemoPlan("ko", 3, {"gpt2": 50, "bert": 200}, {"gpt2": 9.0, "bert": 9.0})
    demo_module.write_plan(tmp_path, plan)
    assert demo_module.read_plan(tmp_path, "ko", 3) == plan
    assert demo_module.read_plan(tmp_path, "en", 3) is None
    assert demo_module.read_plan(tmp_path, "ko", 4) is None
    for text in ("", "[]", "{}", '{"language": "ko", "seed": 3, "steps": 5}', '{"language": "ko", "seed": 3, "x": 1}'):
        (tmp_path / "plan.json").write_text(text)
        assert demo_module.read_plan(tmp_path, "ko", 3) is None


def test_demo_leaves_strangers_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(formers.Error, match="not an earlier demo's"):
        demo_module.prepare_output_folder(tmp_path / "mine")
    earlier = tmp_path / "earlier"
    (earlier / "gpt2").mkdir(parents=True)
    (earlier / "report.html").write_text("x")
    (earlier / "gpt2" / "formers.json").write_text("{}")
    (earlier / "my notes.txt").write_text("x")
    assert demo_module.prepare_output_folder(earlier) == earlier
    demo_module.remove_old_outputs(earlier)
    assert sorted(p.name for p in earlier.iterdir()) == [".formers-demo", "my notes.txt"]
    half = tmp_path / "half"  # a demo that was stopped in its middle can be started again
    demo_module.prepare_output_folder(half)
    (half / "gpt2").mkdir()
    assert demo_module.prepare_output_folder(half) == half
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(formers.Error, match="cannot write here"):
            demo_module.prepare_output_folder(place)


def test_demo_takes_no_run_for_its_own(tmp_path, monkeypatch):
    """A folder with a training run's report is not a demo's, and runs/ beside a demo are the user's."""
    trained = tmp_path / "bert-1"
    trained.mkdir()
    (trained / "report.html").write_text("hours of work")
    with pytest.raises(formers.Error, match="not an earlier demo's"):
        demo_module.prepare_output_folder(trained)
    mine = tmp_path / "here" / "runs" / "gpt2-1" / "run.json"
    demo_module.prepare_output_folder(tmp_path / "here")
    mine.parent.mkdir(parents=True)
    mine.write_text("{}")

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo_module, "choose_steps", stop)
    with pytest.raises(KeyboardInterrupt):
        demo_module.demo(train=True, out=tmp_path / "here")
    assert mine.is_file()


def test_demo_says_which_models_are_not_here(capsys, tmp_path, monkeypatch):
    from formers.interop import shipped_models

    monkeypatch.setattr(shipped_models, "SHIPPED_FOLDER", tmp_path / "pretrained")
    code, text, err = run_command(capsys, "demo", "--out", str(tmp_path / "d"))
    assert code == 2
    text = " ".join(text.split())
    assert "formers/bert-mini does not come with this package; left out: fills blanks, from the inside" in text
    assert "formers demo --train trains two small ones" in err
    code, _, err = run_command(capsys, "models")
    assert code == 2
    assert "formers demo --train" in err
    code, _, err = run_command(capsys, "demo", "--language", "ko")
    assert code == 2
    assert "formers demo --train --language" in err


def test_demo_shows_whole_words_in_a_blank():
    from formers.cli.shipped_demo import format_words
    from formers.generation.fill import Guess

    tokens = ["states", "##0s", "kingdom", ",", "nations", "arab", "영화"]
    guesses = [Guess(token, 0.5 / number, "") for number, token in enumerate(tokens, 1)]
    assert format_words(guesses) == "states 50%, kingdom 17%, nations 10%, arab 8%"
    guesses = [Guess("states", 0.9, ""), Guess("##0s", 0.02, ""), Guess("kingdom", 0.004, "")]
    assert format_words(guesses) == "states 90%", "what would be shown as 0%"
    assert format_words(guesses[2:]) == "kingdom 0%"


def test_demo_with_models_of_the_package(capsys, tmp_path, monkeypatch):
    from formers.interop import shipped_models
    from tests.small_models import build_language_model

    place = tmp_path / "pretrained"
    monkeypatch.setattr(shipped_models, "SHIPPED_FOLDER", place)
    for name, family in (("bert-mini", "bert"), ("gpt2-mini", "gpt2"), ("t5-bill-titles", "t5")):
        (place / name).parent.mkdir(exist_ok=True)
        formers.save(build_language_model(family), place / name, storage="int8")
    code, text, err = run_command(capsys, "demo", "--out", str(tmp_path / "d"))
    assert (code, err) == (0, "")
    assert text.count("→") == 3
    assert "formers/word-vectors does not come with this package" in text
    assert (tmp_path / "d" / "inside.html").stat().st_size > 10_000
    record = {"languages": ["en", "ko"], "license": "cc0-1.0", "family": "bert",
              "figures": [{"what": "nsmc accuracy", "value": 82.1, "beside": "from scratch 79.7"}]}  # fmt: skip
    (place / "bert-mini" / "card.json").write_text(json.dumps(record))
    code, text, _ = run_command(capsys, "models")
    assert code == 0
    lines = [line.split() for line in text.splitlines()]
    assert [line[0] for line in lines[1:4]] == ["formers/bert-mini", "formers/gpt2-mini", "formers/t5-bill-titles"]
    assert lines[1][-3:] == ["en,", "ko", "cc0-1.0"]
    assert lines[6] == ["formers/bert-mini", "nsmc", "accuracy", "82.1", "from", "scratch", "79.7"]
