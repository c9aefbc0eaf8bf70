"""Looking inside a forward pass without changing it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Probe:
    """Collects what passes by: hidden states (N, dim) and attention weights (rows, heads, queries, keys).

    Handed to a model's forward; `hidden` and `attention` say what is wanted. States and weights are listed by stack
    ("encoder", "decoder") and by kind ("encoder", "decoder", "cross"). A list given as `routing` is filled by
    layers of experts.
    """

    hidden: bool = False
    attention: bool = False
    routing: list[tuple[Tensor, Tensor]] | None = None  # of experts: probabilities (N, E) and choices (N,), by layer
    states: dict[str, list[Tensor]] = field(default_factory=dict)
    weights: dict[str, list[Tensor]] = field(default_factory=dict)

    def state(self, stack: str, x: Tensor) -> None:
        """Keep a hidden state of a stack."""
        if self.hidden:
            self.states.setdefault(stack, []).append(x)

    def weight(self, kind: str, weights: Tensor) -> None:
        """Keep one layer's attention weights."""
        self.weights.setdefault(kind, []).append(weights)
