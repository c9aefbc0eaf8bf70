"""Large plans are kept beside their store: made once, then memory-mapped by every run and rank that asks for them."""

from __future__ import annotations

import hashlib
import inspect
import os
from pathlib import Path

import numpy as np

from ..errors import Error
from . import plans
from .lock import locked
from .plans import Objective, Plan
from .shards import Reader, Writer, unseal
from .store import Store

LARGE = 1 << 18  # examples; smaller plans are made anew each time
ARRAYS = {"begin": np.int64, "end": np.int64, "first": np.int64, "label": np.int8}


def planned(store: Store, objective: Objective, seed: int, epoch: int, count: int | None = None) -> Plan:
    """The plan of an epoch; `count` is how many examples the first epoch had."""
    plan = kept(store, objective, seed, epoch) if store.home is not None else objective.plan(store, seed, epoch)
    if count is not None and len(plan) != count:
        what = f"epoch {epoch} has {len(plan):,} examples, the first one {count:,}"
        raise Error(what, fix="report this: every epoch of an objective must have as many")
    if not len(plan):
        raise Error("no example can be made of this text", fix="give more text, or shorter examples")
    return plan


def kept(store: Store, objective: Objective, seed: int, epoch: int) -> Plan:
    """A plan out of the store's folder `plans`, or made now and, if it is large, put there."""
    assert store.home is not None
    folder = store.home.path / "plans"
    name = key(store, objective, seed)
    file = folder / f"{name}-{epoch}.bin"
    if (plan := load(file)) is not None:
        return plan
    if len(store.tokens) < LARGE or not os.access(store.home.path, os.W_OK):
        return objective.plan(store, seed, epoch)
    folder.mkdir(exist_ok=True)
    with locked(folder / f"{name}.lock", wait=True):  # one makes it, the others wait for it
        if (plan := load(file)) is not None:
            return plan
        plan = objective.plan(store, seed, epoch)
        if len(plan) < LARGE:
            return plan
        save(plan, file)
        for old in folder.glob(f"{name}-{epoch - 2}.*"):
            old.unlink(missing_ok=True)
    return load(file) or plan


def key(store: Store, objective: Objective, seed: int) -> str:
    """What a plan depends on: the store, the objective and its code, the seed."""
    whole = hashlib.sha256(f"{store.identity} {objective!r} {seed} ".encode())
    files = [Path(inspect.getfile(type(objective))), Path(plans.__file__)]
    for file in (*sorted(files[0].parent.glob("*.py")), files[1]):  # objectives share their code
        whole.update(file.read_bytes())
    return whole.hexdigest()[:24]


def save(plan: Plan, file: Path) -> None:
    """Write a plan whole or not at all; on a full disk there is none."""
    writer = Writer(file)
    try:
        for name, dtype in ARRAYS.items():
            writer.add(name, dtype, [getattr(plan, name)])
        writer.close()
    except OSError:
        writer.drop()


def load(file: Path) -> Plan | None:
    """A plan that was written, if it is there and undamaged."""
    if not file.exists():
        return None
    try:
        reader = Reader(file, unseal(file.with_suffix(".json")))
        for name in ARRAYS:
            reader.ready(name, 0, reader.about["arrays"][name]["count"])
        return Plan(*(reader.array(name) for name in ARRAYS))
    except (Error, KeyError):
        return None  # it is made again
