"""The layers that all families share, and how weights start.

Embeddings: what a token, its position and its segment contribute to the first hidden state. Dropout whose random
numbers are cheap where they cost the most: in a compiled step on a GPU. Norms that keep the type of what they are
given: autocast computes them in fp32 and would hand that on. The position-wise feed-forward layer, and the activations
by name. The output layer. A learned mix of all layers, for a task (ELMo §3.2). Random weights, drawn from one seeded
generator, the same on every machine."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..batch import Batch, Layout
from ..errors import Error
from . import cpu_kernels
from .attention.kernels import decode
from .attention.positions import SinusoidalPositions

MixNorm = Literal["plain", "token", "batch"]  # how layers are normed before they are mixed


class Dropout(nn.Dropout):
    """torch's dropout; compiled for a GPU, what is dropped is drawn from a hash of a seed and the place. The generator
    that a compiled step would use, ten rounds for each number, takes three times as long as reading and writing the
    numbers themselves."""

    def forward(self, x: Tensor) -> Tensor:
        """(…) → (…)"""
        drawn = self.training and 0 < self.p < 1 and x.is_cuda and torch.compiler.is_compiling()
        return drop_by_hash(x, self.p) if drawn and x.numel() < 2**31 else super().forward(x)


def drop_by_hash(x: Tensor, p: float) -> Tensor:
    """Dropout by a hash of 32 bits (two products, three shifts); the seed comes from torch's generator."""
    seed = torch.randint(-(2**31), 2**31 - 1, (1,), device=x.device, dtype=torch.int32)
    place = torch.arange(x.numel(), device=x.device, dtype=torch.int32).view(x.shape)
    h = place ^ seed
    h = (h ^ ((h >> 16) & 0xFFFF)) * 0x7FEB352D
    h = (h ^ ((h >> 15) & 0x1FFFF)) * -0x7B935975  # 0x846CA68B, signed
    h = (h ^ ((h >> 16) & 0xFFFF)) & 0x7FFFFFFF
    return torch.where(h >= round(p * 2**31), x * (1 / (1 - p)), 0.0)


class LayerNorm(nn.LayerNorm):
    """(x - mean) / √(variance + eps) · weight + bias (Ba et al. 2016)."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, dim) → (N, dim)"""
        return super().forward(x).to(x.dtype)


class RMSNorm(nn.RMSNorm):
    """x / √(mean of squares + eps) · weight (Zhang & Sennrich 2019), in the type of the weight."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, dim) → (N, dim)"""
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)


def add_norm(x: Tensor, y: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Return x + y and its norm, in one kernel where there is one (inference only)."""
    if not (isinstance(norm, LayerNorm | RMSNorm) and x.dtype == y.dtype == norm.weight.dtype):
        return add_norm_unfused(x, y, norm)
    if norm.eps is None or not decode.is_available(x.device, x.dtype):
        return add_norm_unfused(x, y, norm)
    bias, has_mean = (norm.bias, True) if isinstance(norm, LayerNorm) else (None, False)
    kernels = cpu_kernels.load_kernels() if x.device.type == "cpu" else None
    if kernels is not None:
        return kernels.add_norm(x, y, norm.weight, bias, norm.eps, has_mean)
    run = functools.partial(decode.add_norm, x, y, norm.weight, bias, norm.eps, has_mean)
    first, second = decode.run_with_fallback("add_norm", run, lambda: [*add_norm_unfused(x, y, norm)])
    return first, second


def add_norm_unfused(x: Tensor, y: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Return x + y and its norm by two kernels."""
    total = x + y
    return total, norm(total)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "silu": F.silu, "mish": F.mish, "elu": F.elu, "leaky_relu": F.leaky_relu, "gelu": F.gelu,
    "tanh": torch.tanh, "sigmoid": torch.sigmoid, "linear": lambda x: x, "relu2": lambda x: F.relu(x).square(),
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "gelu_quick": lambda x: x * torch.sigmoid(1.702 * x),
}  # fmt: skip


def get_activation(name: str) -> Callable[[Tensor], Tensor]:
    """Return an activation by its name."""
    if name not in ACTIVATIONS:
        raise Error(f"unknown activation {name!r}", fix="known: " + ", ".join(ACTIVATIONS))
    return ACTIVATIONS[name]


