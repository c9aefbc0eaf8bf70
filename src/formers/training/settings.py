"""How a model is trained: one flat table, the `train:` of a run's file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..config import positive, probability
from ..errors import Error

Precision = Literal["auto", "fp32", "bf16", "fp16"]


@dataclass(frozen=True, kw_only=True)
class Train:
    """Steps, rates and habits of a run. A step sums the gradients of `accumulate` batches of `tokens` tokens each, over
    all processes together; every loss is divided by the number of places of the whole step."""

    steps: int = 1000
    tokens: int = 8192  # of a batch, on its larger side
    accumulate: int = 1  # batches of a step, over all processes
    ramp: int = 0  # over so many steps the number of batches grows from 1 to `accumulate`
    length: int = 128  # tokens of an example
    short: int | None = None  # a shorter length for the first nine tenths of the steps (BERT: 128, then 512)
    optimizer: str = "adamw"
    lr: float = 1e-3
    schedule: str = "linear"
    warmup: int = 100
    decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8
    clip: float = 1.0  # the largest norm of the gradient; 0: none
    precision: Precision = "auto"  # bf16 on a GPU that has it, else fp32
    compile: bool | None = None  # None: on a GPU
    checkpointing: bool = False  # compute activations twice, to save memory
    ema: float = 0.0  # keep a moving average of the weights with this rate; 0: none
    seed: int = 0
    workers: int = 0  # processes that make batches
    save: int = 500  # steps between checkpoints
    last: int = 2  # checkpoints that are kept: the newest,
    best: int = 1  # the best on held-out text,
    every: int | None = None  # and every so many steps
    check: int = 200  # steps between looks at held-out text
    skips: int = 10  # steps in a row whose gradient is not a number, before the run stops
    spike: float = 0.0  # a gradient so many times longer than usual is skipped as well; 0: never

    def __post_init__(self) -> None:
        positive(self, "steps", "tokens", "accumulate", "length", "short", "save", "last", "check", "skips", "every")
        positive(self, "ramp", "warmup", "workers", "best", "seed", least=0)
        probability(self, "ema")
        for name in ("lr", "decay", "clip", "spike", "eps"):
            if not getattr(self, name) >= 0:
                raise Error(f"{name} must be at least 0, got {getattr(self, name)}", fix=f"set train.{name}")
        if self.short is not None and self.short >= self.length:
            raise Error(f"short {self.short} is not shorter than length {self.length}", fix="leave train.short out")
        if self.length > self.tokens:
            what = f"an example of {self.length} tokens does not fit into a batch of {self.tokens}"
            raise Error(what, fix="raise train.tokens or lower train.length")

    def batches(self, step: int) -> int:
        """How many batches a step has."""
        if step >= self.ramp:
            return self.accumulate
        return 1 + (self.accumulate - 1) * step // self.ramp
