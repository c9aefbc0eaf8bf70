"""The loop: one for all objectives and families."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ..batch import Batch
from ..errors import Error
from ..tasks.heads import Model
from .optim import optimizer
from .schedule import schedule
from .step import Step


@dataclass
class History:
    """What happened: (step, loss) as it went, tokens and seconds in all."""

    losses: list[tuple[int, float]] = field(default_factory=list)
    held: list[tuple[int, float]] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0


def train(
    model: Model,
    objective: Any,
    batches: Iterator[tuple[Batch, int]],
    *,
    steps: int,
    lr: float = 1e-3,
    warmup: int = 50,
    clip: float = 1.0,
    seed: int = 0,
    every: int = 0,
    check: Callable[[], float] | None = None,
    tell: Callable[[int, float, float], None] | None = None,
) -> History:
    """Train for some steps. `tell(step, loss, tokens per second)` is called after each; `check` every so many steps."""
    device = next(model.parameters()).device
    step, adam, history = Step(model, objective).train(), optimizer("adamw", model, lr), History()
    share = schedule("wsd", steps, warmup)
    before = torch.random.get_rng_state()
    torch.manual_seed(seed)  # dropout
    began = time.perf_counter()
    try:
        for number in range(steps):
            batch = next(batches)[0].to(device)
            for group in adam.param_groups:
                group["lr"] = lr * share(number)
            losses = step(batch)
            loss = torch.stack([total / count for total, count in losses.values()]).sum()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            adam.step()
            adam.zero_grad()
            value = float(loss.detach())
            if value != value:
                raise Error(f"the loss is not a number at step {number}", fix="take a smaller learning rate")
            history.tokens += batch.ids.shape[0]
            history.seconds = time.perf_counter() - began
            history.losses.append((number, value))
            if check is not None and every and (number + 1) % every == 0:
                history.held.append((number, check()))
                step.train()
            if tell is not None:
                tell(number + 1, value, history.tokens / history.seconds)
    finally:
        step.eval()
        torch.random.set_rng_state(before)
    return history
