"""The command line: what it prints, and how it fails."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import torch

import formers
from formers.cli import demo as demo_module
from formers.cli.about import EXTRAS
from formers.cli.main import app
from formers.config import parse_byte_size
from formers.registry import FAMILIES
from tests.command_line import run_command

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent.parent / "parity" / "golden"


def test_help_and_version(capsys):
    code, out, _ = run_command(capsys, "--help")
    assert code == 0
    for verb in ("demo", "tree", "import", "export", "doctor"):
        assert verb in out
    assert run_command(capsys, "--version")[1].strip() == f"formers {formers.__version__}"
    for verb in ("demo", "tree", "import", "export", "doctor"):
        out = run_command(capsys, verb, "--help")[1]
        assert f"formers {verb}" in out.split("Usage", 1)[1].split("\n", 1)[1], "an example in the help"


def test_tree(capsys):
    code, out, _ = run_command(capsys, "tree")
    assert code == 0
    assert "109,482,240 without a head" in out
    rows = json.loads(run_command(capsys, "tree", "--as-json")[1])
    assert {row["name"] for row in rows} >= {"gpt2", "bert", "t5"}


@pytest.mark.parametrize("name", FAMILIES)
def test_one_member_of_the_tree(name, capsys):
    code, out, _ = run_command(capsys, "tree", name)
    assert code == 0
    member = FAMILIES[name]
    for word in (member.card.title, member.card.paper, member.card.new, member.card.parent, *member.definition.presets):
        assert word in out
    said = [shlex.split(line) for line in out.split("begin with:")[1].strip().splitlines()]
    assert len(said) >= 2
    for words in said:
        app.parse_args(words[1:], exit_on_error=False, print_error=False)
    assert json.loads(run_command(capsys, "tree", name, "--as-json")[1])["name"] == name


@pytest.mark.parametrize("name", ["word2vec", "glove", "fasttext"])
def test_a_kind_of_word_vectors_in_the_tree(name, capsys):
    code, out, _ = run_command(capsys, "tree", name)
    assert code == 0
    assert f"formers pretrain {name} --data" in out
    assert f"formers neighbours runs/{name}-1 king" in out


def test_no_such_member(capsys):
    code, _, err = run_command(capsys, "tree", "brt")
    assert code == 2
    assert "bert" in err


def test_doctor_offers_what_there_is():
    """Every extra is one of the project's, and what it installs is used."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    sources = "".join(p.read_text() for p in (ROOT / "src" / "formers").rglob("*.py") if p.name != "doctor.py")
    for name, (modules, _) in EXTRAS.items():
        assert name in extras
        assert all(module in sources for module in modules), name


def test_doctor(capsys):
    code, out, _ = run_command(capsys, "doctor")
    assert code == 0
    assert "server" not in out
    for word in ("versions", "torch threads", "C++ compiler", "disk", "varlen", "dense", "hub"):
        assert word in out


def test_doctor_says_where_bf16_is_slow(capsys, monkeypatch):
    from formers.nn import cpu_inference

    monkeypatch.setattr(cpu_inference, "can_prepack", lambda dtype: False)
    assert "works, slower than fp32" in " ".join(run_command(capsys, "doctor")[1].split())


def test_import_and_export(capsys, tmp_path):
    own, back = tmp_path / "own", tmp_path / "hf"
    code, out, _ = run_command(capsys, "import", str(GOLDEN / "GPT2LMHeadModel-0"), str(own))
    assert code == 0
    assert "gpt2, head lm" in out
    assert "without a tokenizer" in out
    code, _, _ = run_command(capsys, "export", str(own), str(back), "--dtype", "bfloat16", "--shard", "20kB")
    assert code == 0
    assert len(list(back.glob("model-*.safetensors"))) > 1
    assert formers.load(back).dtype == torch.bfloat16
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(formers.load(own).logits(ids), formers.load(GOLDEN / "GPT2LMHeadModel-0").logits(ids))


def test_notes_go_to_the_terminal(capsys, tmp_path):
    code, _, err = run_command(
        capsys, "import", str(GOLDEN / "BertForPreTraining-0"), str(tmp_path / "x"), "--head", "tag"
    )
    assert code == 0
    assert "note: new, untrained: heads.tag.out" in err


