"""The one entry to the attention kernels: packed queries, keys and values in, the best kernel chosen inside.

N tokens (packed), H heads, D head dim, rows = documents, Q and K the longest document on either side.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from functools import cache as remember
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...batch import Layout
from .context import AttentionContext as AttentionContext  # others take it from here
from .kernels import decode
from .kv_cache import is_decode_step
from .masks import AlibiBias, IndexFunction, MaskIntersection, WindowMask, causal

KeptHeads = tuple[int, tuple[int, ...]]  # how many heads there were, and which of them are left
RelativeHook = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]


_forced_kernel: str | None = None


@contextlib.contextmanager
def force_kernel(name: str | None) -> Iterator[None]:
    """Take one path for all attention inside: plain, loop, band, dense, varlen, flex, fused or step. For tests."""
    global _forced_kernel
    before, _forced_kernel = _forced_kernel, name
    try:
        yield
    finally:
        _forced_kernel = before


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_context: AttentionContext,
    scale: float,
    dropout: float = 0.0,
    relative: RelativeHook | None = None,
    kept_heads: KeptHeads | None = None,
) -> Tensor:
    """(N, H, D) queries over packed or cached keys and values → (N, H, D), by the best kernel there is.

    Where heads were pruned, `kept_heads` says which ones these are, for a bias that differs by head.
    """
    path = _forced_kernel or choose_kernel(q, k, attn_context, dropout, relative)
    if path == "varlen":
        return _attend_varlen(q, k, v, attn_context, scale)
    if path == "flex":
        return _attend_flex(q, k, v, attn_context, scale, kept_heads)
    if path == "fused":
        return _attend_fused(q, k, v, attn_context, scale, dropout, relative, kept_heads)
    if path == "step":
        return _attend_step(q, k, v, attn_context, scale, kept_heads)
    if path == "band":
        return _attend_band(q, k, v, attn_context, scale, dropout)
    if path == "loop":
        return _attend_loop(q, k, v, attn_context, scale, dropout, kept_heads)
    q, k, v = (
        _to_grid(q, attn_context.query_layout),
        _to_grid(k, attn_context.key_layout),
        _to_grid(v, attn_context.key_layout),
    )  # (rows, H, T, D)
    bias = None if path == "plain" else select_dense_bias(attn_context, q.shape[1], kept_heads)
    if relative is not None:
        q, extra = relative(q, k, scale)
        bias = _add_bias(extra, bias)
    flag = path == "plain" and attn_context.mask is not None
    y = F.scaled_dot_product_attention(
        q, k, v, attn_mask=_cast_bias(bias, q.dtype), dropout_p=dropout, is_causal=flag, scale=scale
    )
    return attn_context.query_layout.pack(y.transpose(1, 2))


def choose_kernel(
    q: Tensor, k: Tensor, attn_context: AttentionContext, dropout: float, relative: RelativeHook | None
) -> str:
    """Which path serves best: the flash kernel for whole grids, varlen or flex for packed documents on a GPU, a loop
    over documents on a CPU, and SDPA with a dense mask for everything else."""
    packed = k.dim() == 3 and attn_context.past_lengths is None
    if k.dim() == 4 and attn_context.cache is not None and relative is None and can_use_decode(attn_context):
        return "step"
    simple = attn_context.bias is None and relative is None and packed
    if (
        simple
        and attn_context.is_uniform
        and (
            attn_context.mask is None
            or (attn_context.mask is causal and attn_context.query_layout.longest == attn_context.key_length)
        )
    ):
        return "plain"
    if packed and can_use_biased_flash(q, attn_context, dropout, relative):
        return "fused"
    if relative is not None or not packed:
        return "dense"
    band = (
        attn_context.bias is None
        and attn_context.query_layout is attn_context.key_layout
        and _get_window_width(attn_context.mask)
    )
    if band and not (q.is_cuda and dropout == 0 and _can_use_flash(q)) and attn_context.query_layout.longest > 2 * band:
        return "band"
    if q.is_cuda:
        if dropout > 0:
            if not torch.compiler.is_compiling():
                _warn_once("attention dropout > 0 has no packed kernel: taking SDPA with a dense mask")
            return "dense"
        if attn_context.bias is None and get_window_bounds(attn_context.mask) is not None and _can_use_flash(q):
            return "varlen"
        return (
            "flex" if _can_use_flex(q) and (attn_context.bias is not None or not attn_context.is_uniform) else "dense"
        )
    # With hardly any padding, one call is cheaper than many.
    tight = (
        attn_context.query_layout.rows * attn_context.query_layout.longest
        <= 1.25 * attn_context.query_layout.num_tokens
    )
    by_row = getattr(attn_context.mask, "depends_on_row", False)
    return "dense" if torch.compiler.is_compiling() or by_row or tight else "loop"


def can_use_biased_flash(
    q: Tensor, attn_context: AttentionContext, dropout: float, relative: RelativeHook | None
) -> bool:
    """Whether the fused kernel serves: half precision on a GPU, no mask or one that is an order, and something that no
    other fused kernel takes: dropout, a learned bias by distance, or scores by distance."""
    if not (q.is_cuda and _can_use_fused(q)) or (
        attn_context.mask is not None and attn_context.get_mask_ranks() is None
    ):
        return False
    if relative is not None:
        return (
            attn_context.relative_positions is not None
            and getattr(attn_context, "is_other_segment", None) is None
            and getattr(attn_context, "reversed_positions", None) is None
        )
    learned = isinstance(attn_context.bias, torch.nn.Module)
    return learned or (
        dropout > 0 and (attn_context.bias is None or hasattr(attn_context.bias, "compute_distance_bias"))
    )


def can_use_decode(attn_context: AttentionContext) -> bool:
    """Whether the kernel for single steps serves: new tokens, one in each row, over a cache; or any over a source."""
    if attn_context.past_lengths is None:
        return (
            attn_context.mask is None
            and attn_context.bias is None
            and attn_context.query_layout.is_uniform
            and decode.is_available(attn_context.key_layout.starts.device)
        )
    return is_decode_step(attn_context.query_layout)


def _get_window_width(mask: IndexFunction | None) -> int:
    """How many tokens a causal window shows; 0 if the mask is no such thing."""
    left, right = get_window_bounds(mask) or (-1, -1)
    return left + 1 if right == 0 and left >= 0 else 0


def get_window_bounds(mask: IndexFunction | None) -> tuple[int, int] | None:
    """How far back and ahead a mask lets a token see, as flash kernels count it (-1: all), if it is so simple."""
    parts = mask.masks if isinstance(mask, MaskIntersection) else () if mask is None else (mask,)
    left, right = -1, -1
    for part in parts:
        if part is causal:
            right = 0
        elif isinstance(part, WindowMask):
            left = part.width - 1
        else:
            return None
    return left, right


def compute_attention_weights(
    q: Tensor,
    k: Tensor,
    attn_context: AttentionContext,
    scale: float,
    relative: RelativeHook | None = None,
    kept_heads: KeptHeads | None = None,
) -> Tensor:
    """The attention weights (rows, H, Q, K), computed beside the kernel; zero where there is no token."""
    q, k = _to_grid(q, attn_context.query_layout), _to_grid(k, attn_context.key_layout)[:, :, : attn_context.key_length]
    bias = select_dense_bias(attn_context, q.shape[1], kept_heads)
    if relative is not None:
        q, extra = relative(q, k, scale)
        bias = _add_bias(extra, bias)
    scores = (q @ k.transpose(-1, -2)).float() * scale
    if bias is not None:
        scores = scores.masked_fill(~bias, -math.inf) if bias.dtype == torch.bool else scores + bias
    real = (
        torch.arange(attn_context.query_layout.longest, device=q.device) < attn_context.query_layout.lengths[:, None]
    )  # (rows, Q)
    found = scores.softmax(-1) * real[:, None, :, None]
    if attn_context.ungrouped_layout is None:
        return found
    return attn_context.ungrouped_layout.unpack(attn_context.query_layout.pack(found.transpose(1, 2))).transpose(1, 2)


def select_dense_bias(
    attn_context: AttentionContext, heads: int, kept_heads: KeptHeads | None, padded: bool = True
) -> Tensor | None:
    """The dense mask or bias of the heads that there are; of pruned ones, out of that of all."""
    bias = attn_context.get_dense_mask(heads if kept_heads is None else kept_heads[0], padded=padded)
    return bias if bias is None or kept_heads is None or bias.shape[1] == 1 else bias[:, list(kept_heads[1])]


def _to_grid(x: Tensor, layout: Layout) -> Tensor:
    """Packed (N, H, D), or a cache's (rows, T, H, D) → (rows, H, T, D)."""
    return (layout.unpack(x) if x.dim() == 3 else x).transpose(1, 2)


