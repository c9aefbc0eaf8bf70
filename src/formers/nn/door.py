"""The one door to the attention kernels: packed queries, keys and values in, the best kernel chosen inside.

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

from ..batch import Layout
from . import decode
from .cache import direct
from .masks import Alibi, Both, Index, Window, causal
from .sight import Sight as Sight  # others take it from here

Left = tuple[int, tuple[int, ...]]  # how many heads there were, and which of them are left
Relative = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]


_forced: str | None = None


@contextlib.contextmanager
def kernel(name: str | None) -> Iterator[None]:
    """Take one path for all attention inside: plain, loop, band, dense, varlen, flex, fused or step. For tests."""
    global _forced
    before, _forced = _forced, name
    try:
        yield
    finally:
        _forced = before


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sight: Sight,
    scale: float,
    dropout: float = 0.0,
    relative: Relative | None = None,
    kept: Left | None = None,
) -> Tensor:
    """(N, H, D) queries over packed or cached keys and values → (N, H, D), by the best kernel there is.

    Where heads were pruned, `kept` says which ones these are, for a bias that differs by head.
    """
    path = _forced or choose(q, k, sight, dropout, relative)
    if path == "varlen":
        return _varlen(q, k, v, sight, scale)
    if path == "flex":
        return _flex(q, k, v, sight, scale, kept)
    if path == "fused":
        return _fused(q, k, v, sight, scale, dropout, relative, kept)
    if path == "step":
        return _step(q, k, v, sight, scale, kept)
    if path == "band":
        return _band(q, k, v, sight, scale, dropout)
    if path == "loop":
        return _loop(q, k, v, sight, scale, dropout, kept)
    q, k, v = _grid(q, sight.query), _grid(k, sight.key), _grid(v, sight.key)  # (rows, H, T, D)
    bias = None if path == "plain" else left(sight, q.shape[1], kept)
    if relative is not None:
        q, extra = relative(q, k, scale)
        bias = _add(extra, bias)
    flag = path == "plain" and sight.mask is not None
    y = F.scaled_dot_product_attention(
        q, k, v, attn_mask=_cast(bias, q.dtype), dropout_p=dropout, is_causal=flag, scale=scale
    )
    return sight.query.pack(y.transpose(1, 2))


def choose(q: Tensor, k: Tensor, sight: Sight, dropout: float, relative: Relative | None) -> str:
    """Which path serves best: the flash kernel for whole grids, varlen or flex for packed documents on a GPU, a loop
    over documents on a CPU, and SDPA with a dense mask for everything else."""
    packed = k.dim() == 3 and sight.past is None
    if k.dim() == 4 and sight.cache is not None and relative is None and stepwise(sight):
        return "step"
    simple = sight.bias is None and relative is None and packed
    if (
        simple
        and sight.uniform
        and (sight.mask is None or (sight.mask is causal and sight.query.longest == sight.span))
    ):
        return "plain"
    if packed and fusible(q, sight, dropout, relative):
        return "fused"
    if relative is not None or not packed:
        return "dense"
    band = sight.bias is None and sight.query is sight.key and _width(sight.mask)
    if band and not (q.is_cuda and dropout == 0 and _flash_ready(q)) and sight.query.longest > 2 * band:
        return "band"
    if q.is_cuda:
        if dropout > 0:
            if not torch.compiler.is_compiling():
                _say("attention dropout > 0 has no packed kernel: taking SDPA with a dense mask")
            return "dense"
        if sight.bias is None and reach(sight.mask) is not None and _flash_ready(q):
            return "varlen"
        return "flex" if _flex_ready(q) and (sight.bias is not None or not sight.uniform) else "dense"
    # With hardly any padding, one call is cheaper than many.
    tight = sight.query.rows * sight.query.longest <= 1.25 * sight.query.total
    by_row = getattr(sight.mask, "by_row", False)
    return "dense" if torch.compiler.is_compiling() or by_row or tight else "loop"


def fusible(q: Tensor, sight: Sight, dropout: float, relative: Relative | None) -> bool:
    """Whether the fused kernel serves: half precision on a GPU, no mask or one that is an order, and something that no
    other fused kernel takes: dropout, a learned bias by distance, or scores by distance."""
    if not (q.is_cuda and _fused_ready(q)) or (sight.mask is not None and sight.ranks() is None):
        return False
    if relative is not None:
        return (
            sight.places is not None
            and getattr(sight, "differs", None) is None
            and getattr(sight, "back", None) is None
        )
    learned = isinstance(sight.bias, torch.nn.Module)
    return learned or (dropout > 0 and (sight.bias is None or hasattr(sight.bias, "row")))


def stepwise(sight: Sight) -> bool:
    """Whether the kernel for single steps serves: new tokens, one in each row, over a cache; or any over a source."""
    if sight.past is None:
        return (
            sight.mask is None and sight.bias is None and sight.query.uniform and decode.ready(sight.key.starts.device)
        )
    return direct(sight.query)


def _width(mask: Index | None) -> int:
    """How many tokens a causal window shows; 0 if the mask is no such thing."""
    left, right = reach(mask) or (-1, -1)
    return left + 1 if right == 0 and left >= 0 else 0


def reach(mask: Index | None) -> tuple[int, int] | None:
    """How far back and ahead a mask lets a token see, as flash kernels count it (-1: all), if it is so simple."""
    parts = mask.parts if isinstance(mask, Both) else () if mask is None else (mask,)
    left, right = -1, -1
    for part in parts:
        if part is causal:
            right = 0
        elif isinstance(part, Window):
            left = part.width - 1
        else:
            return None
    return left, right


def weights(
    q: Tensor,
    k: Tensor,
    sight: Sight,
    scale: float,
    relative: Relative | None = None,
    kept: Left | None = None,
) -> Tensor:
    """The attention weights (rows, H, Q, K), computed beside the kernel; zero where there is no token."""
    q, k = _grid(q, sight.query), _grid(k, sight.key)[:, :, : sight.span]
    bias = left(sight, q.shape[1], kept)
    if relative is not None:
        q, extra = relative(q, k, scale)
        bias = _add(extra, bias)
    scores = (q @ k.transpose(-1, -2)).float() * scale
    if bias is not None:
        scores = scores.masked_fill(~bias, -math.inf) if bias.dtype == torch.bool else scores + bias
    real = torch.arange(sight.query.longest, device=q.device) < sight.query.lengths[:, None]  # (rows, Q)
    found = scores.softmax(-1) * real[:, None, :, None]
    if sight.single is None:
        return found
    return sight.single.unpack(sight.query.pack(found.transpose(1, 2))).transpose(1, 2)


def left(sight: Sight, heads: int, kept: Left | None, padded: bool = True) -> Tensor | None:
    """The dense mask or bias of the heads that there are; of pruned ones, out of that of all."""
    bias = sight.dense(heads if kept is None else kept[0], padded=padded)
    return bias if bias is None or kept is None or bias.shape[1] == 1 else bias[:, list(kept[1])]


def _grid(x: Tensor, layout: Layout) -> Tensor:
    """Packed (N, H, D), or a cache's (rows, T, H, D) → (rows, H, T, D)."""
    return (layout.unpack(x) if x.dim() == 3 else x).transpose(1, 2)


