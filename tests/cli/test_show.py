"""formers show: what a student reads."""

from __future__ import annotations

import re

import pytest

from formers.cli.main import main
from formers.objectives.registry import OBJECTIVES
from formers.registry import train_tokenizer
from tests.command_line import run_command
from tests.objectives import toys

WORDS = " ".join(f"w{i}" for i in range(7, 60) if i % 3)
TEXTS = [f"{WORDS}. {WORDS}", " ".join(reversed(WORDS.split()))]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    where = tmp_path_factory.mktemp("show") / "tokenizer.json"
    toys.build_tokenizer(60, sentinels=20).save(where)
    return str(where)


def run_show(capsys, *words):
    return run_command(capsys, "show", *words)


def find_line(title, out):
    return re.search(rf"^  {title} +(.*)$", out, re.MULTILINE)[1]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_can_be_shown(capsys, tokenizer, name):
    texts = [word for text in TEXTS for word in ("--text", text)]
    code, out, err = run_show(capsys, name, *texts, "--tokenizer", tokenizer, "--length", "24", "--examples", "2")
    if name in ("sop", "dialogue") and code:
        assert "sentences" in err or "turns" in err
        return
    assert code == 0, err
    assert out.startswith(f"{name}: {OBJECTIVES[name].help}")
    assert "example 1 of" in out
    assert "�" not in out
    assert "\x1b" not in out, "plain text, where there is no terminal"


def test_what_is_hidden_and_what_is_asked(capsys, tokenizer):
    code, out, _ = run_show(capsys, "mlm", "--text", WORDS, "--tokenizer", tokenizer, "--length", "24", "--seed", "3")
    assert code == 0
    text, seen, said = (find_line(title, out) for title in ("text", "model sees", "predicts"))
    hidden = re.findall(r"«(\S+)»", text)
    assert hidden == re.findall(r"(\S+) \((?:stays|shown)", said)
    assert len(hidden) == round(0.15 * 24)
    assert len(seen.split()) == len(text.split()) == 24


def test_pairs_say_the_question(capsys, tokenizer):
    texts = [word for text in TEXTS for word in ("--text", text)]
    _, out, _ = run_show(capsys, "nsp", *texts, "--tokenizer", tokenizer, "--length", "24")
    assert "sees, A" in out
    assert "sees, B" in out
    assert re.search(r"does the second text follow the first\? [01]: ", out)
    _, out, _ = run_show(capsys, "unit-pairs", *texts, "--tokenizer", tokenizer, "--length", "24")
    assert re.search(r"\? (0: no|1: yes)", out)
    lines = [word for text in TEXTS for word in ("--text", text.replace(" w20", ". w20").replace(" w41", ". w41"))]
    code, out, err = run_show(capsys, "dialogue", *lines, "--tokenizer", tokenizer, "--length", "24")
    assert code == 0, err
    assert "is this a real conversation?" in out


def test_sides_and_orders(capsys, tokenizer):
    _, out, _ = run_show(
        capsys, "span-corruption", "--text", WORDS, "--tokenizer", tokenizer, "--length", "30", "--examples", "1"
    )
    encoder, decoder = (find_line(title, out) for title in ("encoder", "decoder"))
    assert encoder.count("<extra_id_") == decoder.count("<extra_id_") > 0
    _, out, _ = run_show(capsys, "plm", "--text", WORDS, "--tokenizer", tokenizer, "--examples", "1")
    assert re.search(r"«\S+»¹", out)
    assert "sees, 1." in out
    _, out, _ = run_show(capsys, "seq2seq", "--text", "w7 w8\tw10 w11", "--tokenizer", tokenizer)
    assert re.search(r"decoder +w10 w11 </s>", out)


