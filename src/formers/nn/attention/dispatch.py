"""The one entry to the attention kernels: packed queries, keys and values in, the best kernel chosen inside. N tokens
(packed), H heads, D head dim, rows = documents, Q and K the longest document on either side."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from functools import cache as remember
from itertools import groupby
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ...batch import Layout
from ..gpu_support import has_triton, is_ampere_or_newer, is_hopper
from .context import AttentionContext
from .kernels import decode
from .kv_cache import is_decode_step
from .masks import AlibiBias, DistanceBias, RowMask, causal, get_window_bounds, get_window_width, split_mask
from .positions import DistanceTerms

MAX_PRODUCT_KEYS = 1024  # of a text: up to here, bf16 training on a CPU keeps the attention weights
KeptHeads = tuple[int, tuple[int, ...]]  # how many heads there were, and which of them are left


class RelativeHook(Protocol):
    """Scores that depend on the query beyond its product with the key (nn/attention/positions.py)."""

    def __call__(self, q: Tensor, k: Tensor, scale: float, attn_context: AttentionContext, /) -> tuple[Tensor, Tensor]:
        """Turn queries (rows, H, Q, D) and keys on a grid into other queries and a bias (rows, H, Q, K)."""

    def compute_distance_terms(self, q: Tensor, scale: float, attn_context: AttentionContext, /) -> DistanceTerms:
        """Compute from packed queries (N, H, D) what a kernel makes their scores of."""


class AttentionCall(NamedTuple):
    """One call of an attention kernel: (N, H, D) queries over packed keys and values or over a cache's (rows, K, H, D).
    Where heads were pruned, `kept_heads` says which ones these are, for a bias that differs by head. `unwritten_kv` are
    new keys and values (N, H, D) that the kernel writes into the cache (kv_cache.CachedKV)."""

    q: Tensor
    k: Tensor
    v: Tensor
    attn_context: AttentionContext
    scale: float
    dropout: float = 0.0
    relative: RelativeHook | None = None
    kept_heads: KeptHeads | None = None
    unwritten_kv: tuple[Tensor, Tensor] | None = None


_forced_kernel: str | None = None
_allow_plain_products = True


@contextlib.contextmanager
def forbid_plain_products() -> Iterator[None]:
    """Make bf16 training on a CPU call SDPA too, which keeps no attention weights: for counting what a GPU keeps."""
    global _allow_plain_products
    before, _allow_plain_products = _allow_plain_products, False
    try:
        yield
    finally:
        _allow_plain_products = before


@contextlib.contextmanager
def force_kernel(name: str | None) -> Iterator[None]:
    """Take one kernel of `KERNELS` for all attention inside. For tests."""
    global _forced_kernel
    before, _forced_kernel = _forced_kernel, name
    try:
        yield
    finally:
        _forced_kernel = before


def attend(
    q: Tensor, k: Tensor, v: Tensor, attn_context: AttentionContext, scale: float, dropout: float = 0.0,
    relative: RelativeHook | None = None, kept_heads: KeptHeads | None = None,
    unwritten_kv: tuple[Tensor, Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """Compute attention (N, H, D) with the first kernel of `KERNEL_RULES` that applies, on an `AttentionCall`."""
    call = AttentionCall(q, k, v, attn_context, scale, dropout, relative, kept_heads, unwritten_kv)
    return KERNELS[_forced_kernel or choose_kernel(call)](call)


def choose_kernel(call: AttentionCall) -> str:
    """Return the name of the first kernel in `KERNEL_RULES` that applies."""
    for name, applies, _ in KERNEL_RULES:
        if applies(call):
            return name
    raise AssertionError("the last rule applies to every call")


def is_packed(call: AttentionCall) -> bool:
    """Return whether keys and values are packed, without a past."""
    return call.k.dim() == 3 and call.attn_context.past_lengths is None


def can_use_decode(call: AttentionCall) -> bool:
    """Return whether the decode kernel applies: keys in a cache with one new token in each row, or any number of
    queries over a cached source."""
    context = call.attn_context
    if call.k.dim() != 4 or context.cache is None or call.relative is not None:
        return False
    if context.past_lengths is not None:
        return is_decode_step(context.query_layout, call.q.dtype)
    unmasked = context.mask is None and context.bias is None
    if not unmasked or not context.query_layout.is_uniform:
        return False
    return decode.is_available(context.key_layout.starts.device, call.q.dtype)


def can_use_sdpa(call: AttentionCall) -> bool:
    """Return whether SDPA needs no mask tensor: whole grids, everything visible or causal, no bias."""
    context = call.attn_context
    if not is_packed(call) or context.bias is not None or call.relative is not None or not context.is_uniform:
        return False
    return context.mask is None or (context.mask is causal and context.query_layout.longest == context.key_length)


def can_use_cudnn(call: AttentionCall) -> bool:
    """Return whether cuDNN's attention applies: whole grids, no mask tensor, training in half precision on Hopper."""
    if not (call.q.is_cuda and torch.is_grad_enabled() and can_use_sdpa(call)):
        return False
    return _supports_cudnn(call.q)


