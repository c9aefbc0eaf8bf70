"""Attention of one new token in each row over a cache that stays where it is (in triton).

A program takes one row, one head and one stretch of the keys (Dao et al. 2023, "Flash-Decoding"): few rows still fill
the chip. How many keys there are is read on the device: one recorded step serves all lengths.
"""

from __future__ import annotations

from functools import cache as remember
from typing import Any

import torch
from torch import Tensor

LOG2E = 1.4426950408889634
BLOCK, PROGRAMS = 64, 512  # keys that are read at once; programs that fill a GPU


@remember
def kernels() -> Any:
    """The kernels; a machine without triton never asks for them."""
    from . import decode_kernels

    return decode_kernels


@remember
def ready(device: torch.device) -> bool:
    """There is a GPU with triton."""
    from torch.utils._triton import has_triton

    return device.type == "cuda" and bool(has_triton())


def attention(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, scale: float, *, table: Tensor | None = None,
    bias: Tensor | None = None, width: int = 0,
) -> Tensor:  # fmt: skip
    """(N, H, D) queries over (rows, size, H, D) keys and values → (N, H, D).

    N is a multiple of the rows: so many queries in turn look at one row, of which the first lengths[row] slots are
    seen, or with a `width` the last so many of them. A `table` (rows, size) names the row that holds each slot. A
    `bias` (H, size) has first that of the last slot that is seen, then that of the one before.
    """
    return forward(q, k, v, lengths, table, bias, float(scale), width)


@torch.library.custom_op("formers::decode", mutates_args=())
def forward(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, table: Tensor | None, bias: Tensor | None, scale: float,
    width: int,
) -> Tensor:  # fmt: skip
    """The stretches one beside the other, then what they found put together."""
    (total, heads, dim), size = q.shape, k.shape[1]
    q = q if q.stride(-1) == 1 else q.contiguous()
    bias = None if bias is None else bias.float().contiguous()
    blocks = -(-size // BLOCK)
    parts = max(1, min(blocks, PROGRAMS // (total * heads)))
    stretch = -(-blocks // parts) * BLOCK
    kind = q.dtype if parts == 1 else torch.float32
    out = torch.empty(total, heads, parts, dim, dtype=kind, device=q.device)
    log = torch.empty(total, heads, parts, dtype=torch.float32, device=q.device)
    wide = 1 << (dim - 1).bit_length()
    kernels().stretch[(total * heads, parts)](
        q, k, v, lengths, lengths if table is None else table, lengths if bias is None else bias, out, log,
        scale * LOG2E, heads, total // k.shape[0], dim, width, stretch, parts, *q.stride()[:2], *k.stride()[:3],
        *v.stride()[:3], 0 if table is None else table.stride(0), 0 if bias is None else bias.stride(0),
        TABLE=table is not None, BIASED=bias is not None, WINDOW=width > 0, D=wide, BN=BLOCK,
        num_warps=4, num_stages=2,
    )  # fmt: skip
    if parts == 1:
        return out[:, :, 0]
    joined = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    most = 1 << (parts - 1).bit_length()
    kernels().join[(total * heads,)](out, log, joined, dim, parts, D=wide, P=most, num_warps=4, num_stages=1)
    return joined


@forward.register_fake
def _(q, *rest):  # type: ignore[no-untyped-def]
    return q.new_empty(q.shape)