def test_options_and_errors(capsys, tokenizer):
    where = ("--text", WORDS, "--tokenizer", tokenizer, "--length", "24")
    _, out, _ = run_show(capsys, "mlm", *where, "--option", "mask_rate=0.5", "--examples", "1")
    assert len(re.findall("«", out)) == 12
    for words, message in (
        (("denoisin", *where), "Did you mean 'denoising'"),
        (("mlm", *where, "--option", "mask_rates=1"), "Did you mean 'mask_rate'"),
        (("mlm", *where, "--option", "mask_rate"), "Write name=value"),
        (("nsp", *where), "there is 1 document"),
        (("mlm", "--text", " "), "the text is empty"),
        (("mlm", *where, "--data", "x.txt"), "two sources"),
        (("mlm", *where, "--examples", "0"), "cannot show 0"),
        (("seq2seq", *where), "1 text cannot be paired"),
    ):
        code, _, err = run_show(capsys, *words)
        assert code == 2, words
        assert message in err
        assert len(err.strip().splitlines()) == 1


def test_korean_without_a_tokenizer(capsys, monkeypatch):
    """A small tokenizer is trained; nothing is broken into jamo or bytes."""
    text = "옛날 옛적에 호랑이가 담배를 피우던 시절의 이야기입니다. 호랑이는 산에서 살았습니다."
    monkeypatch.setattr("formers.inspection.objective_steps.MAX_TOKENIZER_DOCUMENTS", 5)
    monkeypatch.setattr("formers.inspection.objective_steps.SMALL_VOCAB_SIZE", 300)
    code, out, err = run_show(capsys, "whole-word", "--text", text, "--examples", "1")
    assert code == 0, err
    assert "호랑이" in out.replace(" ##", "").replace("«", "").replace("»", "")
    assert "�" not in out


def test_a_file(capsys, tmp_path):
    train_tokenizer("wordpiece", [WORDS] * 3, 200).save(tmp_path / "tokenizer.json")
    (tmp_path / "corpus.txt").write_text("\n\n".join(TEXTS), encoding="utf-8")
    code, out, err = run_show(
        capsys, "ngrams", "--data", str(tmp_path / "corpus.txt"), "--tokenizer", str(tmp_path), "--examples", "9"
    )
    assert code == 0, err
    assert "example 2 of" in out


@pytest.mark.parametrize("words", [
    ("denoising", "mean_span_length=0"), ("denoising", "mean_span_length=-1"),
    ("span-corruption", "mean_span_length=-2"), ("mlm", "max_ngram=-1"), ("plm", "max_ngram=0"),
    ("dialogue", "num_turns=0"), ("mlm", "max_masked=-3"), ("mlm", "mask_ratio=0.95"), ("mlm", "mask_rate=1.5"),
])  # fmt: skip
def test_odd_options_are_refused(words, capsys, monkeypatch):
    monkeypatch.setattr("formers.inspection.objective_steps.MAX_TOKENIZER_DOCUMENTS", 5)
    monkeypatch.setattr("formers.inspection.objective_steps.SMALL_VOCAB_SIZE", 300)
    with pytest.raises(SystemExit) as end:
        main(
            [
                "show",
                words[0],
                "--option",
                words[1],
                "--text",
                "One sentence. And another one. A third of them.",
            ]
        )
    assert end.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_the_tasks_of_continual_pretraining_ask_for_classes(capsys):
    """A class is no token: class 0 was shown as [PAD], and nothing said which task an example belongs to."""
    text = ["The King went to Paris. However, he lost the war there. Then he came home.", "Dogs bark. But cats sleep."]
    code, said, _ = run_command(
        capsys, "show", "continual", "--examples", "40", *(word for one in text for word in ("--text", one))
    )
    assert code == 0
    assert "«[PAD]»" not in said
    tasks = {line.split()[1] for line in said.splitlines() if line.startswith("  task ")}
    assert {"capital", "document"} & tasks, tasks
    assert "(capitalised)" in said or "(not capitalised)" in said or "(occurs once)" in said or "(occurs again)" in said
    assert {"reorder", "distance", "relevance"} & tasks, tasks
    assert "  answer " in said
