"""Linear layers whose three products are computed in 8-bit floats, on GPUs that have them (Micikevicius et al. 2022,
arXiv:2209.05433): inputs and weights as e4m3, gradients of outputs as e5m2, each tensor with one scale that is found
anew in every call, so that there is no state to save. Weights, their gradients and the optimizer stay as they are."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import Error
from .block import Block

FORWARD_DTYPE, BACKWARD_DTYPE = torch.float8_e4m3fn, torch.float8_e5m2
MULTIPLE = 16  # of every side of a product: what the kernels take
MIN_SCALE = 1e-12  # for a tensor of zeros


def has_fp8(device: torch.device) -> bool:
    """Return whether a device multiplies 8-bit floats (Ada, Hopper and newer)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def check_fp8(device: torch.device) -> None:
    """Refuse a device that does not multiply 8-bit floats."""
    if not has_fp8(device):
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
        raise Error(f"{name} does not support 8-bit floats", fix="--train.precision bf16, or an Ada GPU or newer")


def cast_to_fp8(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return a tensor divided by a scale, in an 8-bit float type, and the scale: its largest value becomes the
    largest of the type."""
    scale = (x.abs().amax().float() / torch.finfo(dtype).max).clamp(min=MIN_SCALE)
    return (x.float() / scale).to(dtype), scale


def multiply_fp8(
    a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], out_dtype: torch.dtype, fast: bool = False
) -> Tensor:
    """(M, K) and (K, N), each with its scale → (M, N); `fast` adds up with fewer bits."""
    left, right = a[0].contiguous(), b[0].t().contiguous().t()  # rows of the one, columns of the other lie together
    return torch._scaled_mm(left, right, scale_a=a[1], scale_b=b[1], out_dtype=out_dtype, use_fast_accum=fast)


class Fp8Product(torch.autograd.Function):
    """x @ weight.T, forward and backward in 8-bit floats."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, weight: Tensor, out_dtype: torch.dtype) -> Tensor:
        """(N, inner) and (outer, inner) → (N, outer)"""
        x8, x_scale = cast_to_fp8(x, FORWARD_DTYPE)
        w8, w_scale = cast_to_fp8(weight, FORWARD_DTYPE)
        ctx.save_for_backward(x8, x_scale, w8, w_scale)
        ctx.dtypes = x.dtype, weight.dtype  # type: ignore[attr-defined]
        return multiply_fp8((x8, x_scale), (w8.t(), w_scale), out_dtype, fast=True)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        """Compute the gradients of inputs and weights."""
        x8, x_scale, w8, w_scale = ctx.saved_tensors  # type: ignore[attr-defined]
        x_dtype, weight_dtype = ctx.dtypes  # type: ignore[attr-defined]
        g8, g_scale = cast_to_fp8(gradient, BACKWARD_DTYPE)
        d_x = multiply_fp8((g8, g_scale), (w8, w_scale), gradient.dtype).to(x_dtype)
        return d_x, multiply_fp8((g8.t(), g_scale), (x8, x_scale), weight_dtype), None


class Fp8Linear(nn.Linear):
    """A linear layer that trains with Fp8Product, and runs as usual where no gradient is computed."""

    def forward(self, x: Tensor) -> Tensor:
        """(…, inner) → (…, outer)"""
        if not (self.training and torch.is_grad_enabled() and torch.is_autocast_enabled(x.device.type)):
            return super().forward(x)
        flat = x.reshape(-1, self.in_features)
        rest = -flat.shape[0] % MULTIPLE
        dtype = torch.get_autocast_dtype(x.device.type)
        y = Fp8Product.apply(F.pad(flat, (0, 0, 0, rest)) if rest else flat, self.weight, dtype)
        y = y[: flat.shape[0]].view(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias.to(dtype)


def use_fp8_linear(model: nn.Module) -> int:
    """Make the linear layers of all blocks compute in 8-bit floats, in place; return how many. Weights and names stay.
    Embeddings, heads and the output layer remain as they are, and layers whose sides are not multiples of 16."""
    count = 0
    for block in model.modules():
        for layer in block.modules() if isinstance(block, Block) else ():
            if type(layer) is nn.Linear and layer.in_features % MULTIPLE == layer.out_features % MULTIPLE == 0:
                layer.__class__ = Fp8Linear
                count += 1
    return count
