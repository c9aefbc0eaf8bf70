"""Attention with a bias, an order of sight and dropout in one kernel, for packed documents on a GPU (in triton).

The plan of FlashAttention (Dao et al. 2022, arXiv:2205.14135; Dao 2023, arXiv:2307.08691): a block of queries walks
over blocks of keys, the scores never leave the chip. N queries, M keys (packed), H heads, D head dim.

A bias is read where it lies: that of query n of head h begins at h · H-stride + n · N-stride and is moved by the
query's place, so that T5's row of distances (H, W) and Transformer-XL's scores by distance (H, N, W) are never made
into a table of pairs. Dropout is drawn from a hash of a seed, the query and the key: the backward pass draws it again.
"""

from __future__ import annotations

from functools import cache as remember
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

LOG2E = 1.4426950408889634
# queries, keys, warps and pipeline stages of a program
FORWARD, BACK_QUERIES, BACK_KEYS = (128, 64, 4, 3), (128, 64, 8, 2), (64, 128, 8, 2)


@remember
def kernels() -> Any:
    """The kernels; a machine without triton never asks for them."""
    from . import fused_kernels

    return fused_kernels


def attention(
    q: Tensor, k: Tensor, v: Tensor, starts: tuple[Tensor, Tensor], longest: tuple[int, int], scale: float, *,
    bias: Tensor | None = None, places: Tensor | None = None, ranks: tuple[Tensor, Tensor] | None = None, last: int = 0,
    dropout: float = 0.0,
) -> Tensor:  # fmt: skip
    """(N, H, D) queries over (M, H, D) keys and values of the same document → (N, H, D).

    `bias` (H, W) or (H, N, W) is read by distance: of a query whose place in its document is i (or as `places` (N,)
    say), the bias of key j stands in column last - i + j. With `ranks` (N,) and (M,) a query sees keys of its own rank
    or lower; one that sees none gets zeros.
    """
    seed = torch.randint(2**31 - 1, (1,), device=q.device) if dropout else None
    rank_q, rank_k = (None, None) if ranks is None else (r.to(torch.int32) for r in ranks)
    at = None if places is None else places.to(torch.int32)
    given = (q, k, v, *starts, bias, at, rank_q, rank_k, seed)
    return forward(*given, *longest, float(scale), float(dropout), last)[0]


def _arguments(
    q: Tensor, k: Tensor, v: Tensor, q_starts: Tensor, k_starts: Tensor, bias: Tensor | None, places: Tensor | None,
    rank_q: Tensor | None, rank_k: Tensor | None, seed: Tensor | None, scale: float, dropout: float, last: int,
) -> tuple[tuple[Any, ...], dict[str, Any]]:  # fmt: skip
    """What all kernels take, in their order, and what they are compiled for."""
    line = (0, 0) if bias is None else (bias.stride(0), bias.stride(1) if bias.dim() == 3 else 0)
    strides = (*q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *line)
    something = q_starts  # in place of what is not there, and never read
    tensors = [something if t is None else t for t in (bias, places, rank_q, rank_k, seed)]
    numbers = scale * LOG2E, round(dropout * 2**24), 1 / (1 - dropout), last, q.shape[1]
    flags = {
        "BIASED": bias is not None, "PLACED": places is not None, "RANKED": rank_q is not None,
        "DROP": dropout > 0, "D": q.shape[2],
    }  # fmt: skip
    return (q, k, v, *tensors, q_starts, k_starts, *numbers, *strides), flags


def _flat(*tensors: Tensor) -> list[Tensor]:
    """Tensors whose last axis lies in one piece, as the kernels read it."""
    return [t if t.stride(-1) == 1 else t.contiguous() for t in tensors]


