"""Large plans are kept beside their store: made once, then memory-mapped by every run and rank that asks for them."""

from __future__ import annotations

import hashlib
import inspect
import os
from pathlib import Path

import numpy as np

from ..errors import Error
from . import plans
from .array_files import ArrayFileReader, ArrayFileWriter, read_checked_json
from .file_lock import hold_lock
from .plans import Objective, Plan
from .store import Store

MIN_CACHED_EXAMPLES = 1 << 18  # examples; smaller plans are made anew each time
PLAN_DTYPES = {"begin": np.int64, "end": np.int64, "span_offsets": np.int64, "label": np.int8}


def load_plan(store: Store, objective: Objective, seed: int, epoch: int, count: int | None = None) -> Plan:
    """The plan of an epoch; `count` is how many examples the first epoch had."""
    plan = (
        load_or_build_plan(store, objective, seed, epoch)
        if store.directory is not None
        else objective.plan(store, seed, epoch)
    )
    if count is not None and len(plan) != count:
        what = f"epoch {epoch} has {len(plan):,} examples, the first one {count:,}"
        raise Error(what, fix="report this: every epoch of an objective must have as many")
    if not len(plan):
        raise Error("no example can be made of this text", fix="give more text, or shorter examples")
    return plan


def load_or_build_plan(store: Store, objective: Objective, seed: int, epoch: int) -> Plan:
    """A plan out of the store's folder `plans`, or made now and, if it is large, put there."""
    assert store.directory is not None
    folder = store.directory.path / "plans"
    name = hash_plan_inputs(store, objective, seed)
    file = folder / f"{name}-{epoch}.bin"
    if (plan := read_plan(file)) is not None:
        return plan
    if len(store.tokens) < MIN_CACHED_EXAMPLES or not os.access(store.directory.path, os.W_OK):
        return objective.plan(store, seed, epoch)
    folder.mkdir(exist_ok=True)
    with hold_lock(folder / f"{name}.lock", wait=True):  # one makes it, the others wait for it
        if (plan := read_plan(file)) is not None:
            return plan
        plan = objective.plan(store, seed, epoch)
        if len(plan) < MIN_CACHED_EXAMPLES:
            return plan
        save_plan(plan, file)
        for old in folder.glob(f"{name}-{epoch - 2}.*"):
            old.unlink(missing_ok=True)
    return read_plan(file) or plan


def hash_plan_inputs(store: Store, objective: Objective, seed: int) -> str:
    """What a plan depends on: the store, the objective and its code, the seed."""
    whole = hashlib.sha256(f"{store.content_hash} {objective!r} {seed} ".encode())
    files = [Path(inspect.getfile(type(objective))), Path(plans.__file__)]
    for file in (*sorted(files[0].parent.glob("*.py")), files[1]):  # objectives share their code
        whole.update(file.read_bytes())
    return whole.hexdigest()[:24]


def save_plan(plan: Plan, file: Path) -> None:
    """Write a plan whole or not at all; on a full disk there is none."""
    writer = ArrayFileWriter(file)
    try:
        for name, dtype in PLAN_DTYPES.items():
            writer.add_array(name, dtype, [getattr(plan, name)])
        writer.close()
    except OSError:
        writer.discard()


def read_plan(file: Path) -> Plan | None:
    """A plan that was written, if it is there and undamaged."""
    if not file.exists():
        return None
    try:
        reader = ArrayFileReader(file, read_checked_json(file.with_suffix(".json")))
        for name in PLAN_DTYPES:
            reader.verify_range(name, 0, reader.header["arrays"][name]["count"])
        return Plan(*(reader.get_array(name) for name in PLAN_DTYPES))
    except (Error, KeyError):
        return None  # it is made again
