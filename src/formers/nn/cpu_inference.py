"""Inference on a CPU: linear layers with weights of 8 bits or prepacked, and bf16 only where the processor has it. Some
virtual machines report AMX, the tiles that multiply bf16, and kill a process that uses them. There, oneDNN is kept from
using them."""

from __future__ import annotations

import functools
import math
import os
import sys
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import Error
from .attention.attention import Attention
from .cpu_kernels import is_fatal, load_kernels, pack_weight, pad_to_panels
from .layers import ACTIVATIONS, FeedForward, OutputLayer

ISA_VARIABLE, ISA_WITHOUT_AMX = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"


def is_amx_announced() -> bool:
    """Return whether the processor reports AMX tiles, and the environment does not restrict oneDNN."""
    supports = getattr(torch.cpu, "_is_amx_tile_supported", bool)  # dynamic: private in torch, and may be gone
    return bool(supports()) and ISA_VARIABLE not in os.environ


def is_bf16_fatal() -> bool:
    """Return whether a product in bf16 would end this process."""

    def multiply() -> Tensor:
        x = torch.ones(64, 64, dtype=torch.bfloat16)
        return torch.mm(x, x)

    return is_fatal(multiply)


@functools.cache
def is_amx_broken() -> bool:
    """Return whether the reported tiles do not work."""
    return is_amx_announced() and is_bf16_fatal()


@functools.cache
def disable_amx() -> bool:
    """Keep oneDNN from using the tiles, which works only before its first computation."""
    os.environ[ISA_VARIABLE] = ISA_WITHOUT_AMX
    if is_bf16_fatal():
        del os.environ[ISA_VARIABLE]
        return False
    return True


def can_use_bf16() -> bool:
    """Return whether oneDNN may multiply bf16 and int8: the tiles work, or it does not use them."""
    return not is_amx_announced() or not is_amx_broken() or disable_amx()


def has_amx() -> bool:
    """Return whether oneDNN multiplies by tiles that work."""
    return is_amx_announced() and can_use_bf16() and is_amx_announced()  # where they do not work, oneDNN is kept away


def check_cpu_bf16(dtype: torch.dtype | None, device: torch.device, strict: bool = True) -> None:
    """Keep oneDNN from broken tiles before bf16 is used on a CPU; if it is too late, raise, or warn if not `strict`."""
    if dtype != torch.bfloat16 or device.type != "cpu" or can_use_bf16():
        return
    what = "this processor reports AMX, which does not work here: bf16 would end this process"
    fix = f"set {ISA_VARIABLE}={ISA_WITHOUT_AMX} in the environment before Python starts, or stay with fp32"
    if strict:
        raise Error(what, fix=fix)
    warnings.warn(f"{what}; {fix}, or move the model to a GPU", stacklevel=3)


PREPACK_MAX_ROWS = 256  # rows up to which a packed weight is the faster one
SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
Kernel = Callable[[Tensor], Tensor]  # whole numbers (rows, in) → (rows, out)
KernelClass = Callable[[Tensor, Tensor], Kernel]  # of a weight of 8 bits and its scales
OWN_MAX_ROWS_WITH_AMX = 32  # rows up to which our own kernel is taken where oneDNN has tiles
FBGEMM_MAX_ROWS = 2  # rows up to which FBGEMM is faster than oneDNN


class QuantisedLinear(nn.Module):
    """x·wᵀ + bias with whole numbers of 8 bits, symmetric: a weight has one scale for each output, an input one for
    each row, so that no row's answer depends on its neighbours (Dettmers et al. 2022, §2.1: vector-wise).

    The kernel goes by the processor and the number of rows: our own where it can be compiled (cpu_kernels.py), else
    those of torch. All add up the same whole numbers exactly (`SplitKernel`)."""

    scale: Tensor
    bias: Tensor | None
    packed_weight: Tensor | None = None  # of our own kernel, with its scales and biases
    own_kernel_max_rows = sys.maxsize

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        scale = weight.float().abs().amax(1, keepdim=True).clamp_(min=1e-30) / 127
        small = (weight.float() / scale).round().to(torch.int8)
        self.register_buffer("scale", scale[:, 0].clone())
        self.register_buffer("bias", None if bias is None else bias.detach().float().clone())
        if load_kernels() is not None:
            self.packed_weight, self.packed_scale = pack_weight(small), pad_to_panels(self.scale)
            self.packed_bias = None if self.bias is None else pad_to_panels(self.bias)
            if not has_amx():
                return
            self.own_kernel_max_rows = OWN_MAX_ROWS_WITH_AMX
        has_fbgemm, has_onednn = can_use_fbgemm(), can_use_onednn()
        kernel = FBGEMMKernel if has_fbgemm else OneDNNKernel if has_onednn else PlainKernel
        self.few_rows_kernel = build_kernel(kernel, small, self.scale)
        self.many_rows_kernel = (
            build_kernel(OneDNNKernel, small, self.scale) if has_fbgemm and has_onednn else self.few_rows_kernel
        )

    def forward(self, x: Tensor, tied: object = None) -> Tensor:
        """(…, in) → (…, out)"""
        flat = (x if x.dim() == 2 else x.reshape(-1, x.shape[-1])).float()  # half precision would round up to 128
        if self.packed_weight is not None and len(flat) <= self.own_kernel_max_rows:
            kernels = load_kernels()
            assert kernels is not None
            y = kernels.multiply(flat, self.packed_weight, self.packed_scale, self.packed_bias, len(self.scale))
        else:
            y = self.multiply_by_torch(flat)
        y = y if y.dtype == x.dtype else y.to(x.dtype)
        return y if x.dim() == 2 else y.view(*x.shape[:-1], -1)

    def multiply_by_torch(self, flat: Tensor) -> Tensor:
        """(rows, in) → (rows, out) by one of torch's kernels."""
        scale = flat.abs().amax(1, keepdim=True).mul_(1 / 127)
        whole = (flat / scale).round_()  # of a row of zeros nonsense, which its scale of 0 takes away
        y = self.few_rows_kernel(whole) if flat.shape[0] <= FBGEMM_MAX_ROWS else self.many_rows_kernel(whole)
        return y.mul_(scale) if self.bias is None else torch.addcmul(self.bias, y, scale)