def can_use_biased_flash(call: AttentionCall) -> bool:
    """Return whether the biased flash kernel applies: half precision on a GPU, keys packed or after a memory of one
    length in all rows, no mask or one given by ranks (a query sees keys of its own rank or lower), and what no other
    packed kernel takes: dropout with a bias, a learned bias by distance, or scores by distance."""
    context = call.attn_context
    if not ((is_packed(call) or context.has_even_memory) and call.q.is_cuda and _supports_biased_flash(call.q)):
        return False
    if context.mask is not None and context.get_mask_ranks() is None:
        return False
    if call.relative is not None:
        inputs = context.relative
        if inputs is None or inputs.reversed_encodings is not None:
            return False
        return inputs.is_other_segment is None or inputs.segment_ids is not None
    if isinstance(context.bias, torch.nn.Module):
        return True
    return call.dropout > 0 and (context.bias is None or isinstance(context.bias, DistanceBias))


def can_use_relative_flash(call: AttentionCall) -> bool:
    """Return whether scores by distance can be made inside the kernel: where biased flash takes them, the queries are
    all tokens of their documents, and a block of all terms fits the chip's memory."""
    if call.relative is None or call.attn_context.query_places is not None:
        return False
    return can_use_biased_flash(call) and _supports_relative_flash(call.q)


def needs_grid(call: AttentionCall) -> bool:
    """Return whether keys lie in a grid already, or a relative hook makes scores on one."""
    return call.relative is not None or not is_packed(call)


def can_use_banded(call: AttentionCall) -> bool:
    """Return whether a causal window is much narrower than the text and flash attention does not take it."""
    context, q = call.attn_context, call.q
    width = get_window_width(context.mask)
    if not width or context.bias is not None or context.query_layout is not context.key_layout:
        return False
    return context.query_layout.longest > 2 * width and not (q.is_cuda and _supports_flash(q))


def needs_dense_dropout(call: AttentionCall) -> bool:
    """Return whether dropout is asked for on a GPU, where no packed kernel is left that has it."""
    return call.q.is_cuda and call.dropout > 0


def can_use_varlen(call: AttentionCall) -> bool:
    """Return whether the varlen kernel applies: no bias, a mask of `causal` and windows, half precision on a GPU."""
    context = call.attn_context
    if not (is_packed(call) and call.q.is_cuda and _supports_flash(call.q)):
        return False
    if call.dropout and call.q.shape[-1] > 128:  # not every GPU has memory for the backward pass of wider heads
        return False
    return context.bias is None and call.relative is None and get_window_bounds(context.mask) is not None


def can_use_flex(call: AttentionCall) -> bool:
    """Return whether FlexAttention applies and saves something: a bias table or padding."""
    context = call.attn_context
    return call.q.is_cuda and _supports_flex(call.q) and (context.bias is not None or not context.is_uniform)


