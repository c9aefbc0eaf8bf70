"""Attention with a bias, an order of visibility and dropout in one kernel, for packed documents on a GPU (in triton).

The plan of FlashAttention (Dao et al. 2022, arXiv:2205.14135; Dao 2023, arXiv:2307.08691): a block of queries walks
over blocks of keys, the scores never leave the chip. N queries, M keys (packed), H heads, D head dim.

A bias is read where it lies: T5's table of pairs (H, Q, K) is shared by all documents, and Transformer-XL's scores by
distance (H, N, W) are read from another column on for each query, never made into a table. Dropout is drawn from a
hash of a seed, the query and the key: the backward pass draws it again."""

from __future__ import annotations

from functools import cache as remember
from types import ModuleType

import torch
from torch import Tensor

from .decode import LOG2E, make_contiguous

# queries, keys, warps and pipeline stages of a program
FORWARD_TILES, QUERY_GRAD_TILES, KEY_GRAD_TILES = (128, 64, 4, 3), (32, 64, 2, 2), (32, 64, 4, 2)
SHIFTED_TILES = (64, 64, 4, 3)
WIDE_TILES = (128, 64, 4, 2)  # of the forward pass with heads over 64: less memory of the chip


@remember
def load_kernels() -> ModuleType:
    """Import the kernels; never called on a machine without triton."""
    from . import biased_flash_triton

    return biased_flash_triton


def biased_flash_attention(
    q: Tensor, k: Tensor, v: Tensor, starts: tuple[Tensor, Tensor], longest: tuple[int, int], scale: float, *,
    table: Tensor | None = None, scores: Tensor | None = None, places: Tensor | None = None,
    ranks: tuple[Tensor, Tensor] | None = None, extra: Tensor | None = None,
    segments: tuple[Tensor, Tensor] | None = None, dropout: float = 0.0,
) -> Tensor:  # fmt: skip
    """(N, H, D) queries over (M, H, D) keys and values of the same document → (N, H, D).

    A query's place i is that in its document, or as `places` (N,) say. A `table` (H, Q, K) has the bias of place i and
    key j; `scores` (H, N, W) have that of a query and key j in column Q - 1 - i + j. With `ranks` (N,) and (M,) a query
    sees keys of its own rank or lower; one that sees none gets zeros. `extra` (H, N) is added to the scores of keys of
    another segment, by `segments` (N,) and (M,)."""
    seed = torch.randint(2**31 - 1, (1,), device=q.device) if dropout else None
    rank_q, rank_k = (None, None) if ranks is None else (r.to(torch.int32) for r in ranks)
    seg_q, seg_k = (None, None) if segments is None else (s.to(torch.int32) for s in segments)
    at = None if places is None else places.to(torch.int32)
    tensors = (q, k, v, *starts, scores if table is None else table, extra, seg_q, seg_k, at, rank_q, rank_k, seed)
    return forward(*tensors, *longest, float(scale), float(dropout), scores is not None)[0]


def _collect_arguments(
    q: Tensor, k: Tensor, v: Tensor, q_starts: Tensor, k_starts: Tensor, bias: Tensor | None, extra: Tensor | None,
    seg_q: Tensor | None, seg_k: Tensor | None, places: Tensor | None, rank_q: Tensor | None,
    rank_k: Tensor | None, seed: Tensor | None, q_longest: int, k_longest: int, scale: float,
    dropout: float, shifted: bool,
) -> tuple[tuple[Tensor | float, ...], dict[str, int]]:  # fmt: skip
    """Return the arguments of all kernels, in their order, and the constants that they are compiled for."""
    line = (0, 0) if bias is None else bias.stride()[:2]
    strides = (*q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *line)
    something = q_starts  # in place of what is not there, and never read
    tensors = [something if t is None else t for t in (bias, extra, seg_q, seg_k, places, rank_q, rank_k, seed)]
    numbers = scale * LOG2E, round(dropout * 2**32), 1 / (1 - dropout), q_longest - 1, q.shape[1]
    flags = {
        "BIASED": bias is not None, "SHIFTED": shifted, "PLACED": places is not None, "RANKED": rank_q is not None,
        "DROP": dropout > 0, "SEGMENTED": extra is not None, "D": q.shape[2],
    }  # fmt: skip
    return (q, k, v, *tensors, q_starts, k_starts, *numbers, *strides), flags


def _choose_blocks(
    q: Tensor, k: Tensor, documents: int, longest: tuple[int, int], ranked: bool, size: tuple[int, ...]
) -> dict[str, int]:
    """Choose the blocks of a kernel; EVEN if all of them are full, SURE if every query sees every key as well."""
    rows, columns, warps, stages = size
    whole = q.shape[0] == documents * longest[0] and k.shape[0] == documents * longest[1]
    even = whole and longest[0] % rows == 0 and longest[1] % columns == 0
    flags = {"EVEN": even, "SURE": even and not ranked}
    return {"BM": rows, "BN": columns, "num_warps": warps, "num_stages": stages, **flags}


