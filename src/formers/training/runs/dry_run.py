"""A dry run: how large and how long a run would be, from a few measured steps on some of its text."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ...config import ProgressCallback
from ...registry import find_pretrained_family
from ..config_merge import ConfigFile, configure_pretraining
from ..distributed.process_group import connect_processes
from ..hardware import explain_out_of_memory, get_peak_memory, use_deterministic
from ..progress import format_time_left
from .finetune import request_finetuning
from .prepare_data import prepare_data
from .pretrain import PretrainRun, get_request_class
from .run import TIMED_STEPS, AnyRequest, RunOptions, time_steps

Rows = list[tuple[str, str]]


def dry_run(build_request: Callable[[RunOptions], AnyRequest], device: str | None) -> Rows:
    """Return rows: what was understood, and how large and long the run would be. Nothing is written. Of several
    processes, only the main one returns rows."""
    notes: list[str] = []
    request = build_request(RunOptions(device=device, say=notes.append))
    settings, inputs = request.configure(None)
    world = connect_processes(request.device)
    with (
        tempfile.TemporaryDirectory() as folder, explain_out_of_memory(world.device) as memory_use,
        use_deterministic(settings.is_deterministic),
    ):  # fmt: skip
        run = request.build(*request.prepare_excerpt(settings, inputs, Path(folder), world), Path(folder), world)
        memory_use.train = run.config.train
        s, duration = run.config.train, run.estimate_duration()
        speed = duration.tokens / duration.seconds
        step_seconds = duration.seconds * duration.tokens_per_step / duration.tokens
        saved = sum(t.nbytes for group in run.trainer.get_state()[0].values() for t in group.values())
        rows = [
            *run.list_estimates(),
            *(("note", line) for line in notes),
            ("checkpoint", f"{saved / 1e6:,.1f} MB each, {max(2, s.keep_last + s.keep_best)} kept"),
            ("memory", f"{get_peak_memory(world.device) / 2**30:.1f} GiB at most so far, on {world.device}"),
            ("first step", f"{duration.first_step:.1f} s"),
            ("speed", f"{speed:,.0f} tokens/s, {step_seconds:.3f} s a step"),
            ("time", f"{format_time_left(duration.seconds).replace(' left', '')}, without evaluation"),
        ]
    world.close()
    return rows if world.is_main else []


def dry_run_pretraining(
    family: str, config: ConfigFile, overrides: Mapping[str, object], *, device: str | None = None, **keys: str | None
) -> Rows:
    """Make a dry run of pretraining on text in files; `keys` are recipe, preset or init."""
    keys = {"recipe": None, "preset": None, "init": None, **keys}
    kind = get_request_class(find_pretrained_family(family).definition)
    return dry_run(partial(kind, family, None, None, config, dict(overrides), keys, None, None), device)


def dry_run_finetuning(
    model: str | Path | None, train: object, valid: object = None, *, device: str | None = None,
    **options: Any,  # dynamic: the keywords of request_finetuning
) -> Rows:  # fmt: skip
    """Make a dry run of fine-tuning; the arguments are those of request_finetuning."""

    def build_request(run_options: RunOptions) -> AnyRequest:
        return request_finetuning(model, train, valid, options=run_options, **options)

    return dry_run(build_request, device)


def measure_step_seconds(
    family: str, text: object, valid: object, folder: Path, *, tell: ProgressCallback = lambda *_: None,
    **tables: Mapping[str, object],
) -> float:  # fmt: skip
    """Return the seconds that a training step of a run takes on this machine, from a few steps that are not kept.
    What a run in `folder` needs of the text (tokenizer and stores) is made there, and kept for it."""
    overrides = {f"{table}.{key}": value for table, values in tables.items() for key, value in values.items()}
    # Compiling would take longer than the steps.
    config = configure_pretraining(family, None, {**overrides, "train.compile": False})
    data = prepare_data(config.family, config.data, folder / "data", text, None, valid, tell)
    tell("timing", 0, 1, f"{1 + TIMED_STEPS} steps")
    s = config.train
    batch_seconds = time_steps(PretrainRun(config, data, connect_processes(None)), 0, s.steps)[1]
    each = batch_seconds * s.count_batches(s.batch_rampup_steps)
    tell("timing", 1, 1, f"{each:.3f} s a step")
    return each
