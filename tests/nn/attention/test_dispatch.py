"""Every kernel gives the same output and gradient, and that of the formula."""

from __future__ import annotations

import contextlib
import math
import warnings

import pytest
import torch
import torch.nn.functional as F

import formers
from formers.batch import Layout
from formers.nn.attention import dispatch, kv_cache
from formers.nn.attention.attention import Attention
from formers.nn.attention.context import AttentionContext, Capture, RelativeInputs
from formers.nn.attention.dispatch import (
    KERNEL_RULES,
    KERNELS,
    AttentionCall,
    attend,
    compute_attention_weights,
    force_kernel,
)
from formers.nn.attention.kernels import decode
from formers.nn.attention.kv_cache import KVCache
from formers.nn.attention.masks import RowMask, WindowMask, build_alibi, causal, combine_masks, get_window_bounds
from formers.nn.attention.positions import BucketBias, RelativeScores
from formers.nn.attention.segment_memory import SegmentMemory
from tests.nn import reference
from tests.nn.packing import make_layout

H, D = 3, 5
SHAPES = {"ragged": [4, 1, 7, 3], "uniform": [5, 5, 5], "one": [6], "empty inside": [3, 0, 4], "tight": [5, 5, 4]}


class Plain:
    """A bias without a row: an index function pure and simple."""

    def __call__(self, b, h, q, k):
        return torch.sin((k - q).double()) * (h + 1)


def table_bias(heads=H):
    bias = BucketBias(heads, buckets=8, max_distance=6).double()
    torch.nn.init.normal_(bias.weight)
    return bias


KINDS = {
    "nothing": (None, None, lambda h, i, j: True, lambda h, i, j: 0.0),
    "causal": (causal, None, lambda h, i, j: j <= i, lambda h, i, j: 0.0),
    "window": (combine_masks(causal, WindowMask(2)), None, lambda h, i, j: j <= i and i - j < 2, lambda h, i, j: 0.0),
    "alibi": (causal, build_alibi(H), lambda h, i, j: j <= i, lambda h, i, j: reference.alibi_slopes(H)[h] * (j - i)),
    "function": (None, Plain(), lambda h, i, j: True, lambda h, i, j: math.sin(j - i) * (h + 1)),
    "buckets": (None, "table", lambda h, i, j: True, None),
    "buckets causal": (causal, "table", lambda h, i, j: j <= i, None),
}  # fmt: skip


def choose_kernel(q, k, attn_context, dropout, relative):
    return dispatch.choose_kernel(AttentionCall(q, k, k, attn_context, 1.0, dropout, relative))


def draw_qkv(n, m=None):
    q = torch.randn(n, H, D, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(m or n, H, D, dtype=torch.float64, requires_grad=True) for _ in range(2))
    return q, k, v


def list_paths(attn_context, q, k):
    """Those of the CPU that apply."""
    simple = attn_context.is_uniform and attn_context.bias is None and attn_context.mask in (None, causal)
    band = attn_context.mask is KINDS["window"][0]
    return ["dense", "by_length", *(["sdpa"] if simple else []), *(["banded"] if band else [])]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_paths_agree_with_the_formula(shape, kind):
    mask, bias, see, add = KINDS[kind]
    here = make_layout(SHAPES[shape])
    if bias == "table":
        bias = table_bias()
        add = lambda h, i, j: bias.weight[reference.compute_bucket(j - i, 8, 6, True), h]  # noqa: E731
    q, k, v = draw_qkv(here.num_tokens)
    starts = here.starts.tolist()
    expected, shares = reference.attend(q, k, v, starts, starts, 0.3, see, add)
    leaves = [q, k, v, *([bias.weight] if isinstance(bias, BucketBias) else [])]
    pull = torch.randn_like(expected)
    grads = torch.autograd.grad(expected, leaves, pull)
    for name in list_paths(AttentionContext(here, mask=mask, bias=bias), q, k):
        attn_context = AttentionContext(here, mask=mask, bias=bias)
        with force_kernel(name):
            out = attend(q, k, v, attn_context, 0.3)
        torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-6, msg=f"{name} forward")
        for got, want in zip(torch.autograd.grad(out, leaves, pull), grads, strict=True):
            torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-6, msg=f"{name} backward")
    table = compute_attention_weights(q, k, AttentionContext(here, mask=mask, bias=bias), 0.3)
    assert table.shape == (here.rows, H, here.longest, here.longest)
    slot = 0
    for d, length in enumerate(SHAPES[shape]):
        for i in range(length):
            torch.testing.assert_close(table[d, :, i, :length].double(), shares[slot], atol=1e-6, rtol=0)
            assert not table[d, :, i, length:].any()
            slot += 1
        assert not table[d, :, length:].any()


