"""formers generate, translate, summarise, fill: what they print, where texts come from, and how they fail."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest

import formers
from formers import registry
from formers.generation.beam import BeamState
from tests.command_line import run_command

LINES = ["the cat sat on the mat and the dog sat on the log", "안녕하세요 여러분 오늘은 날씨가 좋습니다"] * 4


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for family, head in (("gpt2", "lm"), ("t5", "lm"), ("bert", "mlm")):
        tokenizer = registry.train_tokenizer(family, LINES, 280)
        roles = {role: tokenizer.id(role) for role in ("pad", "bos", "eos") if tokenizer.id(role) is not None}
        sizes = {"dim": 16, "layers": 1, "heads": 2, "init": 0.4, "ff": 20}
        f = formers.build(family, head, vocab=len(tokenizer), **sizes, **(roles if family != "bert" else {}))
        f.tokenizer = tokenizer
        formers.save(f, folder / family)
    return folder


def run_with_input(capsys, *words, stdin=None, monkeypatch=None):
    """Run a command, with bytes on its standard input if there are any."""
    if stdin is not None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    return run_command(capsys, *words)


def test_generate_shows_what_the_library_gives(capsys, models):
    f = formers.load(models / "gpt2")
    code, out, _ = run_with_input(
        capsys, "generate", models / "gpt2", "안녕", "--max-new-tokens", 9, "--top-k", 20, "--seed", 3
    )
    assert (code, out) == (0, f.generate("안녕", 9, top_k=20, seed=3) + "\n")
    assert (
        run_with_input(
            capsys, "generate", models / "gpt2", "--prompt", "안녕", "--max-new-tokens", 9, "--top-k", 20, "--seed", 3
        )[1]
        == out
    )
    out = run_with_input(
        capsys, "generate", models / "gpt2", "the", "--max-new-tokens", 5, "--num-samples", 3, "--as-json"
    )[1]
    assert json.loads(out) == {"prompt": "the", "texts": f.generate("the", 5, num_samples=3)}
    out = run_with_input(
        capsys, "generate", models / "gpt2", "the", "--max-new-tokens", 5, "--num-beams", 3, "--early-stopping", "yes"
    )[1]
    assert out == f.generate("the", 5, num_beams=3, early_stopping=True) + "\n"


@pytest.mark.parametrize("verb", ["generate", "translate", "summarise"])
def test_the_penalties_of_gnmt_are_options_of_every_search(capsys, models, monkeypatch, verb):
    searches, start = [], BeamState.__init__

    def record(self, batch, constraints):
        searches.append(constraints.options)
        start(self, batch, constraints)

    monkeypatch.setattr(BeamState, "__init__", record)
    penalties = ["--length-penalty", 0.6, "--length-normalisation", "gnmt", "--coverage", 0.2]
    code, _, error = run_command(
        capsys, verb, models / "t5", "the cat", "--max-new-tokens", 3, "--num-beams", 2, *penalties
    )
    assert code == 0, error
    (used,) = searches
    assert (used.num_beams, used.length_penalty, used.length_normalisation, used.coverage) == (2, 0.6, "gnmt", 0.2)


def test_texts_of_files_and_pipes(capsys, models, tmp_path, monkeypatch):
    f = formers.load(models / "gpt2")
    (tmp_path / "p.txt").write_text("the cat\n안녕\n", encoding="utf-8")
    code, out, _ = run_with_input(
        capsys, "generate", models / "gpt2", "--file", tmp_path / "p.txt", "--temperature", 0, "--as-json"
    )
    assert code == 0
    assert [json.loads(line)["texts"][0] for line in out.splitlines()] == f.generate(["the cat", "안녕"], temperature=0)
    piped = run_with_input(
        capsys, "generate", models / "gpt2", "--max-new-tokens", 4, stdin="안녕\n".encode(), monkeypatch=monkeypatch
    )
    assert piped[1] == f.generate("안녕", 4) + "\n"
    for data, message in (
        (b"", "the standard input is empty"),
        (b"\xff\xfe\xff", "the standard input: this is not UTF-8"),
    ):
        code, _, err = run_with_input(capsys, "generate", models / "gpt2", stdin=data, monkeypatch=monkeypatch)
        assert code == 2
        assert message in err
    t5 = formers.load(models / "t5")
    lines = b"the cat\n\nthe dog\n"
    code, out, _ = run_with_input(
        capsys,
        "translate",
        models / "t5",
        "--to",
        "German",
        "--max-new-tokens",
        5,
        stdin=lines,
        monkeypatch=monkeypatch,
    )
    first, second = t5.translate(["the cat", "the dog"], "German", max_new_tokens=5)
    assert (code, out.split("\n")) == (0, [" ".join(first.split()), "", " ".join(second.split()), ""])
    code, out, _ = run_with_input(capsys, "summarise", models / "t5", stdin=lines, monkeypatch=monkeypatch)
    assert out.rstrip("\n") == t5.summarise("the cat\n\nthe dog").rstrip("\n")


def test_blank_lines_stay_in_their_places(capsys, models, tmp_path):
    f = formers.load(models / "gpt2")
    (tmp_path / "p.txt").write_text("\nthe cat\n  \n\nthe dog\n\n", encoding="utf-8")
    words = ("generate", models / "gpt2", "--file", tmp_path / "p.txt", "--temperature", 0, "--max-new-tokens", 5)
    first, second = f.generate(["the cat", "the dog"], 5, temperature=0)
    want = ["", first, "", "", second, ""]
    assert run_with_input(capsys, *words)[1].split("\n")[:-1] == [" ".join(text.split()) for text in want]
    said = [json.loads(line) for line in run_with_input(capsys, *words, "--as-json")[1].splitlines()]
    assert [one["texts"] for one in said] == [[text] if text else [] for text in want]
    (tmp_path / "b.txt").write_text("the ___\n\n안녕 ___\n", encoding="utf-8")
    out = run_with_input(capsys, "fill", models / "bert", "--file", tmp_path / "b.txt", "--as-json")[1]
    assert [len(json.loads(line)["blanks"]) for line in out.splitlines()] == [1, 0, 1]
    (tmp_path / "p.txt").write_text("\n \n", encoding="utf-8")
    code, _, err = run_with_input(capsys, *words)
    assert code == 2
    assert "holds no text" in err


def test_weights_and_a_draft(capsys, models):
    f = formers.load(models / "gpt2")
    words = ("generate", models / "gpt2", "the cat", "--max-new-tokens", 9, "--temperature", 0)
    plain = f.generate("the cat", 9, temperature=0)
    assert run_with_input(capsys, *words, "--draft", models / "gpt2")[1] == plain + "\n"
    assert (
        run_with_input(capsys, *words, "--draft", models / "gpt2", "--stop", plain[2:4])[1]
        == plain[: plain.find(plain[2:4])] + "\n"
    )
    for kind in ("fp32", "bf16", "int8"):
        code, out, _ = run_with_input(capsys, *words, "--dtype", kind)
        assert (code, out) == (
            0,
            formers.load(models / "gpt2").freeze(kind).generate("the cat", 9, temperature=0) + "\n",
        )


def test_fill_shows_every_blank(capsys, models):
    code, out, _ = run_with_input(capsys, "fill", models / "bert", "the ___ sat on the ___", "--top-k", 2)
    assert code == 0
    assert len(out.splitlines()) == 6
    assert "%" in out
    said = json.loads(run_with_input(capsys, "fill", models / "bert", "안녕하세요 ___", "--top-k", 2, "--as-json")[1])
    want = formers.load(models / "bert").fill("안녕하세요 ___", 2)
    assert [guess["text"] for guess in said["blanks"][0]] == [guess.text for guess in want]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("generate", "gpt2", "x", "--num-beams", 2, "--top-k", 3), "does not sample: top_k does not apply"),
        (("generate", "gpt2", "x", "--top-p", 1.5), "top_p must be above 0"),
        (("generate", "gpt2", "x", "--max-new-tokens", 0), "tokens must be at least 1"),
        (("generate", "gpt2", "x", "--min-new-tokens", 99), "at least 99 tokens are asked for, and at most 64"),
        (("generate", "gpt2", "x", "--early-stopping", "soon"), "early"),
        (("generate", "gpt2", "x", "--file", "y"), "two sources"),
        (("generate", "gpt2", "--file", "nowhere.txt"), "nowhere.txt"),
        (("generate", "bert", "x"), "does not generate"),
        (("generate", "gpt2", "x", "--draft", "gpt2", "--num-beams", 2), "a draft cannot be combined with beam search"),
        (("generate", "gpt2", "x", "--draft", "t5"), "a draft must be of the model's kind"),
        (("generate", "nothing", "x"), "nothing"),
        (("translate", "gpt2", "x"), "must be told the target language"),
        (("fill", "gpt2", "x ___"), "does not fill"),
        (("fill", "bert", "x"), "the text has 0 blanks"),
        (("fill", "bert", "x ___", "--top-k", 0), "top_k must be at least 1"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(words, message, capsys, models, monkeypatch):
    monkeypatch.chdir(models)
    code, out, err = run_with_input(capsys, *words)
    assert code == 2
    assert not out
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_a_long_prompt_is_not_cut_in_silence(capsys, models):
    code, out, err = run_with_input(capsys, "generate", models / "gpt2", "the cat " * 3000, "--max-new-tokens", 2)
    assert code == 0
    assert out
    assert "note: a prompt of" in err


@pytest.mark.parametrize("verb", ["generate", "translate", "summarise", "fill"])
def test_help_has_examples(verb, capsys):
    out = run_with_input(capsys, verb, "--help")[1]
    assert f"formers {verb} my-" in out


def test_a_start_does_not_import_the_compiler(models):
    """torch._dynamo takes more than a second to import, and nothing here is compiled."""
    code = f"import sys; from formers.cli.main import main\ntry: main(['fill', {str(models / 'bert')!r}, 'the ___'])\n"
    code += "finally: print('torch' in sys.modules, 'torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.rstrip().endswith("True False"), done.stderr
