"""A feed-forward layer of several experts, of which each token takes one (Fedus et al. 2021, arXiv:2101.03961). N
tokens (packed), E experts, F width of an expert."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..batch import Layout
from .attention.context import AttentionContext
from .layers import Dropout, get_activation


class Experts(nn.Module):
    """Top-1 routing: y = p · expert(x), with p the router's probability of the chosen expert.

    An expert takes no more than its capacity of each document's tokens, the first come; what overflows gets 0 and is
    carried by the residual connection. `capacity` is a fixed number; None means factor · tokens / E of a document, with
    one factor for training and a larger one for evaluation. With a cache nothing overflows: lengths are not known yet.
    """

    def __init__(
        self, dim: int, hidden: int, experts: int, act: str = "relu", *, capacity: int | None = None,
        factors: tuple[float, float] = (1.25, 2.0), jitter: float = 0.0, dropout: float = 0.0,
        router_bias: bool = False,
    ):  # fmt: skip
        super().__init__()
        self.router = nn.Linear(dim, experts, bias=router_bias)
        self.up = nn.Parameter(torch.empty(experts, hidden, dim))
        self.down = nn.Parameter(torch.empty(experts, dim, hidden))
        self.num_experts, self.capacity, self.capacity_factors, self.jitter = experts, capacity, factors, jitter
        self.act, self.dropout = get_activation(act), Dropout(dropout)
        self.remote_dispatch: Callable[[Experts, Tensor, Tensor], Tensor] | None = None  # to experts of other processes

    def forward(self, x: Tensor, attn_context: AttentionContext) -> Tensor:
        """(N, dim) → (N, dim)"""
        probability = self.route(x)  # (N, E)
        gate, chosen = probability.max(-1)
        capture, layout = attn_context.capture, attn_context.query_layout
        if capture is not None and capture.routing is not None:
            capture.routing.append((probability, chosen))
        if attn_context.cache is None:
            capacity = self.compute_capacity(layout)[layout.document_ids]
            gate = gate * (self.count_earlier_choices(chosen, layout) < capacity)
        y = self.run_experts(x, chosen) if self.remote_dispatch is None else self.remote_dispatch(self, x, chosen)
        return y * gate.to(x.dtype)[:, None]

    def route(self, x: Tensor) -> Tensor:
        """Compute the router's probabilities (N, E), always in fp32 (§2.4)."""
        with torch.autocast(x.device.type, enabled=False):
            x = x.float()
            if self.training and self.jitter:
                x = x * torch.empty_like(x).uniform_(1 - self.jitter, 1 + self.jitter)
            bias = None if self.router.bias is None else self.router.bias.float()
            return F.linear(x, self.router.weight.float(), bias).softmax(-1)

    def count_earlier_choices(self, chosen: Tensor, layout: Layout) -> Tensor:
        """(N,) how many earlier tokens of the same document have chosen the same expert."""
        count = F.one_hot(chosen, self.num_experts).cumsum(0)  # (N, E)
        before = F.pad(count, (0, 0, 1, 0)).index_select(0, layout.starts[:-1].long())  # (D, E) of earlier documents
        return (count - before.index_select(0, layout.document_ids)).gather(1, chosen[:, None])[:, 0] - 1

    def compute_capacity(self, layout: Layout) -> Tensor:
        """(D,) the capacity of an expert in each document."""
        if self.capacity is not None:
            return torch.full_like(layout.lengths, self.capacity)
        factor = self.capacity_factors[0] if self.training else self.capacity_factors[1]
        share = (layout.lengths * factor / self.num_experts).to(layout.lengths.dtype)
        return torch.minimum(share, layout.lengths).clamp(min=4)

    def run_experts(self, x: Tensor, chosen: Tensor) -> Tensor:
        """(N, dim) → (N, dim), each token through its expert, for the experts of this process."""
        ups, downs = (
            w.to_local() if hasattr(w, "to_local") else w  # dynamic: a DTensor, imported only where it is sharded
            for w in (self.up, self.down)
        )
        if not x.is_cuda and torch.compiler.is_compiling():  # sizes that depend on the data cannot be compiled
            parts = [self.run_expert(x, ups[i], downs[i]) * (chosen == i)[:, None] for i in range(len(ups))]
            return torch.stack(parts).sum(0)
        order = chosen.argsort(stable=True)
        sizes = F.one_hot(chosen, len(ups)).sum(0)
        x = x.index_select(0, order)
        if x.is_cuda and x.dtype == torch.bfloat16 and not (x.shape[1] | ups.shape[1]) % 8:
            ends = sizes.cumsum(0).to(torch.int32)
            up, down = (w.to(x.dtype).transpose(1, 2) for w in (ups, downs))
            hidden = self.dropout(self.act(F.grouped_mm(x, up, offs=ends)))
            y = F.grouped_mm(hidden, down, offs=ends)
        else:
            y = torch.cat([self.run_expert(p, ups[i], downs[i]) for i, p in enumerate(x.split(sizes.tolist()))])
        return torch.zeros_like(y).index_copy(0, order, y)

    def run_expert(self, x: Tensor, up: Tensor, down: Tensor) -> Tensor:
        """(n, dim) → (n, dim) through one expert."""
        return F.linear(self.dropout(self.act(F.linear(x, up))), down)


def compute_balance_loss(probability: Tensor, chosen: Tensor, keep: Tensor | None = None) -> Tensor:
    """E · Σ fᵢ·Pᵢ (§2.2, equation 4): 1 if all experts get the same, more otherwise. fᵢ is the share of tokens that
    chose expert i, counted before any overflow; the gradient flows through Pᵢ. Only tokens of `keep` (N,) count."""
    experts = probability.shape[-1]
    weight = probability.new_ones(chosen.shape) if keep is None else keep.to(probability.dtype)
    weight = (weight / weight.sum().clamp(min=1))[:, None]
    share = (F.one_hot(chosen, experts) * weight).sum(0)
    return experts * (share * (probability * weight).sum(0)).sum()