class FeedForward(nn.Module):
    """down(act(up(x))), or gated: down(act(gate(x)) · up(x)) (Shazeer 2020)."""

    def __init__(
        self, dim: int, hidden: int, act: str = "gelu", *, gated: bool = False, bias: bool = True, dropout: float = 0.0
    ):
        super().__init__()
        self.up = nn.Linear(dim, hidden, bias=bias)
        self.gate = nn.Linear(dim, hidden, bias=bias) if gated else None
        self.down = nn.Linear(hidden, dim, bias=bias)
        self.act, self.dropout = get_activation(act), Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(N, dim) → (N, dim)"""
        hidden = self.act(self.up(x)) if self.gate is None else self.act(self.gate(x)) * self.up(x)
        return self.down(self.dropout(hidden))


VOCAB_MULTIPLE, FAST_MULTIPLE = 64, 8  # of a padded vocabulary; of one that is fast enough as it is


def is_slow_width(width: int) -> bool:
    """Return whether so many outputs keep a GPU from its fast products: rows of logits of an odd length (GPT-2's 50,257
    tokens), which `pad_outputs` fills up."""
    return width % FAST_MULTIPLE != 0


def pad_outputs(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Pad the weight (width, dim) and bias of an output layer with zeros to a multiple of 64 outputs."""
    rest = -weight.shape[0] % VOCAB_MULTIPLE
    return F.pad(weight, (0, 0, 0, rest)), None if bias is None else F.pad(bias, (0, rest))


class OutputLayer(nn.Module):
    """The last layer; its weight is handed in when it is tied to the token embedding."""

    def __init__(self, dim: int, width: int, *, bias: bool, tied: bool, frozen_bias: bool = False):
        super().__init__()
        self.weight = None if tied else nn.Parameter(torch.empty(width, dim))
        self.bias = nn.Parameter(torch.empty(width), requires_grad=not frozen_bias) if bias else None
        self.padded_weights: tuple[Tensor, Tensor | None] | None = None  # of `use_padded_weights`

    def forward(self, x: Tensor, tied: Tensor) -> Tensor:
        """(M, dim) → (M, width)"""
        weight = tied if self.weight is None else self.weight
        width = weight.shape[0]
        if self.padded_weights is not None:
            return F.linear(x, *self.padded_weights)[..., :width]
        if x.is_cuda and is_slow_width(width) and torch.is_grad_enabled():
            return F.linear(x, *pad_outputs(weight, self.bias))[..., :width]
        return F.linear(x, weight, self.bias)

    @contextlib.contextmanager
    def use_padded_weights(self, wide: tuple[Tensor, Tensor | None] | None) -> Iterator[None]:
        """Use a weight and bias that were padded once, for many steps."""
        self.padded_weights = wide
        try:
            yield
        finally:
            self.padded_weights = None


class ScalarMix(nn.Module):
    """γ · Σ softmax(s)ᵢ · hᵢ, of layers normed by token or, as in ELMo's code, over the whole batch, or not at all."""

    def __init__(self, layers: int, norm: MixNorm = "plain"):
        super().__init__()
        self.weight, self.scale, self.norm = nn.Parameter(torch.empty(layers)), nn.Parameter(torch.empty(1)), norm

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """layers × (N, dim) → (N, dim)"""
        shares = self.weight.float().softmax(0).to(layers[0].dtype)
        total = torch.zeros_like(layers[0])
        for share, x in zip(shares, layers, strict=True):
            if self.norm != "plain":
                x = F.layer_norm(x, x.shape[-1 if self.norm == "token" else 0 :], eps=1e-12).to(x.dtype)
            total = total + share * x
        return self.scale * total


@dataclass(frozen=True)
class ConstantInit:
    """A rule that gives all numbers of a parameter one value, whatever its name and shape."""

    value: float


@dataclass(frozen=True)
class FanInInit:
    """A rule that draws a matrix with the standard deviation 1/√fan_in, so that outputs are as large as inputs."""


Deviation = float | tuple[float, ...]  # a standard deviation, or one for each of equal parts
InitRule = Deviation | ConstantInit | FanInInit


