"""How a model is trained: one flat table, the `train:` of a run's file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ..config import positive, probability, suggest
from ..errors import Error
from .optim import OPTIMIZERS
from .schedule import SHAPES

Precision = Literal["auto", "fp32", "bf16", "fp16"]
Parallel = Literal["copies", "shards", "experts"]
SHORT = 0.9  # of the steps are taken with short examples, if there are any (BERT, §A.2)
# What a run that goes on may do otherwise than before: nothing that says which examples it sees.
FREE = ("steps", "lr", "schedule", "warmup", "decay", "clip", "workers", "save", "last", "best", "every", "check",
        "skips", "spike", "compile", "checkpointing", "parallel", "samples")  # fmt: skip


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
    carry: bool = True  # of families that have one, keep the memory or state from batch to batch
    optimizer: str = "adamw"
    lr: float = 1e-3
    schedule: str = "linear"
    warmup: int = 100
    decay: float = 0.01
    betas: tuple[float, ...] = (0.9, 0.98)
    eps: float = 1e-8
    clip: float = 1.0  # the largest norm of the gradient; 0: none
    precision: Precision = "auto"  # bf16 on a GPU that has it, else fp32
    compile: bool | None = None  # None: on a GPU
    checkpointing: bool = False  # compute activations twice, to save memory
    deterministic: bool = False  # the same bits in every run, on a GPU too; slower
    parallel: Parallel = "copies"  # each process has a copy of the model (DDP), a part (FSDP2), or some experts
    residual_init: float = 1.0  # a factor on what each residual branch of a post-norm block begins with
    ema: float = 0.0  # keep a moving average of the weights with this rate; 0: none
    seed: int = 0
    workers: int = 0  # processes that make batches
    save: int = 500  # steps between checkpoints
    last: int = 2  # checkpoints that are kept: the newest,
    best: int = 1  # the best on held-out text,
    every: int | None = None  # and every so many steps
    check: int = 200  # steps between looks at held-out text
    samples: int = 4  # how often the model is asked for an example of what it can do
    skips: int = 10  # steps in a row whose gradient is not a number, before the run stops
    spike: float = 0.0  # a gradient so many times longer than usual is skipped as well; 0: never

    def __post_init__(self) -> None:
        positive(self, "steps", "tokens", "accumulate", "length", "short", "save", "last", "check", "skips", "every")
        positive(self, "ramp", "warmup", "workers", "best", "seed", "samples", least=0)
        probability(self, "ema")
        for name, known in (("optimizer", OPTIMIZERS), ("schedule", SHAPES)):
            if getattr(self, name) not in known:
                raise Error(f"there is no {name} {getattr(self, name)!r}", fix=suggest(getattr(self, name), known))
        if not 0 < self.lr < math.inf:
            raise Error(f"the learning rate must be above 0, got {self.lr}", fix="take for example --train.lr 1e-3")
        for name in ("decay", "clip", "spike", "eps", "residual_init"):
            if not getattr(self, name) >= 0:
                raise Error(f"{name} must be at least 0, got {getattr(self, name)}", fix=f"set train.{name}")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise Error(f"betas are two numbers from 0 to below 1, got {self.betas}", fix="take 0.9 and 0.98")
        if self.short is not None and self.short >= self.length:
            raise Error(f"short {self.short} is not shorter than length {self.length}", fix="leave train.short out")
        if self.length > self.tokens:
            what = f"an example of {self.length} tokens does not fit into a batch of {self.tokens}"
            raise Error(what, fix="raise train.tokens or lower train.length")

    def batches(self, step: int, ranks: int = 1) -> int:
        """How many batches a step has; all processes have as many."""
        wanted = self.accumulate if step >= self.ramp else 1 + (self.accumulate - 1) * step // self.ramp
        return -(-wanted // ranks) * ranks

    def taken(self, low: int, high: int, ranks: int = 1) -> int:
        """How many batches some steps have together."""
        grown = max(low, min(self.ramp, high))
        growing = sum(self.batches(step, ranks) for step in range(low, grown))
        return growing + (high - grown) * self.batches(self.ramp, ranks)

    @property
    def border(self) -> int:
        """The first step with long examples."""
        return 0 if self.short is None else round(SHORT * self.steps)

    def phase(self, step: int) -> int:
        """0 while examples are short, 1 from then on."""
        return int(step >= self.border)

    def phase_length(self, phase: int) -> int:
        """The length of examples in a phase."""
        return self.length if phase or self.short is None else self.short