@pytest.mark.parametrize(("queries", "keys"), [([2, 4, 1], [3, 5, 2]), ([3, 3], [4, 4]), ([2, 0, 3], [3, 2, 1])])
def test_cross_attention(queries, keys):
    mine, theirs = make_layout(queries), make_layout(keys)
    q, k, v = draw_qkv(mine.num_tokens, theirs.num_tokens)
    expected, _ = reference.attend(q, k, v, mine.starts.tolist(), theirs.starts.tolist(), 0.3)
    for name in ("dense", "by_length"):
        with force_kernel(name):
            torch.testing.assert_close(
                attend(q, k, v, AttentionContext(mine, theirs), 0.3), expected, atol=1e-6, rtol=1e-6
            )
    torch.testing.assert_close(attend(q, k, v, AttentionContext(mine, theirs), 0.3), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("queries", "keys"), [([2, 4, 1], [3, 5, 2]), ([3, 3], [5, 5]), ([5, 5], [3, 3])])
def test_a_bias_by_distance_between_two_sides(queries, keys):
    mine, theirs, bias = make_layout(queries), make_layout(keys), table_bias()
    q, k, v = draw_qkv(mine.num_tokens, theirs.num_tokens)
    add = lambda h, i, j: bias.weight[reference.compute_bucket(j - i, 8, 6, True), h]  # noqa: E731
    expected, _ = reference.attend(q, k, v, mine.starts.tolist(), theirs.starts.tolist(), 0.3, bias=add)
    for name in ("dense", "by_length"):
        with force_kernel(name):
            got = attend(q, k, v, AttentionContext(mine, theirs, bias=bias), 0.3)
        torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-6)


def test_a_document_without_keys_gets_zeros_in_the_loop_and_nothing_is_nan():
    mine, theirs = make_layout([2, 3]), make_layout([0, 4])
    q, k, v = draw_qkv(5, 4)
    with force_kernel("by_length"):
        out = attend(q, k, v, AttentionContext(mine, theirs), 0.3)
    assert not out[:2].any()
    with force_kernel("dense"):
        other = attend(q, k, v, AttentionContext(mine, theirs), 0.3)
    assert not other[:2].any()
    torch.testing.assert_close(out, other, atol=1e-9, rtol=0)
    grads = torch.autograd.grad(other.sum(), [q, k, v])
    assert all(g.isfinite().all() for g in grads)


def test_documents_of_one_length_share_a_call(monkeypatch):
    """Seven documents of three lengths: three calls, and the texts come back in their own order."""
    here, sdpa, shapes = make_layout([4, 2, 4, 7, 2, 4, 2]), F.scaled_dot_product_attention, []
    q, k, v = draw_qkv(here.num_tokens)
    with force_kernel("dense"):
        want = attend(q, k, v, AttentionContext(here, mask=causal), 0.3)
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", lambda x, *a, **b: shapes.append(x.shape) or sdpa(x, *a, **b)
    )
    with force_kernel("by_length"):
        out = attend(q, k, v, AttentionContext(here, mask=causal), 0.3)
    assert shapes == [(3, H, 2, D), (3, H, 4, D), (1, H, 7, D)]
    torch.testing.assert_close(out, want, atol=1e-9, rtol=0)


def test_the_order_of_tokens_is_on_the_device_of_the_batch():
    """On a GPU or MPS, slots cannot be looked up in a tensor of the CPU."""
    here = Layout(torch.tensor([0, 2, 5], dtype=torch.int32), 3, 5)
    assert dispatch.order_tokens(here, [1, 0]).tolist() == [2, 3, 4, 0, 1]
    elsewhere = Layout(torch.tensor([0, 2, 5], dtype=torch.int32, device="meta"), 3, 5)
    assert dispatch.order_tokens(elsewhere, [1, 0]).device.type == "meta"


