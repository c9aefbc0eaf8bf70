"""A dry run: how large and how long a run would be, from a few measured steps on some of its text."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..config import Tell
from ..data.prepare import PACKED
from ..data.readers import find, read
from ..former import count
from .configure import Asked, configure
from .course import Course
from .distributed import arranged, together
from .machine import deterministic, enough, left, memory, settle
from .material import Material, material, some
from .world import World

ENOUGH = 2_000_000  # characters
STEPS = 5


def rehearse(
    family: str, config: Any, overrides: Mapping[str, Any], *, device: str | None = None, **top: Any
) -> list[tuple[str, str]]:
    """Rows of what and how much; the first process of several has them."""
    asked = configure(family, config, overrides, **top)
    world, s = arranged(together(device), asked.train.parallel), asked.train
    with (
        tempfile.TemporaryDirectory() as folder, enough(s, None, world.device), deterministic(s.deterministic)
    ):  # fmt: skip
        text, share = excerpt(asked)
        found = material(asked.family, asked.data, Path(folder) / "data", text)
        run = Course(asked, found, world)
        first, seconds = lasting(run)
        size, tokens = (s.tokens * n for n in (s.batches(s.ramp, world.size), s.taken(0, s.steps, world.size)))
        whole = len(found.store.tokens) * share
        saved = sum(t.nbytes for group in run.trainer.state()[0].values() for t in group.values())
        rows = [
            ("model", f"{count(run.former.model):,} parameters ({asked.family})"),
            ("text", f"about {whole:,.0f} tokens, seen {tokens / max(1.0, whole):.1f} times"),
            ("steps", f"{s.steps:,} of {'up to ' if s.ramp else ''}{size:,} tokens: {tokens:,} in all"),
            ("checkpoint", f"{saved / 1e6:,.1f} MB each, {max(2, s.last + s.best)} kept"),
            ("memory", f"{memory(world.device) / 2**30:.1f} GiB at most so far, on {world.device}"),
            ("first step", f"{first:.1f} s"),
            ("speed", f"{tokens / seconds:,.0f} tokens/s, {seconds * size / tokens:.3f} s a step"),
            ("time", left(seconds).replace(" left", "")),
        ]
        if s.deterministic:
            rows.append(("same bits", slowdown(asked, found, world)))
    world.close()
    return rows if world.first else []


def measure_step(
    family: str, text: Any, held: Any, folder: Path, *, tell: Tell = lambda *_: None, **tables: Mapping[str, Any]
) -> float:
    """Return the seconds that a training step of a run takes on this machine, from a few steps that are then forgotten.
    What a run in `folder` needs of the text (tokenizer and stores) is made there, and kept for it."""
    given = {f"{table}.{key}": value for table, values in tables.items() for key, value in values.items()}
    asked = configure(family, None, {**given, "train.compile": False})  # compiling would take longer than the steps
    found, world = material(asked.family, asked.data, folder / "data", text, None, held, tell), together(None)
    tell("timing", 0, 1, f"{1 + STEPS} steps")
    each = timed(Course(asked, found, world), 0, asked.train.steps)[1] * asked.train.batches(asked.train.ramp)
    tell("timing", 1, 1, f"{each:.3f} s a step")
    return each


def slowdown(asked: Asked, found: Material, world: World) -> str:
    """What the same bits in every run cost here: a few steps of the run with and without, which are then forgotten."""
    seconds, s = [], asked.train
    for bound in (False, True):
        torch.use_deterministic_algorithms(bound)
        try:
            each = timed(Course(asked, found, world), 0, s.border or s.steps)[1]
            seconds.append(each * s.batches(s.ramp, world.size))
        finally:
            torch.use_deterministic_algorithms(True)
            gc.collect()  # its memory is needed
    return f"{seconds[1]:.3f} s a step, {seconds[1] / seconds[0]:.2f} times the {seconds[0]:.3f} s without"


def lasting(run: Course | Any) -> tuple[float, float]:
    """Seconds of the first step, and of the whole run, which may be a fine-tuning one: of both lengths, where short
    examples come first."""
    s = run.asked.train
    phases = [(low, high) for low, high in ((0, s.border), (s.border, s.steps)) if low < high]
    measured = [timed(run, *phase) for phase in phases]
    taken = [s.taken(*phase, run.world.size) for phase in phases]
    return measured[0][0], sum(each * some for (_, each), some in zip(measured, taken, strict=True))


def timed(run: Course, low: int, high: int) -> tuple[float, float]:
    """Seconds of the first of some steps, and of a batch of those behind it."""
    s, last = run.asked.train, min(low + 1 + STEPS, high)
    began, run.trainer.step = time.perf_counter(), low
    steps = run.trainer.train(run.source, last)
    next(steps)
    settle(run.world.device)
    first = time.perf_counter() - began
    began = time.perf_counter()
    for _ in steps:
        pass
    settle(run.world.device)
    if last == low + 1:
        return first, first / s.batches(low, run.world.size)
    return first, (time.perf_counter() - began) / s.taken(low + 1, last, run.world.size)


def excerpt(asked: Asked) -> tuple[Any, float]:
    """Some documents of the text, and how many times as much there is; a prepared store is taken as it is."""
    if not asked.data.source or (Path(asked.data.source[0]) / "store.json").is_file():
        return None, 1.0
    files = find(list(asked.data.source))
    text = list(some(read(files, **asked.data.reading), ENOUGH))
    if sum(map(len, text)) < ENOUGH:
        return text, 1.0
    size = sum(path.stat().st_size * PACKED.get(path.suffix.lower(), 1.0) for path in files)
    return text, max(1.0, size / sum(len(t.encode("utf-8", "surrogatepass")) for t in text))
