"""What a run that goes on is asked: what it was asked when it began, and what may be otherwise now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import Error
from ...registry import find_family
from ..checkpoint.local import Checkpoints
from ..config_merge import PRETRAIN_KEYS, PRETRAIN_TABLES, PretrainConfig, configure_pretraining, read_config_tables
from ..train_config import RESUMABLE_SETTINGS

PATH_SETTINGS = (
    "data.source",
    "data.train",
    "data.valid",
    "data.test",
)  # files may have moved: their content is compared


def merge_resumed_config(
    path: Path, before: dict[str, Any], family: str | None, told: dict[str, Any], given: dict[str, Any],
    top: dict[str, Any],
) -> PretrainConfig:  # fmt: skip
    """What was asked `before`, with what may change of what a file (`told`) and single settings say now."""
    before, named = read_config_tables(before, PRETRAIN_TABLES, PRETRAIN_KEYS), family or told.get("family")
    if named is not None and find_family(named).name != before["family"]:
        raise Error(f"is a run of {before['family']}, not of {named}", where=path, fix="choose another --out")
    fix = "leave it out, or begin a new run; free to change: " + ", ".join(RESUMABLE_SETTINGS)
    for key in ("recipe", "preset", "init"):
        now = told.get(key) if top[key] is None else str(top[key])
        if now is not None and now != before.get(key):
            what = f"{key} {before[key]}" if before.get(key) else f"no {key}"
            raise Error(f"is a run with {what}, not {now}", where=path, fix=fix)
    may = (
        "data.source",
        *(f"train.{name}" for name in RESUMABLE_SETTINGS),
    )  # text may have moved: its fingerprint tells
    free = {t: {k: v for k, v in told[t].items() if f"{t}.{k}" in may} for t in PRETRAIN_TABLES}
    asked = configure_pretraining(
        before["family"], overlay_tables(before, free), {k: v for k, v in given.items() if k in may}
    )
    done = max(Checkpoints(path / "steps", remove_stale=False).list_steps(), default=0)
    if done > asked.train.steps:
        what = f"{done:,} steps are done, more than {asked.train.steps:,}"
        raise Error(what, where=path, fix=f"--train.steps {done} or more")
    kept, now = asked.to_dict(), configure_pretraining(before["family"], overlay_tables(before, told), given).to_dict()
    for name in PRETRAIN_TABLES:
        for key in now[name]:
            if key not in kept[name] or now[name][key] != kept[name][key]:
                raise Error(f"{name}.{key} cannot change in a run that goes on", where=path, fix=fix)
    return asked


def refuse_if_finished(path: Path, about: dict[str, Any], now: dict[str, Any], length: str, raised: str) -> None:
    """Refuse new settings for a run that has taken all its steps: they would change nothing, and its old result would
    look like a new one. `length` is what it has done, in its own measure; `raised` is the option that makes it longer.
    """
    before, steps = about["asked"], about["asked"]["train"]["steps"]
    done = max(Checkpoints(path / "steps", remove_stale=False).list_steps(), default=0)
    if not about.get("result") or done < now["train"]["steps"] or steps != now["train"]["steps"]:
        return
    for table in now:
        if isinstance(now[table], dict):
            for key, value in now[table].items():
                if f"{table}.{key}" not in PATH_SETTINGS and before.get(table, {}).get(key) != value:
                    what = f"this run is finished: after {length}, {table}.{key} changes nothing"
                    raise Error(what, where=path, fix=f"raise {raised} to go on, or begin a new run in another --out")


def overlay_tables(before: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run under those of a file."""
    return {**before, **{name: {**before[name], **told[name]} for name in PRETRAIN_TABLES}}