@pytest.mark.parametrize("kind", ["nothing", "causal", "alibi", "buckets"])
@pytest.mark.parametrize("lengths", [[9, 9, 9], [5, 1, 8, 5]])
def test_training_in_bf16_on_a_cpu(kind, lengths, monkeypatch):
    """By plain products and not by SDPA, whose backward pass is slow; both within 2 % of the formula."""
    mask, bias, see, add = KINDS[kind]
    bias = table_bias() if bias == "table" else bias
    if isinstance(bias, BucketBias):
        add = lambda h, i, j: bias.weight[reference.compute_bucket(j - i, 8, 6, True), h]  # noqa: E731
    here = make_layout(lengths)
    q, k, v = draw_qkv(here.num_tokens)
    starts = here.starts.tolist()
    expected, _ = reference.attend(q, k, v, starts, starts, 0.3, see, add)
    pull = torch.randn_like(expected)
    extra = [bias.weight] if isinstance(bias, BucketBias) else []
    want = [expected, *torch.autograd.grad(expected, [q, k, v, *extra], pull)]
    errors = []
    for limit in (0, dispatch.MAX_PRODUCT_KEYS):  # by SDPA, by products
        monkeypatch.setattr(dispatch, "MAX_PRODUCT_KEYS", limit)
        if limit:
            monkeypatch.setattr(F, "scaled_dot_product_attention", None)
        leaves = [x.detach().bfloat16().requires_grad_() for x in (q, k, v)]
        out = attend(*leaves, AttentionContext(here, mask=mask, bias=bias), 0.3)
        got = [out, *torch.autograd.grad(out, [*leaves, *extra], pull.bfloat16())]
        errors.append([float(((a.double() - b).norm() / b.norm()).detach()) for a, b in zip(got, want, strict=True)])
    assert all(theirs < 0.02 and ours < 0.02 for theirs, ours in zip(*errors, strict=True)), errors


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_query_that_sees_nothing_in_bf16_on_a_cpu(has_bias):
    """An empty document, and a mask that leaves the first token of each document nothing to see."""
    mine, theirs = make_layout([2, 3]), make_layout([0, 4])
    q, k, v = (x.detach().bfloat16().requires_grad_() for x in draw_qkv(5, 4))
    for name in ("dense", "by_length"):
        with force_kernel(name):
            out = attend(q, k, v, AttentionContext(mine, theirs), 0.3)
        assert not out[:2].any()
        assert out[2:].all()
        assert all(grad.isfinite().all() for grad in torch.autograd.grad(out.sum(), [q, k, v]))
    q, k, v = (x.detach().bfloat16().requires_grad_() for x in draw_qkv(5))
    bias = build_alibi(H) if has_bias else None
    before = AttentionContext(mine, mask=lambda b, h, i, j: j < i, bias=bias)
    for name in ("dense", "by_length"):
        with force_kernel(name):
            out = attend(q, k, v, before, 0.3)
        assert not out[[0, 2]].any()
        assert out[[1, 3, 4]].all()
        assert all(grad.isfinite().all() for grad in torch.autograd.grad(out.sum(), [q, k, v]))


@pytest.mark.parametrize("has_bias", [False, True])
def test_dropout_in_bf16_on_a_cpu(has_bias):
    """Values of one: what comes out is the sum of the weights that are left, 1 on average."""
    here = make_layout([64] * 8)
    q, k = (torch.randn(512, H, D).bfloat16().requires_grad_() for _ in range(2))
    v = torch.ones(512, H, D).bfloat16()
    context = AttentionContext(here, mask=causal, bias=build_alibi(H) if has_bias else None)
    out = attend(q, k, v, context, 0.01, dropout=0.5).detach()
    assert 0.9 < float(out.float().mean()) < 1.1
    assert float(out.float().std()) > 0.05
    assert (attend(q, k, v, context, 0.01).detach().float() - 1).abs().max() < 0.02


