"""Attention with Transformer-XL's scores by distance in one kernel, for packed documents on a GPU (in triton).

A score is scale · (q·k + e·r(distance)), with other queries e for the encodings r of distances (Dai et al. 2019, §3.3).
biased_flash.py reads such scores from a table that is as large as all queries times all distances; here they are
products of blocks inside the kernel. The backward pass computes them once: the kernel of the keys stores the gradients
of the scores (H, M, longest document, in half precision); multiplied by keys and encodings they give those of both
kinds of queries, and by column that of the encodings. N queries, M keys (packed), H heads, D head dim, W distances."""

from __future__ import annotations

from functools import cache as remember
from functools import partial
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from .decode import LOG2E, make_contiguous

# queries and keys of a block, warps and pipeline stages of a program
FORWARD_TILES, QUERY_GRAD_TILES, KEY_GRAD_TILES, ENCODING_GRAD_TILES = (64, 4, 2), (64, 4, 3), (64, 4, 2), (64, 4, 3)
SUMMED_ROWS = 64  # of a program that sums products
TARGET_PROGRAMS = 1024  # of the encodings' gradient: documents are split until there are so many


@remember
def load_kernels() -> ModuleType:
    """Import the kernels; never called on a machine without triton."""
    from . import relative_flash_triton

    return relative_flash_triton


def relative_flash_attention(
    q: Tensor, k: Tensor, v: Tensor, starts: tuple[Tensor, Tensor], longest: tuple[int, int], scale: float, *,
    distance_queries: Tensor, encodings: Tensor, ranks: tuple[Tensor, Tensor] | None = None,
    extra: Tensor | None = None, segments: tuple[Tensor, Tensor] | None = None, dropout: float = 0.0,
) -> Tensor:  # fmt: skip
    """(N, H, D) queries over (M, H, D) keys and values of the same document → (N, H, D).

    The score of query i of a document (of at most Q) and key j has in it the product of `distance_queries` (N, H, D)
    with row Q - 1 - i + j of `encodings` (W, H, D). `ranks`, `extra` and `segments`: see biased_flash_attention."""
    seed = torch.randint(2**31 - 1, (1,), device=q.device) if dropout else None
    rank_q, rank_k = (None, None) if ranks is None else (r.to(torch.int32) for r in ranks)
    seg_q, seg_k = (None, None) if segments is None else (s.to(torch.int32) for s in segments)
    tensors = (q, distance_queries, k, v, encodings, *starts, extra, seg_q, seg_k, rank_q, rank_k, seed)
    return forward(*tensors, *longest, float(scale), float(dropout))[0]


def _collect_arguments(
    q: Tensor, distance_q: Tensor, k: Tensor, v: Tensor, encodings: Tensor, q_starts: Tensor, k_starts: Tensor,
    extra: Tensor | None, seg_q: Tensor | None, seg_k: Tensor | None, rank_q: Tensor | None, rank_k: Tensor | None,
    seed: Tensor | None, q_longest: int, scale: float, dropout: float,
) -> tuple[tuple[Tensor | float, ...], dict[str, int]]:  # fmt: skip
    """Return the arguments of all kernels, in their order, and the constants that they are compiled for."""
    something = q_starts  # in place of what is not there, and never read
    tensors = [something if t is None else t for t in (extra, seg_q, seg_k, rank_q, rank_k, seed)]
    numbers = scale * LOG2E, round(dropout * 2**32), 1 / (1 - dropout), q_longest - 1, *q.shape[1::-1]
    strides = [s for t in (q, distance_q, k, v, encodings) for s in t.stride()[:2]]
    flags = {"RANKED": rank_q is not None, "DROP": dropout > 0, "SEGMENTED": extra is not None, "D": q.shape[2]}
    return (q, distance_q, k, v, encodings, *tensors, q_starts, k_starts, *numbers, len(encodings), *strides), flags


