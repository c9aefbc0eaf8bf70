"""Reading piece by piece with a cache equals reading at once, whatever the pieces."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import formers
from formers import Error
from formers.batch import Layout
from formers.nn.attention.attention import Attention
from formers.nn.attention.context import AttentionContext
from formers.nn.attention.kv_cache import KVCache
from tests.nn import reference
from tests.nn.packing import pack_rows


def build_model(family):
    small = {"vocab": 50, "dim": 16, "layers": 2, "heads": 2}
    if family == "t5":
        return formers.build("t5", head="lm", ff=24, head_dim=8, buckets=8, far=10, seed=1, init=1.0, **small)
    if family == "gpt2":
        return formers.build("gpt2", context=24, init=0.3, seed=1, **small)
    return formers.build("bert", head="lm", causal=True, ff=24, context=24, init=0.3, seed=1, **small)


@pytest.mark.parametrize("family", ["gpt2", "bert", "t5"])
@settings(max_examples=25)
@given(st.lists(st.integers(1, 10), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_pieces_equal_the_whole(family, lengths, random):
    f = build_model(family)
    rows = [[random.randrange(50) for _ in range(n)] for n in lengths]
    source = pack_rows([[7, 3, 1], [9, 1], [4, 4, 4, 1], [2]][: len(rows)]) if family == "t5" else None
    with torch.inference_mode():
        whole = f.model.logits(f.model(pack_rows(rows).replace(source=source)))
        ends = torch.tensor([0, *map(len, rows)]).cumsum(0)
        cache, done = KVCache(len(rows), 40), [0] * len(rows)
        while any(d < len(row) for d, row in zip(done, rows, strict=True)):
            taken = [random.randint(0, len(row) - d) for d, row in zip(done, rows, strict=True)]
            if not any(taken):
                taken = [min(1, len(row) - d) for d, row in zip(done, rows, strict=True)]
            piece = pack_rows([row[d : d + n] for row, d, n in zip(rows, done, taken, strict=True)])
            got = f.model.logits(f.model(piece.replace(source=source), cache=cache))
            place = 0
            for r, n in enumerate(taken):
                want = whole[ends[r] + done[r] : ends[r] + done[r] + n]
                torch.testing.assert_close(got[place : place + n], want, atol=1e-5, rtol=1e-5)
                place += n
            done = [d + n for d, n in zip(done, taken, strict=True)]
        assert cache.lengths.tolist() == [len(row) for row in rows]


def test_token_by_token_equals_one_pass_to_1e_5():
    for family in ("gpt2", "t5"):
        f = build_model(family)
        ids = torch.randint(0, 50, (3, 9))
        more = {"target": ids, "ids": torch.randint(0, 50, (3, 5))} if family == "t5" else {"ids": ids}
        cache = KVCache(3, 9)
        with torch.inference_mode():
            whole = f.logits(**more)
            for t in range(9):
                now = (
                    {"target": ids[:, t : t + 1], "ids": more["ids"]} if family == "t5" else {"ids": ids[:, t : t + 1]}
                )
                step = f.logits(**now, memory=cache)
                assert (step[:, 0] - whole[:, t]).abs().max() <= 1e-5


def test_the_encoder_runs_once(monkeypatch):
    f, calls = build_model("t5"), []
    encode = f.model.body.encode
    monkeypatch.setattr(f.model.body, "encode", lambda *a, **k: calls.append(1) or encode(*a, **k))
    cache = KVCache(1, 4)
    for t in range(3):
        f.logits(torch.tensor([[3, 4, 1]]), target=torch.tensor([[t]]), memory=cache)
    assert len(calls) == 1


def test_what_does_not_fit_is_said():
    f, cache = build_model("gpt2"), KVCache(2, 5)
    with pytest.raises(Error, match="2 rows, the batch 1"):
        f.logits(torch.tensor([[1, 2]]), memory=cache)
    f.logits(torch.tensor([[1, 2, 3], [1, 2, 3]]), memory=cache)
    with pytest.raises(Error, match=r"3 \+ 3 tokens do not fit into a cache of 5"):
        f.logits(torch.tensor([[1, 2, 3], [1, 2, 3]]), memory=cache)
    with pytest.raises(Error, match="25 tokens are more than the context of 24"):
        f.logits(torch.randint(0, 50, (2, 22)), memory=cache)


def test_a_loose_bound_is_tightened_before_it_is_an_error():
    cache, here = KVCache(2, 6), Layout(torch.tensor([0, 2, 2], dtype=torch.int32), 2, 2)
    other = Layout(torch.tensor([0, 0, 2], dtype=torch.int32), 2, 2)
    for step in (here, other, here):
        cache.start_batch(step)
        cache.advance(step)
    assert cache.used_slots == 6
    assert cache.start_batch(other).tolist() == [4, 2]
    assert cache.used_slots == 4


def test_rows_see_their_own_past_and_no_empty_slot():
    """Without a mask too, and with one new token in each row, where no padding arises but in the past."""
    one, cache = Attention(8, 2), KVCache(2, 5)
    old, new = torch.randn(4, 8), torch.randn(2, 8)
    first = Layout(torch.tensor([0, 3, 4], dtype=torch.int32), 3, 4)
    one(old, AttentionContext.start_pass(first, cache=cache))
    cache.advance(first)
    got = one(new, AttentionContext.start_pass(Layout(torch.tensor([0, 1, 2], dtype=torch.int32), 1, 2), cache=cache))
    rows = torch.cat((old[:3], new[:1], old[3:], new[1:]))
    _, k, v = (part.unflatten(1, (2, 4)) for part in one.qkv(rows).chunk(3, 1))
    q = one.qkv(new).chunk(3, 1)[0].unflatten(1, (2, 4))
    expected, _ = reference.attend(q, k, v, [0, 1, 2], [0, 4, 6], 0.5)
    torch.testing.assert_close(got, one.o(expected.flatten(1)))
