"""Causal and masked language modelling: what is hidden, what is asked, and how often."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import formers
from formers import Error
from formers.batch import Batch
from formers.objectives.causal import CausalLM
from formers.objectives.choose import objective
from formers.objectives.masked import MaskedLM
from formers.objectives.tokens import IGNORED, places, token_hits, token_loss
from formers.text import bpe, wordpiece

SPECIAL = (0, 2, 3, 4)
GOAL = MaskedLM(32, vocab=100, mask=4, special=SPECIAL, frame=((2,), (3,)))


def framed(lengths, samples, seed=0):
    r = np.random.default_rng(seed)
    rows = [np.concatenate(([2], r.integers(5, 100, n - 2), [3])) for n in lengths]
    starts = np.cumsum([0, *lengths]).astype(np.int32)
    return Batch(np.concatenate(rows), starts, max(lengths), sample=np.array(samples))


def test_causal_labels_are_successors_within_a_document():
    batch = Batch(np.array([5, 6, 7, 8, 9, 0, 0]), np.array([0, 3, 5, 7], np.int32), 3, sample=np.array([4, 5, -1]))
    asked = CausalLM(3).corrupt(batch, 0)
    assert asked.chosen is None, "there is a loss everywhere"
    assert asked.labels.tolist() == [6, 7, IGNORED, 9, IGNORED, IGNORED, IGNORED]
    assert asked.ids.tolist() == batch.ids.tolist()


@given(st.lists(st.integers(3, 40), min_size=1, max_size=6), st.integers(0, 1000))
def test_masked_invariants(lengths, seed):
    batch = framed(lengths, range(10, 10 + len(lengths)))
    hidden = GOAL.corrupt(batch, seed)
    chosen = hidden.chosen[hidden.labels != IGNORED]
    labels = hidden.labels[hidden.labels != IGNORED]
    assert np.array_equal(batch.ids[chosen], labels), "the labels recover the original"
    assert not np.isin(labels, SPECIAL).any(), "special tokens are never chosen"
    same = np.ones(len(batch.ids), bool)
    same[chosen] = False
    assert np.array_equal(hidden.ids[same], batch.ids[same]), "nothing else is touched"
    assert len(set(chosen.tolist())) == len(chosen)
    document = np.repeat(np.arange(len(lengths)), lengths)
    counts = np.bincount(document[chosen], minlength=len(lengths))
    for n, count in zip(lengths, counts, strict=True):
        assert count == min(n - 2, max(1, round(0.15 * n)))


def test_masked_statistics():
    batch = framed([128] * 400, range(400), seed=1)
    hidden = GOAL.corrupt(batch, 5)
    chosen, labels = hidden.chosen[hidden.labels != IGNORED], hidden.labels[hidden.labels != IGNORED]
    assert len(chosen) == 400 * 19
    now = hidden.ids[chosen]
    masked, kept = (now == 4).mean(), (now == labels).mean()
    error = 3 * (0.8 * 0.2 / len(chosen)) ** 0.5
    assert masked == pytest.approx(0.8 + 0.1 / 100, abs=error)
    assert kept == pytest.approx(0.1 + 0.1 / 100, abs=error)
    random = now[(now != 4) & (now != labels)]
    assert random.min() < 5, "random tokens come from the whole vocabulary"
    assert random.max() > 95
    place = chosen % 128
    assert np.histogram(place, 9, (1, 127))[0].std() < 3 * (len(chosen) / 9) ** 0.5


def test_the_same_example_is_hidden_the_same_way_in_any_batch():
    whole = framed([20, 9, 31, 14], [7, 8, 9, 10])
    together = GOAL.corrupt(whole, 3)
    for row in range(4):
        low, high = whole.starts[row], whole.starts[row + 1]
        alone = Batch(
            whole.ids[low:high],
            np.array([0, high - low], np.int32),
            int(high - low),
            sample=whole.sample[row : row + 1],
        )
        hidden = GOAL.corrupt(alone, 3)
        assert np.array_equal(hidden.ids, together.ids[low:high])
    other = GOAL.corrupt(whole.replace(sample=whole.sample + 100), 3)
    assert not np.array_equal(other.ids, together.ids), "another epoch, another mask"
    assert not np.array_equal(GOAL.corrupt(whole, 4).ids, together.ids)


def test_a_limit_and_dummies():
    few = MaskedLM(32, 100, 4, SPECIAL, ((2,), (3,)), most=2)
    batch = framed([40, 30], [1, 2])
    assert (few.corrupt(batch, 0).labels != IGNORED).sum() == 4
    dummy = GOAL.corrupt(batch.replace(sample=np.array([1, -1])), 0)
    assert dummy.chosen[dummy.labels != IGNORED].max() < 40


def test_places_have_a_fixed_number():
    batch = Batch(np.arange(200), np.array([0, 200], np.int32), 200)
    few = places(batch, np.arange(3), 10)
    assert len(few.chosen) == len(few.labels) == 10
    assert few.labels.tolist() == [0, 1, 2] + [IGNORED] * 7
    assert len(places(batch, np.arange(65), 10).chosen) == 128


def test_loss_and_hits():
    f = formers.build("gpt2", vocab=20, context=8, dim=8, layers=1, heads=2, init=0.5)
    batch = Batch(np.array([5, 6, 7, 8]), np.array([0, 4], np.int32), 4, sample=np.array([0]))
    asked = CausalLM(4).corrupt(batch, 0).to("cpu")
    total, count = token_loss(f.model, asked, "lm")
    logits = f.logits(asked.ids[None])[0]
    assert count == 3
    torch.testing.assert_close(total, F.cross_entropy(logits[:3], asked.ids[1:], reduction="sum"))
    loss, hits, places_ = token_hits(f.model, asked, "lm")
    assert loss == pytest.approx(total.item())
    assert places_ == 3
    assert hits == int((logits[:3].argmax(-1) == asked.ids[1:]).sum())
    named = CausalLM(4).loss(f.model, asked)
    assert list(named) == ["lm"]
    torch.testing.assert_close(named["lm"][0], total)


def test_loss_gradcheck():
    f = formers.build("bert", head="mlm", vocab=9, context=6, dim=4, layers=1, heads=2, ff=6, init=0.5)
    f.to(dtype=torch.float64)
    batch = Batch(
        torch.tensor([2, 5, 4, 3]), torch.tensor([0, 4], dtype=torch.int32), 4,
        chosen=torch.tensor([2, 1, 0]), labels=torch.tensor([7, 5, IGNORED]),
    )  # fmt: skip
    weight = f.model.body.blocks[0].attn.qkv.weight

    def loss(value):
        total, count = torch.func.functional_call(
            _Loss(f.model), {"model.body.blocks.0.attn.qkv.weight": value}, (batch,)
        )
        return total / count

    assert torch.autograd.gradcheck(loss, (weight.detach().requires_grad_(),))


class _Loss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, batch):
        return token_loss(self.model, batch, "mlm")


def test_objectives_by_name():
    pieces = wordpiece.train(["the cat sat on the mat"] * 3, 60)
    masked = objective("masked", pieces, 16)
    assert masked.frame == ((pieces.id("cls"),), (pieces.id("sep"),))
    assert masked.mask == pieces.id("mask")
    assert pieces.id("unk") not in masked.special
    assert set(masked.special) == {pieces.id(r) for r in ("pad", "cls", "sep", "mask")}
    assert objective("causal", pieces, 16) == CausalLM(16)
    with pytest.raises(Error, match="objective 'spans' is not available"):
        objective("spans", pieces, 16)
    with pytest.raises(Error, match="no \\[CLS\\]"):
        objective("masked", bpe.train(["a b"] * 3, 258), 16)