def _choose_blocks(
    q: Tensor, k: Tensor, width: int, documents: int, longest: tuple[int, int], ranked: bool, size: tuple[int, ...]
) -> dict[str, int]:
    """Choose the blocks of a kernel: EVEN if all of them are full, SURE if every query sees every key as well, WIDE if
    all columns that they read exist."""
    block, warps, stages = size
    whole = q.shape[0] == documents * longest[0] and k.shape[0] == documents * longest[1]
    even = whole and longest[0] % block == 0 and longest[1] % block == 0
    flags = {"EVEN": even, "SURE": even and not ranked, "WIDE": even and width >= sum(longest)}
    return {"B": block, "num_warps": warps, "num_stages": stages, **flags}


@torch.library.custom_op("formers::relative_flash", mutates_args=())
def forward(
    q: Tensor, distance_q: Tensor, k: Tensor, v: Tensor, encodings: Tensor, q_starts: Tensor, k_starts: Tensor,
    extra: Tensor | None, seg_q: Tensor | None, seg_k: Tensor | None, rank_q: Tensor | None, rank_k: Tensor | None,
    seed: Tensor | None, q_longest: int, k_longest: int, scale: float, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute the output (N, H, D) and, for the backward pass, log₂ of each query's sum of weights (H, N)."""
    q, distance_q, k, v, encodings = make_contiguous(q, distance_q, k, v, encodings)
    extra = None if extra is None else extra.contiguous()
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    log = torch.empty(q.shape[1], q.shape[0], dtype=torch.float32, device=q.device)
    shared, flags = _collect_arguments(
        q, distance_q, k, v, encodings, q_starts, k_starts, extra, seg_q, seg_k, rank_q, rank_k, seed, q_longest,
        scale, dropout,
    )  # fmt: skip
    documents, longest = q_starts.shape[0] - 1, (q_longest, k_longest)
    blocks = _choose_blocks(q, k, len(encodings), documents, longest, rank_q is not None, FORWARD_TILES)
    grid = (-(-q_longest // FORWARD_TILES[0]), documents * q.shape[1])
    load_kernels().forward[grid](*shared, out, log, **flags, **blocks)
    return out, log


@forward.register_fake
def _(q: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[1], q.shape[0], dtype=torch.float32)


@torch.library.custom_op("formers::relative_flash_backward", mutates_args=())
def backward(
    d_out: Tensor, out: Tensor, log: Tensor, q: Tensor, distance_q: Tensor, k: Tensor, v: Tensor, encodings: Tensor,
    q_starts: Tensor, k_starts: Tensor, extra: Tensor | None, seg_q: Tensor | None, seg_k: Tensor | None,
    rank_q: Tensor | None, rank_k: Tensor | None, seed: Tensor | None, q_longest: int, k_longest: int, scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute the gradients of both kinds of queries, of k, v, the encodings and the extra scores."""
    q, distance_q, k, v, encodings, d_out = make_contiguous(q, distance_q, k, v, encodings, d_out)
    extra = None if extra is None else extra.contiguous()
    (total, heads, _), documents, longest = q.shape, q_starts.shape[0] - 1, (q_longest, k_longest)
    d_q, d_e, d_k, d_v = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (q, distance_q, k, v))
    delta = torch.empty_like(log)
    d_extra = torch.empty(0 if extra is None else log.shape, dtype=torch.float32, device=q.device)
    block, _, _ = QUERY_GRAD_TILES
    width = (-(-k_longest // block) + 1) * block
    strips = torch.empty(heads, total, width, dtype=q.dtype, device=q.device)
    d_scores = torch.empty(heads, k.shape[0], -(-q_longest // 16) * 16, dtype=q.dtype, device=q.device)
    shared, flags = _collect_arguments(
        q, distance_q, k, v, encodings, q_starts, k_starts, extra, seg_q, seg_k, rank_q, rank_k, seed, q_longest,
        scale, dropout,
    )  # fmt: skip
    load_kernels().sum_products[(-(-total // SUMMED_ROWS), heads)](
        d_out, out, delta, heads, *d_out.stride()[:2], total, D=q.shape[2], ROWS=SUMMED_ROWS, num_warps=4, num_stages=1
    )
    choose = partial(_choose_blocks, q, k, len(encodings), documents, longest, rank_q is not None)
    load_kernels().backward_keys[(-(-k_longest // KEY_GRAD_TILES[0]), documents * heads)](
        *shared, d_out, log, delta, d_k, d_v, d_scores, *d_out.stride()[:2], *d_scores.stride()[:2], scale, **flags,
        **choose(KEY_GRAD_TILES),
    )  # fmt: skip
    something, blocks = q_starts, choose(QUERY_GRAD_TILES)
    tensors = [something if t is None else t for t in (seg_q, seg_k)]
    strides = [s for t in (distance_q, k, encodings) for s in t.stride()[:2]]
    load_kernels().backward_queries[(-(-q_longest // block), documents * heads)](
        distance_q, k, encodings, *tensors, q_starts, k_starts, q_longest - 1, heads, total, len(encodings), *strides,
        d_scores, d_q, d_e, strips, d_extra, *d_scores.stride()[:2], *strips.stride()[:2], scale,
        SEGMENTED=extra is not None, D=q.shape[2], **{name: blocks[name] for name in blocks if name != "SURE"},
    )  # fmt: skip
    d_r = _sum_encoding_gradients(distance_q, strips, q_starts, k_starts, longest, scale, len(encodings))
    d_extra = d_extra if extra is None else d_extra.to(extra.dtype)
    return d_q, d_e, d_k, d_v, d_r.to(encodings.dtype).contiguous(), d_extra


def _sum_encoding_gradients(
    distance_q: Tensor, strips: Tensor, q_starts: Tensor, k_starts: Tensor, longest: tuple[int, int], scale: float,
    width: int,
) -> Tensor:  # fmt: skip
    """Compute the gradient of the encodings (W, H, D) from that of the scores by column: strip by strip, in parts of
    the documents that are added up in a fixed order."""
    (_, heads, dim), documents = distance_q.shape, q_starts.shape[0] - 1
    block, (_, warps, stages) = QUERY_GRAD_TILES[0], ENCODING_GRAD_TILES
    q_blocks, k_blocks = (-(-length // block) for length in longest)
    parts = max(1, min(documents, TARGET_PROGRAMS // ((q_blocks + k_blocks) * heads)))
    sums = torch.empty(parts, heads, q_blocks + k_blocks, block, dim, dtype=torch.float32, device=strips.device)
    load_kernels().backward_encodings[(q_blocks + k_blocks, heads, parts)](
        distance_q, strips, sums, q_starts, k_starts, documents, parts, q_blocks, *distance_q.stride()[:2],
        *strips.stride()[:2], *sums.stride()[:2], scale, D=dim, B=block, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    first = q_blocks * block - longest[0]  # columns before the first of the encodings
    grad = sums.flatten(2, 3)[:, :, first : first + width].sum(0)  # (H, W, D), without distances that no pair has
    return F.pad(grad, (0, 0, 0, width - grad.shape[1])).transpose(0, 1)


@backward.register_fake
def _(d_out, out, log, q, distance_q, k, v, encodings, q_starts, k_starts, extra, *rest):  # type: ignore[no-untyped-def]
    grads = [t.new_empty(t.shape) for t in (q, distance_q, k, v, encodings)]
    return *grads, log.new_empty(0) if extra is None else extra.new_empty(extra.shape)


def _save_for_backward(ctx, inputs, output):  # type: ignore[no-untyped-def]
    """Keep what the backward pass needs."""
    *tensors, ctx.q_longest, ctx.k_longest, ctx.scale, ctx.dropout = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output, *tensors)


def _compute_gradients(ctx, d_out, _):  # type: ignore[no-untyped-def]
    out, log, *tensors = ctx.saved_tensors
    *grads, d_extra = backward(d_out, out, log, *tensors, ctx.q_longest, ctx.k_longest, ctx.scale, ctx.dropout)
    return *grads, None, None, None if tensors[7] is None else d_extra, *[None] * 9


forward.register_autograd(_compute_gradients, setup_context=_save_for_backward)