def is_dense_cheaper(call: AttentionCall) -> bool:
    """Return whether one padded call is better than one for each length: on a GPU, in a compiled graph, with a mask of
    single documents, or with hardly any padding."""
    layout = call.attn_context.query_layout
    if call.q.is_cuda or torch.compiler.is_compiling():
        return True
    by_row = any(isinstance(part, RowMask) for part in split_mask(call.attn_context.mask))
    return by_row or layout.rows * layout.longest <= 1.25 * layout.num_tokens


def attend_sdpa(call: AttentionCall) -> Tensor:
    """Attend by SDPA on whole grids, without a mask tensor."""
    return _attend_grid(call, None, is_causal=call.attn_context.mask is not None)


def attend_cudnn(call: AttentionCall) -> Tensor:
    """Attend by cuDNN on whole grids, without a mask tensor (half precision on a GPU)."""
    context = call.attn_context
    out = torch.ops.aten._scaled_dot_product_cudnn_attention(
        *_to_grids(call), None, True, call.dropout, context.mask is not None, False, scale=call.scale
    )[0]
    return context.query_layout.pack(out.transpose(1, 2))


def attend_dense(call: AttentionCall) -> Tensor:
    """Attend by SDPA on padded grids, with a dense mask or bias."""
    if needs_dense_dropout(call) and not needs_grid(call) and not torch.compiler.is_compiling():
        _warn_once("attention dropout > 0 has no packed kernel for this mask or type: taking SDPA with a dense mask")
    return _attend_grid(call, select_dense_bias(call.attn_context, call.q.shape[1], call.kept_heads))


def _attend_grid(call: AttentionCall, bias: Tensor | None, is_causal: bool = False) -> Tensor:
    context = call.attn_context
    q, k, v = _to_grids(call)
    if call.relative is not None:
        q, extra = call.relative(q, k, call.scale, context)
        bias = _add_bias(extra, bias)
    y = _attend_rows(call, q, k, v, _cast_bias(bias, q.dtype), is_causal)
    return context.query_layout.pack(y.transpose(1, 2))


def _attend_rows(
    call: AttentionCall, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, is_causal: bool
) -> Tensor:  # (rows, H, T, D)
    """Attend by SDPA, or by plain products where torch's kernel is slow: trained in bf16 on a CPU, forward and backward
    take 14 ms by products and 32 by SDPA (8 rows, 4 heads, 256 tokens), 1.0 and 4.7 with 20 rows of 20 tokens."""
    is_trained = torch.is_grad_enabled() and q.requires_grad and not torch.compiler.is_compiling()
    is_slow = q.device.type == "cpu" and q.dtype == torch.bfloat16 and is_trained and k.shape[2] <= MAX_PRODUCT_KEYS
    if not (is_slow and _allow_plain_products):
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias, dropout_p=call.dropout, is_causal=is_causal, scale=call.scale
        )
    scores = (q * call.scale) @ k.transpose(-1, -2)
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    if bias is None:
        return F.dropout(scores.softmax(-1), call.dropout) @ v
    scores = scores + bias if bias.dtype != torch.bool else scores.masked_fill(~bias, -math.inf)
    is_blind = (scores == -math.inf).all(-1, keepdim=True)
    weights = scores.masked_fill(is_blind, 0).softmax(-1).masked_fill(is_blind, 0)
    return F.dropout(weights, call.dropout) @ v


