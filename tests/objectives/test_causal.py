"""Causal language modelling: successors, prefixes, streams."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from formers.batch import IGNORE_INDEX, BatchShape
from formers.data.loader import load_batches, pad_batch
from formers.data.plans import TokenSource
from formers.objectives.causal import CausalLM
from formers.objectives.masking import (
    MaskedLM,
)
from tests.objectives import toys
from tests.objectives.toys import draw_text

SPECIAL = (0, 2, 3, 4)


def test_causal_labels_are_successors_within_a_document():
    asked = CausalLM(3).corrupt(draw_text([3, 2]), 0)
    ids = asked.ids.tolist()
    assert asked.chosen is None, "there is a loss everywhere"
    assert asked.labels.tolist() == [ids[1], ids[2], IGNORE_INDEX, ids[4], IGNORE_INDEX]
    assert asked.starts.tolist() == [0, 3, 5]
    full = pad_batch(asked, BatchShape(4, 8, 0, 3))
    assert full.labels.tolist()[5:] == [IGNORE_INDEX] * 3


@given(st.lists(st.integers(2, 30), min_size=1, max_size=5), st.integers(0, 99))
def test_a_prefix_is_read_only(lengths, seed):
    given_ = draw_text(lengths)
    asked, whole = CausalLM(30, is_prefix_lm=True).corrupt(given_, seed), CausalLM(30).corrupt(given_, seed)
    for labels, all_, n in zip(
        toys.split_rows(asked.labels, asked.starts), toys.split_rows(whole.labels, asked.starts), lengths, strict=True
    ):
        silent = sum(label == IGNORE_INDEX for label in labels) - 1  # the last token has no successor
        assert 0 <= silent <= n - 2, "something is asked for"
        assert labels[:silent] == [IGNORE_INDEX] * silent
        assert labels[silent:] == all_[silent:]


def test_prefixes_have_every_length():
    asked = CausalLM(5, is_prefix_lm=True).corrupt(draw_text([5] * 4000), 0)
    silent = np.bincount((asked.labels.reshape(-1, 5)[:, :4] == IGNORE_INDEX).sum(1), minlength=4)
    assert len(silent) == 4
    assert abs(silent - 1000).max() < 5 * 1000**0.5


def test_across_documents():
    data = toys.build_store([[5], [7], [4]], end=3)
    inside, across = CausalLM(6).plan(data, 0, 0), CausalLM(6, across_documents=True).plan(data, 0, 0)
    assert sorted(across.lengths.tolist()) == [6, 6, 6, 6][: len(across)]
    assert len(across) == 4  # 19 tokens, the last window reaching back
    assert sorted(zip(inside.begin, inside.end, strict=True)) == [(0, 6), (6, 12), (8, 14), (14, 19)]
    goal = MaskedLM(8, 100, 4, SPECIAL, ((2,), (3,)), across_documents=True)
    assert sorted(goal.plan(data, 0, 0).lengths.tolist()) == [6] * 4


def test_streams_continue_from_batch_to_batch():
    data, goal = toys.build_store([[25], [18]]), CausalLM(5, num_streams=2)
    seen = list(load_batches(TokenSource(data, goal), 10, epochs=1))
    rows = [np.concatenate([b.ids.reshape(2, 5)[r] for b, _ in seen]) for r in range(2)]
    size = (43 - 1) // 2
    for r in range(2):
        assert np.array_equal(rows[r], data.tokens[r * size : r * size + 20])
    labels = np.concatenate([b.labels.reshape(2, 5)[1] for b, _ in seen])
    assert np.array_equal(labels, data.tokens[size + 1 : size + 21]), "also of the last token of a window"
    assert all(b.starts.tolist() == [0, 5, 10] for b, _ in seen)