@torch.no_grad()
def initialise_weights(
    model: nn.Module, rules: Mapping[str, InitRule], seed: int, only: set[str] | None = None
) -> None:
    """Fill parameters: norms with 1, biases with 0, all else N(0, std) with the std of the last rule that matches. A
    rule is `name pattern: std`; a tuple of them goes to equal parts along the first axis (a fused q, k, v), and a
    `ConstantInit` is a value instead of a draw; `FanInInit` takes the std from the shape."""
    for index, (name, parameter) in enumerate(model.named_parameters()):
        if parameter.is_meta or (only is not None and name not in only):
            continue
        rule = next((rules[pattern] for pattern in reversed(list(rules)) if fnmatch.fnmatchcase(name, pattern)), None)
        if isinstance(rule, ConstantInit):
            parameter.fill_(rule.value)
        elif name.endswith("bias") and parameter.dim() == 1:
            parameter.zero_()
        elif parameter.dim() == 1:
            parameter.fill_(1.0)
        else:
            assert rule is not None, name
            rule = parameter[0].numel() ** -0.5 if isinstance(rule, FanInInit) else rule
            std = rule if isinstance(rule, tuple) else (rule,)
            parts = parameter.chunk(len(std))
            generator = torch.Generator().manual_seed(seed * 1_000_003 + index)
            for part, deviation in zip(parts, std, strict=True):
                part.copy_(torch.empty(part.shape, device="cpu").normal_(0.0, deviation, generator=generator))


def to_autocast_dtype(x: Tensor) -> Tensor:
    """Convert to autocast's bf16, which halves the residual stream's memory traffic; fp16 would overflow there."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16:
        return x.to(torch.bfloat16)
    return x


class Embeddings(nn.Module):
    """token + position + segment (+ task), then a norm, dropout and (ALBERT) a projection up to the model's width.
    `scale` multiplies the tokens, `token` is a table of another kind or shared with another side, `sinusoids` stand in
    for a learned table of positions. The first row that positions use is `offset` (RoBERTa, BART: 2)."""

    def __init__(
        self, width: int, vocab: int, *, positions: int = 0, segments: int = 0, offset: int = 0,
        sinusoids: SinusoidalPositions | None = None, scale: float = 1.0, token: nn.Module | None = None,
        norm: nn.Module | None = None, dropout: float = 0.0, up: int | None = None,
    ):  # fmt: skip
        super().__init__()
        self.token = nn.Embedding(vocab, width) if token is None else token
        self.position = nn.Embedding(positions + offset, width) if positions else None
        self.segment = nn.Embedding(segments, width) if segments else None
        self.task: nn.Embedding | None = None  # of ERNIE 2.0, which sets it
        self.sinusoids, self.scale = sinusoids, scale
        self.norm, self.dropout, self.position_offset = norm, Dropout(dropout), offset
        self.up = nn.Linear(width, up) if up else None

    @property
    def token_weight(self) -> Tensor:
        """The table of the tokens (vocab, width), if it is a single one."""
        return cast(nn.Embedding, self.token).weight

    def forward(self, batch: Batch, layout: Layout, past_lengths: Tensor | None = None) -> Tensor:
        """(N,) → (N, width or up); `past_lengths` (D,) tokens of each document came before these."""
        x = self.token(batch.ids)
        x = x if self.scale == 1.0 else x * self.scale
        if self.segment is not None:
            x = x + (self.segment.weight[0] if batch.segments is None else self.segment(batch.segments))
        elif batch.segments is not None:  # GPT-2's way: segment ids are tokens
            x = x + self.token(batch.segments)
        if self.task is not None:
            x = x + (self.task.weight[0] if batch.tasks is None else self.task(batch.tasks))
        if self.position is not None or self.sinusoids is not None:
            x = self.add_positions(x, batch.positions, layout, past_lengths)
        x = self.dropout(to_autocast_dtype(x if self.norm is None else self.norm(x)))
        return x if self.up is None else self.up(x)

    def add_positions(self, x: Tensor, positions: Tensor | None, layout: Layout, past_lengths: Tensor | None) -> Tensor:
        """Add the positions. Rows of one length share the table's first rows, whose gradient is then a plain sum."""
        if self.position is not None and positions is None and past_lengths is None and layout.is_uniform:
            table = self.position.weight[self.position_offset : self.position_offset + layout.longest]
            return (x.unflatten(0, (layout.rows, layout.longest)) + table).flatten(0, 1)
        at = layout.positions if positions is None else positions
        at = at if past_lengths is None else at + past_lengths[layout.document_ids]
        if self.sinusoids is not None:
            return x + self.sinusoids(at).to(x.dtype)
        assert self.position is not None
        return x + self.position(at + self.position_offset)
