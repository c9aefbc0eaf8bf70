"""Checkpoints of bilm-tf (ELMo), read and written: options.json and one hdf5 file of weights."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from .. import config as settings
from ..config import Tell
from ..errors import Error
from ..former import Former, empty
from ..keymap import Reading
from ..registry import member
from . import hdf5, huggingface, safe
from .model_card import write_card
from .weights import Weights

OPTIONS, WEIGHTS = "options.json", "weights.hdf5"
FAMILY = "elmo"


def found(where: Path) -> str | None:
    """The name of the weights, if a folder holds such a checkpoint."""
    if not safe.exists(where, OPTIONS):
        return None
    names = sorted(path.name for path in where.iterdir() if path.suffix == ".hdf5")
    if len(names) > 1:
        what = f"there are {len(names)} hdf5 files, {names[0]!r} and {names[1]!r} first"
        raise Error(what, where=where, fix="leave the one with the weights of the language model")
    return names[0] if names else None


def read(
    where: Path, weights: Weights, head: str, *, ignore: Iterable[str] = (), labels: tuple[str, ...] = ()
) -> tuple[Former, Reading]:
    """A model without values, and the plan to fill them in from the weights."""
    one, path = member(FAMILY), where / OPTIONS
    form = one.family.bilm
    assert form is not None
    options = flat(safe.read_json(where, OPTIONS), path)
    ours = settings.build(one.family.config, form.config.read(options, where=path, ignore=ignore), where=path)
    huggingface.enough(ours, weights, path)
    own = "lm" if "softmax/W" in weights else "none"
    former = empty(one.name, ours, own if head == "auto" else head, labels)
    former.kept = {OPTIONS: safe.read_bytes(where, OPTIONS)}
    keys = form.keys(ours, former.head)
    names = [name for name, _ in former.model.named_parameters()]
    mapped = [name for name in names if name.startswith("body.") or name.split(".")[1] in keys.heads]
    try:
        reading = keys.read(weights, mapped, optional=lambda name: name.startswith("heads."))
    except Error as error:
        raise Error(error.what, where=where, fix=error.fix) from None
    return former, Reading(reading.moves, reading.fresh + sorted(set(names) - set(mapped)), reading.checks)


def write(
    former: Former,
    out: Any,
    *,
    dtype: torch.dtype | None = None,
    tell: Tell | None = None,
    language: str | None = None,
) -> None:
    """Write a directory that bilm-tf and its followers read, with a model card; always float32, as they expect it."""
    hdf5.needed()
    import h5py

    form, c = member(former.family).family.bilm, former.config
    assert form is not None
    if former.head not in ("none", "lm"):
        what = f"bilm-tf's files hold no head {former.head!r}"
        raise Error(what, fix="use formers.save, or load the model with head='none' first")
    if dtype not in (None, torch.float32):
        raise Error(f"bilm-tf's files hold float32, not {str(dtype)[6:]}", fix="leave dtype out")
    if c.dim // 2 in (sum(number for _, number in c.filters), c.cell) or c.dim // 2 > c.cell:
        what = "bilm-tf has no projection where the width would stay the same or grow"
        raise Error(what, fix="use formers.save")
    parameters = dict(former.model.named_parameters())
    moves = form.keys(c, former.head).moves(parameters)
    with safe.staged(out) as folder:
        with h5py.File(folder / WEIGHTS, "w") as file:
            for number, move in enumerate(moves, 1):
                tensor = parameters[move.ours].detach().to("cpu", torch.float32)
                for name, value in move.save(tensor).items():
                    file.create_dataset(name, data=value.numpy())
                if tell is not None:
                    tell("writing", number, len(moves), move.ours)
        original = safe.parse_json(former.kept[OPTIONS], Path(OPTIONS)) if OPTIONS in former.kept else {}
        theirs = form.config.write(c, flat(original, OPTIONS)) | {"char_cnn.n_characters": c.characters}
        safe.write_json(folder / OPTIONS, settings.merge(theirs))
        write_card(folder, former, "", language, dtype=torch.float32)


def flat(options: dict[str, Any], where: object, prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names."""
    found: dict[str, Any] = {}
    for key, value in options.items():
        if "." in key:
            raise Error(f"unknown key {key!r}", where=where, fix="correct the file")
        found |= flat(value, where, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found
