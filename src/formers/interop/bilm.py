"""Checkpoints of bilm-tf (ELMo), read and written: options.json and one hdf5 file of weights."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from .. import config as settings
from ..atomic_files import stage_directory
from ..config import JSONObject, ProgressCallback
from ..errors import Error
from ..former import Former, build_empty
from ..keymap import LoadPlan
from ..registry import find_family
from . import huggingface, safe_files
from .model_card import write_model_card
from .safe_files import Weights, check_h5py_installed

OPTIONS_FILE, WEIGHTS_FILE = "options.json", "weights.hdf5"
FAMILY_NAME = "elmo"


def find_weights_file(where: Path) -> str | None:
    """Return the name of the weights, if a folder holds such a checkpoint."""
    if not safe_files.has_file(where, OPTIONS_FILE):
        return None
    names = sorted(path.name for path in where.iterdir() if path.suffix == ".hdf5")
    if len(names) > 1:
        what = f"there are {len(names)} hdf5 files, {names[0]!r} and {names[1]!r} first"
        raise Error(what, where=where, fix="leave the one with the weights of the language model")
    return names[0] if names else None


def read_checkpoint(
    where: Path, weights: Weights, head: str, *, ignore: Iterable[str] = (), labels: tuple[str, ...] = ()
) -> tuple[Former, LoadPlan]:
    """Build a model without weights, and the plan by which they are filled in."""
    one, path = find_family(FAMILY_NAME), where / OPTIONS_FILE
    form = one.definition.bilm_format
    assert form is not None
    options = flatten_options(safe_files.read_json(where, OPTIONS_FILE), path)
    values = form.config_map.read_config(options, where=path, ignore=ignore)
    ours = settings.build_config(one.definition.config_class, values, where=path)
    huggingface.check_layer_count(ours, weights, path)
    own = "lm" if "softmax/W" in weights else "none"
    former = build_empty(one.name, ours, own if head == "auto" else head, labels)
    former.source_files = {OPTIONS_FILE: safe_files.read_bytes(where, OPTIONS_FILE)}
    keys = form.build_key_map(ours, former.head)
    names = [name for name, _ in former.model.named_parameters()]
    mapped = [name for name in names if name.startswith("body.") or name.split(".")[1] in keys.heads]
    try:
        reading = keys.plan_load(weights, mapped, optional=lambda name: name.startswith("heads."))
    except Error as error:
        raise Error(error.what, where=where, fix=error.fix) from None
    missing = reading.missing_parameters + sorted(set(names) - set(mapped))
    return former, LoadPlan(reading.mappings, missing, reading.tied_pairs)


def write_checkpoint(
    former: Former, out: str | Path, *, dtype: torch.dtype | None = None, tell: ProgressCallback | None = None,
    language: str | None = None,
) -> None:  # fmt: skip
    """Write a directory that bilm-tf and its followers read, with a model card; always float32, as they expect it."""
    check_h5py_installed()
    import h5py

    form, c = find_family(former.family).definition.bilm_format, former.config
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
    moves = form.build_key_map(c, former.head).map_tensors(parameters)
    with stage_directory(out) as folder:
        with h5py.File(folder / WEIGHTS_FILE, "w") as file:
            for number, move in enumerate(moves, 1):
                tensor = parameters[move.ours].detach().to("cpu", torch.float32)
                for name, value in move.save(tensor).items():
                    file.create_dataset(name, data=value.numpy())
                if tell is not None:
                    tell("writing", number, len(moves), move.ours)
        original = former.source_files.get(OPTIONS_FILE, b"{}")
        flat = flatten_options(safe_files.parse_json(original, Path(OPTIONS_FILE)), OPTIONS_FILE)
        theirs = form.config_map.write_config(c, flat) | {"char_cnn.n_characters": c.characters}
        safe_files.write_json(folder / OPTIONS_FILE, settings.merge_settings(theirs))
        write_model_card(folder, former, "", language, dtype=torch.float32)


def flatten_options(options: JSONObject, where: object, prefix: str = "") -> JSONObject:
    """Return nested settings under dotted names."""
    flat: JSONObject = {}
    for key, value in options.items():
        if "." in key:
            raise Error(f"unknown key {key!r}", where=where, fix="correct the file")
        flat |= flatten_options(value, where, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat
