"""What all verbs share on the command line: --device and --dtype, JSON that is JSON, exit codes, --overwrite."""

from __future__ import annotations

import json
import math

import pytest
import torch

import formers
from formers import registry
from formers.cli.common import Placement, place_model
from formers.cli.main import app, main
from formers.cli.terminal import to_json
from formers.former import choose_device
from formers.verbs import VERBS
from tests.command_line import run_command

LINES = ["the cat sat on the mat and the dog sat on the log", "안녕하세요 여러분 오늘은 날씨가 좋습니다"] * 4


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Tiny models, sound and damaged: gpt2, bert (masked), and a classifier."""
    where = tmp_path_factory.mktemp("models")
    for name, family, head in (("gpt2", "gpt2", "lm"), ("bert", "bert", "mlm"), ("judge", "bert", "classify")):
        tokenizer = registry.train_tokenizer(family, LINES, 280, workers=1)
        sizes = {"vocab": len(tokenizer), "dim": 16, "layers": 1, "heads": 2, "context": 40}
        roles = {"bos": tokenizer.id("eos"), "eos": tokenizer.id("eos")} if family == "gpt2" else {"ff": 16}
        f = formers.build(family, head=head, **sizes, **roles)
        f.tokenizer = tokenizer
        formers.save(f, where / name)
        with torch.no_grad():
            for parameter in f.model.parameters():
                parameter.fill_(math.nan)
        formers.save(f, where / f"{name}-nan")
    (where / "lines.txt").write_text("\n".join(LINES), encoding="utf-8")
    (where / "few.tsv").write_text("text\tlabel\n" + "".join(f"{x}\tab\n{x} b\tcd\n" for x in LINES[:2]), "utf-8")
    return where


ASKED = {
    "generate": ("gpt2", "the cat", "--max-new-tokens", 3),
    "translate": ("gpt2", "the cat", "--to", "German", "--max-new-tokens", 3),
    "summarise": ("gpt2", "the cat", "--max-new-tokens", 3),
    "fill": ("bert", "the ___ sat", "--as-json"),
    "classify": ("judge", "the cat"),
    "score": ("gpt2", "the cat"),
    "evaluate": ("gpt2", "--data", "lines.txt", "--as-json"),
    "neighbours": ("bert", "the cat", "--text", "the dog", "--text", "the mat"),
    "embed": ("bert", "--text", "the cat", "--out", "out.jsonl", "--overwrite"),
    "augment": ("bert", "--train", "few.tsv", "--out", "new.jsonl", "--label-filter", "none", "--overwrite"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_takes_a_device_and_a_type(verb):
    required = {
        "evaluate": ("--data", "x"), "embed": ("--out", "x"), "augment": ("--train", "x", "--out", "y"),
        "inspect": ("text", "--out", "view.html"),
    }  # fmt: skip
    words = [verb, "model", *required.get(verb, ("text",))]
    app.parse_args([*words, "--device", "cpu", "--dtype", "bf16"], exit_on_error=False, print_error=False)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["bf16", "int8"])
@pytest.mark.parametrize("verb", ASKED)
def test_verbs_run_in_other_types(verb, dtype, models, monkeypatch, capsys):
    monkeypatch.chdir(models)
    code, _, err = run_command(capsys, verb, *ASKED[verb], "--device", "cpu", "--dtype", dtype)
    assert code == 0, err


@pytest.mark.parametrize("verb", ASKED)
def test_a_damaged_model_is_exit_code_3(verb, models, monkeypatch, capsys):
    monkeypatch.chdir(models)
    model, *more = ASKED[verb]
    code, out, err = run_command(capsys, verb, f"{model}-nan", *more)
    assert (code, out) == (3, ""), err
    assert "not finite" in err
    assert err.splitlines()[-1].startswith("formers: the model")


def test_entities(tmp_path, capsys, monkeypatch):
    tokenizer = registry.train_tokenizer("bert", LINES, 280, workers=1)
    f = formers.build("bert", head="tag", labels=["B-X", "I-X"], vocab=len(tokenizer), dim=16, layers=1, heads=2, ff=16)
    f.tokenizer = tokenizer
    f.save(tmp_path / "tag")
    _, out, _ = run_command(capsys, "tag", tmp_path / "tag", "the cat sat", "안녕하세요 여러분", "--entities")
    rows = [json.loads(line) for line in out.splitlines()]
    assert {name for row in rows for one in row for name in one} == {"text", "label", "start", "end", "score"}
    assert all(rows)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert "X" in run_command(capsys, "tag", tmp_path / "tag", "the cat sat", "--entities")[1]


def test_devices_that_are_not_here(models, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device, message in (("cuda:7", "there is no GPU cuda:7 here"), ("tpux", "there is no device 'tpux'")):
        code, _, err = run_command(capsys, "generate", models / "gpt2", "x", "--device", device)
        assert code == 2
        assert message in err
    with pytest.raises(formers.Error, match="there is no device 'tpux'"):
        formers.load(models / "gpt2", device="tpux")
    assert choose_device().type == "cpu"


def test_a_gpu_is_chosen_by_default(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    moved = []

    class Model:
        def to(self, device, dtype=None):
            moved.append((str(device), dtype))
            return self

    place_model(Model())
    place_model(Model(), Placement(dtype="bf16"))
    place_model(Model(), Placement(dtype="float16"))
    assert moved == [("cuda:0", None), ("cuda:0", torch.bfloat16), ("cuda:0", torch.float16)]
    with pytest.raises(formers.Error, match="int8 weights are for a CPU"):
        place_model(Model(), Placement(dtype="int8"))


def test_json_is_json(models, capsys):
    assert to_json({"a": math.nan, "b": [1, (math.inf, "가")]}) == '{"a": null, "b": [1, [null, "가"]]}'
    (models / "long.txt").write_text("안녕하세요여러분" * 60, encoding="utf-8")  # one word: its perplexity is too large
    _, out, _ = run_command(capsys, "evaluate", models / "gpt2", "--data", models / "long.txt", "--as-json")

    def never(word):
        raise AssertionError(word)

    said = json.loads(out, parse_constant=never)
    assert said["perplexity_word"] is None
    assert (said["words"], type(said["tokens"]), said["bytes"]) == (1, int, 1440)
    assert "words" in (shown := run_command(capsys, "evaluate", models / "gpt2", "--data", models / "long.txt")[1])
    assert [line.split()[1] for line in shown.splitlines() if line.startswith(("words", "bytes"))] == ["1", "1,440"]


def test_outputs_are_not_overwritten_unasked(models, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    commands = {
        "v.jsonl": ("embed", models / "bert", "--text", "the cat", "--out", "v.jsonl"),
        "n.jsonl": (
            "augment",
            models / "bert",
            "--train",
            models / "few.tsv",
            "--label-filter",
            "none",
            "--out",
            "n.jsonl",
        ),
        "m": ("import", models / "bert", "m"),
        "hf": ("export", models / "bert", "hf"),
        "t": ("tokenizer", "train", "bert", models / "lines.txt", "--vocab-size", "100", "--out", "t"),
        "c.html": ("tokenizer", "compare", models / "bert", "--file", models / "lines.txt", "--out", "c.html"),
    }
    for name, words in commands.items():
        assert run_command(capsys, *words)[0] == 0, name
        before = (tmp_path / name).stat().st_ino
        code, _, err = run_command(capsys, *words)
        assert code == 2, name
        assert "exists already" in err
        assert "overwrite" in err
        assert run_command(capsys, *words, "--overwrite")[0] == 0, name
        assert (tmp_path / name).exists()
        assert name == "c.html" or (tmp_path / name).stat().st_ino != before
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(commands), "nothing is left beside them"


def test_a_directory_of_something_else_is_not_overwritten(models, tmp_path, capsys):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.json").write_text("{}")
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    (tmp_path / "file").write_text("x")
    for name in ("home", "file"):
        code, _, err = run_command(capsys, "export", models / "bert", tmp_path / name, "--overwrite")
        assert code == 2
        assert "is not overwritten" in err
    assert (tmp_path / "home" / "thesis.tex").exists()


def test_advice_for_python_becomes_options_of_the_command(models, tmp_path, capsys):
    from formers.cli.common import rewrite_as_options

    assert rewrite_as_options("say --column NAME, or column='NAME'") == "say --column NAME"
    assert rewrite_as_options("overwrite it (--overwrite, or overwrite=True)") == "overwrite it (--overwrite)"
    assert rewrite_as_options("load it with head='lm' or head='mlm'") == "load it with head lm or head mlm"
    assert rewrite_as_options("for example to='French'", ["--to"]) == "for example --to French"
    assert (
        rewrite_as_options("long='error' refuses them", [], {"long": "long_texts"})
        == "--tune.long_texts error refuses them"
    )
    same = 'say for example "lr=1e-4,3e-4 batch=16,32", or --columns text=a'
    assert rewrite_as_options(same) == same
    (tmp_path / "old.txt").write_bytes("안녕하세요 여러분 오늘은 날씨가 좋습니다\n".encode("cp949") * 20)
    for words, message in (
        (["translate", models / "gpt2", "hello"], "--to French"),
        (["generate", models / "bert", "hello"], "with head lm"),
        (["embed", models / "bert", "--file", tmp_path / "old.txt", "--out", tmp_path / "v.npy"], "--encoding cp949"),
    ):
        with pytest.raises(SystemExit):
            main([str(word) for word in words])
        error = capsys.readouterr().err
        assert message in error, words
        assert "='" not in error