def broken(tmp_path, name="m", **changes):
    folder = tmp_path / name
    shutil.copytree(GOLDEN / "GPT2LMHeadModel-0", folder)
    if changes:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda t: t / "nowhere", "no such directory"),
        (lambda t: (t / "empty").mkdir() or t / "empty", "the directory is empty"),
        (lambda t: broken(t, strange=1), "unknown key 'strange'"),
        (lambda t: broken(t, n_layer="two"), "setting 'layers' must be int, not 'two'"),
        (lambda t: broken(t, n_head=7), "7 heads do not divide"),
    ],
    ids=["path", "empty", "unknown key", "wrong type", "head split"],
)
def test_errors_are_one_line_and_code_2(capsys, tmp_path, make, message):
    source = make(tmp_path)
    code, out, err = run_command(capsys, "import", str(source), str(tmp_path / "out"))
    assert code == 2
    assert not out
    assert err.count("\n") == 1
    assert message in err
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")], "nothing half-written is left"


def test_a_truncated_file(capsys, tmp_path):
    folder = broken(tmp_path)
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    code, _, err = run_command(capsys, "export", str(folder), str(tmp_path / "out"))
    assert code == 2
    assert "bytes of data are declared" in err
    assert err.count("\n") == 1


def test_words_that_make_no_sense(capsys):
    for words in (["imprt"], ["import"], ["export", "a", "b", "--dtype", "int3"], ["tree", "--colour"]):
        code, _, err = run_command(capsys, *words)
        assert code == 2, words
        assert err.startswith("formers:")
        assert err.count("\n") == 1
    code, _, err = run_command(capsys, "export", "a", "b", "--shard", "big")
    assert code == 2


@pytest.mark.parametrize(
    ("text", "expected"), [("500MB", 5e8), ("5GB", 5e9), ("1.5 GiB", 1.5 * 2**30), ("17", 17), ("2k", 2000)]
)
def test_sizes(text, expected):
    assert parse_byte_size(text) == expected


@pytest.mark.parametrize("text", ["", "MB", "-1GB", "0", "5 bananas"])
def test_sizes_that_are_none(text):
    with pytest.raises(formers.Error, match="is not a size"):
        parse_byte_size(text)


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
    code, text, _ = run_command(capsys, "demo", "--out", str(out))
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
    code, _, err = run_command(capsys, "demo", "--out", str(out), "--resume")
    assert code == 2
    assert "there is no unfinished demo here. Leave --resume out" in err


def test_demo_goes_on_after_ctrl_c_at_any_stage(capsys, tmp_path, small_demo, monkeypatch):
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
    words = ("demo", "--language", "ko", "--out", str(out))
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
    try:
        for said in ("interrupted", "after step 5; saved", "after step 6; saved", "interrupted"):
            told.clear()
            code, _, err = run_command(capsys, *words)
            assert code == 130
            assert said in err
            assert f"Continue with formers demo --language ko --out {out}" in err
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

    def chosen(seconds):
        monkeypatch.setattr(dry_run, "measure_step_seconds", lambda *_, **__: seconds)
        tables = {name: {} for name in demo_module.DEMO_OBJECTIVES}
        plan = demo_module.DemoPlan("en", 0)
        return demo_module.choose_steps(Console(quiet=True), tmp_path, [], [], plan, tables, time.perf_counter())

    assert chosen(60.0).steps == demo_module.MIN_STEPS
    assert chosen(0.001).steps == {"gpt2": 500, "bert": 1500}
    between = chosen(0.1)
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


def test_demo_goes_on_only_with_its_own(tmp_path):
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
    with pytest.raises(demo_module.DemoInterrupted):
        demo_module.demo(out=tmp_path / "here")
    assert mine.is_file()


def test_a_full_disk_behind_the_output():
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "formers.cli.main", "doctor"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "formers: No space left on device\n"


def test_an_output_that_exists_is_refused_before_anything_is_read(capsys, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x").write_text("x")
    code, _, err = run_command(capsys, "import", str(tmp_path / "nothing"), str(tmp_path / "out"))
    assert code == 2
    assert "exists already" in err


def test_ctrl_c(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "formers", "demo", "--out", str(tmp_path / "d")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a test run in the background ignores it
    )  # fmt: skip
    try:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert err == f"formers: interrupted. Continue with formers demo --out {tmp_path / 'd'}\n"
    assert not list((tmp_path / "d").glob("*/formers.json"))


def test_ctrl_c_within_an_import(tmp_path):
    """What is imported may turn it into an error of its own."""
    (tmp_path / "cyclopts.py").write_text(
        "import os, signal, time\ntry: os.kill(os.getpid(), signal.SIGINT); time.sleep(9)\n"
        "except KeyboardInterrupt: raise AttributeError('a module in pieces')\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "formers", "tree"], capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "PYTHONPATH": path}, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "formers: interrupted\n")
