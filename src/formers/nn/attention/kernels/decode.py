"""Attention of one new token in each row over a cache that stays where it is. On a GPU (in triton) a program takes one
row, one head and one stretch of the keys (Dao et al. 2023, "Flash-Decoding"): few rows still fill the chip. How many
keys there are is read on the device: one recorded step serves all lengths. On a CPU our own kernels do it, in fp32."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache as remember
from types import ModuleType
from typing import TypeVar

import torch
from torch import Tensor

from ... import cpu_kernels
from ...gpu_support import has_triton

LOG2E = 1.4426950408889634
KEY_BLOCK, TARGET_PROGRAMS = 64, 512  # keys that are read at once; programs that fill a GPU
Result = TypeVar("Result")
failed_kernels: set[str] = set()  # kernels that have failed here


def make_contiguous(*tensors: Tensor) -> list[Tensor]:
    """Return tensors whose last axis lies in one piece, as the kernels read it."""
    return [t if t.stride(-1) == 1 else t.contiguous() for t in tensors]


@remember
def load_kernels() -> ModuleType:
    """Import the kernels; never called on a machine without triton."""
    from . import decode_triton

    return decode_triton


def is_available(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether there is a GPU with triton, or for inference in fp32 a CPU with kernels of our own."""
    if device.type != "cpu":
        return device.type == "cuda" and has_triton()
    plain = dtype == torch.float32 and not torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return plain and cpu_kernels.load_kernels() is not None


def decode_attention(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, scale: float, *, table: Tensor | None = None,
    bias: Tensor | None = None, width: int = 0, fresh: tuple[Tensor, Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """(N, H, D) queries over (rows, size, H, D) keys and values → (N, H, D).

    N is a multiple of the rows: so many queries in turn read one row, of which the first lengths[row] slots are
    seen, or with a `width` the last so many of them. A `table` (rows, size) names the row that holds each slot. A
    `bias` (H, size) has first that of the last slot that is seen, then that of the one before. `fresh` are the key and
    value (N, H, D) of each row's last slot, which are yet to be written there; the table is given as well."""
    kernels = cpu_kernels.load_kernels() if q.device.type == "cpu" else None
    if kernels is not None:
        return kernels.attend(q, k, v, lengths, scale, table=table, bias=bias, width=width, fresh=fresh)
    rest = (lengths, table, bias)
    if fresh is None:
        return run_decode_kernel(q, k, v, *rest, None, None, float(scale), width)

    def write_then_attend() -> Tensor:
        write_new_kv(k, v, lengths, table, fresh)
        return run_decode_kernel(q, k, v, *rest, None, None, float(scale), width)

    return run_with_fallback(
        "decode", lambda: run_decode_kernel(q, k, v, *rest, *fresh, float(scale), width), write_then_attend
    )


def write_new_kv(k: Tensor, v: Tensor, lengths: Tensor, table: Tensor | None, fresh: tuple[Tensor, Tensor]) -> None:
    """Write new keys and values into each row's last slot."""
    rows, last = torch.arange(len(lengths), device=lengths.device), lengths.clamp(max=k.shape[1]) - 1
    for stored, new in zip((k, v), fresh, strict=True):
        stored.index_put_((rows, last), new)
    if table is not None:
        table.index_put_((rows, last), rows)


def run_with_fallback(name: str, fast: Callable[[], Result], slow: Callable[[], Result]) -> Result:
    """Run the fast way, or where triton cannot compile it, the slow one from then on, with a warning."""
    if name not in failed_kernels:
        try:
            return fast()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            failed_kernels.add(name)
            reason = " ".join(str(error).split())[:150]
            warnings.warn(f"the kernel {name} does not work here, and steps are slower for it: {reason}", stacklevel=2)
    return slow()


@torch.library.custom_op("formers::decode", mutates_args=("k", "v", "table"))
def run_decode_kernel(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, table: Tensor | None, bias: Tensor | None, new_k: Tensor | None,
    new_v: Tensor | None, scale: float, width: int,
) -> Tensor:  # fmt: skip
    """Attend to all stretches of keys side by side, then merge what they gave."""
    (total, heads, dim), size = q.shape, k.shape[1]
    q, *fresh = make_contiguous(q, *((q, q) if new_k is None or new_v is None else (new_k, new_v)))
    bias = None if bias is None else bias.float().contiguous()
    blocks = -(-size // KEY_BLOCK)
    parts = max(1, min(blocks, TARGET_PROGRAMS // (total * heads)))
    stretch = -(-blocks // parts) * KEY_BLOCK
    kind = q.dtype if parts == 1 else torch.float32
    out = torch.empty(total, heads, parts, dim, dtype=kind, device=q.device)
    log = torch.empty(total, heads, parts, dtype=torch.float32, device=q.device)
    wide = 1 << (dim - 1).bit_length()
    load_kernels().attend_chunk[(total * heads, parts)](
        q, k, v, *fresh, lengths, lengths if table is None else table, lengths if bias is None else bias, out, log,
        scale * LOG2E, heads, total // k.shape[0], dim, width, stretch, size, parts, *q.stride()[:2], *k.stride()[:3],
        *v.stride()[:3], *fresh[0].stride()[:2], *fresh[1].stride()[:2], 0 if table is None else table.stride(0),
        0 if bias is None else bias.stride(0), TABLE=table is not None, BIASED=bias is not None, WINDOW=width > 0,
        FRESH=new_k is not None, D=wide, BN=KEY_BLOCK, num_warps=4, num_stages=2,
    )  # fmt: skip
    if parts == 1:
        return out[:, :, 0]
    joined = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    most = 1 << (parts - 1).bit_length()
    load_kernels().merge_chunks[(total * heads,)](
        out, log, joined, dim, parts, D=wide, P=most, num_warps=4, num_stages=1
    )
    return joined


@run_decode_kernel.register_fake
def _(q: Tensor, *rest: object) -> Tensor:
    return q.new_empty(q.shape)


@torch.library.custom_op("formers::add_norm", mutates_args=())
def add_norm(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, eps: float, mean: bool) -> list[Tensor]:
    """Return x + y (N, dim), and its layer norm, or without `mean` its RMS norm."""
    (rows, dim), (x, y) = x.shape, make_contiguous(x, y)
    both, wide = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2)], 1 << (dim - 1).bit_length()
    load_kernels().add_norm[(rows,)](
        x, y, weight, weight if bias is None else bias, *both, dim, eps, x.stride(0), y.stride(0), MEAN=mean,
        BIASED=bias is not None, D=wide, num_warps=4 if wide <= 2048 else 8, num_stages=1,
    )  # fmt: skip
    return both


@add_norm.register_fake
def _(x: Tensor, *rest: object) -> list[Tensor]:
    return [x.new_empty(x.shape) for _ in range(2)]
