"""Reading segment by segment with a memory that is long enough equals reading at once, whatever the segments."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import formers
from formers import Error
from formers.generation.decoding import Options, continue_ids
from formers.inputs import ModelInputs
from formers.nn.attention.context import Capture
from formers.nn.attention.kv_cache import KVCache
from formers.nn.attention.segment_memory import SegmentMemory
from tests.nn.packing import pack_rows
from tests.small_models import TRANSFORMER_XL_SIZES


def build_model(**more):
    return formers.build("transformer_xl", seed=1, **{**TRANSFORMER_XL_SIZES, "same_length": False, **more})


@pytest.mark.parametrize("order", ["post", "pre"])
@settings(max_examples=25)
@given(st.lists(st.integers(1, 10), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_pieces_equal_the_whole(order, lengths, random):
    f = build_model(order=order)
    rows = [[random.randrange(50) for _ in range(n)] for n in lengths]
    with torch.inference_mode():
        whole = f.model.logits(f.model(pack_rows(rows)))
        ends = torch.tensor([0, *map(len, rows)]).cumsum(0)
        memory, done = SegmentMemory(len(rows), 10), [0] * len(rows)
        while any(d < len(row) for d, row in zip(done, rows, strict=True)):
            taken = [random.randint(0, len(row) - d) for d, row in zip(done, rows, strict=True)]
            if not any(taken):
                taken = [min(1, len(row) - d) for d, row in zip(done, rows, strict=True)]
            piece = pack_rows([row[d : d + n] for row, d, n in zip(rows, done, taken, strict=True)])
            got, place = f.model.logits(f.model(piece, memory=memory)), 0
            for r, n in enumerate(taken):
                want = whole[ends[r] + done[r] : ends[r] + done[r] + n]
                torch.testing.assert_close(got[place : place + n], want, atol=1e-5, rtol=1e-5)
                place += n
            done = [d + n for d, n in zip(done, taken, strict=True)]
        assert memory.lengths.tolist() == [len(row) for row in rows]


def read_pieces(f, ids, sizes, memory):
    with torch.inference_mode():
        return torch.cat([f.logits(piece, memory=memory) for piece in ids.split(sizes, 1)], 1)


@pytest.mark.parametrize("sizes", [[1] * 12, [5, 1, 6], [12]])
def test_token_by_token_equals_one_pass(sizes):
    f, ids = build_model(), torch.randint(0, 50, (3, 12))
    with torch.inference_mode():
        whole = f.logits(ids)
    assert (read_pieces(f, ids, sizes, SegmentMemory(3, 12)) - whole).abs().max() <= 1e-5
    short = read_pieces(f, ids, sizes, SegmentMemory(3, 4))
    assert len(sizes) == 1 or (short[:, 6:] - whole[:, 6:]).abs().max() > 1e-3


@pytest.mark.parametrize("sizes", [[1] * 12, [5, 1, 6]])
def test_with_the_same_length_a_short_memory_is_enough(sizes):
    """Every token sees as many as the memory holds, so nothing that is seen has been forgotten."""
    f, ids = build_model(same_length=True, memory=4), torch.randint(0, 50, (2, 12))
    with torch.inference_mode():
        whole, wide = f.logits(ids), build_model(memory=4).logits(ids)
    assert (whole - wide).abs().max() > 1e-3
    assert (read_pieces(f, ids, sizes, SegmentMemory(2, 4)) - whole).abs().max() <= 1e-5
    with torch.inference_mode():
        more = build_model(same_length=True, memory=7).logits(ids)
    assert (read_pieces(f, ids, sizes, SegmentMemory(2, 7)) - more).abs().max() <= 1e-5


def test_ragged_rows_after_ragged_rows():
    """A row's answers do not depend on its neighbours, also when the rows remember different amounts."""
    f, pieces = build_model(), [[[3, 4, 5], [6]], [[7], [8, 9, 10, 11, 12]], [[13, 14], []], [[15] * 6, [16, 17]]]
    memory, alone = SegmentMemory(2, 5), [SegmentMemory(1, 5), SegmentMemory(1, 5)]
    with torch.inference_mode():
        for piece in pieces:
            together, start = f.model(pack_rows(piece), memory=memory), 0
            for row, one in enumerate(piece):
                if one:
                    single = f.model(pack_rows([one]), memory=alone[row])
                    torch.testing.assert_close(together[start : start + len(one)], single, atol=1e-5, rtol=1e-5)
                start += len(one)
            for row, own in enumerate(alone):
                count = int(memory.lengths[row])
                assert count == own.used_slots
                for layer, state in own.hidden_states.items():
                    mine = memory.hidden_states[layer][row, memory.used_slots - count :]
                    torch.testing.assert_close(mine, state[0], atol=1e-5, rtol=1e-5)