@torch.library.custom_op("formers::attention", mutates_args=())
def forward(
    q: Tensor, k: Tensor, v: Tensor, q_starts: Tensor, k_starts: Tensor, bias: Tensor | None, places: Tensor | None,
    rank_q: Tensor | None, rank_k: Tensor | None, seed: Tensor | None, q_longest: int, k_longest: int, scale: float,
    dropout: float, last: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The output (N, H, D) and, for the backward pass, log₂ of each query's sum of weights (H, N)."""
    q, k, v = _flat(q, k, v)
    bias = None if bias is None else _flat(bias)[0]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    log = torch.empty(q.shape[1], q.shape[0], dtype=torch.float32, device=q.device)
    given, flags = _arguments(
        q, k, v, q_starts, k_starts, bias, places, rank_q, rank_k, seed, scale, dropout, last
    )  # fmt: skip
    rows, columns, warps, stages = FORWARD
    grid = (-(-q_longest // rows), (q_starts.shape[0] - 1) * q.shape[1])
    kernels().forward[grid](
        *given, out, log, q.shape[0], **flags, BM=rows, BN=columns, num_warps=warps, num_stages=stages
    )
    return out, log


@forward.register_fake
def _(q, *rest):  # type: ignore[no-untyped-def]
    return q.new_empty(q.shape), q.new_empty(q.shape[1], q.shape[0], dtype=torch.float32)


@torch.library.custom_op("formers::attention_backward", mutates_args=())
def backward(
    d_out: Tensor, out: Tensor, log: Tensor, q: Tensor, k: Tensor, v: Tensor, q_starts: Tensor, k_starts: Tensor,
    bias: Tensor | None, places: Tensor | None, rank_q: Tensor | None, rank_k: Tensor | None, seed: Tensor | None,
    q_longest: int, k_longest: int, scale: float, dropout: float, last: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k, v and the bias."""
    q, k, v, d_out = _flat(q, k, v, d_out)
    bias = None if bias is None else _flat(bias)[0]
    (total, heads, _), documents = q.shape, q_starts.shape[0] - 1
    d_q, d_k, d_v = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (q, k, v))
    delta = torch.empty_like(log)
    given, flags = _arguments(
        q, k, v, q_starts, k_starts, bias, places, rank_q, rank_k, seed, scale, dropout, last
    )  # fmt: skip
    by_query = bias is not None and bias.dim() == 3
    if bias is None:
        d_bias, at = q.new_empty(0), (0, 0, 0, 0)
    elif by_query:  # where the bias itself lies
        d_bias, at = (
            torch.zeros(bias.shape, dtype=bias.dtype, device=q.device),
            (0, total * bias.shape[2], bias.shape[2], 0),
        )
    else:  # a table of pairs for each document; their sum is small
        d_bias = torch.zeros(documents, heads, q_longest, k_longest, dtype=q.dtype, device=q.device)
        at = (d_bias.stride(0), d_bias.stride(1), 0, d_bias.stride(2))
    more = (d_out, out, log, delta, d_q, d_k, d_v, d_bias, *d_out.stride()[:2], *at, total)
    flags |= {"SCALE": scale, "SHIFTED": by_query}
    rows, columns, warps, stages = BACK_QUERIES
    kernels().back_queries[(-(-q_longest // rows), documents * heads)](
        *given, *more, **flags, BM=rows, BN=columns, num_warps=warps, num_stages=stages
    )
    rows, columns, warps, stages = BACK_KEYS
    kernels().back_keys[(-(-k_longest // columns), documents * heads)](
        *given, *more, **flags, BM=rows, BN=columns, num_warps=warps, num_stages=stages
    )
    if bias is not None and not by_query:
        d_bias = by_distance(d_bias.sum(0, dtype=torch.float32), bias.shape[1], last).to(bias.dtype)
    return d_q, d_k, d_v, d_bias


def by_distance(pairs: Tensor, width: int, last: int) -> Tensor:
    """(H, Q, K) → (H, width): pair (i, j) is added to column last - i + j; last is Q - 1.

    Rows in reverse, Q wider than they are, and read as rows of one less: each begins one column later than the other.
    """
    heads, queries, keys = pairs.shape
    assert (last, width) == (queries - 1, queries + keys - 1)
    wide = F.pad(pairs.flip(1), (0, queries)).flatten(1)[:, : queries * width]
    return wide.view(heads, queries, width).sum(1)


@backward.register_fake
def _(d_out, out, log, q, k, v, q_starts, k_starts, bias, *rest):  # type: ignore[no-untyped-def]
    d_bias = q.new_empty(0) if bias is None else bias.new_empty(bias.shape)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), d_bias


def _remember(ctx, inputs, output):  # type: ignore[no-untyped-def]
    """Keep what the backward pass needs."""
    *tensors, ctx.q_longest, ctx.k_longest, ctx.scale, ctx.dropout, ctx.last = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output, *tensors)


def _gradients(ctx, d_out, _):  # type: ignore[no-untyped-def]
    out, log, *tensors = ctx.saved_tensors
    found = backward(d_out, out, log, *tensors, ctx.q_longest, ctx.k_longest, ctx.scale, ctx.dropout, ctx.last)
    d_bias = None if tensors[5] is None else found[3]
    return *found[:3], None, None, d_bias, *[None] * 9


forward.register_autograd(_gradients, setup_context=_remember)
