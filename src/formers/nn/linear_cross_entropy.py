"""Cross-entropy over a vocabulary without keeping the logits: output layer, softmax, loss and gradients in one.

A training step needs of (M, width) logits only their loss and their gradient. Rows go through in pieces: the product
with the vocabulary, then on a GPU one kernel that reads a row of logits and writes its gradient over it, then the two
products of the backward pass. What is left is as large as the hidden states and the weight. M rows, V the vocabulary's
size."""

from __future__ import annotations

from functools import cache as remember
from types import ModuleType

import torch
from torch import Tensor

from ..batch import IGNORE_INDEX
from .gpu_support import has_triton
from .layers import pad_outputs

CPU_PIECE_ROWS = 256  # that exist at a time on a CPU: a step of GPT-2 with 12,032 pieces 2.5 s, 2.9 with 512
PIECE_BYTES = 2**30  # of logits that exist at a time: with 0.5 GiB the products of GPT-2 take 0.5 ms longer (H200)
COLUMNS, WARPS = 8192, 16  # of the vocabulary that a program reads at once: 0.589 ms for 8192 x 50,304 (H200)
GROUP = 8  # neighbours that share a running maximum: 16 bytes, as many as a thread reads at once
MIN_WIDTH = 4096  # of a vocabulary: smaller ones were not measured


@remember
def load_kernels() -> ModuleType:
    """Import the kernel; never called on a machine without triton."""
    from . import linear_cross_entropy_triton

    return linear_cross_entropy_triton


def can_fuse_loss(x: Tensor, weight: Tensor) -> bool:
    """Return whether the fused loss applies: bf16 training on a CPU, or on a GPU with triton; a large vocabulary, a
    whole trainable weight."""
    kind = x.device.type
    if not (kind in ("cuda", "cpu") and torch.is_grad_enabled() and weight.requires_grad):
        return False
    in_bf16 = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16
    is_plain = type(weight) in (Tensor, torch.nn.Parameter) and weight.shape[0] >= MIN_WIDTH
    return in_bf16 and is_plain and (kind == "cpu" or has_triton())


def linear_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float = 0.0
) -> Tensor:
    """Sum the cross-entropy of `labels` (M,) under the logits of x (M, dim) and weight (V, dim); -100 does not count.
    Products are in bf16, softmax and loss in fp32."""
    return fused_loss(x.to(torch.bfloat16), weight, bias, labels, float(smoothing))[0]


@torch.library.custom_op("formers::linear_cross_entropy", mutates_args=())
def fused_loss(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the summed loss and its gradients by x, weight and bias."""
    (rows, dim), width = x.shape, weight.shape[0]
    table, offset = pad_outputs(weight.to(x.dtype), None if bias is None else bias.to(x.dtype))
    padded_width = table.shape[0]
    losses = torch.empty(rows, dtype=torch.float32, device=x.device)
    d_x = torch.empty_like(x)
    d_table = torch.zeros(padded_width, dim, dtype=torch.float32, device=x.device)
    d_offset = torch.zeros(0 if bias is None else padded_width, dtype=torch.float32, device=x.device)
    piece = max(128, PIECE_BYTES // (x.element_size() * padded_width) // 128 * 128) if x.is_cuda else CPU_PIECE_ROWS
    for first in range(0, rows, piece):
        part = slice(first, first + piece)
        logits = x[part] @ table.T if offset is None else torch.addmm(offset, x[part], table.T)
        overwrite = overwrite_by_kernel if x.is_cuda else overwrite_by_torch
        overwrite(logits, labels[part], losses[part], width, smoothing)
        torch.mm(logits, table, out=d_x[part])
        _add_product(d_table, logits.T, x[part])
        if offset is not None:
            d_offset += logits.sum(0, dtype=torch.float32)
    return losses.sum(), d_x, d_table[:width].to(weight.dtype), d_offset[: 0 if bias is None else width]


def overwrite_by_kernel(logits: Tensor, labels: Tensor, losses: Tensor, width: int, smoothing: float) -> None:
    """Write the loss of each row, and over its logits their gradient p - q, where q is 1 at the label, or 1 - smoothing
    and the rest spread over all: on a GPU, each row in one program."""
    load_kernels().overwrite_logits[(len(logits),)](
        logits, labels, losses, logits.stride(0), width, smoothing, 1 / width, IGNORE_INDEX,
        SMOOTHED=smoothing > 0, COLUMNS=COLUMNS, GROUP=GROUP, num_warps=WARPS, num_stages=2,
    )  # fmt: skip


def overwrite_by_torch(logits: Tensor, labels: Tensor, losses: Tensor, width: int, smoothing: float) -> None:
    """Write what `overwrite_by_kernel` writes, on any device."""
    log_probs = logits[:, :width].float().log_softmax(-1)
    counts = labels != IGNORE_INDEX
    places = labels.where(counts, 0)[:, None]
    loss = log_probs.gather(1, places)[:, 0] * (smoothing - 1)
    if smoothing:
        loss -= log_probs.mean(-1) * smoothing
    losses.copy_(loss * counts)
    grad = log_probs.exp_()
    if smoothing:
        grad -= smoothing / width
    grad.scatter_add_(1, places, torch.full_like(places, smoothing - 1, dtype=grad.dtype))
    logits[:, :width] = grad.mul_(counts[:, None])
    logits[:, width:] = 0


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a @ b to `total`, with sums in fp32 over all pieces."""
    if a.is_cuda:
        torch.ops.aten.addmm.dtype_out(total, a, b, torch.float32, out=total)
    else:
        total += (a @ b).float()


@fused_loss.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    d_bias = x.new_empty(0 if bias is None else len(bias), dtype=torch.float32)
    return x.new_empty((), dtype=torch.float32), torch.empty_like(x), weight.new_empty(weight.shape), d_bias


def _save_gradients(ctx, inputs, output):  # type: ignore[no-untyped-def]
    """Keep the gradients, which the forward pass has computed."""
    ctx.set_materialize_grads(False)
    ctx.has_bias = inputs[2] is not None
    ctx.save_for_backward(*output[1:])


def _scale_gradients(ctx, d_total, *_):  # type: ignore[no-untyped-def]
    d_x, d_weight, d_bias = ctx.saved_tensors
    scaled = [None if d_total is None else (d * d_total).to(d.dtype) for d in (d_x, d_weight, d_bias)]
    return scaled[0], scaled[1], scaled[2] if ctx.has_bias else None, None, None


fused_loss.register_autograd(_scale_gradients, setup_context=_save_gradients)
