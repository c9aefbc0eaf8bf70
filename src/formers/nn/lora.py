"""LoRA (Hu et al. 2021): a frozen weight plus a trained product of two narrow matrices."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

TARGET_LAYERS = ("qkv", "q", "k", "v", "o", "up", "gate", "down")  # of attention and of feed-forward layers


class LoRAWeight(nn.Module):
    """W → W + (alpha / rank) · B A, where B begins as zeros."""

    def __init__(self, weight: Tensor, rank: int, alpha: float, generator: torch.Generator):
        super().__init__()
        rows, columns = weight.shape
        first = torch.empty(rank, columns).normal_(0.0, columns**-0.5, generator=generator)
        self.a = nn.Parameter(first.to(weight))
        self.b = nn.Parameter(weight.new_zeros(rows, rank))
        self.scale = alpha / rank

    def forward(self, weight: Tensor) -> Tensor:
        """Return the adapted weight."""
        return weight + self.scale * (self.b @ self.a)


def add_adapters(body: nn.Module, rank: int, alpha: float, seed: int = 0) -> int:
    """Freeze a body and add adapters to its matrices; returns how many."""
    body.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    named = [(name.rpartition(".")[2], module) for name, module in body.named_modules()]
    targets = [module for name, module in named if name in TARGET_LAYERS and isinstance(module, nn.Linear)]
    for module in targets:
        adapter = LoRAWeight(module.weight.detach(), rank, alpha, generator)
        parametrize.register_parametrization(module, "weight", adapter, unsafe=True)
    return len(targets)


def get_adapter_tensors(body: nn.Module) -> dict[str, Tensor]:
    """Return the trained matrices by layer: name.a, and name.b with the scale multiplied in."""
    tensors: dict[str, Tensor] = {}
    for name, module in body.named_modules():
        if isinstance(module, LoRAWeight):
            layer = name.removesuffix(".parametrizations.weight.0")
            tensors |= {f"{layer}.a": module.a.detach(), f"{layer}.b": module.b.detach() * module.scale}
    return tensors


def remove_adapters(body: nn.Module, *, merge: bool) -> None:
    """Take the adapters out again: `merge` makes them part of the weights, else these are left as they were."""
    for module in list(body.modules()):
        if parametrize.is_parametrized(module):
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=merge)
    body.requires_grad_(True)


@torch.no_grad()
def apply_adapters(body: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Add saved adapters to the weights of the body that they were trained on."""
    for name in sorted({key.rpartition(".")[0] for key in tensors}):
        weight = body.get_parameter(f"{name}.weight")
        weight.add_((tensors[f"{name}.b"] @ tensors[f"{name}.a"]).to(weight))
