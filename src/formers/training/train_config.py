"""How a model is trained: one flat table, the `train:` of a run's file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal, Protocol

from ..config import check_rates, check_sizes, suggest_name
from ..errors import Error
from .optimizer import OPTIMIZERS, SCHEDULES

SettingValue = Any  # dynamic: what a file or a caller gives, until build_config checks its type
Precision = Literal["auto", "fp32", "bf16", "fp16", "fp8"]
Parallel = Literal["ddp", "fsdp", "expert"]
SHORT_FRACTION = 0.9  # of the steps are taken with short examples, if there are any (BERT, §A.2)
# What may change when a run is resumed: nothing that decides which examples it sees.
RESUMABLE_SETTINGS = (
    "steps", "lr", "schedule", "warmup_steps", "min_lr_ratio", "decay_steps", "decay_start", "decay_every",
    "weight_decay", "grad_clip", "workers", "save_every", "keep_last", "keep_best", "keep_every", "eval_every",
    "eval_batches", "max_bad_steps", "spike_factor", "compile", "activation_checkpointing", "parallel", "samples",
)  # fmt: skip


class LoopConfig(Protocol):
    """The settings that every run has: how long it is, when it evaluates and saves, and what it takes of the machine.
    TrainConfig has them for networks, VectorTrainConfig for word vectors; both say what each means."""

    steps: int
    samples: int
    keep_last: int
    keep_best: int
    keep_every: int | None
    deterministic: bool

    @property
    def save_every(self) -> int:
        """Steps between checkpoints."""

    @property
    def eval_every(self) -> int:
        """Steps between evaluations."""

    @property
    def bytes_per_parameter(self) -> int:
        """Bytes of a checkpoint for each parameter, at most."""

    def explain_memory(self) -> tuple[str, str]:
        """Return what takes memory besides the parameters, and how to need less."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(LoopConfig):
    """Settings of training. A step sums the gradients of `accumulate` batches of `batch_tokens` tokens
    each, over all processes together; every loss is divided by the number of labels of the whole step."""

    steps: int = 1000  # of the optimizer
    batch_tokens: int = 8192  # of a batch, on its larger side
    accumulate: int = 1  # batches of a step, over all processes
    batch_rampup_steps: int = 0  # steps over which the number of batches grows to `accumulate`
    batch_rampup_start: int = 1  # the number of batches that it grows from
    seq_length: int = 128  # tokens of an example
    short_length: int | None = None  # a shorter length for the first nine tenths of the steps (BERT: 128, then 512)
    carry_memory: bool = True  # of families that have one, keep the memory or state from batch to batch
    optimizer: str = "adamw"  # a name of OPTIMIZERS
    lr: float = 1e-3  # the highest learning rate
    schedule: str = "linear"  # how the rate falls, a name of SCHEDULES
    warmup_steps: int = 100  # steps over which the rate rises
    min_lr_ratio: float = 0.1  # cosine: what is left of the rate at its end
    decay_steps: int | None = None  # linear and cosine: the step at which they end; None: the last
    decay_start: int | None = None  # halving: the first step with half of the rate; None: after two thirds of the steps
    decay_every: int | None = None  # halving: steps until the next time; None: a fourth of the rest
    switch_step: int | None = None  # adam-sgd: the first step with SGD; None: after 3 % of the steps, as in GNMT
    switch_lr: float = 0.5  # adam-sgd: the rate of SGD
    weight_decay: float = 0.01  # of matrices; norms and biases have none
    betas: tuple[float, ...] = (0.9, 0.98)  # of Adam and its relatives
    eps: float = 1e-8  # of the same
    grad_clip: float = 1.0  # the largest norm of the gradient; 0: none
    precision: Precision = "auto"  # bf16 on a GPU that has it, else fp32; fp8: linear layers of blocks, the rest bf16
    compile: bool | Literal["blocks"] | None = None  # the step, or each block; None: on a GPU, by depth and steps
    activation_checkpointing: bool = False  # recompute activations in the backward pass, to save memory
    deterministic: bool = False  # bitwise reproducible runs, on a GPU too; slower
    parallel: Parallel = "ddp"  # each process has a copy of the model (ddp), a part (fsdp), or some experts (expert)
    residual_init: float = 1.0  # a factor on what each residual branch of a post-norm block begins with
    ema: float = 0.0  # keep a moving average of the weights with this rate; 0: none
    seed: int = 0
    workers: int = 0  # processes that make batches
    save_every: int = 500  # steps between checkpoints
    keep_last: int = 2  # checkpoints that are kept: the newest,
    keep_best: int = 1  # the best on the validation text,
    keep_every: int | None = None  # and those of every multiple of this step
    eval_every: int = 200  # steps between evaluations on the validation text
    eval_batches: int = 24  # batches that one evaluation takes (pretraining)
    samples: int = 4  # how many samples of the model's output are written during the run
    max_bad_steps: int = 10  # consecutive steps with a non-finite loss or gradient before the run stops
    spike_factor: float = 0.0  # skip steps whose gradient norm is above this many times the median; 0: never

    def __post_init__(self) -> None:
        check_train_values(vars(self))  # dynamic: tables name the settings to check
        if self.short_length is not None and self.short_length >= self.seq_length:
            what = f"short_length {self.short_length} is not shorter than seq_length {self.seq_length}"
            raise Error(what, fix="leave train.short_length out")
        if self.seq_length > self.batch_tokens:
            what = f"an example of {self.seq_length} tokens does not fit into a batch of {self.batch_tokens}"
            raise Error(what, fix="raise train.batch_tokens or lower train.seq_length")

    @property
    def bytes_per_parameter(self) -> int:
        """Bytes of a checkpoint for each parameter: its weight, two moments, and the moving average if there is one."""
        return 4 + (3 if self.optimizer == "adamw8bit" else 8) + (4 if self.ema else 0)

    def explain_memory(self) -> tuple[str, str]:
        """Return the size of the batches, and how to train with less memory."""
        fix = (
            "--train.activation_checkpointing true (also with --resume), or start again with a smaller"
            " --train.batch_tokens (and a larger --train.accumulate, to keep the size of a step), --train.precision"
            " bf16, --train.optimizer adamw8bit or a smaller model"
        )
        return f"batches of {self.batch_tokens:,} tokens", fix

    def uses_sgd(self, step: int) -> bool:
        """Return whether a step of the optimizer adam-sgd is SGD's."""
        first = self.switch_step if self.switch_step is not None else self.steps * 3 // 100
        return self.optimizer == "adam-sgd" and step >= first

    def get_peak_lr(self, step: int) -> float:
        """Return the learning rate that the schedule scales at a step."""
        return self.switch_lr if self.uses_sgd(step) else self.lr

    def count_batches(self, step: int, ranks: int = 1) -> int:
        """Return how many batches a step has; all processes have as many."""
        count = self.accumulate
        if step < self.batch_rampup_steps:
            start = min(self.batch_rampup_start, self.accumulate)
            count = start + (self.accumulate - start) * step // self.batch_rampup_steps
        return -(-count // ranks) * ranks

    def count_batches_between(self, low: int, high: int, ranks: int = 1) -> int:
        """Return how many batches some steps have together."""
        grown = max(low, min(self.batch_rampup_steps, high))
        growing = sum(self.count_batches(step, ranks) for step in range(low, grown))
        return growing + (high - grown) * self.count_batches(self.batch_rampup_steps, ranks)

    @property
    def long_phase_start(self) -> int:
        """The first step with long examples."""
        return 0 if self.short_length is None else round(SHORT_FRACTION * self.steps)

    def get_phase(self, step: int) -> int:
        """Return 0 while examples are short, 1 from then on."""
        return int(step >= self.long_phase_start)

    def get_phase_length(self, phase: int) -> int:
        """Return the length of examples in a phase."""
        return self.seq_length if phase or self.short_length is None else self.short_length


SIZES = (
    "steps", "batch_tokens", "accumulate", "batch_rampup_start", "seq_length", "short_length", "save_every",
    "keep_last", "eval_every", "eval_batches", "max_bad_steps", "keep_every", "decay_steps", "decay_every",
)  # fmt: skip
COUNTS = ("decay_start", "switch_step", "batch_rampup_steps", "warmup_steps", "workers", "keep_best", "seed", "samples")
FACTORS = ("weight_decay", "grad_clip", "spike_factor", "residual_init")


def check_train_values(values: Mapping[str, SettingValue]) -> None:
    """Refuse settings of `train` that are out of range; those that are not known yet may be missing."""
    known = SimpleNamespace(**values)
    check_sizes(known, *(name for name in SIZES if name in values))
    check_sizes(known, *(name for name in COUNTS if name in values), minimum=0)
    check_rates(known, *(name for name in ("ema",) if name in values))
    for name, names in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES)):
        if (value := values.get(name)) is not None and value not in names:
            raise Error(f"there is no {name} {value!r}", fix=suggest_name(value, names))
    for name, usual in (("lr", "1e-3"), ("switch_lr", "0.5")):
        if not 0 < (lr := values.get(name, 1.0)) < math.inf:
            raise Error(f"the learning rate must be above 0, got {lr}", fix=f"take for example --train.{name} {usual}")
    if not 0 <= (ratio := values.get("min_lr_ratio", 0.1)) <= 1:
        raise Error(f"min_lr_ratio must be from 0 to 1, got {ratio}", fix="take 0.1, or 0 to end at a rate of 0")
    if (eps := values.get("eps", 1.0)) <= 0:
        raise Error(f"eps must be above 0, got {eps}", fix="take for example 1e-5")
    for name in FACTORS:
        if not values.get(name, 0) >= 0:
            raise Error(f"{name} must be at least 0, got {values[name]}", fix=f"--train.{name} 0 or more")
    betas = values.get("betas", (0.9, 0.98))
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise Error(f"betas are two numbers from 0 to below 1, got {betas}", fix="take 0.9 and 0.98")