def attend_by_length(call: AttentionCall) -> Tensor:
    """Attend by SDPA, one call for all documents of one length: no padding, and no mask of lengths."""
    context, bias = call.attn_context, None
    is_self = context.query_layout is context.key_layout
    is_causal = context.mask is causal and context.bias is None and is_self
    if not is_causal:
        bias = _cast_bias(select_dense_bias(context, call.q.shape[1], call.kept_heads, padded=False), call.q.dtype)
    q_lengths, k_lengths = (layout.lengths.tolist() for layout in (context.query_layout, context.key_layout))
    pairs = [*zip(q_lengths, k_lengths, strict=True)]
    documents = sorted(range(len(pairs)), key=pairs.__getitem__)
    q_order = order_tokens(context.query_layout, documents)
    k_order = q_order if is_self else order_tokens(context.key_layout, documents)
    groups = [(*pair, len(list(same))) for pair, same in groupby(pairs[document] for document in documents)]
    # `split` and not slices: the gradient of a slice is a tensor as large as the whole batch, filled with zeros.
    queries = call.q[q_order].split([rows * width for width, _, rows in groups])
    keys, values = (x[k_order].split([rows * width for _, width, rows in groups]) for x in (call.k, call.v))
    parts = []
    for (q_length, k_length, rows), x, y, z in zip(groups, queries, keys, values, strict=True):
        if not q_length or not k_length:  # no query, or nothing to see
            parts.append(torch.zeros_like(x))
            continue
        x, y, z = (t.unflatten(0, (rows, -1)).transpose(1, 2) for t in (x, y, z))  # (rows, H, T, D)
        corner = None if bias is None else bias[..., :q_length, :k_length]
        out = _attend_rows(call, x, y, z, corner, is_causal)
        parts.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(parts)[q_order.argsort()] if parts else torch.zeros_like(call.q)