class PlainKernel:
    """Products on any processor: of whole numbers (rows, in), with a weight (out, in) whose scales are of its rows."""

    def __init__(self, weight: Tensor, scale: Tensor):
        self.weight, self.scale = weight, scale

    def __call__(self, x: Tensor) -> Tensor:
        """(rows, in) → (rows, out)"""
        return torch._int_mm(x.to(torch.int8), self.weight.t()) * self.scale


class OneDNNKernel:
    """Products by oneDNN, whose inputs go from 0 to 255: the fastest for many rows, with a slow start."""

    def __init__(self, weight: Tensor, scale: Tensor):
        self.scale, self.zeros = scale, torch.zeros(len(weight), dtype=torch.int32)
        self.weight = torch.ops.onednn.qlinear_prepack(weight, None)

    def __call__(self, x: Tensor) -> Tensor:
        """(rows, in) → (rows, out)"""
        shifted = x.to(torch.int8).view(torch.uint8).bitwise_xor_(128)
        inputs = shifted, 1.0, 128, self.weight, self.scale, self.zeros, None
        # of the output: its scale, zero point and type, and nothing after it
        return torch.ops.onednn.qlinear_pointwise(*inputs, 1.0, 0, torch.float32, "none", [], "")


class FBGEMMKernel:
    """Products by FBGEMM, the fastest for a row or two."""

    def __init__(self, weight: Tensor, scale: Tensor):
        before = torch.backends.quantized.engine
        torch.backends.quantized.engine = "fbgemm"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch means to retire its quantised tensors: then the others serve
                zeros = torch.zeros(len(scale), dtype=torch.long)
                quantised = torch._make_per_channel_quantized_tensor(weight, scale.double(), zeros, 0)
                self.weight = torch.ops.quantized.linear_prepack(quantised, None)
        finally:
            torch.backends.quantized.engine = before
        product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
        # Without torch's search of all arguments, in Python.
        self.product: Callable[..., Tensor] = getattr(product, "_op", product)  # dynamic: private in torch

    def __call__(self, x: Tensor) -> Tensor:
        """(rows, in) → (rows, out)"""
        return self.product(x, 1.0, 128, self.weight)


class SplitKernel:
    """A saturating kernel made exact at twice its cost: x·w = x·a + x·b, where 7-bit a and b fit into 16 bits."""

    def __init__(self, kernel: KernelClass, weight: Tensor, scale: Tensor):
        low, ones = weight.clamp(-64, 64), torch.ones_like(scale)
        self.low, self.high, self.scale = kernel(low, ones), kernel(weight - low, ones), scale

    def __call__(self, x: Tensor) -> Tensor:
        """(rows, in) → (rows, out)"""
        return self.low(x).add_(self.high(x)).mul_(self.scale)


@functools.cache
def is_saturating(kernel: KernelClass) -> bool:
    """Return whether a kernel loses the largest sums, tried once: without VNNI, oneDNN (which torch._int_mm calls as
    well) and FBGEMM add pairs of products in 16 bits. What oneDNN may use also depends on its settings, not on the
    processor alone."""
    large = torch.full((2, 64), 127, dtype=torch.int8)
    large[1] = -127
    sums = kernel(large, torch.ones(2))(torch.full((4, 64), 127.0))
    return not bool((sums[:, 0] == 64 * 127**2).all() and (sums[:, 1] == -64 * 127**2).all())


def build_kernel(kernel: KernelClass, weight: Tensor, scale: Tensor) -> Kernel:
    """Return the kernel for a weight of 8 bits (out, in) and its scales (out,), in halves where it would saturate."""
    return SplitKernel(kernel, weight, scale) if is_saturating(kernel) else kernel(weight, scale)