@torch.library.custom_op("formers::biased_flash", mutates_args=())
def forward(
    q: Tensor, k: Tensor, v: Tensor, q_starts: Tensor, k_starts: Tensor, bias: Tensor | None, extra: Tensor | None,
    seg_q: Tensor | None, seg_k: Tensor | None, places: Tensor | None, rank_q: Tensor | None,
    rank_k: Tensor | None, seed: Tensor | None, q_longest: int, k_longest: int, scale: float,
    dropout: float, shifted: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute the output (N, H, D) and, for the backward pass, log₂ of each query's sum of weights (H, N)."""
    q, k, v = make_contiguous(q, k, v)
    extra = None if extra is None else extra.contiguous()
    bias = None if bias is None else make_contiguous(bias.to(q.dtype))[0]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    log = torch.empty(q.shape[1], q.shape[0], dtype=torch.float32, device=q.device)
    sizes = (q_longest, k_longest)
    shared, flags = _collect_arguments(
        q, k, v, q_starts, k_starts, bias, extra, seg_q, seg_k, places, rank_q, rank_k, seed, *sizes, scale, dropout,
        shifted,
    )  # fmt: skip
    documents = q_starts.shape[0] - 1
    size = SHIFTED_TILES if shifted else FORWARD_TILES if q.shape[2] <= 64 else WIDE_TILES
    grid = (-(-q_longest // size[0]), documents * q.shape[1])
    load_kernels().forward[grid](
        *shared, out, log, q.shape[0], **flags, **_choose_blocks(q, k, documents, sizes, rank_q is not None, size)
    )
    return out, log


@forward.register_fake
def _(q: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[1], q.shape[0], dtype=torch.float32)


@torch.library.custom_op("formers::biased_flash_backward", mutates_args=())
def backward(
    d_out: Tensor, out: Tensor, log: Tensor, q: Tensor, k: Tensor, v: Tensor, q_starts: Tensor, k_starts: Tensor,
    bias: Tensor | None, extra: Tensor | None, seg_q: Tensor | None, seg_k: Tensor | None, places: Tensor | None,
    rank_q: Tensor | None, rank_k: Tensor | None, seed: Tensor | None,
    q_longest: int, k_longest: int, scale: float, dropout: float, shifted: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute the gradients of q, k, v, the bias and the extra scores."""
    q, k, v, d_out = make_contiguous(q, k, v, d_out)
    extra = None if extra is None else extra.contiguous()
    kind = None if bias is None else bias.dtype
    bias = None if bias is None else make_contiguous(bias.to(q.dtype))[0]
    (total, heads, _), documents, sizes = q.shape, q_starts.shape[0] - 1, (q_longest, k_longest)
    d_q, d_k, d_v = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (q, k, v))
    delta = torch.empty_like(log)
    d_extra = torch.empty(0 if extra is None else log.shape, dtype=torch.float32, device=q.device)
    shared, flags = _collect_arguments(
        q, k, v, q_starts, k_starts, bias, extra, seg_q, seg_k, places, rank_q, rank_k, seed, *sizes, scale, dropout,
        shifted,
    )  # fmt: skip
    blocks = _choose_blocks(q, k, documents, sizes, rank_q is not None, QUERY_GRAD_TILES)
    at: tuple[int, ...] = (0, 0, 0, 0)
    if bias is None:
        d_bias = q.new_empty(0)
    elif shifted:  # where the scores themselves lie
        d_bias = torch.zeros(bias.shape, dtype=q.dtype, device=q.device)
        at = (0, *d_bias.stride()[:2], 0)
    else:  # a table for each document, added up below
        make = torch.empty if blocks["SURE"] else torch.zeros
        d_bias = make(documents, heads, q_longest, k_longest, dtype=q.dtype, device=q.device)
        at = (*d_bias.stride()[:2], 0, d_bias.stride(2))
    more = (d_out, out, log, delta, d_q, d_k, d_v, d_bias, d_extra, *d_out.stride()[:2], *at, total, scale)
    grid = (-(-q_longest // QUERY_GRAD_TILES[0]), documents * heads)
    load_kernels().backward_queries[grid](*shared, *more, **flags, **blocks)
    grid = (-(-k_longest // KEY_GRAD_TILES[1]), documents * heads)
    load_kernels().backward_keys[grid](
        *shared, *more, **flags, **_choose_blocks(q, k, documents, sizes, rank_q is not None, KEY_GRAD_TILES)
    )
    if bias is not None and not shifted:
        d_bias = d_bias.sum(0, dtype=torch.float32)
    d_bias, d_extra = d_bias if kind is None else d_bias.to(kind), d_extra if extra is None else d_extra.to(extra.dtype)
    return d_q, d_k, d_v, d_bias, d_extra


@backward.register_fake
def _(d_out, out, log, q, k, v, q_starts, k_starts, bias, extra, *rest):  # type: ignore[no-untyped-def]
    d_bias = q.new_empty(0) if bias is None else bias.new_empty(bias.shape)
    d_extra = log.new_empty(0) if extra is None else extra.new_empty(extra.shape)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), d_bias, d_extra


def _save_for_backward(ctx, inputs, output):  # type: ignore[no-untyped-def]
    """Keep what the backward pass needs."""
    *tensors, ctx.q_longest, ctx.k_longest, ctx.scale, ctx.dropout, ctx.shifted = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output, *tensors)


def _compute_gradients(ctx, d_out, _):  # type: ignore[no-untyped-def]
    out, log, *tensors = ctx.saved_tensors
    grads = backward(d_out, out, log, *tensors, ctx.q_longest, ctx.k_longest, ctx.scale, ctx.dropout, ctx.shifted)
    d_bias, d_extra = (None if t is None else d for t, d in zip(tensors[5:7], grads[3:], strict=True))
    return *grads[:3], None, None, d_bias, d_extra, *[None] * 11


forward.register_autograd(_compute_gradients, setup_context=_save_for_backward)
