"""Families that learn from pairs: a source and its target."""

from __future__ import annotations

import json

import numpy as np
import pytest

import formers
from formers import Error
from formers.data.preparation.document_encoder import encode_documents, find_tab_starts
from formers.data.store import Store
from formers.objectives.registry import build_objective
from formers.registry import train_tokenizer

WORDS = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four"}


def make_pairs(number=120):
    r = np.random.default_rng(0)
    rows = [r.choice(list(WORDS), r.integers(2, 6)) for _ in range(number)]
    return [(" ".join(row), " ".join(WORDS[w] for w in row)) for row in rows]


def test_each_side_is_encoded_separately():
    rows = [*make_pairs(9), ("", "nothing"), ("alone", "")]
    tokenizer = train_tokenizer("transformer", [side for row in rows for side in row], 300)
    made = encode_documents(["\t".join(row) for row in rows], tokenizer, find_tab_starts)
    end = tokenizer.id("eos")
    starts = np.concatenate(([0], np.cumsum(made.lengths)))
    for n, (source, target) in enumerate(rows):
        ids = made.ids[starts[n] : starts[n + 1]].tolist()
        assert ids == [*tokenizer.encode(source, special=False), *tokenizer.encode(target, special=False), end]
    store = Store.from_documents(["\t".join(row) for row in rows], tokenizer, sentences="tabs")
    goal = build_objective("seq2seq", tokenizer, 32)
    plan = goal.plan(store, 0, 0)
    assert len(plan) == 9, "what lacks a side is no pair"


@pytest.mark.parametrize("family", ["seq2seq", "transformer", "gnmt"])
def test_from_a_table_to_a_model(family, tmp_path):
    text = "".join(f"{a}\t{b}\n" for a, b in make_pairs())
    (tmp_path / "pairs.tsv").write_text("de\ten\n" + text, encoding="utf-8")
    small = {"dim": 16, "layers": 2 if family == "gnmt" else 1, "heads": 2, "ff": 32, "context": 32}
    known = formers.build(family).config
    run = formers.pretrain(
        family, tmp_path / "pairs.tsv", out=tmp_path / "run",
        data={"column": "de,en", "vocab_size": 300, "valid_fraction": 0.1},
        model={k: v for k, v in small.items() if k in known.__dataclass_fields__},
        train={"steps": 40, "batch_tokens": 256, "seq_length": 32, "lr": 1e-2, "warmup_steps": 4, "samples": 1},
    )  # fmt: skip
    losses = [row["loss"] for row in run.history if "losses" in row]
    assert losses[-1] < losses[0] - 1
    assert run.score.loss < run.baseline.loss
    (tmp_path / "lines.txt").write_text(text, encoding="utf-8")  # the same text, with tabs
    again = formers.pretrain(
        family, tmp_path / "lines.txt", out=tmp_path / "two", data={"vocab_size": 300, "valid_fraction": 0.1},
        model={k: v for k, v in small.items() if k in known.__dataclass_fields__},
        train={"steps": 1, "batch_tokens": 256, "seq_length": 32},
    )  # fmt: skip
    one, two = (json.loads((r.folder / "run.json").read_text())["data"] for r in (run, again))
    assert one == two, "tokenizer and stores are those of the table"


def test_text_that_is_no_pairs_is_seen_before_the_work(tmp_path):
    (tmp_path / "plain.txt").write_text("only one side\n" * 20, encoding="utf-8")
    (tmp_path / "pairs.txt").write_text("".join(f"{a}\t{b}\n" for a, b in make_pairs()), encoding="utf-8")
    (tmp_path / "pairs.csv").write_text(
        "".join(f"{a},{b}\n" for a, b in [("de", "en"), *make_pairs()]), encoding="utf-8"
    )
    say, column = "Write source TAB target in each line, or name two columns", r"Say --column DE,EN, or data="
    for text, held, words in (
        (["only one side"] * 20, None, say),
        (tmp_path / "plain.txt", None, say),
        (tmp_path / "pairs.csv", None, column),
        (tmp_path / "pairs.txt", ["only one side"] * 20, say),
    ):
        with pytest.raises(Error, match=words):
            formers.pretrain("seq2seq", text, valid=held, out=tmp_path / "run")
    assert not (tmp_path / "run" / "data").exists()


def test_a_store_of_no_pairs_does_not_stand_in_the_way(tmp_path):
    lines = ["one side, another side"] * 20
    with pytest.raises(Error, match="no document is a pair"):
        formers.pretrain("gnmt", lines, out=tmp_path / "run", data={"splitter": "rules", "vocab_size": 300})
    assert (tmp_path / "run" / "data" / "store" / "store.json").is_file()
    made = formers.pretrain(
        "gnmt", ["\t".join(pair) for pair in make_pairs()], out=tmp_path / "run", data={"vocab_size": 300},
        model={"dim": 16, "layers": 2}, train={"steps": 1, "batch_tokens": 256, "seq_length": 32, "samples": 0},
    )  # fmt: skip
    assert "e" in made.former.tokenizer.decode(made.former.tokenizer.encode("eins"))
