"""formers import and formers export: files in and out, and what is said of those that cannot be read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import formers
from formers.interop.word_vectors import build_vectors_model, write_word_vectors
from tests.command_line import run_command

GOLDEN = Path(__file__).parent.parent / "parity" / "golden"


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


def copy_and_break(tmp_path, name="m", **changes):
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
        (lambda t: copy_and_break(t, strange=1), "unknown key 'strange'"),
        (lambda t: copy_and_break(t, n_layer="two"), "setting 'layers' must be int, not 'two'"),
        (lambda t: copy_and_break(t, n_head=7), "7 heads do not divide"),
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
    folder = copy_and_break(tmp_path)
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    code, _, err = run_command(capsys, "export", str(folder), str(tmp_path / "out"))
    assert code == 2
    assert "bytes of data are declared" in err
    assert err.count("\n") == 1


def test_an_output_that_exists_is_refused_before_anything_is_read(capsys, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x").write_text("x")
    code, _, err = run_command(capsys, "import", str(tmp_path / "nothing"), str(tmp_path / "out"))
    assert code == 2
    assert "exists already" in err


@pytest.mark.parametrize("form", ["text", "glove", "binary", "fasttext"])
def test_a_file_of_word_vectors_is_imported(form, tmp_path, capsys):
    table = torch.randn(3 + 10 * (form == "fasttext"), 4, generator=torch.Generator().manual_seed(0))
    sizes = {"kind": "fasttext", "buckets": 10, "min_n": 2, "max_n": 3} if form == "fasttext" else {}
    words = ["the", "고양이", "[UNK]"]
    write_word_vectors(build_vectors_model(words, table, **sizes), tmp_path / "v.bin", form)
    code, out, _ = run_command(capsys, "import", str(tmp_path / "v.bin"), str(tmp_path / "own"))
    assert code == 0
    assert "vectors, head none" in out
    again = formers.load(tmp_path / "own")
    torch.testing.assert_close(again.model.body.embedding_table, table, atol=1e-6, rtol=1e-6)
    assert [again.tokenizer.get_token_text(i) for i in range(3)] == words


@pytest.mark.parametrize(
    ("options", "message"),
    [([], "v.txt, line 3: '1 x 3' is not 3 numbers"), (["--head", "lm"], "--head lm does not apply")],
)
def test_word_vectors_that_cannot_be_imported(capsys, tmp_path, options, message):
    (tmp_path / "v.txt").write_text("2 3\nthe 1 2 3\ncat 1 x 3\n")
    code, _, err = run_command(capsys, "import", str(tmp_path / "v.txt"), str(tmp_path / "own"), *options)
    assert code == 2
    assert message in err.replace("\n", "")
    assert not (tmp_path / "own").exists()
