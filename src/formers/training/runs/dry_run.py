"""A dry run: how large and how long a run would be, from a few measured steps on some of its text."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ...config import ProgressCallback
from ...data.readers import find_files, read_documents
from ...data.text_files import COMPRESSION_RATIOS
from ...former import count_trainable
from ..config_merge import PretrainConfig, configure_pretraining
from ..distributed.process_group import ProcessGroup, connect_processes
from ..hardware import explain_out_of_memory, format_time_left, get_peak_memory, synchronize_device, use_deterministic
from .prepare_data import PreparedData, limit_characters, prepare_data
from .pretrain_run import PretrainRun

EXCERPT_CHARS = 2_000_000  # characters
TIMED_STEPS = 5


def dry_run_pretraining(
    family: str, config: Any, overrides: Mapping[str, Any], *, device: str | None = None, **top: Any
) -> list[tuple[str, str]]:
    """Rows of what and how much; the first process of several has them."""
    asked = configure_pretraining(family, config, overrides, **top)
    world, s = connect_processes(device), asked.train
    with (
        tempfile.TemporaryDirectory() as folder, explain_out_of_memory(s, None, world.device),
        use_deterministic(s.deterministic),
    ):  # fmt: skip
        text, share = read_excerpt(asked)
        found = prepare_data(asked.family, asked.data, Path(folder) / "data", text)
        run = PretrainRun(asked, found, world)
        first, seconds = estimate_duration(run)
        size, tokens = (
            s.batch_tokens * n
            for n in (
                s.count_batches(s.batch_rampup_steps, world.size),
                s.count_batches_between(0, s.steps, world.size),
            )
        )
        whole = len(found.store.tokens) * share
        saved = sum(t.nbytes for group in run.trainer.get_state()[0].values() for t in group.values())
        rows = [
            ("model", f"{count_trainable(run.former.model):,} parameters ({asked.family})"),
            ("text", f"about {whole:,.0f} tokens, seen {tokens / max(1.0, whole):.1f} times"),
            ("steps", f"{s.steps:,} of {'up to ' if s.batch_rampup_steps else ''}{size:,} tokens: {tokens:,} in all"),
            ("checkpoint", f"{saved / 1e6:,.1f} MB each, {max(2, s.keep_last + s.keep_best)} kept"),
            ("memory", f"{get_peak_memory(world.device) / 2**30:.1f} GiB at most so far, on {world.device}"),
            ("first step", f"{first:.1f} s"),
            ("speed", f"{tokens / seconds:,.0f} tokens/s, {seconds * size / tokens:.3f} s a step"),
            ("time", format_time_left(seconds).replace(" left", "")),
        ]
        if s.deterministic:
            rows.append(("same bits", measure_deterministic_cost(asked, found, world)))
    world.close()
    return rows if world.is_main else []


def measure_step_seconds(
    family: str,
    text: Any,
    held: Any,
    folder: Path,
    *,
    tell: ProgressCallback = lambda *_: None,
    **tables: Mapping[str, Any],
) -> float:
    """Return the seconds that a training step of a run takes on this machine, from a few steps that are then forgotten.
    What a run in `folder` needs of the text (tokenizer and stores) is made there, and kept for it."""
    given = {f"{table}.{key}": value for table, values in tables.items() for key, value in values.items()}
    asked = configure_pretraining(
        family, None, {**given, "train.compile": False}
    )  # compiling would take longer than the steps
    found, world = (
        prepare_data(asked.family, asked.data, folder / "data", text, None, held, tell),
        connect_processes(None),
    )
    tell("timing", 0, 1, f"{1 + TIMED_STEPS} steps")
    each = time_steps(PretrainRun(asked, found, world), 0, asked.train.steps)[1] * asked.train.count_batches(
        asked.train.batch_rampup_steps
    )
    tell("timing", 1, 1, f"{each:.3f} s a step")
    return each


def measure_deterministic_cost(asked: PretrainConfig, found: PreparedData, world: ProcessGroup) -> str:
    """What the same bits in every run cost here: a few steps of the run with and without, which are then forgotten."""
    seconds, s = [], asked.train
    for bound in (False, True):
        torch.use_deterministic_algorithms(bound)
        try:
            each = time_steps(PretrainRun(asked, found, world), 0, s.long_phase_start or s.steps)[1]
            seconds.append(each * s.count_batches(s.batch_rampup_steps, world.size))
        finally:
            torch.use_deterministic_algorithms(True)
            gc.collect()  # its memory is needed
    return f"{seconds[1]:.3f} s a step, {seconds[1] / seconds[0]:.2f} times the {seconds[0]:.3f} s without"


def estimate_duration(run: PretrainRun | Any) -> tuple[float, float]:
    """Seconds of the first step, and of the whole run, which may be a fine-tuning one: of both lengths, where short
    examples come first."""
    s = run.config.train
    phases = [(low, high) for low, high in ((0, s.long_phase_start), (s.long_phase_start, s.steps)) if low < high]
    measured = [time_steps(run, *phase) for phase in phases]
    taken = [s.count_batches_between(*phase, run.world.size) for phase in phases]
    return measured[0][0], sum(each * some for (_, each), some in zip(measured, taken, strict=True))


def time_steps(run: PretrainRun, low: int, high: int) -> tuple[float, float]:
    """Seconds of the first of some steps, and of a batch of those behind it."""
    s, last = run.config.train, min(low + 1 + TIMED_STEPS, high)
    began, run.trainer.step = time.perf_counter(), low
    steps = run.trainer.train(run.iter_batches, last)
    next(steps)
    synchronize_device(run.world.device)
    first = time.perf_counter() - began
    began = time.perf_counter()
    for _ in steps:
        pass
    synchronize_device(run.world.device)
    if last == low + 1:
        return first, first / s.count_batches(low, run.world.size)
    return first, (time.perf_counter() - began) / s.count_batches_between(low + 1, last, run.world.size)


def read_excerpt(asked: PretrainConfig) -> tuple[Any, float]:
    """Some documents of the text, and how many times as much there is; a prepared store is taken as it is."""
    if not asked.data.source or (Path(asked.data.source[0]) / "store.json").is_file():
        return None, 1.0
    files = find_files(list(asked.data.source))
    text = list(limit_characters(read_documents(files, **asked.data.reader_options), EXCERPT_CHARS))
    if sum(map(len, text)) < EXCERPT_CHARS:
        return text, 1.0
    size = sum(path.stat().st_size * COMPRESSION_RATIOS.get(path.suffix.lower(), 1.0) for path in files)
    return text, max(1.0, size / sum(len(t.encode("utf-8", "surrogatepass")) for t in text))