def _add(bias: Tensor, other: Tensor | None) -> Tensor:
    """A bias with another bias or a mask on top."""
    if other is None:
        return bias
    return bias.masked_fill(~other, -math.inf) if other.dtype == torch.bool else bias + other


def _cast(bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return bias if bias is None or bias.dtype == torch.bool else bias.to(dtype)


def _loop(
    q: Tensor, k: Tensor, v: Tensor, sight: Sight, scale: float, dropout: float, kept: Left | None = None
) -> Tensor:
    """One document after the other: no padding at all. The best there is on a CPU."""
    flag = sight.mask is causal and sight.bias is None and sight.query is sight.key
    bias = None if flag else _cast(left(sight, q.shape[1], kept, padded=False), q.dtype)
    ends, stops = sight.query.starts.tolist(), sight.key.starts.tolist()
    parts = []
    for i in range(sight.query.rows):
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


def _band(q: Tensor, k: Tensor, v: Tensor, sight: Sight, scale: float, dropout: float) -> Tensor:
    """A causal window of w tokens: blocks of w queries over their own and the block before, so the work grows with
    n · w and not with n². Keys behind a document's end come after its queries: no mask of lengths is needed."""
    layout, w = sight.query, _width(sight.mask)
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


def _varlen(q: Tensor, k: Tensor, v: Tensor, sight: Sight, scale: float) -> Tensor:
    """Flash attention over packed documents (half precision on a GPU)."""
    from torch.nn.attention.varlen import varlen_attn

    plain = q.shape[-1] ** -0.5
    q = q if scale == plain else q * (scale / plain)  # the kernel scales by 1/√D
    kernel: Any = varlen_attn
    starts, sizes = (sight.query.starts, sight.key.starts), (sight.query.longest, sight.key.longest)
    return kernel(q, k, v, *starts, *sizes, window_size=reach(sight.mask))


def _step(q: Tensor, k: Tensor, v: Tensor, sight: Sight, scale: float, kept: Left | None) -> Tensor:
    """One new token in each row over what a cache holds, where it lies (on a GPU)."""
    assert sight.cache is not None
    if sight.past is None:
        return decode.attention(q, k, v, sight.key.lengths, scale)
    bias = sight.behind()
    bias = bias if bias is None or kept is None else bias[list(kept[1])]
    fresh, sight.cache.fresh = sight.cache.fresh, None
    return decode.attention(
        q, k, v, sight.seen(), scale, table=sight.cache.table, bias=bias, width=_width(sight.mask), fresh=fresh
    )


def _fused(
    q: Tensor, k: Tensor, v: Tensor, sight: Sight, scale: float, dropout: float, relative: Relative | None,
    kept: Left | None = None,
) -> Tensor:  # fmt: skip
    """A bias or scores by distance, an order and dropout in one kernel over packed documents (on a GPU)."""
    from .fused import attention

    table = scores = extra = None
    if relative is not None:
        hook: Any = getattr(relative, "func", relative)
        q, scores, extra = hook.scores(q, scale, sight)
    elif sight.bias is not None:
        table = sight.pairs() if kept is None else sight.pairs()[list(kept[1])]
    return attention(
        q, k, v, (sight.query.starts, sight.key.starts), (sight.query.longest, sight.key.longest), scale, table=table,
        scores=scores, extra=extra, segments=getattr(sight, "segments", None), places=sight.where, ranks=sight.ranks(),
        dropout=dropout,
    )  # fmt: skip


def _flex(q: Tensor, k: Tensor, v: Tensor, sight: Sight, scale: float, kept: Left | None = None) -> Tensor:
    """One fused kernel for any mask and bias over packed documents (on a GPU; forward only on a CPU)."""
    score, options = None, None
    if sight.bias is not None:
        names = None if kept is None else torch.tensor(kept[1], device=q.device)
        if isinstance(sight.bias, Alibi) or not hasattr(sight.bias, "row"):
            bias = sight.bias.on(q.device) if isinstance(sight.bias, Alibi) else sight.bias

            def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
                return s + bias(b, h if names is None else names[h], i, j)
        else:
            near, far = sight.query.longest, sight.key.longest
            line = (sight.row() if kept is None else sight.row()[list(kept[1])]).contiguous()
            options = {"BLOCK_M": 128, "BLOCK_N": 64, "num_stages": 2} if q.is_cuda else None

            def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
                return s + line[h, (j - i + near - 1).clamp(0, near + far - 2)]  # clamped: masked pairs are scored too

    if sight.uniform:
        x, y, z = _grid(q, sight.query), _grid(k, sight.key), _grid(v, sight.key)  # (rows, H, T, D)
    else:
        x, y, z = (t.transpose(0, 1)[None] for t in (q, k, v))  # (1, H, N, D)
    out = _flex_kernel()(x, y, z, score_mod=score, block_mask=sight.block(), scale=scale, kernel_options=options)
    return sight.query.pack(out.transpose(1, 2)) if sight.uniform else out[0].transpose(0, 1)


def _flex_kernel() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    if torch.compiler.is_compiling() or not torch.cuda.is_available():
        return flex_attention
    return _compiled_flex()


@remember
def _compiled_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def constant(function: Any) -> Any:
    """Tell torch.compile that a function has one answer. torch's own decorator does the same and no more, but imports
    the compiler for it: more than a second at every start."""
    function._dynamo_marked_constant = True
    return function


@constant
def _modern() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)


