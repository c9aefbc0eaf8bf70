"""Loading and saving: a formers directory, a Hugging Face directory, the hub or ELMo's files, all by one function.

A formers directory holds formers.json (format, family, head, config, labels, special tokens, tokenizer fingerprint,
checksums), model.safetensors or shards with an index, tokenizer.json, and in huggingface/ what an imported checkpoint
said beside. Where formers.json says so, adapters.safetensors (nn/lora.py) is added to the weights as they are read.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import config as settings
from ..atomic_files import stage_directory
from ..config import ProgressCallback, format_value
from ..errors import Error, NonFinite
from ..former import Former, build_empty, choose_device, parse_labels
from ..keymap import LoadPlan, TensorMapping, TensorOp
from ..nn.cpu_inference import check_cpu_bf16
from ..nn.layers import initialise_weights
from ..nn.lora import apply_adapters
from ..registry import find_family
from ..task import Task
from . import bilm, hdf5_weights, huggingface, safe_files
from .checksums import add_checksums, check_files, check_manifest
from .pickled_weights import open_weights
from .sentence_encoder import write_sentence_encoder
from .tokenizer_files import get_special_tokens, load_own_tokenizer
from .weights import Weights, check_has_weights, write_weights

FORMAT_VERSION = 2
# Settings of a task that had other names in format 1, which is still read.
TASK_NAMES_1 = {
    "pair": "takes_pairs", "both": "both_orders", "words": "label_as_text", "most": "max_answer_tokens",
    "output": "max_output_tokens", "abstains": "allows_no_answer", "detached": "detached_marks",
    "characters": "tags_characters",
}  # fmt: skip
SMALL_HEAD_SIZE = 2**24  # numbers of a new head that nobody minds
MANIFEST_KEYS = {
    "format", "family", "head", "config", "labels", "special", "tokenizer", "task", "adapters", "training", "files",
    "seal",
}  # fmt: skip


def load(
    where: Any,
    head: str = "auto",
    device: Any = None,
    dtype: torch.dtype | str | None = None,
    pickle: bool = False,
    *,
    family: str | None = None,
    ignore: Iterable[str] = (),
    labels: Any = None,
    tell: ProgressCallback | None = None,
) -> Former:
    """Open a model: a formers directory, a Hugging Face directory, "hub:owner/name@revision", or ELMo's options.json
    with its hdf5 file.

    `head` is auto (the checkpoint's own) or one of none, lm, mlm, pretraining, nsp, double, classify, tag, answer,
    choose; parts that the file lacks start anew, which is said. `dtype` None keeps the file's. A pickled
    pytorch_model.bin is read only with `pickle=True`. `ignore` names config keys to pass over; `tell` hears of
    the progress.
    """
    if isinstance(where, str) and where.startswith("hub:"):
        from .hub import fetch_model

        where = fetch_model(where, pickle=pickle)
    folder, dtype = safe_files.find_model_folder(where), parse_float_dtype(dtype)
    wanted = parse_labels(labels)
    if safe_files.has_file(folder, "formers.json"):
        with check_files(folder):
            weights = Weights(folder)
            former, reading = read_directory(folder, weights, head, wanted)
            fill_weights(former, weights, reading, device, dtype, folder, tell)
            load_adapters(former, folder)
    elif safe_files.has_file(folder, "config.json"):
        with open_weights(folder, pickle) as weights:
            former, reading = huggingface.read_checkpoint(
                folder, weights, head, family=family, ignore=ignore, labels=wanted
            )
            fill_weights(former, weights, reading, device, dtype, folder, tell)
    elif name := bilm.find_weights_file(folder):
        with hdf5_weights.open_hdf5(safe_files.resolve_file(folder, name)) as weights:
            former, reading = bilm.read_checkpoint(folder, weights, head, ignore=ignore, labels=wanted)
            fill_weights(former, weights, reading, device, dtype, folder, tell)
    else:
        raise Error("neither formers.json nor config.json is here", where=folder, fix="give the directory of a model")
    check_cpu_bf16(former.dtype, former.device, strict=not torch.cuda.is_available())
    return former


def load_adapters(former: Former, where: Path) -> None:
    """Add the adapters beside the weights to them, if the model was saved with some."""
    if not safe_files.read_json(where, "formers.json").get("adapters"):
        return
    tensors = Weights(where, "adapters")
    try:
        apply_adapters(former.model.body, {name: tensors.get_tensor(name).to(former.device) for name in tensors})
    except (KeyError, AttributeError, RuntimeError, TypeError):
        what = "these are adapters of other weights"
        raise Error(what, where=where / "adapters.safetensors", fix="restore the original file") from None


def parse_float_dtype(dtype: Any) -> torch.dtype | None:
    """A floating-point type, also by its name."""
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if found is not None and isinstance(found, torch.dtype) and found.is_floating_point:
        return found
    if dtype is None:
        return None
    raise Error(f"dtype {dtype!r} is no floating-point type", fix="take torch.float32, torch.bfloat16 or torch.float16")


def read_directory(where: Path, weights: Weights, head: str, labels: tuple[str, ...]) -> tuple[Former, LoadPlan]:
    """Our own directory: a model without values, and the plan to fill them in from the weights."""
    path, about = where / "formers.json", safe_files.read_json(where, "formers.json")
    if about.get("format") not in (1, FORMAT_VERSION):
        raise Error(
            f"format {format_value(about.get('format'))} is not {FORMAT_VERSION}",
            where=path,
            fix="a newer formers may read it: pip install -U formers",
        )
    for key in set(about) - MANIFEST_KEYS:
        raise Error(f"unknown key {key!r}", where=path, fix=settings.suggest_name(key, MANIFEST_KEYS))
    check_manifest(about, path)
    kinds: dict[str, Any] = {
        "family": str,
        "head": str,
        "config": dict,
        "labels": tuple[str, ...],
        "special": dict[str, str],
    }
    for key, kind in kinds.items():
        if key not in about:
            raise Error(f"{key} is missing", where=path, fix="the file is damaged")
        about[key] = settings.coerce_value(about[key], kind if key != "special" else dict, key, path)
    one = find_family(about["family"])
    config = settings.build_config(one.definition.config_class, about["config"], where=path)
    huggingface.check_layer_count(config, weights, path)
    former = build_empty(one.name, config, about["head"] if head == "auto" else head, labels or about["labels"])
    if head in ("auto", about["head"]) and (task := about.get("task")):
        task = settings.coerce_value(task, dict, "task", path)
        if about["format"] == 1:
            task = {TASK_NAMES_1.get(name, name): value for name, value in task.items()}
        former.task = dataclasses.asdict(settings.build_config(Task, task, where=path))
    former.training_info = settings.coerce_value(about.get("training", {}), dict, "training", path)
    if safe_files.has_file(where, "tokenizer.json"):
        limit = safe_files.MAX_VOCAB_BYTES if one.definition.is_static else safe_files.MAX_FILE_BYTES
        former.tokenizer = load_own_tokenizer(where, about["special"], limit)
        if former.tokenizer.fingerprint != about.get("tokenizer"):
            raise Error(
                "this is not the tokenizer that the model was saved with",
                where=where / "tokenizer.json",
                fix="restore the original file",
            )
    beside = where / "huggingface"
    if beside.is_dir() and not beside.is_symlink():
        for name in ("config.json", bilm.OPTIONS_FILE, *huggingface.COMPANION_FILES):
            if safe_files.has_file(beside, name):
                former.source_files[name] = safe_files.read_bytes(beside, name)
    return former, plan_weights(former, config, about["head"], weights, where)


def plan_weights(former: Former, config: Any, saved_head: str, weights: Weights, where: Path) -> LoadPlan:
    """Our names are their names; with another head, tensors that mean the same (BERT's pooler) are taken over."""
    ours = [name for name, _ in former.model.named_parameters()]
    source = {name: name for name in weights}
    fresh = set()
    if former.head != saved_head:
        hf = find_family(former.family).definition.hf_format
        apart = (
            former.head.partition("@")[2] != saved_head.partition("@")[2]
        )  # heads of other layers have nothing in common
        if hf is not None and not apart:
            old = build_empty(former.family, config, saved_head, former.labels).model.named_parameters()
            before = {
                move.theirs: move.ours
                for move in hf.build_key_map(config, saved_head).map_tensors((n for n, _ in old), "")
                if ".out." not in move.ours
            }
            for move in hf.build_key_map(former.config, former.head).map_tensors(ours, ""):
                source.setdefault(move.ours, before.get(move.theirs, move.ours))
        fresh = {name for name in ours if name.startswith("heads.") and (apart or source.get(name, "") not in weights)}
    else:
        fresh = {
            name
            for name in ours
            if name.startswith("heads.")
            and former.model.parts[name.split(".")[1]].spec.optional
            and name not in weights
        }
    lost = [name for name in ours if name not in fresh and source.get(name, "") not in weights]
    if lost:
        raise Error(
            f"tensor {lost[0]!r} is missing",
            where=where,
            fix="the file is incomplete, or formers.json belongs to another model",
        )
    unknown = [] if former.head != saved_head else sorted(set(weights) - set(ours))
    if unknown:
        raise Error(f"unknown tensor {unknown[0]!r}", where=where, fix="formers.json belongs to another model")
    return LoadPlan(
        [TensorMapping((source[name],), name, TensorOp(name)) for name in ours if name not in fresh], sorted(fresh), []
    )


def fill_weights(
    former: Former,
    weights: Weights,
    weight_plan: LoadPlan,
    device: Any,
    dtype: torch.dtype | None,
    where: Path,
    tell: ProgressCallback | None = None,
) -> None:
    """Give a model its values, tensor by tensor, so that there is never a second copy of all of them."""
    device = torch.get_default_device() if device is None else choose_device(device)
    for copy, source in weight_plan.tied_pairs:
        if not weights.is_equal(copy, source):
            raise Error(
                f"{copy!r} should be a copy of {source!r} and is not",
                where=where,
                fix='if both are meant, set "tie_word_embeddings": false in config.json',
            )
    for name, made in weight_plan.computed_tables.items():
        held = weights.get_tensor(name)
        near = max(torch.finfo(torch.float16).eps, torch.finfo(held.dtype).eps if held.is_floating_point() else 0)
        fits = held.dim() > 0 and held.shape[1:] == made(1).shape[1:]  # or it could ask for any amount of memory
        if not fits or not torch.allclose(held.float(), made(len(held)), rtol=0, atol=near):
            what = f"{name!r} is not the table of sines and cosines that it should be"
            raise Error(what, where=where, fix="the file is damaged, or of a model with learned positions")
    untrained = set(weight_plan.missing_parameters)
    for part, module in former.model.parts.items():
        own = {f"heads.{part}.{name}" for name, _ in module.named_parameters()}
        if module.spec.optional and own and own <= untrained:  # a bare BERT whose file has no pooler
            del former.model.heads[part]
            untrained -= own
    kinds = {name: weights.get_tensor(name).dtype for move in weight_plan.mappings for name in move.theirs}
    kept = dtype
    for name, kind in kinds.items():
        if not kind.is_floating_point:
            raise Error(
                f"tensor {format_value(name)} is {str(kind)[6:]}, not floating-point numbers",
                where=where,
                fix="this checkpoint is quantised: load the original",
            )
    if kept is None:
        kept = functools.reduce(torch.promote_types, kinds.values()) if kinds else torch.float32
    new = sum(former.model.get_parameter(name).numel() for name in untrained)
    there = sum(map(math.prod, weights.shapes.values()))
    if new > max(there, SMALL_HEAD_SIZE):  # a width that costs the file little may cost a head its square
        raise Error(
            f"the new parts would have {new:,} numbers, the whole file has {there:,}",
            where=where,
            fix="weights and config do not belong together",
        )
    for number, move in enumerate(weight_plan.mappings, 1):
        old = former.model.get_parameter(move.ours)
        shapes = [weights.shapes[name] for name in move.theirs]
        try:
            value = move.load(weights.get_tensor)
        except (RuntimeError, IndexError, ValueError):  # they cannot be joined or turned
            value = None
        if value is None or value.shape != old.shape:
            theirs, has = " + ".join(move.theirs), format_value(shapes) if value is None else tuple(value.shape)
            raise Error(
                f"tensor {theirs!r} has shape {has}, the config asks for {tuple(old.shape)}",
                where=where,
                fix="weights and config do not belong together",
            )
        replace_parameter(former.model, move.ours, allocate_tensor(old.shape, kept, device, where).copy_(value))
        if tell is not None:
            tell("reading", number, len(weight_plan.mappings), move.ours)
    if untrained:
        for name in untrained:
            replace_parameter(
                former.model, name, allocate_tensor(former.model.get_parameter(name).shape, kept, device, where)
            )
        initialise_weights(
            former.model, find_family(former.family).definition.build_init_rules(former.config), seed=0, only=untrained
        )
        untrained = {name for name in untrained if former.model.get_parameter(name).requires_grad}
    if untrained:
        warnings.warn(f"new, untrained: {', '.join(sorted(untrained))}", stacklevel=3)


def allocate_tensor(shape: torch.Size, dtype: torch.dtype, device: torch.device, where: Path) -> torch.Tensor:
    """An empty tensor; where memory ends, an Error."""
    try:
        return torch.empty(shape, dtype=dtype, device=device)
    except (MemoryError, RuntimeError):  # torch has no error of its own for the CPU
        size = shape.numel() * dtype.itemsize
        raise Error(
            f"there is no memory for {size:,} more bytes on {device}",
            where=where,
            fix="load it with dtype=torch.bfloat16, or where there is more memory",
        ) from None


def replace_parameter(model: nn.Module, name: str, value: torch.Tensor) -> None:
    """Replace a parameter."""
    path, _, last = name.rpartition(".")
    trained = model.get_parameter(name).requires_grad
    setattr(model.get_submodule(path), last, nn.Parameter(value, requires_grad=trained))


def export(
    former: Former,
    out: Any,
    *,
    to: str | None = None,
    dtype: torch.dtype | None = None,
    shard: int = 5 * 10**9,
    pool: str = "mean",
    normalise: bool = False,
    language: str | None = None,
    overwrite: bool = False,
    tell: ProgressCallback | None = None,
) -> None:
    """Write a model the way others read it: a directory for transformers' from_pretrained, or (ELMo) options.json with
    one hdf5 file; and a model card. A directory that is there already is replaced with `overwrite` only, once the new
    one is complete.

    `to` sentence-transformers writes a model without its head that SentenceTransformer opens, with the `pool` and
    `normalise` of formers.embed. `language` (en, ko) is that of the model card; by default the vocabulary tells.
    """
    how: dict[str, Any] = {"dtype": dtype, "language": language, "tell": tell}
    if not all(bool(value.isfinite().all()) for value in former.model.parameters() if not value.is_meta):
        raise NonFinite("weights")
    if to not in (None, "transformers", "sentence-transformers"):
        raise Error(f"there is no export to {to!r}", fix="choose transformers or sentence-transformers")
    with safe_files.replace_directory(out, overwrite) as folder:
        if to == "sentence-transformers":
            write_sentence_encoder(former, folder, shard=shard, pool=pool, normalise=normalise, **how)
        elif to is None and find_family(former.family).definition.bilm_format is not None:
            bilm.write_checkpoint(former, folder, **how)
        else:
            huggingface.write_checkpoint(former, folder, shard=shard, **how)


def save(
    former: Former, path: Any, *, shard: int = 5 * 10**9, overwrite: bool = False, tell: ProgressCallback | None = None
) -> None:
    """Write a formers directory; it appears only when it is complete. One that is there already is replaced with
    `overwrite` only."""
    check_has_weights(former.model)
    state = dict(former.model.named_parameters())
    about = {
        "format": FORMAT_VERSION, "family": former.family, "head": former.head,
        "config": dataclasses.asdict(former.config), "labels": list(former.labels),
        "special": {} if former.tokenizer is None else get_special_tokens(former.tokenizer),
        "tokenizer": None if former.tokenizer is None else former.tokenizer.fingerprint, "task": former.task,
        **({"adapters": True} if former.adapters else {}),
        **({"training": former.training_info} if former.training_info else {}),
    }  # fmt: skip
    with safe_files.replace_directory(path, overwrite) as place, stage_directory(place) as folder:
        write_weights(
            folder, ({name: value} for name, value in state.items()), [v.nbytes for v in state.values()], shard, tell
        )
        if former.adapters:
            sizes = [v.nbytes for v in former.adapters.values()]
            parts = ({name: value} for name, value in former.adapters.items())
            write_weights(folder, parts, sizes, sum(sizes) + 1, None, stem="adapters")
        if former.tokenizer is not None:
            former.tokenizer.save(folder / "tokenizer.json")
        if former.source_files:
            (folder / "huggingface").mkdir()
            for name, data in former.source_files.items():
                (folder / "huggingface" / name).write_bytes(data)
        safe_files.write_json(folder / "formers.json", add_checksums(folder, about))