def attend_banded(call: AttentionCall) -> Tensor:
    """Attend in a causal window of w tokens: blocks of w queries over their own and the block before, so the work grows
    with n · w and not with n². Keys past a document's end come after its queries: no mask of lengths is needed."""
    q, layout, w = call.q, call.attn_context.query_layout, get_window_width(call.attn_context.mask)
    count = -(-layout.longest // w)
    grid = [F.pad(layout.unpack(t), (0, 0, 0, 0, 0, count * w - layout.longest)) for t in (q, call.k, call.v)]
    x, y, z = (t.unflatten(1, (count, w)).transpose(2, 3) for t in grid)  # (rows, blocks, H, w, D)
    y, z = (torch.cat((F.pad(t, (0, 0, 0, 0, 0, 0, 1, 0))[:, :-1], t), 3) for t in (y, z))  # (rows, blocks, H, 2w, D)
    here = torch.arange(w, device=q.device)[:, None]
    there = torch.arange(2 * w, device=q.device) - w  # counted from the block's first token
    mask = (there <= here) & (here - there < w)
    first = torch.arange(count, device=q.device)[:, None, None, None] > 0
    mask = mask & (first | (there >= 0))  # (blocks, 1, w, 2w): there is nothing before the first block
    x, y, z, mask = x.flatten(0, 1), y.flatten(0, 1), z.flatten(0, 1), mask.repeat(layout.rows, 1, 1, 1)
    out = F.scaled_dot_product_attention(x, y, z, attn_mask=mask, dropout_p=call.dropout, scale=call.scale)
    out = out.transpose(1, 2).reshape(layout.rows, count * w, *q.shape[1:])  # (rows, T, H, D)
    return layout.pack(out[:, : layout.longest])


def attend_varlen(call: AttentionCall) -> Tensor:
    """Attend by flash attention over packed documents (half precision on a GPU). torch.nn.attention.varlen.varlen_attn
    calls it too, but hands over no dropout, and in torch 2.11 no scale."""
    query, key = call.attn_context.query_layout, call.attn_context.key_layout
    bounds = get_window_bounds(call.attn_context.mask)
    assert bounds is not None
    return torch.ops.aten._flash_attention_forward(
        call.q, call.k, call.v, query.starts, key.starts, query.longest, key.longest, call.dropout, False, False,
        scale=call.scale, window_size_left=bounds[0], window_size_right=bounds[1],
    )[0]  # fmt: skip


def attend_decode(call: AttentionCall) -> Tensor:
    """Attend from one new token in each row over what a cache holds, where it lies (not for training)."""
    q, k, v, context = call.q, call.k, call.v, call.attn_context
    assert context.cache is not None
    if context.past_lengths is None:
        return decode.decode_attention(q, k, v, context.key_layout.lengths, call.scale)
    bias = None
    if context.bias is not None:
        assert isinstance(context.bias, DistanceBias)
        bias = _select_kept(context.cache.get_decode_bias(context.bias, context.key_length), call.kept_heads)
    return decode.decode_attention(
        q, k, v, context.get_total_lengths(), call.scale, table=context.cache.slot_table, bias=bias,
        width=get_window_width(context.mask), fresh=call.unwritten_kv,
    )  # fmt: skip


def pack_keys(call: AttentionCall) -> tuple[Layout, Tensor, Tensor]:
    """Return where the keys of each row lie, and keys and values (M, H, D), with an even memory (rows, K, H, D) row
    after row."""
    k, v = (t.flatten(0, 1) if t.dim() == 4 else t for t in (call.k, call.v))
    return call.attn_context.get_packed_key_layout(), k, v


def attend_biased_flash(call: AttentionCall) -> Tensor:
    """Attend with a bias or scores by distance, an order and dropout in one kernel over packed documents (on a GPU)."""
    from .kernels.biased_flash import biased_flash_attention

    q, context, query = call.q, call.attn_context, call.attn_context.query_layout
    key, k, v = pack_keys(call)
    table = scores = extra = segments = None
    if call.relative is not None:
        q, distance_queries, encodings, extra = call.relative.compute_distance_terms(q, call.scale, context)
        scores = (distance_queries * call.scale).transpose(0, 1) @ encodings.permute(1, 2, 0)  # (H, N, W)
        segments = None if context.relative is None else context.relative.segment_ids
    elif context.bias is not None:
        table = _select_kept(context.get_pairwise_bias(), call.kept_heads)
    return biased_flash_attention(
        q, k, v, (query.starts, key.starts), (query.longest, key.longest), call.scale, table=table,
        scores=scores, extra=extra, segments=segments, places=context.query_places, ranks=context.get_mask_ranks(),
        dropout=call.dropout,
    )  # fmt: skip


def attend_relative_flash(call: AttentionCall) -> Tensor:
    """Attend with scores by distance that the kernel makes itself, over packed documents (on a GPU)."""
    from .kernels.relative_flash import relative_flash_attention

    context, query = call.attn_context, call.attn_context.query_layout
    key, k, v = pack_keys(call)
    assert call.relative is not None
    terms = call.relative.compute_distance_terms(call.q, call.scale, context)
    return relative_flash_attention(
        terms.queries, k, v, (query.starts, key.starts), (query.longest, key.longest), call.scale,
        distance_queries=terms.distance_queries, encodings=terms.encodings, extra=terms.segment_scores,
        segments=None if context.relative is None else context.relative.segment_ids, ranks=context.get_mask_ranks(),
        dropout=call.dropout,
    )  # fmt: skip


def attend_flex(call: AttentionCall) -> Tensor:
    """Attend by FlexAttention: any mask and bias over packed documents (on a GPU; forward only on a CPU)."""
    q, k, v, context = call.q, call.k, call.v, call.attn_context
    score, options, kept_heads = None, None, call.kept_heads
    if isinstance(context.bias, DistanceBias) and not isinstance(context.bias, AlibiBias):
        queries, keys = context.query_layout.longest, context.key_layout.longest
        line = _select_kept(context.get_distance_bias(), kept_heads).contiguous()
        options = {"BLOCK_M": 128, "BLOCK_N": 64, "num_stages": 2} if q.is_cuda else None

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return s + line[h, (j - i + queries - 1).clamp(0, queries + keys - 2)]  # clamped: masked pairs count too

    elif context.bias is not None:
        names = None if kept_heads is None else torch.tensor(kept_heads[1], device=q.device)
        bias = context.bias.bind_device(q.device) if isinstance(context.bias, AlibiBias) else context.bias

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return s + bias(b, h if names is None else names[h], i, j)

    x, y, z = _to_grids(call) if context.is_uniform else (t.transpose(0, 1)[None] for t in (q, k, v))  # (1, H, N, D)
    out = _get_flex_kernel()(
        x, y, z, score_mod=score, block_mask=context.get_block_mask(), scale=call.scale, kernel_options=options
    )
    return context.query_layout.pack(out.transpose(1, 2)) if context.is_uniform else out[0].transpose(0, 1)


KERNELS: dict[str, Callable[[AttentionCall], Tensor]] = {
    "sdpa": attend_sdpa,
    "cudnn": attend_cudnn,
    "dense": attend_dense,
    "by_length": attend_by_length,
    "banded": attend_banded,
    "varlen": attend_varlen,
    "flex": attend_flex,
    "relative_flash": attend_relative_flash,
    "biased_flash": attend_biased_flash,
    "decode": attend_decode,
}

# The first rule that applies names the kernel. Measurements: benchmarks/RESULTS.md.
KERNEL_RULES: tuple[tuple[str, Callable[[AttentionCall], bool], str], ...] = (
    ("decode", can_use_decode, "reads the cache where it lies; lengths stay on the device, so a step can be recorded"),
    ("cudnn", can_use_cudnn, "a layer of GPT-2 forward and backward 0.68 ms, by SDPA's flash attention 0.95 (H200)"),
    ("sdpa", can_use_sdpa, "torch's own choice with no mask to read: nothing else is faster on whole grids"),
    ("varlen", can_use_varlen,
     "flash attention that never sees padding: a layer of GPT-2 with dropout 1.17 ms, by biased_flash 2.46 (H200)"),
    ("relative_flash", can_use_relative_flash,
     "XLNet on an H200: 309,850 tokens/s and 9.9 GiB, 295,953 and 14.4 by biased_flash on a table of scores"),
    ("biased_flash", can_use_biased_flash,
     "T5 on an H200: 450,768 tokens/s, and 340,861 by SDPA with a dense bias (rounds 5 and 4)"),
    ("dense", needs_grid, "scores by distance outside biased_flash, and cached keys, exist on a grid only"),
    ("banded", can_use_banded,
     "8,192 tokens, window 256, on a CPU: 196 ms, the whole triangle 1,387, a mask tensor 3,308"),
    ("dense", needs_dense_dropout, "FlexAttention has no dropout"),
    ("flex", can_use_flex, "BLOOM 550,756 tokens/s (H200): neither a bias table nor padding"),
    ("dense", is_dense_cheaper, "with at most a quarter of padding one call beats many; a loop does not compile"),
    ("by_length", lambda call: True, "on a CPU, attention without padding is part of 2.1 × transformers' speed"),
)  # fmt: skip


def compute_attention_weights(
    q: Tensor, k: Tensor, attn_context: AttentionContext, scale: float, relative: RelativeHook | None = None,
    kept_heads: KeptHeads | None = None,
) -> Tensor:  # fmt: skip
    """Compute the attention weights (rows, H, Q, K) apart from the kernel; zero where there is no token."""
    layout = attn_context.query_layout
    q, k = to_grid(q, layout), to_grid(k, attn_context.key_layout)[:, :, : attn_context.key_length]
    bias = select_dense_bias(attn_context, q.shape[1], kept_heads)
    if relative is not None:
        q, extra = relative(q, k, scale, attn_context)
        bias = _add_bias(extra, bias)
    kind = torch.promote_types(q.dtype, torch.float32)  # kernels add up the products of half precision in fp32, too
    scores = q.to(kind) @ k.to(kind).transpose(-1, -2) * scale
    scores = scores if bias is None else _add_bias(scores, bias)
    weights = scores.softmax(-1)
    if not layout.is_uniform:
        real = torch.arange(layout.longest, device=q.device) < layout.lengths[:, None]  # (rows, Q)
        weights = weights * real[:, None, :, None]
    if attn_context.ungrouped_layout is None:
        return weights
    return attn_context.ungrouped_layout.unpack(layout.pack(weights.transpose(1, 2))).transpose(1, 2)


def select_dense_bias(
    attn_context: AttentionContext, heads: int, kept_heads: KeptHeads | None, padded: bool = True
) -> Tensor | None:
    """Return the dense mask or bias of the heads that there are; of pruned ones, out of that of all."""
    bias = attn_context.get_dense_mask(heads if kept_heads is None else kept_heads[0], padded=padded)
    return bias if bias is None or kept_heads is None or bias.shape[1] == 1 else bias[:, list(kept_heads[1])]


def _select_kept(bias: Tensor, kept_heads: KeptHeads | None) -> Tensor:
    """Of a bias (H, …) of all heads, return that of the heads that are left."""
    return bias if kept_heads is None else bias[list(kept_heads[1])]


def order_tokens(layout: Layout, documents: list[int]) -> Tensor:
    """Return the slots of all tokens in another order of the documents."""
    rank = torch.tensor(documents, device=layout.starts.device).argsort()
    return torch.argsort(rank[layout.document_ids], stable=True)


def to_grid(x: Tensor, layout: Layout) -> Tensor:
    """Lay out packed (N, H, D), or a cache's (rows, T, H, D), as (rows, H, T, D)."""
    return (layout.unpack(x) if x.dim() == 3 else x).transpose(1, 2)


def _to_grids(call: AttentionCall) -> tuple[Tensor, Tensor, Tensor]:
    query, key = call.attn_context.query_layout, call.attn_context.key_layout
    return to_grid(call.q, query), to_grid(call.k, key), to_grid(call.v, key)


def _add_bias(bias: Tensor, other: Tensor | None) -> Tensor:
    """Add another bias to a bias, or put a mask on it."""
    if other is None:
        return bias
    return bias.masked_fill(~other, -math.inf) if other.dtype == torch.bool else bias + other


def _cast_bias(bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return bias if bias is None or bias.dtype == torch.bool else bias.to(dtype)


def _get_flex_kernel() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    if torch.compiler.is_compiling() or not torch.cuda.is_available():
        return flex_attention
    return _compile_flex()


@remember
def _compile_flex() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def list_available_kernels(q: Tensor) -> set[str]:
    """Return the kernels that full-length batches of queries like these can use, decoding aside."""
    if not q.is_cuda:
        return {"sdpa", "dense", "by_length"}
    supported = {
        "varlen": _supports_flash(q), "flex": _supports_flex(q), "biased_flash": _supports_biased_flash(q),
        "relative_flash": _supports_relative_flash(q), "cudnn": _supports_cudnn(q),
    }  # fmt: skip
    return {"sdpa", "dense"} | {name for name, is_supported in supported.items() if is_supported}


def _supports_flash(q: Tensor) -> bool:
    """Return whether the varlen kernel can run: half precision, head dims in steps of 8, and Ampere or newer."""
    half = q.dtype in (torch.float16, torch.bfloat16)
    return half and q.shape[-1] % 8 == 0 and q.shape[-1] <= 256 and is_ampere_or_newer()


def _supports_cudnn(q: Tensor) -> bool:
    """Return whether cuDNN's attention is taken: what flash attention takes, heads up to 128, Hopper."""
    return _supports_flash(q) and q.shape[-1] <= 128 and is_hopper()


def _supports_flex(q: Tensor) -> bool:
    """Return whether FlexAttention can run: triton, and a power-of-two head dim of at least 16."""
    return q.shape[-1] >= 16 and q.shape[-1] & (q.shape[-1] - 1) == 0 and has_triton()


def _supports_biased_flash(q: Tensor) -> bool:
    """Return whether the biased flash kernel can run: as both others, and a head that fits the chip's memory."""
    return _supports_flash(q) and _supports_flex(q) and q.shape[-1] <= 128


def _supports_relative_flash(q: Tensor) -> bool:
    """Return whether the relative flash kernel is taken: as biased flash, heads up to 64, Hopper."""
    return _supports_biased_flash(q) and q.shape[-1] <= 64 and is_hopper()


@remember
def _warn_once(text: str) -> None:
    warnings.warn(text, stacklevel=2)
