"""Packing and unpacking lose nothing, whatever the rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from formers import Error
from formers.batch import Batch, Layout

rows = st.integers(1, 6).flatmap(
    lambda columns: st.lists(
        st.tuples(st.integers(0, columns), st.integers(0, columns)).map(lambda p: (min(p), max(p), columns)),
        min_size=1,
        max_size=5,
    )
)


@given(rows)
def test_round_trip_of_padded_grids(spans):
    columns = spans[0][2]
    keep = torch.zeros(len(spans), columns, dtype=torch.bool)
    for row, (low, high, _) in enumerate(spans):
        keep[row, low:high] = True
    ids = torch.arange(keep.numel()).view(keep.shape) + 5
    batch = Batch.from_padded(ids, keep, segments=ids * 2)
    assert batch.ids.tolist() == ids[keep].tolist()
    assert batch.segments.tolist() == (ids[keep] * 2).tolist()
    assert batch.starts.dtype == torch.int32
    lengths = [high - low for low, high, _ in spans]
    assert batch.layout.lengths.tolist() == lengths
    assert batch.longest == max(lengths)
    assert batch.layout.positions.tolist() == [i for n in lengths for i in range(n)]
    assert batch.layout.document_ids.tolist() == [d for d, n in enumerate(lengths) for _ in range(n)]
    assert torch.equal(batch.unpack(batch.ids), torch.where(keep, ids, 0))
    wide = torch.randn(len(batch.ids), 3)
    assert torch.equal(batch.unpack(wide)[keep], wide)
    grid = batch.layout.unpack(wide)
    assert torch.equal(batch.layout.pack(grid), wide)
    assert grid.abs().sum() == pytest.approx(wide.abs().sum().item(), abs=1e-5)


def test_without_padding():
    ids = torch.arange(6).view(2, 3)
    batch = Batch.from_padded(ids, segments=ids + 1)
    assert batch.layout.is_uniform
    assert batch.longest == 3
    assert torch.equal(batch.unpack(batch.ids), ids)
    assert batch.segments.tolist() == [1, 2, 3, 4, 5, 6]
    assert batch.layout.get_first_slots().tolist() == [0, 3]
    assert batch.layout.get_last_slots().tolist() == [2, 5]
    assert not Batch.from_padded(ids, torch.tensor([[True, True, False], [True, True, True]])).layout.is_uniform


def test_a_grid_of_characters():
    ids = torch.arange(2 * 3 * 50).view(2, 3, 50)
    keep = torch.tensor([[True, True, False], [True, True, True]])
    assert Batch.from_padded(ids, keep).ids.shape == (5, 50)
    assert Batch.from_padded(ids).ids.shape == (6, 50)


def test_gradient_flows_through_unpack():
    keep = torch.tensor([[True, False], [True, True]])
    batch = Batch.from_padded(torch.zeros(2, 2, dtype=torch.long), keep)
    x = torch.randn(3, 2, requires_grad=True)
    weights = torch.randn(2, 2, 2)
    (batch.unpack(x) * weights).sum().backward()
    assert torch.equal(x.grad, weights[keep])


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (torch.tensor([[True, True, True], [True, False, True]]), "keep has a gap in row 1"),
        (torch.ones(2, 3), "keep must be bool of shape (2, 3), got float32"),
        (torch.ones(2, 2, dtype=torch.bool), "got bool (2, 2)"),
    ],
)
def test_bad_keep(keep, message):
    with pytest.raises(Error) as caught:
        Batch.from_padded(torch.zeros(2, 3, dtype=torch.long), keep)
    assert message in str(caught.value)


def test_bad_shapes():
    with pytest.raises(Error, match="ids must be"):
        Batch.from_padded(torch.zeros(3))
    with pytest.raises(Error, match="segments"):
        Batch.from_padded(torch.zeros(2, 3), segments=torch.zeros(2, 2))


def test_numpy_travels_to_torch():
    source = Batch(np.array([7, 8]), np.array([0, 2], np.int32), 2)
    batch = Batch(np.array([1, 2, 3]), np.array([0, 1, 3], np.int32), 2, sample=np.array([4, 5]), source=source)
    moved = batch.to("cpu")
    assert torch.equal(moved.ids, torch.tensor([1, 2, 3]))
    assert moved.starts.dtype == torch.int32
    assert torch.equal(moved.source.ids, torch.tensor([7, 8]))
    assert moved.segments is None
    assert moved.longest == 2
    assert batch.replace(longest=9).longest == 9


def test_layout_with_empty_documents_at_the_end():
    layout = Layout(torch.tensor([0, 2, 2, 3, 3, 3], dtype=torch.int32), 2, 3)
    assert layout.document_ids.tolist() == [0, 0, 2]
    assert layout.rows == 5
    assert layout.unpack(torch.ones(3, 1)).squeeze(-1).tolist() == [[1, 1], [0, 0], [1, 0], [0, 0], [0, 0]]
