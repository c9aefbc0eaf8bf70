"""formers pretrain, runs, report, rerun: from a text file to a model, as typed in a terminal."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys

import pytest
import torch
import yaml

import formers
from formers.data.readers import load_bundled_corpus
from formers.objectives.registry import OBJECTIVES
from formers.registry import FAMILIES
from formers.training.checkpoint.local import Checkpoints
from formers.training.runs.pretrain import PretrainResult
from formers.training.validation import Score
from tests.command_line import run_command

SMALL = """
    --model.dim 16 --model.layers 1 --model.heads 2 --model.ff 32 --model.context 24 --data.vocab_size 300
    --data.valid_fraction 0.2 --train.steps 6 --train.batch_tokens 240 --train.seq_length 24 --train.warmup_steps 2
    --train.eval_every 3 --train.eval_batches 2 --train.save_every 3 --train.samples 1 --train.lr=1e-2
""".split()  # noqa: SIM905

NOT_CHECKED = "not checked: vLLM is not installed"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Korean laws, a document a line."""
    file = tmp_path_factory.mktemp("text") / "법률.txt"
    file.write_text("\n".join(t.replace("\n", " ") for t in load_bundled_corpus("ko")[0][:60]) + "\n", encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def trained_run(text, tmp_path_factory):
    """The folder of a small run, and what the command said."""
    folder = tmp_path_factory.mktemp("runs") / "gpt2-1"
    code = "import sys; from formers.cli.main import main; main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, "pretrain", "gpt2", "--data", str(text), "--out", str(folder), *SMALL],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_help_answers_without_torch(capsys):
    code = "import sys; from formers.cli.main import main\n"
    code += "try: main(['pretrain', '--help'])\nfinally: print('torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60).stdout
    assert said.rstrip().endswith("False"), "torch was imported for a page of help"
    for family in ("bert", "gpt2", "transformer_xl", "switch", "elmo"):
        assert family in said
    assert "textcnn" not in said, "nobody pretrains it"
    one = run_command(capsys, "pretrain", "bert", "--help")[1]
    assert "formers pretrain bert --data my.txt" in one
    assert "143" in one
    paired = {name for name, entry in OBJECTIVES.items() if entry.takes_pairs}
    assert paired == {"seq2seq"}
    for member in FAMILIES.values():
        assert member.takes_pairs == (member.definition.objective in paired)
        assert member.is_pretrained == bool(member.definition.objective)
    for family in (name for name, member in FAMILIES.items() if member.takes_pairs):
        one = run_command(capsys, "pretrain", family, "--help")[1]
        assert "my.txt" not in one
        assert f"formers pretrain {family} --data pairs.csv --column de,en" in one
    for option in ("--data", "--config", "--recipe", "--resume", "--print-config", "--dry-run"):
        assert option in one


def test_settings_in_a_family_s_help_are_settings(capsys):
    examples = [(name, words) for name, member in FAMILIES.items() for words in member.example_settings]
    assert {name for name, _ in examples} == {
        name for name, member in FAMILIES.items() if member.definition.has_recurrent_decoder
    }
    for family, words in examples:
        assert words in " ".join(run_command(capsys, "pretrain", family, "--help")[1].split())
        code, out, _ = run_command(capsys, "pretrain", family, *words.split(), "--print-config")
        assert code == 0, words
        tables = yaml.safe_load(out)
        for name, value in zip(words.split()[::2], words.split()[1::2], strict=True):
            table, key = name[2:].split(".")
            assert str(tables[table][key]).lower() == value


def test_print_config_given_back_says_the_same(capsys, tmp_path):
    words = ["--preset", "bert-base", "--recipe", "paper", "--train.lr", "3e-4", "--model.layers=3", "--data", "글.txt"]
    code, said, _ = run_command(capsys, "pretrain", "bert", *words, "--print-config")
    assert code == 0
    asked = yaml.safe_load(said)
    assert (asked["train"]["lr"], asked["model"]["layers"], asked["data"]["source"]) == (3e-4, 3, ["글.txt"])
    file = tmp_path / "run.yaml"
    file.write_text(said, encoding="utf-8")
    assert run_command(capsys, "pretrain", "bert", "--config", file, "--print-config")[1] == said
    again = run_command(capsys, "pretrain", "bert", "--config", file, "--print-config", "--train.lr", "1e-5")[1]
    assert yaml.safe_load(again)["train"] == {**asked["train"], "lr": 1e-5}


def test_from_text_to_a_model_and_a_report(trained_run, text):
    folder, said = trained_run
    assert f"model: {folder / 'model'}" in said
    assert "validation loss" in said
    about = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    assert about["config"]["data"]["source"] == [str(text)]
    assert about["machine"]["command"][:2] == ["pretrain", "gpt2"]
    model = formers.load(folder)
    sentence = text.read_text(encoding="utf-8").splitlines()[0]
    assert model.tokenizer.decode(model.tokenizer.encode(sentence, special=False)) == sentence
    best = Checkpoints(folder / "steps", remove_stale=False).load(about["result"]["best"])[0]["model"]
    for name, tensor in model.model.named_parameters():
        assert torch.equal(tensor, best[name])
    assert (folder / "report.md").is_file()


@pytest.mark.parametrize("right", [0.25, math.nan])
def test_a_share_that_is_not_finite_is_not_printed(capsys, tmp_path, monkeypatch, right):
    score, base = Score(2.5, right), Score(3.0, 0.125)
    monkeypatch.setattr(
        "formers.training.runs.pretrain.pretrain", lambda *_, **__: PretrainResult(tmp_path, None, score, base, 1.0)
    )
    said = run_command(capsys, "pretrain", "elmo", "--out", tmp_path)[1].splitlines()[0]
    accuracy = "" if math.isnan(right) else ", accuracy 25.0 %"
    assert said == f"validation loss 2.50{accuracy} (unigram: loss 3.00, accuracy 12.5 %)"


def test_dry_run_writes_nothing(capsys, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, said, _ = run_command(capsys, "pretrain", "gpt2", "--data", text, "--dry-run", *SMALL)
    assert code == 0
    for word in ("parameters (gpt2)", "tokens/s", "MB each", "6 of 240 tokens: 1,440 in all"):
        assert word in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--stpes", "5"], "unknown option --stpes. Did you mean --train.steps?"),
        (["--train.stpes", "5"], "unknown setting 'stpes'. Did you mean 'steps'"),
        (["--optim.lr", "5"], "unknown setting 'optim.lr'"),
        (["--train.steps"], "--train.steps has no value"),
        (["--train.steps", "--train.lr", "1"], "--train.steps has no value"),
        (["--train.steps", "many"], "must be int"),
        (["--model.heads", "3"], "heads"),
        (["--preset", "gpt2-huge"], "gpt2 has no preset 'gpt2-huge'"),
        (["--recipe", "slow"], "slow"),
        (["--config", "none.yaml"], "none.yaml"),
        ([], "there is no text to learn from"),
        (["--data", "none.txt"], "none.txt"),
        (["--resume", "--out", "/dev/null/x"], "/dev/null"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_mistakes_are_one_line_and_code_2(capsys, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run_command(capsys, "pretrain", "gpt2", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_a_run_that_is_there_is_not_overwritten(capsys, trained_run):
    folder, _ = trained_run
    before = (folder / "run.json").read_bytes()
    for words, message in (
        ([], "there is a run here already"),
        (["--resume", "--train.batch_tokens", "480"], "train.batch_tokens cannot change in a resumed run"),
        (["--resume", "--train.steps", "3"], "6 steps done, more than 3"),
    ):
        code, out, err = run_command(capsys, "pretrain", "gpt2", "--out", folder, *words)
        assert (code, out) == (2, "")
        assert message in err
        assert err.count("\n") == 1
    assert (folder / "run.json").read_bytes() == before


def test_runs_and_report(capsys, trained_run, tmp_path):
    folder, _ = trained_run
    code, said, _ = run_command(capsys, "runs", folder.parent)
    assert code == 0
    row = next(line for line in said.splitlines() if line.startswith(" gpt2-1") or line.startswith("gpt2-1"))
    assert "6 of 6" in row
    assert "done" in row
    (folder / "report.md").unlink()
    code, said, _ = run_command(capsys, "report", folder)
    assert (code, said.strip()) == (0, str(folder / "report.html"))
    assert "steps: 6" in (folder / "report.md").read_text(encoding="utf-8")
    for words, message in (
        (["runs", tmp_path / "no"], "no such folder"),
        (["report", tmp_path], "this is not a run folder"),
        (["rerun", tmp_path, "--out", tmp_path / "x"], "this is not a run folder"),
    ):
        code, _, err = run_command(capsys, *words)
        assert code == 2
        assert message in err
        assert err.count("\n") == 1


def test_rerun_gives_the_same_weights(capsys, trained_run, tmp_path):
    folder, _ = trained_run
    code, _, err = run_command(capsys, "rerun", folder, "--out", tmp_path / "again")
    assert code == 0, err
    first, again = formers.load(folder), formers.load(tmp_path / "again")
    assert again.tokenizer.fingerprint == first.tokenizer.fingerprint
    for (name, a), (_, b) in zip(first.model.named_parameters(), again.model.named_parameters(), strict=True):
        assert torch.equal(a, b), name


def test_rerun_continues_after_ctrl_c(capsys, trained_run, tmp_path, monkeypatch):
    from formers.cli import pretrain

    @contextlib.contextmanager
    def listening(console, title, quiet=0.0):
        yield lambda what, done, of, detail: (what, done) == ("training", 2) and os.kill(os.getpid(), signal.SIGINT)

    words = ("rerun", trained_run[0], "--out", tmp_path / "again")
    with monkeypatch.context() as patched:
        patched.setattr(pretrain, "show_progress", listening)
        code, _, err = run_command(capsys, *words)
    assert code == 130
    assert "saved. Continue with --resume" in err
    code, _, err = run_command(capsys, *words, "--resume")
    assert code == 0, err
    first, again = formers.load(trained_run[0]), formers.load(tmp_path / "again")
    assert all(map(torch.equal, first.model.parameters(), again.model.parameters()))


def test_rerun_refuses_other_text(capsys, trained_run, text, tmp_path):
    folder, _ = trained_run
    before = text.read_bytes()
    try:
        text.write_bytes(before + "한 줄 더\n".encode())
        code, out, err = run_command(capsys, "rerun", folder, "--out", tmp_path / "again")
    finally:
        text.write_bytes(before)
    assert (code, out) == (2, "")
    assert "has changed since the run began" in err
    assert not (tmp_path / "again" / "run.json").exists()


def test_a_run_is_where_another_begins(capsys, trained_run, text, tmp_path):
    folder, _ = trained_run
    begin = [
        "--init",
        folder,
        "--tokenizer",
        folder,
        "--data",
        text,
        "--out",
        tmp_path / "next",
        "--train.seq_length",
        24,
    ]
    code, _, err = run_command(
        capsys, "pretrain", "gpt2", *begin, "--train.steps", 1, "--train.lr", 1e-99, "--train.batch_tokens", 240
    )
    assert code == 0, err
    first, again = (dict(formers.load(path).model.named_parameters()) for path in (folder, tmp_path / "next"))
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_a_run_is_exported_by_its_folder(capsys, trained_run, tmp_path):
    folder, _ = trained_run
    code, said, _ = run_command(capsys, "export", folder, "--check", "vllm")
    assert code == 0
    assert said.startswith(f"vllm: {NOT_CHECKED}")
    assert "it has a class for this model: GPT2LMHeadModel, it generates text. No numbers were compared" in said
    code, said, _ = run_command(capsys, "export", folder, tmp_path / "hf")
    assert code == 0
    assert "with its tokenizer" in said
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(formers.load(tmp_path / "hf").logits(ids), formers.load(folder).logits(ids))
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "run.json").write_text("{}")
    code, _, err = run_command(capsys, "export", tmp_path / "half", tmp_path / "out")
    assert code == 2
    assert "this run has made no model yet" in err
    code, _, err = run_command(capsys, "export", folder)
    assert code == 2
    assert "no directory to write is named" in err