def test_zeros_are_attended():
    f, ids, capture = build_model(), torch.randint(0, 50, (2, 3)), Capture(with_attention=True)
    with torch.inference_mode():
        empty, zeros = f.logits(ids, memory=SegmentMemory(2, 4)), f.logits(ids, memory=SegmentMemory(2, 4, zeros=True))
        f.model(f.pack_inputs(ModelInputs(ids))[0], memory=SegmentMemory(2, 4, zeros=True), capture=capture)
        assert torch.equal(empty, f.logits(ids))
    assert (empty - zeros).abs().max() > 1e-3
    for weights in capture.attention_weights["decoder"]:
        assert weights.shape == (2, 2, 3, 7)
        assert (weights[..., :4] > 0).all()
        assert not weights[..., 4:].triu(1).any()
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 3))


def test_nothing_flows_back_into_the_memory():
    f, memory = build_model(), SegmentMemory(2, 6)
    f.logits(torch.randint(0, 25, (2, 6)), memory=memory)
    assert all(not state.requires_grad for state in memory.hidden_states.values())
    f.logits(torch.randint(25, 50, (2, 6)), memory=memory).square().sum().backward()
    # The first cluster's tokens are in the first segment only, and its projection is not tied to the softmax.
    ups = f.model.body.embed.token.ups
    assert ups[2].weight.grad.any()
    assert not ups[0].weight.grad.any()


@pytest.mark.parametrize(
    ("other", "ids", "message"),
    [
        (build_model(), torch.zeros(3, 2, dtype=torch.long), "the memory has 2 rows, the batch 3"),
        (build_model(layers=3), torch.zeros(2, 2, dtype=torch.long), "with layers 2, not of one with layers 3"),
        (build_model(layers=1), torch.zeros(2, 2, dtype=torch.long), "with layers 2, not of one with layers 1"),
        (build_model(dim=12), torch.zeros(2, 2, dtype=torch.long), "with dim 16, not of one with dim 12"),
    ],
)
def test_a_memory_of_another_shape_is_refused_and_unharmed(other, ids, message):
    f, memory, first = build_model(), SegmentMemory(2, 4), torch.tensor([[1, 2, 3], [4, 5, 6]])
    f.logits(first, memory=memory)
    states = dict(memory.hidden_states)
    with pytest.raises(Error, match=message) as error:
        other.logits(ids, memory=memory)
    assert "\n" not in str(error.value)
    assert all(state is states[layer] for layer, state in memory.hidden_states.items())
    f.logits(first, memory=memory)


def test_each_kind_of_model_has_its_own_kind_of_state():
    gpt = formers.build("gpt2", vocab=50, context=8, dim=12, layers=1, heads=2)
    ids = torch.tensor([[1, 2]])
    with pytest.raises(Error, match="gpt2 keeps earlier tokens in a KVCache, not in a SegmentMemory"):
        gpt.logits(ids, memory=SegmentMemory(1, 4))
    with pytest.raises(Error, match="transformer_xl keeps earlier tokens in a SegmentMemory, not in a KVCache"):
        build_model().hidden(ids, memory=KVCache(1, 4))
    with pytest.raises(Error, match="a SegmentMemory of 3 states for 0 rows is not possible"):
        SegmentMemory(0, 3)
    assert type(gpt.create_state(1, 4)) is KVCache
    assert type(build_model().create_state(1, 4)) is SegmentMemory


def test_text_is_continued_without_an_end():
    """Longer than any memory; the same tokens as reading everything anew for each, while the memory is long enough."""
    f, prompts = build_model(memory=40), [[3, 4, 5], [6, 7]]
    got = continue_ids(f, prompts, 9, Options(temperature=0))
    for prompt, new in zip(prompts, got, strict=True):
        text = list(prompt)
        for token in new:
            with torch.inference_mode():
                assert int(f.logits(torch.tensor([text]))[0, -1].argmax()) == token
            text.append(token)
    assert [len(new) for new in continue_ids(build_model(memory=2), prompts, 20)] == [20, 20]
    assert continue_ids(build_model(memory=0), prompts, 9, Options(temperature=0)) == got