def _add_bias(bias: Tensor, other: Tensor | None) -> Tensor:
    """A bias with another bias or a mask on top."""
    if other is None:
        return bias
    return bias.masked_fill(~other, -math.inf) if other.dtype == torch.bool else bias + other


def _cast_bias(bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return bias if bias is None or bias.dtype == torch.bool else bias.to(dtype)


def _attend_loop(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_context: AttentionContext,
    scale: float,
    dropout: float,
    kept_heads: KeptHeads | None = None,
) -> Tensor:
    """One document after the other: no padding at all. The best there is on a CPU."""
    flag = (
        attn_context.mask is causal
        and attn_context.bias is None
        and attn_context.query_layout is attn_context.key_layout
    )
    bias = None if flag else _cast_bias(select_dense_bias(attn_context, q.shape[1], kept_heads, padded=False), q.dtype)
    ends, stops = attn_context.query_layout.starts.tolist(), attn_context.key_layout.starts.tolist()
    parts = []
    for i in range(attn_context.query_layout.rows):
        one, keys = slice(ends[i], ends[i + 1]), slice(stops[i], stops[i + 1])
        if one.start == one.stop:
            continue
        if keys.start == keys.stop:  # nothing to see
            parts.append(torch.zeros_like(q[one]))
            continue
        here = None if bias is None else bias[..., : one.stop - one.start, : keys.stop - keys.start]
        x, y, z = (t.transpose(0, 1)[None] for t in (q[one], k[keys], v[keys]))  # (1, H, T, D)
        out = F.scaled_dot_product_attention(x, y, z, attn_mask=here, dropout_p=dropout, is_causal=flag, scale=scale)
        parts.append(out[0].transpose(0, 1))
    return torch.cat(parts) if parts else torch.zeros_like(q)


def _attend_band(
    q: Tensor, k: Tensor, v: Tensor, attn_context: AttentionContext, scale: float, dropout: float
) -> Tensor:
    """A causal window of w tokens: blocks of w queries over their own and the block before, so the work grows with
    n · w and not with n². Keys behind a document's end come after its queries: no mask of lengths is needed."""
    layout, w = attn_context.query_layout, _get_window_width(attn_context.mask)
    count = -(-layout.longest // w)
    grid = [F.pad(layout.unpack(t), (0, 0, 0, 0, 0, count * w - layout.longest)) for t in (q, k, v)]
    x, y, z = (t.unflatten(1, (count, w)).transpose(2, 3) for t in grid)  # (rows, blocks, H, w, D)
    y, z = (torch.cat((F.pad(t, (0, 0, 0, 0, 0, 0, 1, 0))[:, :-1], t), 3) for t in (y, z))  # (rows, blocks, H, 2w, D)
    here = torch.arange(w, device=q.device)[:, None]
    there = torch.arange(2 * w, device=q.device) - w  # counted from the block's first token
    mask = (there <= here) & (here - there < w)
    first = torch.arange(count, device=q.device)[:, None, None, None] > 0
    mask = mask & (first | (there >= 0))  # (blocks, 1, w, 2w): there is nothing before the first block
    x, y, z, mask = x.flatten(0, 1), y.flatten(0, 1), z.flatten(0, 1), mask.repeat(layout.rows, 1, 1, 1)
    out = F.scaled_dot_product_attention(x, y, z, attn_mask=mask, dropout_p=dropout, scale=scale)
    out = out.transpose(1, 2).reshape(layout.rows, count * w, *q.shape[1:])  # (rows, T, H, D)
    return layout.pack(out[:, : layout.longest])


def _attend_varlen(q: Tensor, k: Tensor, v: Tensor, attn_context: AttentionContext, scale: float) -> Tensor:
    """Flash attention over packed documents (half precision on a GPU)."""
    from torch.nn.attention.varlen import varlen_attn

    plain = q.shape[-1] ** -0.5
    q = q if scale == plain else q * (scale / plain)  # the kernel scales by 1/√D
    kernel: Any = varlen_attn
    starts, sizes = (
        (attn_context.query_layout.starts, attn_context.key_layout.starts),
        (attn_context.query_layout.longest, attn_context.key_layout.longest),
    )
    return kernel(q, k, v, *starts, *sizes, window_size=get_window_bounds(attn_context.mask))


def _attend_step(
    q: Tensor, k: Tensor, v: Tensor, attn_context: AttentionContext, scale: float, kept_heads: KeptHeads | None
) -> Tensor:
    """One new token in each row over what a cache holds, where it lies (on a GPU)."""
    assert attn_context.cache is not None
    if attn_context.past_lengths is None:
        return decode.decode_attention(q, k, v, attn_context.key_layout.lengths, scale)
    bias = attn_context.get_decode_bias()
    bias = bias if bias is None or kept_heads is None else bias[list(kept_heads[1])]
    fresh, attn_context.cache.pending_kv = attn_context.cache.pending_kv, None
    return decode.decode_attention(
        q,
        k,
        v,
        attn_context.get_total_lengths(),
        scale,
        table=attn_context.cache.slot_table,
        bias=bias,
        width=_get_window_width(attn_context.mask),
        fresh=fresh,
    )


def _attend_fused(
    q: Tensor, k: Tensor, v: Tensor, attn_context: AttentionContext, scale: float, dropout: float,
    relative: RelativeHook | None,
    kept_heads: KeptHeads | None = None,
) -> Tensor:  # fmt: skip
    """A bias or scores by distance, an order and dropout in one kernel over packed documents (on a GPU)."""
    from .kernels.biased_flash import biased_flash_attention

    table = scores = extra = None
    if relative is not None:
        hook: Any = getattr(relative, "func", relative)
        q, scores, extra = hook.compute_packed_scores(q, scale, attn_context)
    elif attn_context.bias is not None:
        table = (
            attn_context.get_pairwise_bias()
            if kept_heads is None
            else attn_context.get_pairwise_bias()[list(kept_heads[1])]
        )
    return biased_flash_attention(
        q, k, v, (attn_context.query_layout.starts, attn_context.key_layout.starts),
        (attn_context.query_layout.longest, attn_context.key_layout.longest), scale, table=table,
        scores=scores, extra=extra, segments=getattr(attn_context, "segment_ids", None),
        places=attn_context.query_places, ranks=attn_context.get_mask_ranks(),
        dropout=dropout,
    )  # fmt: skip


def _attend_flex(
    q: Tensor, k: Tensor, v: Tensor, attn_context: AttentionContext, scale: float, kept_heads: KeptHeads | None = None
) -> Tensor:
    """One fused kernel for any mask and bias over packed documents (on a GPU; forward only on a CPU)."""
    score, options = None, None
    if attn_context.bias is not None:
        names = None if kept_heads is None else torch.tensor(kept_heads[1], device=q.device)
        if isinstance(attn_context.bias, AlibiBias) or not hasattr(attn_context.bias, "compute_distance_bias"):
            bias = (
                attn_context.bias.bind_device(q.device)
                if isinstance(attn_context.bias, AlibiBias)
                else attn_context.bias
            )

            def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
                return s + bias(b, h if names is None else names[h], i, j)
        else:
            near, far = attn_context.query_layout.longest, attn_context.key_layout.longest
            line = (
                attn_context.get_distance_bias()
                if kept_heads is None
                else attn_context.get_distance_bias()[list(kept_heads[1])]
            ).contiguous()
            options = {"BLOCK_M": 128, "BLOCK_N": 64, "num_stages": 2} if q.is_cuda else None

            def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
                return s + line[h, (j - i + near - 1).clamp(0, near + far - 2)]  # clamped: masked pairs are scored too

    if attn_context.is_uniform:
        x, y, z = (
            _to_grid(q, attn_context.query_layout),
            _to_grid(k, attn_context.key_layout),
            _to_grid(v, attn_context.key_layout),
        )  # (rows, H, T, D)
    else:
        x, y, z = (t.transpose(0, 1)[None] for t in (q, k, v))  # (1, H, N, D)
    out = _get_flex_kernel()(
        x, y, z, score_mod=score, block_mask=attn_context.get_block_mask(), scale=scale, kernel_options=options
    )
    return attn_context.query_layout.pack(out.transpose(1, 2)) if attn_context.is_uniform else out[0].transpose(0, 1)


def _get_flex_kernel() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    if torch.compiler.is_compiling() or not torch.cuda.is_available():
        return flex_attention
    return _compile_flex()


@remember
def _compile_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def mark_constant(function: Any) -> Any:
    """Tell torch.compile that a function has one answer. torch's own decorator does the same and no more, but imports
    the compiler for it: more than a second at every start."""
    function._dynamo_marked_constant = True
    return function


@mark_constant
def _is_ampere_or_newer() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)


def list_available_kernels(q: Tensor) -> set[str]:
    """The paths that can be taken for queries like these."""
    if not q.is_cuda:
        return {"plain", "dense", "loop"}
    ready = {"varlen": _can_use_flash(q), "flex": _can_use_flex(q), "fused": _can_use_fused(q)}
    return {"plain", "dense"} | {path for path, there in ready.items() if there}


def _can_use_flash(q: Tensor) -> bool:
    """The varlen kernel takes half precision, head dims in steps of 8, and Ampere or newer."""
    half = q.dtype in (torch.float16, torch.bfloat16)
    return half and q.shape[-1] % 8 == 0 and q.shape[-1] <= 256 and _is_ampere_or_newer()


def _can_use_flex(q: Tensor) -> bool:
    """FlexAttention needs triton and a power-of-two head dim of at least 16."""
    return q.shape[-1] >= 16 and q.shape[-1] & (q.shape[-1] - 1) == 0 and _has_triton()


def _can_use_fused(q: Tensor) -> bool:
    """The fused kernel needs what both others need, and a head that fits the chip's memory."""
    return _can_use_flash(q) and _can_use_flex(q) and q.shape[-1] <= 128


@mark_constant
def _has_triton() -> bool:
    from torch.utils._triton import has_triton

    return bool(has_triton())


@remember
def _warn_once(text: str) -> None:
    warnings.warn(text, stacklevel=2)