def available(q: Tensor) -> set[str]:
    """The paths that can be taken for queries like these."""
    if not q.is_cuda:
        return {"plain", "dense", "loop"}
    ready = {"varlen": _flash_ready(q), "flex": _flex_ready(q), "fused": _fused_ready(q)}
    return {"plain", "dense"} | {path for path, there in ready.items() if there}


def _flash_ready(q: Tensor) -> bool:
    """The varlen kernel takes half precision, head dims in steps of 8, and Ampere or newer."""
    half = q.dtype in (torch.float16, torch.bfloat16)
    return half and q.shape[-1] % 8 == 0 and q.shape[-1] <= 256 and _modern()


def _flex_ready(q: Tensor) -> bool:
    """FlexAttention needs triton and a power-of-two head dim of at least 16."""
    return q.shape[-1] >= 16 and q.shape[-1] & (q.shape[-1] - 1) == 0 and _has_triton()


def _fused_ready(q: Tensor) -> bool:
    """The fused kernel needs what both others need, and a head that fits the chip's memory."""
    return _flash_ready(q) and _flex_ready(q) and q.shape[-1] <= 128


@constant
def _has_triton() -> bool:
    from torch.utils._triton import has_triton

    return bool(has_triton())


@remember
def _say(text: str) -> None:
    warnings.warn(text, stacklevel=2)