def test_a_model_without_a_context_is_continued_with_a_cache():
    f = formers.build("bloom", vocab=50, dim=16, layers=2, heads=2, init=0.3, eos=None)
    assert len(continue_ids(f, [[3, 4, 5]], 12, Options(temperature=0))[0]) == 12


def test_with_heads_switched_off_and_hidden_states():
    f, ids, memory = build_model(), torch.randint(0, 50, (2, 4)), SegmentMemory(2, 4)
    f.logits(ids, memory=memory)
    states = f.hidden(ids, memory=memory, layer=None)
    assert states.shape == (3, 2, 4, 16)
    torch.testing.assert_close(memory.hidden_states[1], states[1])
    quiet = f.logits(ids, heads=torch.tensor([[0, 1], [1, 1]]))
    assert (quiet - f.logits(ids)).abs().max() > 1e-3


def test_a_memory_of_another_family_is_refused():
    f, memory, ids = build_model(), SegmentMemory(1, 4), torch.tensor([[1, 2]])
    f.logits(ids, memory=memory)
    xlnet = formers.build("xlnet", vocab=50, dim=16, layers=2, heads=2, ff=24)
    with pytest.raises(Error, match="of a model with family transformer_xl, not of one with family xlnet"):
        xlnet.logits(ids, memory=memory)


def read_ragged(model, memory, lengths, seed):
    """Read a batch of rows of these lengths."""
    torch.manual_seed(seed)
    model(pack_rows([torch.randint(0, 50, (n,)).tolist() for n in lengths]), memory=memory)


@torch.no_grad()
def test_a_full_memory_has_equal_rows_whatever_it_reads():
    """Each row drops as many states as it takes in, so that nothing of a batch is left when it is undone."""
    f, memory = build_model(), SegmentMemory(2, 4)
    read_ragged(f.model, memory, (5, 5), 0)
    assert memory.has_equal_rows
    before = memory.copy()
    read_ragged(f.model, memory, (3, 6), 1)
    assert memory.has_equal_rows
    assert memory.lengths.tolist() == [4, 4]
    memory.undo_where(torch.tensor(True), before)
    state, want = memory.get_state(), before.get_state()
    assert state["has_equal_rows"] == want["has_equal_rows"]
    assert torch.equal(state["lengths"], want["lengths"])
    assert all(torch.equal(x, want["hidden_states"][n]) for n, x in state["hidden_states"].items())
    read_ragged(f.model, memory, (2, 5), 2)
    read_ragged(f.model, before, (2, 5), 2)
    assert all(torch.equal(x, before.hidden_states[n]) for n, x in memory.hidden_states.items())
    filling = SegmentMemory(2, 4)
    read_ragged(f.model, filling, (2, 5), 0)
    assert not filling.has_equal_rows


@torch.no_grad()
def test_undoing_a_batch_keeps_its_dtype():
    """A memory that was restored in fp32 is carried on in the run's dtype, undone or not."""
    f, memory = build_model(), SegmentMemory(2, 4)
    read_ragged(f.model, memory, (5, 5), 0)
    before = memory.copy()
    memory.hidden_states = {n: (x + 1).bfloat16() for n, x in memory.hidden_states.items()}
    for undo in (False, True):
        undone = memory.copy()
        undone.undo_where(torch.tensor(undo), before)
        want = before if undo else memory
        for n, x in undone.hidden_states.items():
            assert x.dtype == torch.bfloat16
            assert torch.equal(x, want.hidden_states[n].bfloat16())


def test_a_state_of_another_size_is_restored_by_its_tensors():
    """Groups of streams that have read more or less share in a checkpoint what is no tensor."""
    f, short, long = build_model(), SegmentMemory(2, 8), SegmentMemory(2, 8)
    with torch.no_grad():
        read_ragged(f.model, short, (2, 3), 0)
        for seed in range(2):
            read_ragged(f.model, long, (3, 3), seed)
    again = SegmentMemory(2, 8)
    again.restore_state({**long.get_state(), **{n: short.get_state()[n] for n in ("lengths", "hidden_states")}})
    assert again.used_slots == short.used_slots == 3
    assert not again.has_equal_rows
