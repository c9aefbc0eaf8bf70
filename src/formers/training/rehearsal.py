"""A dry run: how large and how long a run would be, from a few measured steps on some of its text."""

from __future__ import annotations

import gc
import itertools
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..data.prepare import PACKED
from ..data.readers import find, read
from ..former import count
from .configure import Asked, configure
from .course import Course
from .distributed import arranged, together
from .loop import close
from .machine import deterministic, enough, left, memory, settle
from .material import Material, material, some
from .world import World

ENOUGH = 2_000_000  # characters
STEPS = 5


def rehearse(
    family: str, config: Any, overrides: Mapping[str, Any], *, device: str | None = None, **top: Any
) -> list[tuple[str, str]]:
    """Rows of what and how much."""
    asked = configure(family, config, overrides, **top)
    world, s = arranged(together(device), asked.train.parallel), asked.train
    with (
        tempfile.TemporaryDirectory() as folder, enough(s, None, world.device), deterministic(s.deterministic)
    ):  # fmt: skip
        text, share = excerpt(asked)
        found = material(asked.family, asked.data, Path(folder) / "data", text)
        run = Course(asked, found, world)
        first, each = timed(run)
        numbers, tokens = count(run.former.model), s.steps * s.tokens * s.accumulate
        whole = len(found.store.tokens) * share
        rows = [
            ("model", f"{numbers:,} parameters ({asked.family})"),
            ("text", f"about {whole:,.0f} tokens, seen {tokens / max(1.0, whole):.1f} times"),
            ("steps", f"{s.steps:,} of {s.tokens * s.accumulate:,} tokens: {tokens:,} in all"),
            ("checkpoint", f"{12 * numbers / 1e6:,.0f} MB each, {s.last + s.best} kept"),
            ("memory", f"{memory(world.device) / 2**30:.1f} GiB at most so far, on {world.device}"),
            ("first step", f"{first:.1f} s"),
            ("speed", f"{s.tokens * s.accumulate / each:,.0f} tokens/s, {each:.3f} s a step"),
            ("time", left(s.steps * each).replace(" left", "")),
        ]
        return [*rows, ("same bits", slowdown(asked, found, world))] if s.deterministic else rows


def slowdown(asked: Asked, found: Material, world: World) -> str:
    """What the same bits in every run cost here: a few steps of the run with and without, which are then forgotten."""
    seconds = []
    for bound in (False, True):
        torch.use_deterministic_algorithms(bound)
        try:
            seconds.append(timed(Course(asked, found, world))[1])
        finally:
            torch.use_deterministic_algorithms(True)
            gc.collect()  # its memory is needed
    return f"{seconds[1]:.3f} s a step, {seconds[1] / seconds[0]:.2f} times the {seconds[0]:.3f} s without"


def timed(run: Course) -> tuple[float, float]:
    """Seconds of the first step, and of one of those behind it."""
    began = time.perf_counter()
    steps = run.trainer.train(run.source)
    next(steps)
    settle(run.world.device)
    first = time.perf_counter() - began
    began = time.perf_counter()
    taken = sum(1 for _ in itertools.islice(steps, min(STEPS, run.asked.train.steps - 1)))
    settle(run.world.device)
    close(steps)
    return first, (time.perf_counter() - began) / taken if taken else first


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
