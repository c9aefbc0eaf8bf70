"""Random weights, drawn from one seeded generator, the same on every machine."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Fill:
    """A rule that gives all numbers of a parameter one value, whatever its name and shape."""

    value: float


@torch.no_grad()
def initialise(model: nn.Module, rules: Mapping[str, Any], seed: int, only: set[str] | None = None) -> None:
    """Fill parameters: norms with 1, biases with 0, all else N(0, std) with the std of the last rule that matches.

    A rule is `name pattern: std`; a tuple of them goes to equal parts along the first axis (a fused q, k, v), and a
    `Fill` is a value instead of a draw.
    """
    for index, (name, parameter) in enumerate(model.named_parameters()):
        if parameter.is_meta or (only is not None and name not in only):
            continue
        rule = next((rules[pattern] for pattern in reversed(list(rules)) if fnmatch.fnmatchcase(name, pattern)), None)
        if isinstance(rule, Fill):
            parameter.fill_(rule.value)
        elif name.endswith("bias") and parameter.dim() == 1:
            parameter.zero_()
        elif parameter.dim() == 1:
            parameter.fill_(1.0)
        else:
            std = rule if isinstance(rule, tuple) else (rule,)
            parts = parameter.chunk(len(std))
            generator = torch.Generator().manual_seed(seed * 1_000_003 + index)
            for part, deviation in zip(parts, std, strict=True):
                drawn = torch.empty(part.shape, device="cpu").normal_(0.0, deviation, generator=generator)
                part.copy_(drawn)
