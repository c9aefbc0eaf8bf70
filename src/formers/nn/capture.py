"""Looking inside a forward pass without changing it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Capture:
    """Collects what passes by: hidden states (N, dim) and attention weights (rows, heads, queries, keys).

    Handed to a model's forward; `with_hidden` and `with_attention` say what is wanted. Both are listed by stack:
    "encoder", "decoder", and of weights "cross" as well. A list given as `routing` is filled by layers of experts.
    """

    with_hidden: bool = False
    with_attention: bool = False
    routing: list[tuple[Tensor, Tensor]] | None = None  # of experts: probabilities (N, E) and choices (N,), by layer
    hidden_states: dict[str, list[Tensor]] = field(default_factory=dict)
    attention_weights: dict[str, list[Tensor]] = field(default_factory=dict)

    def record_hidden(self, stack_name: str, x: Tensor) -> None:
        """Keep a hidden state of a stack."""
        if self.with_hidden:
            self.hidden_states.setdefault(stack_name, []).append(x)

    def record_attention(self, stack_name: str, weights: Tensor) -> None:
        """Keep one layer's attention weights."""
        self.attention_weights.setdefault(stack_name, []).append(weights)