class PrepackedLinear(nn.Linear):
    """A linear layer with a second copy of its weight, in blocks, which products with few rows read faster; a plain one
    where oneDNN has no such blocks for this type on this processor."""

    packed_weight: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None):
        nn.Module.__init__(self)
        self.out_features, self.in_features = weight.shape
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias, requires_grad=False))
        self.packed_weight = prepack_weight(weight.detach()) if can_prepack(weight.dtype) else None

    def forward(self, x: Tensor, tied: object = None) -> Tensor:
        """(…, in) → (…, out)"""
        if self.packed_weight is None or x.shape[:-1].numel() > PREPACK_MAX_ROWS:
            return F.linear(x, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self.packed_weight, self.bias, "none", [], "")


def prepack_weight(weight: Tensor) -> Tensor:
    """Return the weight in oneDNN's blocks."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, PREPACK_MAX_ROWS)


@functools.cache
def can_prepack(dtype: torch.dtype) -> bool:
    """Return whether oneDNN multiplies by prepacked weights of this type, tried once: bf16 needs AVX-512 or
    AVX-NE-CONVERT, and some builds of torch have no oneDNN at all."""
    x = torch.ones(2, 16, dtype=dtype)
    try:
        torch.ops.mkldnn._linear_pointwise(x, prepack_weight(x), None, "none", [], "")
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    return True


def can_use_onednn() -> bool:
    """Return whether oneDNN's kernel is there, safe and exact: in halves it is slower than FBGEMM in halves."""
    there = hasattr(torch.ops.onednn, "qlinear_pointwise")  # dynamic: an operator of some builds of torch
    return torch.backends.mkldnn.is_available() and there and can_use_bf16() and not is_saturating(OneDNNKernel)


def can_use_fbgemm() -> bool:
    """Return whether torch's older kernel is there."""
    engine = "fbgemm" in torch.backends.quantized.supported_engines
    there = hasattr(torch, "_make_per_channel_quantized_tensor")  # dynamic: private in torch
    product = "linear_with_input_q_dq_qweight_dq_output_fp32"
    return engine and there and hasattr(torch.ops.quantized, product)  # dynamic: an operator of some builds of torch


def compute_gelu_tanh(x: Tensor) -> Tensor:
    """Compute GELU's tanh form as x·σ(2u), an identity that is much faster on a CPU than torch's own tanh form."""
    if x.dtype == torch.float32 and not x.requires_grad and (kernels := load_kernels()) is not None:
        return kernels.gelu_tanh(x)
    u = x * x
    return u.mul_(2 * SQRT_2_OVER_PI * 0.044715).add_(2 * SQRT_2_OVER_PI).mul_(x).sigmoid_().mul_(x)


def check_kind(model: nn.Module, kind: str) -> None:
    """Refuse a kind of weights that is not known, and a model that is not on a CPU."""
    if kind not in ("int8", "fp32", "bf16"):
        raise Error(f"unknown kind of weights {kind!r}", fix="choose fp32, bf16 or int8")
    if next(model.parameters()).device.type != "cpu":
        raise Error("only a model on a CPU can be frozen", fix="move it there, or use bf16 on a GPU as it is")


def freeze_for_inference(model: nn.Module, kind: str, tied_weight: Tensor | None) -> None:
    """Replace the linear layers and the output layer, in place: int8 takes `QuantisedLinear`, fp32 and bf16
    `PrepackedLinear`. `tied_weight` is the weight of an output layer that has none of its own.

    Embeddings, norms, experts and recurrent cells stay as they are, and so do layers whose weight is read in part (the
    attention of models with a memory of hidden states)."""
    check_kind(model, kind)
    make = QuantisedLinear if kind == "int8" else PrepackedLinear
    model.requires_grad_(False)
    for parent in list(model.modules()):
        if isinstance(parent, FeedForward) and parent.act is ACTIVATIONS["gelu_tanh"] and kind != "bf16":
            parent.act = compute_gelu_tanh
        for name, child in list(parent.named_children()):
            if isinstance(child, OutputLayer):
                weight = tied_weight if child.weight is None else child.weight
            elif type(child) is nn.Linear and is_read_whole(parent, name):
                weight = child.weight
            else:
                continue
            assert weight is not None
            setattr(parent, name, make(weight.detach(), None if child.bias is None else child.bias.detach()))


def is_frozen(model: nn.Module) -> bool:
    """Return whether a model was frozen for inference: its layers have no gradients, or wrong ones."""
    return any(isinstance(module, QuantisedLinear | PrepackedLinear) for module in model.modules())


def is_read_whole(parent: nn.Module, name: str) -> bool:
    """Return whether this layer belongs to a feed-forward, or to an attention that always reads the whole of it."""
    if isinstance(parent, Attention):
        return parent.relative is None or name != "qkv"
    return isinstance(parent, FeedForward)