def test_no_document_at_all():
    empty = Layout(torch.tensor([0, 0], dtype=torch.int32), 0, 0)
    q = torch.zeros(0, H, D)
    with force_kernel("by_length"):
        assert attend(q, q, q, AttentionContext(empty), 1.0).shape == (0, H, D)


@pytest.mark.parametrize("kind", ["nothing", "causal", "alibi", "buckets"])
def test_gradcheck(kind):
    mask, bias, _, _ = KINDS[kind]
    bias = table_bias(2) if bias == "table" else build_alibi(2) if bias is not None else None
    here = make_layout([3, 2])
    leaves = [torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    extra = [bias.weight] if isinstance(bias, BucketBias) else []
    for name in ("dense", "by_length"):

        def run(q, k, v, *_, name=name):
            with force_kernel(name):
                return attend(q, k, v, AttentionContext(here, mask=mask, bias=bias), 0.7)

        assert torch.autograd.gradcheck(run, (*leaves, *extra), atol=1e-6)


def test_gradcheck_of_the_relative_hook():
    """Transformer-XL's shape: a score that depends on the query, added to the mask of documents and the future."""
    here = make_layout([3, 2])
    r = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)  # (H, distances -2 … 2, D)
    u = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)

    def relative(q, k, scale, attn_context):
        size = q.shape[2]
        by_distance = torch.einsum("bhqd,hjd->bhqj", q, r)
        index = torch.arange(size)[None] - torch.arange(size)[:, None] + 2
        return q + u[:, None], by_distance.gather(-1, index.expand(*q.shape[:3], size)) * scale

    def run(q, k, v, *_):
        return attend(q, k, v, AttentionContext(here, mask=causal), 0.7, 0.0, relative)

    leaves = [torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    assert torch.autograd.gradcheck(run, (*leaves, r, u), atol=1e-6)
    q, k, v = leaves

    rows = []
    for start, stop in ((0, 3), (3, 5)):
        for i in range(stop - start):
            for h in range(2):
                query = q[start + i, h]
                scores = torch.stack(
                    [((query + u[h]) @ k[start + j, h] + query @ r[h, j - i + 2]) * 0.7 for j in range(i + 1)]
                )
                rows.append(scores.softmax(0) @ v[start : start + i + 1, h])
    torch.testing.assert_close(run(q, k, v).flatten(0, 1), torch.stack(rows))
    table = compute_attention_weights(q, k, AttentionContext(here, mask=causal), 0.7, relative)
    torch.testing.assert_close(table.sum(-1)[0].double(), torch.ones(2, 3, dtype=torch.float64))
    assert not table.triu(1).any()


def test_no_gradient_reaches_the_past_of_a_future_token():
    here = make_layout([4, 3])
    for name in ("dense", "by_length"):
        q, k, v = draw_qkv(7)
        with force_kernel(name):
            out = attend(q, k, v, AttentionContext(here, mask=causal), 0.3)
        for slot, (first, last) in enumerate([(0, 4)] * 4 + [(4, 7)] * 3):
            grads = torch.autograd.grad(out[slot].sum(), [k, v], retain_graph=True)
            for grad in grads:
                reached = grad.abs().sum((1, 2)) > 0
                assert reached[first : slot + 1].all() or grad is grads[0]
                assert not reached[slot + 1 :].any(), "from the future"
                assert not reached[:first].any(), "from another document"
                assert last <= 7


def test_choice_of_path():
    cpu = torch.zeros(15, H, D)
    assert choose_kernel(cpu, cpu, AttentionContext(make_layout([5, 5, 5])), 0.0, None) == "sdpa"
    assert choose_kernel(cpu, cpu, AttentionContext(make_layout([5, 5, 5]), mask=causal), 0.0, None) == "sdpa"
    assert choose_kernel(cpu, cpu, AttentionContext(make_layout([5, 5, 5]), mask=WindowMask(2)), 0.0, None) == "dense"
    assert choose_kernel(cpu, cpu, AttentionContext(make_layout([5, 5, 5]), bias=build_alibi(H)), 0.0, None) == "dense"
    assert choose_kernel(cpu, cpu, AttentionContext(make_layout([1, 13, 1])), 0.0, None) == "by_length"
    assert choose_kernel(cpu, cpu, AttentionContext(make_layout([5, 5, 4]), mask=causal), 0.0, None) == "dense"
    assert choose_kernel(cpu, cpu, AttentionContext(make_layout([5, 5, 5])), 0.0, lambda q, k, s, c: (q, q)) == "dense"
    assert choose_kernel(cpu, cpu[None], AttentionContext(make_layout([15])), 0.0, None) == "dense"
    assert (
        choose_kernel(
            cpu, cpu, AttentionContext(make_layout([5, 5, 5]), make_layout([4, 4, 4]), mask=causal), 0.0, None
        )
        == "dense"
    )

    class ByRow(RowMask):
        def __call__(self, b, h, q, k):
            return k >= b

    for mask in (ByRow(), combine_masks(causal, ByRow())):
        assert choose_kernel(cpu, cpu, AttentionContext(make_layout([1, 13, 1]), mask=mask), 0.0, None) == "dense"


def test_the_table_names_every_kernel_with_a_reason():
    assert {name for name, _, _ in KERNEL_RULES} == set(KERNELS)
    assert all(reason for _, _, reason in KERNEL_RULES)
    assert KERNEL_RULES[-1][1](None), "the last rule takes what is left"


def test_a_context_is_complete_when_it_is_built():
    attn_context = AttentionContext(make_layout([3, 2]), mask=causal)
    with pytest.raises(AttributeError, match="give mask when it is built"):
        attn_context.mask = None
    with pytest.raises(AttributeError, match="frozen"):
        attn_context.relative_positions = torch.zeros(1)
    with pytest.raises(AttributeError, match="frozen"):
        attn_context.copy_for_recompute(None).mask = None


def test_layers_with_other_numbers_of_heads_have_masks_of_their_own():
    """Layers with pruned heads share a context with the others; what no head changes is built once."""
    by_head = lambda b, h, q, k: k + h >= q  # noqa: E731
    attn_context = AttentionContext.start_pass(make_layout([3, 2]), mask=by_head)
    assert [attn_context.get_dense_mask(heads).shape[1] for heads in (2, 4, 1)] == [2, 4, 1]
    assert attn_context.get_dense_mask(4) is attn_context.get_dense_mask(4)
    plain = AttentionContext.start_pass(make_layout([3, 2]), mask=causal, opens_blind=True)
    plain.get_blind_queries()
    assert plain.get_dense_mask(2) is plain.get_dense_mask(4)


def test_a_context_for_recomputing_is_complete_and_shares_no_bias():
    here, memory = make_layout([3, 2]), SegmentMemory(2, 4, zeros=True)
    attn_context = AttentionContext.start_pass(
        here, segment_memory=memory, mask=causal, bias=build_alibi(H), positions=torch.arange(5),
        relative=RelativeInputs(torch.zeros(8, 3)), mask_ranks=(torch.arange(5),) * 2, opens_blind=True,
        head_mask=torch.ones(1, H), capture=Capture(), stack_name="content",
    )  # fmt: skip
    attn_context.get_dense_mask(H)
    copied = memory.copy()
    memory.drop_newest(1)  # the memory continues, the copy stays
    again = attn_context.copy_for_recompute(copied)
    assert vars(again).keys() == vars(attn_context).keys()
    for name, value in vars(attn_context).items():
        if name not in ("forms", "segment_memory"):
            assert getattr(again, name) is value or (name == "key_length" and again.key_length == value == 7), name
    assert again.segment_memory is copied
    assert attn_context.forms.dense
    assert not again.forms.dense
    assert again.forms.blind_queries is attn_context.forms.blind_queries is not None


def test_new_keys_that_the_cache_does_not_hold_travel_with_the_call(monkeypatch):
    """A layer whose keys the kernel writes hands them to that call alone, and leaves nothing in the cache."""
    calls = []

    def spy(q, k, v, lengths, scale, *, fresh, **more):
        calls.append((k, v, fresh))
        decode.write_new_kv(k, v, lengths, more["table"], fresh)
        return torch.zeros_like(q)

    one, cache = Attention(8, 2), KVCache(2, 4)
    one(torch.randn(4, 8), AttentionContext.start_pass(make_layout([2, 2]), mask=causal, cache=cache))
    cache.advance(make_layout([2, 2]))
    monkeypatch.setattr(decode, "decode_attention", spy)
    for module in (kv_cache, decode):
        monkeypatch.setattr(module, "is_available", lambda device, dtype: True)
    before, x = set(vars(cache)), torch.randn(2, 8)
    one(x, AttentionContext.start_pass(make_layout([1, 1]), mask=causal, cache=cache))
    (k, v, fresh), (_, new_k, new_v) = calls[0], one.split_heads(one.qkv(x), 3)
    assert torch.equal(fresh[0], new_k)
    assert torch.equal(fresh[1], new_v)
    assert k is cache[0].keys
    assert torch.equal(k[:, 2], new_k)
    assert torch.equal(v[:, 2], new_v)
    assert set(vars(cache)) == before
    assert not any(value is new for value in vars(cache).values() for new in fresh)


def test_queries_that_see_no_key_are_opened_and_named():
    here = make_layout([3, 2])
    attn_context = AttentionContext(here, mask=lambda b, h, q, k: k < q, opens_blind=True)
    assert attn_context.get_blind_queries().tolist() == [True, False, False, True, False]
    assert attn_context.get_dense_mask(1)[0, 0, 0].all()
    assert not AttentionContext(here, opens_blind=True).get_blind_queries().any()


class Cuda:
    """Stands for a tensor on a GPU, as far as the choice of a path looks at it."""

    is_cuda = True

    def __init__(self, dtype=torch.bfloat16, width=64):
        self.dtype, self.shape = dtype, (15, H, width)

    def dim(self):
        return 3


@pytest.mark.parametrize(
    ("q", "attn_context", "dropout", "expected"),
    [
        (Cuda(), AttentionContext(make_layout([1, 13, 1])), 0.0, "varlen"),
        (Cuda(), AttentionContext(make_layout([1, 13, 1]), mask=combine_masks(causal, WindowMask(4))), 0.0, "varlen"),
        (Cuda(), AttentionContext(make_layout([5, 5, 5]), mask=causal), 0.0, "sdpa"),
        (Cuda(), AttentionContext(make_layout([1, 13, 1]), mask=causal, bias=build_alibi(H)), 0.0, "flex"),
        (Cuda(), AttentionContext(make_layout([5, 5, 5]), mask=causal, bias=build_alibi(H)), 0.0, "flex"),
        (Cuda(), AttentionContext(make_layout([5, 5, 5]), bias=table_bias()), 0.0, "biased_flash"),
        (Cuda(torch.float32), AttentionContext(make_layout([5, 5, 5]), bias=table_bias()), 0.1, "dense"),
        (Cuda(torch.float32), AttentionContext(make_layout([1, 13, 1])), 0.0, "flex"),
        (Cuda(width=60), AttentionContext(make_layout([1, 13, 1])), 0.0, "dense"),
        (Cuda(), AttentionContext(make_layout([1, 13, 1])), 0.1, "varlen"),
        (Cuda(), AttentionContext(make_layout([1, 13, 1]), mask=combine_masks(causal, WindowMask(4))), 0.1, "varlen"),
        (Cuda(), AttentionContext(make_layout([1, 13, 1]), bias=table_bias()), 0.1, "biased_flash"),
        (Cuda(width=256), AttentionContext(make_layout([1, 13, 1])), 0.0, "varlen"),
        (Cuda(width=256), AttentionContext(make_layout([1, 13, 1])), 0.1, "dense"),
    ],
)
def test_choice_of_path_on_a_gpu(q, attn_context, dropout, expected, monkeypatch):
    monkeypatch.setattr(dispatch, "is_ampere_or_newer", lambda: True)
    monkeypatch.setattr(dispatch, "has_triton", lambda: True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert choose_kernel(q, q, attn_context, dropout, None) == expected


def test_whole_grids_on_hopper_take_cudnn_while_training(monkeypatch):
    monkeypatch.setattr(dispatch, "is_ampere_or_newer", lambda: True)
    monkeypatch.setattr(dispatch, "is_hopper", lambda: True)
    whole, ragged = (
        AttentionContext(make_layout([5, 5, 5]), mask=causal),
        AttentionContext(make_layout([1, 13, 1]), mask=causal),
    )
    assert choose_kernel(Cuda(), Cuda(), whole, 0.1, None) == "cudnn"
    assert choose_kernel(Cuda(), Cuda(), ragged, 0.1, None) == "varlen"
    assert choose_kernel(Cuda(torch.float32), Cuda(torch.float32), whole, 0.1, None) == "sdpa"
    with torch.no_grad():
        assert choose_kernel(Cuda(), Cuda(), whole, 0.0, None) == "sdpa"
    assert "cudnn" in dispatch.list_available_kernels(Cuda())


def test_scores_by_distance_are_made_inside_the_kernel_for_whole_documents(monkeypatch):
    """On Hopper, for heads up to 64; queries at some places read them from a table."""
    for name in ("is_ampere_or_newer", "has_triton", "is_hopper"):
        monkeypatch.setattr(dispatch, name, lambda: True)
    inputs, layout = RelativeInputs(torch.zeros(27, 8)), make_layout([1, 13, 1])
    here = AttentionContext(layout, mask=causal, relative=inputs)
    placed = AttentionContext(layout, mask=causal, relative=inputs, query_places=layout.positions)
    hook = RelativeScores(8, H, 64)
    assert choose_kernel(Cuda(), Cuda(), here, 0.1, hook) == "relative_flash"
    assert choose_kernel(Cuda(), Cuda(), placed, 0.1, hook) == "biased_flash"
    assert choose_kernel(Cuda(width=128), Cuda(width=128), here, 0.1, hook) == "biased_flash"
    assert choose_kernel(Cuda(torch.float32), Cuda(torch.float32), here, 0.1, hook) == "dense"
    assert "relative_flash" in dispatch.list_available_kernels(Cuda())
    monkeypatch.setattr(dispatch, "is_hopper", lambda: False)
    assert choose_kernel(Cuda(), Cuda(), here, 0.1, hook) == "biased_flash"


def test_an_older_gpu_takes_the_dense_path(monkeypatch):
    monkeypatch.setattr(dispatch, "is_ampere_or_newer", lambda: False)
    monkeypatch.setattr(dispatch, "has_triton", lambda: False)
    q = Cuda(torch.float16)
    assert choose_kernel(q, q, AttentionContext(make_layout([1, 13, 1])), 0.0, None) == "dense"
    assert dispatch.list_available_kernels(q) == {"sdpa", "dense"}
    monkeypatch.setattr(dispatch, "is_ampere_or_newer", lambda: True)
    monkeypatch.setattr(dispatch, "has_triton", lambda: True)
    assert dispatch.list_available_kernels(q) == {"sdpa", "dense", "varlen", "flex", "biased_flash"}
    assert dispatch.list_available_kernels(torch.zeros(1, 1, 8)) == {"sdpa", "dense", "by_length"}
    assert not dispatch._supports_flash(Cuda(width=264))
    assert not dispatch._supports_flex(Cuda(width=8))
    assert not dispatch._supports_biased_flash(Cuda(width=256))
    assert not dispatch._supports_biased_flash(Cuda(torch.float32))
    assert dispatch._supports_biased_flash(Cuda(width=128))
    assert dispatch._supports_flash(Cuda(width=256))
    assert dispatch._supports_flex(Cuda(width=16))


def test_dropout_is_said_once(monkeypatch):
    """By the kernel that is slow with it, not by who asks which one would be taken."""
    monkeypatch.setattr(dispatch, "is_ampere_or_newer", lambda: True)
    monkeypatch.setattr(dispatch, "_attend_grid", lambda call, bias: bias)
    dispatch._warn_once.cache_clear()
    q, here = Cuda(width=256), AttentionContext(make_layout([1, 13, 1]))
    call = AttentionCall(q, q, q, here, 1.0, 0.1, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dispatch.choose_kernel(call) == "dense"
    with pytest.warns(UserWarning, match="attention dropout"):
        dispatch.attend_dense(call)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dispatch.attend_dense(call)


def test_reach():
    assert get_window_bounds(None) == (-1, -1)
    assert get_window_bounds(causal) == (-1, 0)
    assert get_window_bounds(WindowMask(4)) == (3, -1)
    assert get_window_bounds(combine_masks(causal, WindowMask(256))) == (255, 0)
    assert get_window_bounds(build_alibi(2)) is None
    assert get_window_bounds(combine_masks(causal, lambda b, h, q, k: k > 2)) is None


def test_kernel_is_forced_only_inside():
    with contextlib.suppress(ZeroDivisionError), force_kernel("by_length"):
        assert dispatch._forced_kernel == "by_length"
        raise ZeroDivisionError
    assert dispatch._forced_kernel is None
    with force_kernel("dense"):
        with force_kernel("by_length"):
            pass
        assert dispatch._forced_kernel == "dense"


def test_the_dense_form_is_made_once():
    calls = []

    def mask(b, h, q, k):
        calls.append(1)
        return k <= q

    attn_context = AttentionContext(make_layout([3, 2]), mask=mask)
    assert attn_context.get_dense_mask(H) is attn_context.get_dense_mask(H)
    assert attn_context.get_dense_mask(H, padded=False).shape == (1, 1, 3, 3)
    assert len(calls) == 2


def test_dropout_acts_in_training_only():
    from formers.nn.attention.attention import Attention

    attention = Attention(12, 3, dropout=0.5)
    x, attn_context = torch.randn(9, 12), AttentionContext(make_layout([4, 5]))
    for name in ("by_length", "dense"):
        with force_kernel(name):
            attention.train()
            assert not torch.equal(attention(x, attn_context), attention(x, attn_context))
            attention.eval()
            assert torch.equal(attention(x, attn_context), attention(x, attn_context))


def test_flex_forward_on_the_cpu():
    """The fused kernel's reference form runs on a CPU; its compiled form is tested by make gpu."""
    here = make_layout([4, 1, 7, 4])
    q, k, v = (torch.randn(16, 2, 16) for _ in range(3))
    bias = BucketBias(2, 8, 6)
    torch.nn.init.normal_(bias.weight)
    for mask, add in ((None, None), (causal, build_alibi(2)), (causal, bias), (None, Plain())):
        with torch.no_grad():
            with force_kernel("dense"):
                expected = attend(q, k, v, AttentionContext(here, mask=mask, bias=add), 0.25)
            with force_kernel("flex"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                got = attend(q, k, v, AttentionContext(here, mask=mask, bias=add), 0.25)
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def count_multiplications(run):
    """The multiplications of a run, as torch counts them."""
    from torch.utils.flop_counter import FlopCounterMode

    plain = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)  # the counter knows no CPU kernel
    with FlopCounterMode(display=False) as counter, torch.no_grad(), plain:
        run()
    return counter.get_total_flops()


@pytest.mark.parametrize("width", [8, 16])
def test_a_band_costs_tokens_times_width(width):
    """Twice the tokens, twice the work; a dense layer needs four times."""

    def cost(n, mask):
        q, k, v = (torch.zeros(n, H, D) for _ in range(3))
        return count_multiplications(lambda: attend(q, k, v, AttentionContext(make_layout([n]), mask=mask), 1.0))

    band = combine_masks(causal, WindowMask(width))
    sizes = [256, 512, 1024, 2048]
    work = [cost(n, band) for n in sizes]
    assert work == [n * 2 * width * 4 * H * D for n in sizes]  # two products, over this block and the one before
    dense = [cost(n, causal) for n in sizes]
    assert dense == [n * n * 4 * H * D for n in sizes]
    assert (
        choose_kernel(
            torch.zeros(64, H, D), torch.zeros(64, H, D), AttentionContext(make_layout([64]), mask=band), 0.0, None
        )
        == "banded"
    )


def test_banded_layers_of_whole_models_cost_less():
    for family in ("gpt3", "gpt_neo"):
        sizes = {"vocab": 20, "context": 512, "dim": 12, "heads": 3, "layers": 2, "window": 8}

        def cost(n, family=family, sizes=sizes, **more):
            f = formers.build(family, **sizes, **more)
            return count_multiplications(lambda: f.logits(torch.zeros(1, n, dtype=torch.long)))

        linear = [cost(n, pattern=("local",)) for n in (128, 256, 512)]
        assert linear[2] - linear[1] == 2 * (linear[1] - linear[0])
        assert cost(512, pattern=("global",)) > cost(512) > linear[2]
