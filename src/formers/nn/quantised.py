"""Linear layers made ready for reading alone on a CPU: weights of 8 bits, or laid out as the processor likes them."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import Error
from .attention import Attention
from .feedforward import FeedForward
from .output import Output

SMALL = 256  # rows up to which a packed weight is the faster one


class Quantised(nn.Module):
    """x·wᵀ + bias with whole numbers of 8 bits, symmetric: a weight has one scale for each output, an input one for
    each row, so that no row's answer depends on its neighbours (Dettmers et al. 2022, §2.1: vector-wise).

    Where the processor adds up such products without overflow, the weight is laid out for torch's quantised kernel,
    which is up to twice as fast as `torch._int_mm`; both give the same whole numbers."""

    weight: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        scale = scales(weight.float(), 1)
        self.register_buffer("weight", (weight.float() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale[:, 0].clone())
        self.register_buffer("bias", None if bias is None else bias.detach().float().clone())
        self.packed = laid_out(self.weight, self.scale)

    def forward(self, x: Tensor, tied: Any = None) -> Tensor:
        """(…, in) → (…, out)"""
        flat = x.reshape(-1, x.shape[-1])
        scale = scales(flat, 1)
        if self.packed is None:
            small = (flat / scale).round_().to(torch.int8)
            y = torch._int_mm(small, self.weight.t()) * self.scale  # in fp32, exact up to here
        else:
            y = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(flat / scale, 1.0, 128, self.packed)
        y = y.mul_(scale) if self.bias is None else torch.addcmul(self.bias, y, scale)
        return y.to(x.dtype).view(*x.shape[:-1], -1)


class Packed(nn.Linear):
    """A linear layer with a second copy of its weight, in blocks, which products with few rows read faster."""

    packed: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None):
        nn.Module.__init__(self)
        self.out_features, self.in_features = weight.shape
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias, requires_grad=False))
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), SMALL)

    def forward(self, x: Tensor, tied: Any = None) -> Tensor:
        """(…, in) → (…, out)"""
        if x.shape[:-1].numel() > SMALL:
            return F.linear(x, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


def laid_out(weight: Tensor, scale: Tensor) -> Any:
    """An int8 weight as torch's quantised kernel reads it; None where there is no such kernel, or where it would
    saturate (a processor without VNNI adds pairs of products in 16 bits)."""
    vnni = getattr(torch.cpu, "_is_vnni_supported", None)
    there = hasattr(torch.ops.quantized, "linear_with_input_q_dq_qweight_dq_output_fp32")
    if not (vnni and vnni() and there and "fbgemm" in torch.backends.quantized.supported_engines):
        return None
    before = torch.backends.quantized.engine
    try:
        torch.backends.quantized.engine = "fbgemm"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch means to retire its quantised tensors: then _int_mm serves
            zeros = torch.zeros(len(scale), dtype=torch.long)
            given = torch._make_per_channel_quantized_tensor(weight, scale.double(), zeros, 0)
            return torch.ops.quantized.linear_prepack(given, None)
    except (RuntimeError, AttributeError):
        return None
    finally:
        torch.backends.quantized.engine = before


def scales(x: Tensor, axis: int) -> Tensor:
    """What 127 stands for: the largest number along an axis; a row of zeros may have any."""
    return (x.abs().amax(axis, keepdim=True) * (1 / 127)).clamp_(min=1e-30)


def freeze(model: nn.Module, kind: str) -> None:
    """Replace the linear layers and the output layer, in place: int8 takes `Quantised`, fp32 and bf16 `Packed`.

    Embeddings, norms, experts and recurrent cells stay as they are, and so do layers whose weight is read in part (the
    attention of models with a memory of hidden states).
    """
    if kind not in ("int8", "fp32", "bf16"):
        raise Error(f"unknown kind of weights {kind!r}", fix="choose fp32, bf16 or int8")
    if next(model.parameters()).device.type != "cpu":
        raise Error("only a model on a CPU is frozen", fix="move it there, or use bf16 on a GPU as it is")
    make = Quantised if kind == "int8" else Packed
    table = getattr(getattr(model, "body", None), "table", None)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            weight: Any
            if isinstance(child, Output):
                weight = table if child.weight is None else child.weight
            elif type(child) is nn.Linear and (isinstance(parent, FeedForward) or whole(parent, name)):
                weight = child.weight
            else:
                continue
            setattr(parent, name, make(weight.detach(), None if child.bias is None else child.bias.detach()))


def whole(parent: nn.Module, name: str) -> bool:
    """This is a layer of an attention, and nobody reads a part of its weight."""
    return isinstance(parent, Attention) and (parent.relative is None or name != "qkv")
