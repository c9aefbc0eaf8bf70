"""formers embed and formers neighbours: files in and out, and a run that was stopped."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import formers
from formers.atomic_files import ResumableFile
from tests.command_line import run_command
from tests.small_models import TEXTS, build_embedding_model

LINES = [TEXTS[0], TEXTS[1], "좋아요 don't", "x"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    where = tmp_path_factory.mktemp("embed")
    formers.save(build_embedding_model("bert"), where / "model")
    (where / "lines.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return where


def test_arrays_and_lines(home, capsys, tmp_path):
    f = formers.load(home / "model")
    assert (
        run_command(capsys, "embed", home / "model", "--file", home / "lines.txt", "--out", tmp_path / "v.npy")[0] == 0
    )
    assert np.abs(np.load(tmp_path / "v.npy") - f.embed(LINES).numpy()).max() <= 1e-6
    (tmp_path / "gaps.csv").write_text("text,label\na b,1\n,0\nc d,1\n", encoding="utf-8")
    assert (
        run_command(capsys, "embed", home / "model", "--file", tmp_path / "gaps.csv", "--out", tmp_path / "g.npy")[0]
        == 0
    )
    assert np.abs(np.load(tmp_path / "g.npy") - f.embed(["a b", "", "c d"]).numpy()).max() <= 1e-6
    for name in ("gaps.csv", "g.npy"):
        (tmp_path / name).unlink()
    out = tmp_path / "w.jsonl"
    words = ("--level", "word", "--layers", "sum2", "--text", LINES[1], "--out", out)
    assert run_command(capsys, "embed", home / "model", *words)[0] == 0
    row = json.loads(out.read_text(encoding="utf-8"))
    want = f.embed(LINES[1], level="word", layers="sum2")
    assert row["names"] == want.units
    assert (torch.tensor(row["vectors"]) - want.vectors).abs().max() <= 1e-6
    assert sorted(p.name for p in tmp_path.iterdir()) == ["v.npy", "w.jsonl"]


@pytest.mark.parametrize("name", ["v.npy", "v.jsonl"])
def test_stopped_and_resumed(home, capsys, tmp_path, monkeypatch, name):
    monkeypatch.setattr("formers.cli.embed.TEXTS_PER_WRITE", 1)
    write, calls = ResumableFile.write_records, []

    def stop(self, *records):
        calls.append(records)
        if len(calls) == 3:
            raise KeyboardInterrupt
        write(self, *records)

    monkeypatch.setattr(ResumableFile, "write_records", stop)
    command = ("embed", home / "model", "--file", home / "lines.txt", "--out", tmp_path / name)
    assert run_command(capsys, *command)[0] == 130
    assert not (tmp_path / name).exists()
    with (tmp_path / f"{name}.part").open("ab") as file:
        file.write(b"{half")
    assert run_command(capsys, *command)[0] == 0
    assert len(calls) == 5  # two of the first run were not done again
    monkeypatch.setattr(ResumableFile, "write_records", write)
    run_command(capsys, *command[:-1], tmp_path / f"whole-{name}")
    assert (tmp_path / name).read_bytes() == (tmp_path / f"whole-{name}").read_bytes()


def test_neighbours(home, capsys):
    code, out, _ = run_command(capsys, "neighbours", home / "model", TEXTS[0], "--file", home / "lines.txt", "--k", "2")
    assert code == 0
    score, text = out.splitlines()[0].split("  ", 1)
    assert (float(score), text) == (pytest.approx(1, abs=1e-3), TEXTS[0])
    code, out, _ = run_command(
        capsys, "neighbours", home / "model", "배를 샀다", "--word", "배", "--same-word", "--file", home / "lines.txt"
    )
    assert "[배]를 타고" in out


def test_refusals(home, capsys, tmp_path):
    for words, said in (
        (("--out", tmp_path / "v.npy"), "--file or --text"),
        (("--text", "x", "--out", tmp_path / "v.txt"), "jsonl"),
        (("--text", "x", "--out", tmp_path / "v.npy", "--level", "word"), "jsonl"),
        (("--text", "x", "--out", tmp_path / "none" / "v.npy"), "no such folder"),
        (("--text", "x", "--out", tmp_path / "v.npy", "--layers", "9"), "no layer 9"),
        (("--text", "x", "--out", tmp_path / "v.npy", "--layers", "odd"), "no layers"),
    ):
        code, _, err = run_command(capsys, "embed", home / "model", *words)
        assert code == 2, words
        assert said in err, words
    assert list(tmp_path.iterdir()) == []
