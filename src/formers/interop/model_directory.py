"""Loading and saving: a formers directory, a Hugging Face directory, the hub or ELMo's files, all by one function.

A formers directory holds formers.json (format, family, head, config, labels, special tokens, tokenizer fingerprint,
checksums), model.safetensors or shards with an index, tokenizer.json, and in huggingface/ what an imported checkpoint
said beside. Weights may be stored compactly (compact_weights.py). Where formers.json says so, adapters.safetensors
(nn/lora.py) is added to the weights as they are read.

So that a flipped bit is noticed when the model is loaded, formers.json holds the SHA-256 of every other file ("files",
as sha256sum prints them) and one of its own content ("seal", whatever the spacing). A directory without them loads
unchecked: an older one, or one that was edited by hand and whose lines were taken out for that."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from .. import config as settings
from ..atomic_files import stage_directory
from ..config import JSONObject, ProgressCallback, format_value
from ..errors import Error, NonFinite, to_printable_line
from ..family import ModelConfig
from ..former import Former, build_empty, choose_device, parse_labels
from ..keymap import LoadPlan, TensorMapping, TensorOp
from ..model import get_init_rules
from ..nn.cpu_inference import check_cpu_bf16
from ..nn.layers import initialise_weights
from ..nn.lora import apply_adapters
from ..registry import find_family
from ..task import Task, read_mixture_tasks
from . import bilm, huggingface, safe_files
from .compact_weights import STORAGES, Storage, compress_tensor, open_stored_weights
from .origins import ORIGINS_KEY, read_origins
from .released_checkpoints import find_release, open_release
from .safe_files import Weights, check_has_weights, open_hdf5, open_weights, write_weights
from .serving_targets import SERVING_TARGETS, write_serving_export
from .tokenizer_files import COMPANION_FILES, get_special_tokens, load_own_tokenizer

FORMAT_VERSION = 2
COMPACT_FORMAT_VERSION = 3  # of a directory whose weights are stored compactly (compact_weights.py)
MANIFEST_FILE = "formers.json"
ORIGINALS_FOLDER = "huggingface"  # the folder with what an imported checkpoint said
CHUNK_BYTES = 1 << 20  # that are hashed at a time
# Settings of a task that had other names in format 1, which is still read.
TASK_NAMES_1 = {
    "pair": "takes_pairs", "both": "both_orders", "words": "label_as_text", "most": "max_answer_tokens",
    "output": "max_output_tokens", "abstains": "allows_no_answer", "detached": "detached_marks",
    "characters": "tags_characters",
}  # fmt: skip
SMALL_HEAD_SIZE = 2**24  # numbers of a new head that nobody minds
MANIFEST_KEYS = {
    "format", "family", "head", "config", "labels", "special", "tokenizer", "task", "tasks", "adapters", "training",
    "files", "seal", "storage",
}  # fmt: skip


def load(
    where: str | Path, head: str = "auto", device: str | torch.device | None = None,
    dtype: torch.dtype | str | None = None, pickle: bool = False, *, family: str | None = None,
    ignore: Iterable[str] = (), labels: Sequence[str] | int | None = None, tell: ProgressCallback | None = None,
) -> Former:  # fmt: skip
    """Open a model: a formers directory, a Hugging Face directory, "hub:owner/name@revision", one that comes with the
    package ("formers/bert-mini"; `formers models` lists them), ELMo's options.json with its hdf5 file, or what fairseq
    (RoBERTa, BART) and Paddle (ERNIE) released.

    `head` is auto (the checkpoint's own) or one of none, lm, mlm, pretraining, nsp, double, classify, tag, answer,
    choose; parts that the file lacks start anew, which is said. `dtype` None keeps the file's. A pickle
    (pytorch_model.bin, model.pt, .pdparams, vocab.pkl) is read only with `pickle=True`. `ignore` names config keys to
    pass over; `tell` hears of the progress."""
    if isinstance(where, str) and where.startswith("hub:"):
        from .hub import fetch_model

        where = fetch_model(where, pickle=pickle)
    folder, dtype = safe_files.find_model_folder(where), parse_float_dtype(dtype)
    label_names = parse_labels(labels)
    if safe_files.has_file(folder, MANIFEST_FILE):
        with check_files(folder):
            weights = open_stored_weights(folder, safe_files.read_json(folder, MANIFEST_FILE))
            former, plan = read_directory(folder, weights, head, label_names)
            fill_weights(former, weights, plan, device, dtype, folder, tell)
            load_adapters(former, folder)
    elif (release := find_release(folder)) is not None:
        with open_release(folder, release, pickle) as translated, open_weights(translated, False) as weights:
            former, plan = huggingface.read_checkpoint(translated, weights, head, ignore=ignore, labels=label_names)
            fill_weights(former, weights, plan, device, dtype, translated, tell)
    elif safe_files.has_file(folder, "config.json"):
        with open_weights(folder, pickle) as weights:
            former, plan = huggingface.read_checkpoint(
                folder, weights, head, family=family, ignore=ignore, labels=label_names, pickle=pickle
            )
            fill_weights(former, weights, plan, device, dtype, folder, tell)
    elif name := bilm.find_weights_file(folder):
        with open_hdf5(safe_files.resolve_file(folder, name)) as weights:
            former, plan = bilm.read_checkpoint(folder, weights, head, ignore=ignore, labels=label_names)
            fill_weights(former, weights, plan, device, dtype, folder, tell)
    else:
        raise Error("neither formers.json nor config.json is here", where=folder, fix="give the directory of a model")
    check_cpu_bf16(former.dtype, former.device, strict=not torch.cuda.is_available())
    return former


@dataclass(frozen=True)
class CheckpointInfo:
    """What the files of a checkpoint say before its weights are read; None is what they do not say."""

    family: str | None = None
    head: str | None = None
    settings: Mapping[str, object] | None = None  # of its config, under our names
    is_own: bool = False  # a formers directory: the settings are all there


def read_checkpoint_info(source: str | Path) -> CheckpointInfo:
    """Read what formers.json or config.json says of a checkpoint; of one on the hub, which is not fetched, nothing."""
    if str(source).startswith("hub:"):
        return CheckpointInfo()
    folder = safe_files.find_model_folder(source)
    is_own = safe_files.has_file(folder, MANIFEST_FILE)
    if not is_own and not safe_files.has_file(folder, "config.json"):
        return CheckpointInfo()
    about = safe_files.read_json(folder, MANIFEST_FILE if is_own else "config.json")
    if not isinstance(name := about.get("family" if is_own else "model_type"), str):
        return CheckpointInfo(is_own=is_own)
    family = find_family(name)
    if is_own:
        head, sizes = about.get("head"), about.get("config")
        return CheckpointInfo(
            family.name, head if isinstance(head, str) else None, sizes if isinstance(sizes, dict) else None, True
        )
    if (hf := family.definition.hf_format) is None:
        return CheckpointInfo(family.name)
    named = (about.get("architectures") or [None])[0]
    try:
        sizes = hf.config_map.read_config(about, where=folder, ignore=about)
    except Error:  # of a damaged one, which is refused when it is loaded
        sizes = None
    return CheckpointInfo(family.name, hf.architectures.get(named), sizes)


def load_adapters(former: Former, where: Path) -> None:
    """Add the adapters beside the weights to them, if the model was saved with some."""
    if not safe_files.read_json(where, MANIFEST_FILE).get("adapters"):
        return
    tensors = Weights(where, "adapters")
    try:
        apply_adapters(former.model.body, {name: tensors.get_tensor(name).to(former.device) for name in tensors})
    except (KeyError, AttributeError, RuntimeError, TypeError):
        what = "these are adapters of other weights"
        raise Error(what, where=where / "adapters.safetensors", fix="restore the original file") from None


def parse_float_dtype(dtype: object) -> torch.dtype | None:
    """Return a floating-point type, also by its name."""
    kind = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype  # dynamic: torch has no table of types
    if isinstance(kind, torch.dtype) and kind.is_floating_point:
        return kind
    if dtype is None:
        return None
    fix = "take torch.float32, torch.bfloat16 or torch.float16"
    raise Error(f"dtype {dtype!r} is not a floating-point type", fix=fix)


def read_directory(where: Path, weights: Weights, head: str, labels: tuple[str, ...]) -> tuple[Former, LoadPlan]:
    """Read a formers directory: a model without weights, and the plan by which they are filled in."""
    path, about = where / MANIFEST_FILE, safe_files.read_json(where, MANIFEST_FILE)
    if about.get("format") not in (1, FORMAT_VERSION, COMPACT_FORMAT_VERSION):
        what = f"format {format_value(about.get('format'))} is not one of 1 to {COMPACT_FORMAT_VERSION}"
        raise Error(what, where=path, fix="a newer formers may read it: pip install -U formers")
    for key in (key for key in about if key not in MANIFEST_KEYS):
        raise Error(f"unknown key {key!r}", where=path, fix=settings.suggest_name(key, MANIFEST_KEYS))
    if "seal" in about and about["seal"] != hash_json({key: value for key, value in about.items() if key != "seal"}):
        fix = 'restore it; if you have edited it yourself, take the line "seal" out of it'
        raise Error("is not as it was written", where=path, fix=fix)
    kinds: dict[str, object] = {"family": str, "head": str, "config": dict, "labels": tuple[str, ...], "special": dict}
    for key, kind in kinds.items():
        if key not in about:
            raise Error(f"{key} is missing", where=path, fix="the file is damaged")
        about[key] = settings.coerce_value(about[key], kind, key, path)
    one = find_family(about["family"])
    config = settings.build_config(one.definition.config_class, about["config"], where=path)
    huggingface.check_layer_count(config, weights, path)
    former = build_empty(one.name, config, about["head"] if head == "auto" else head, labels or about["labels"])
    if head in ("auto", about["head"]) and (task := about.get("task")):
        task = settings.coerce_value(task, dict, "task", path)
        if about["format"] == 1:
            task = {TASK_NAMES_1.get(name, name): value for name, value in task.items()}
        former.task = dataclasses.asdict(settings.build_config(Task, task, where=path))
    if head in ("auto", about["head"]):
        former.tasks = read_mixture_tasks(about.get("tasks", {}), path)
    former.training_info = settings.coerce_value(about.get("training", {}), dict, "training", path)
    if origins := read_origins(where, former.training_info):
        former.training_info = {**former.training_info, ORIGINS_KEY: origins}
    if safe_files.has_file(where, "tokenizer.json"):
        limit = safe_files.MAX_VOCAB_BYTES if one.definition.is_static else safe_files.MAX_FILE_BYTES
        former.tokenizer = load_own_tokenizer(where, about["special"], limit)
        if former.tokenizer.fingerprint != about.get("tokenizer"):
            what = "this is not the tokenizer that the model was saved with"
            raise Error(what, where=where / "tokenizer.json", fix="restore the original file")
    beside = where / ORIGINALS_FOLDER
    if beside.is_dir() and not beside.is_symlink():
        for name in ("config.json", bilm.OPTIONS_FILE, *COMPANION_FILES):
            if safe_files.has_file(beside, name):
                former.source_files[name] = safe_files.read_bytes(beside, name)
    return former, plan_weights(former, config, about["head"], weights, where)


def plan_weights(former: Former, config: ModelConfig, saved_head: str, weights: Weights, where: Path) -> LoadPlan:
    """Plan by equal names; with another head, tensors that mean the same (BERT's pooler) are taken over."""
    ours = [name for name, _ in former.model.named_parameters()]
    source = {name: name for name in weights}
    fresh = set()
    if former.head != saved_head:
        hf = former.definition.hf_format
        # heads of other layers have nothing in common
        apart = former.head.partition("@")[2] != saved_head.partition("@")[2]
        if hf is not None and not apart:
            old = build_empty(former.family, config, saved_head, former.labels).model.named_parameters()
            moves = hf.build_key_map(config, saved_head).map_tensors((name for name, _ in old), "")
            before = {move.theirs: move.ours for move in moves if ".out." not in move.ours}
            for move in hf.build_key_map(former.config, former.head).map_tensors(ours, ""):
                source.setdefault(move.ours, before.get(move.theirs, move.ours))
        fresh = {name for name in ours if name.startswith("heads.") and (apart or source.get(name, "") not in weights)}
    else:
        optional = {f"heads.{part}" for part, module in former.model.parts.items() if module.spec.optional}
        fresh = {name for name in ours if name not in weights and ".".join(name.split(".")[:2]) in optional}
    if lost := [name for name in ours if name not in fresh and source.get(name, "") not in weights]:
        what = f"tensor {lost[0]!r} is missing"
        raise Error(what, where=where, fix="the file is incomplete, or formers.json belongs to another model")
    if unknown := [] if former.head != saved_head else sorted(set(weights) - set(ours)):
        raise Error(f"unknown tensor {unknown[0]!r}", where=where, fix="formers.json belongs to another model")
    mappings = [TensorMapping((source[name],), name, TensorOp(name)) for name in ours if name not in fresh]
    return LoadPlan(mappings, sorted(fresh), [])


def fill_weights(
    former: Former, weights: Weights, weight_plan: LoadPlan, device: str | torch.device | None,
    dtype: torch.dtype | None, where: Path, tell: ProgressCallback | None = None,
) -> None:  # fmt: skip
    """Give a model its values, tensor by tensor, so that there is never a second copy of all of them."""
    device = torch.get_default_device() if device is None else choose_device(device)
    for copy, source in weight_plan.tied_pairs:
        if not weights.is_equal(copy, source):
            what = f"{copy!r} should be a copy of {source!r} and is not"
            raise Error(what, where=where, fix='if both are meant, set "tie_word_embeddings": false in config.json')
    for name, compute_table in weight_plan.computed_tables.items():
        table = weights.get_tensor(name)
        near = max(torch.finfo(torch.float16).eps, torch.finfo(table.dtype).eps if table.is_floating_point() else 0)
        # a table of another shape could ask for any amount of memory
        fits = table.dim() > 0 and table.shape[1:] == compute_table(1).shape[1:]
        if not fits or not torch.allclose(table.float(), compute_table(len(table)), rtol=0, atol=near):
            what = f"{name!r} is not the table of sines and cosines that it should be"
            raise Error(what, where=where, fix="the file is damaged, or of a model with learned positions")
    untrained = set(weight_plan.missing_parameters)
    for part, module in former.model.parts.items():
        own = {f"heads.{part}.{name}" for name, _ in module.named_parameters()}
        if module.spec.optional and own and own <= untrained:  # a bare BERT whose file has no pooler
            del former.model.heads[part]
            untrained -= own
    kinds = {name: weights.get_tensor(name).dtype for move in weight_plan.mappings for name in move.theirs}
    for name, kind in kinds.items():
        if not kind.is_floating_point:
            what = f"tensor {format_value(name)} is {str(kind)[6:]}, not floating-point numbers"
            raise Error(what, where=where, fix="this checkpoint is quantised: load the original")
    target_dtype = dtype or (functools.reduce(torch.promote_types, kinds.values()) if kinds else torch.float32)
    new = sum(former.model.get_parameter(name).numel() for name in untrained)
    there = sum(map(math.prod, weights.shapes.values()))
    if new > max(there, SMALL_HEAD_SIZE):  # a width that costs the file little may cost a head its square
        what = f"the new parts would have {new:,} numbers, the whole file has {there:,}"
        raise Error(what, where=where, fix="weights and config do not belong together")
    for number, move in enumerate(weight_plan.mappings, 1):
        old = former.model.get_parameter(move.ours)
        shapes = [weights.shapes[name] for name in move.theirs]
        try:
            value = move.load(weights.get_tensor)
        except (RuntimeError, IndexError, ValueError):  # they cannot be joined or turned
            value = None
        if value is None or value.shape != old.shape:
            theirs, has = " + ".join(move.theirs), format_value(shapes) if value is None else tuple(value.shape)
            what = f"tensor {theirs!r} has shape {has}, the config asks for {tuple(old.shape)}"
            raise Error(what, where=where, fix="weights and config do not belong together")
        replace_parameter(former.model, move.ours, allocate_tensor(old.shape, target_dtype, device, where).copy_(value))
        if tell is not None:
            tell("reading", number, len(weight_plan.mappings), move.ours)
    if untrained:
        for name in untrained:
            shape = former.model.get_parameter(name).shape
            replace_parameter(former.model, name, allocate_tensor(shape, target_dtype, device, where))
        rules = get_init_rules(former.definition, former.config)
        initialise_weights(former.model, rules, seed=0, only=untrained)
        untrained = {name for name in untrained if former.model.get_parameter(name).requires_grad}
    if untrained:
        warnings.warn(f"new, untrained: {', '.join(sorted(untrained))}", stacklevel=3)


def allocate_tensor(shape: torch.Size, dtype: torch.dtype, device: torch.device, where: Path) -> torch.Tensor:
    """Allocate an empty tensor, or raise an Error that says how much memory is missing."""
    try:
        return torch.empty(shape, dtype=dtype, device=device)
    except (MemoryError, RuntimeError):  # torch has no error of its own for the CPU
        size = shape.numel() * dtype.itemsize
        what = f"there is no memory for {size:,} more bytes on {device}"
        raise Error(what, where=where, fix="load it with dtype=torch.bfloat16, or where there is more memory") from None


def replace_parameter(model: nn.Module, name: str, value: torch.Tensor) -> None:
    """Replace a parameter."""
    path, _, last = name.rpartition(".")
    trained = model.get_parameter(name).requires_grad
    setattr(model.get_submodule(path), last, nn.Parameter(value, requires_grad=trained))


def export(
    former: Former, out: str | Path, *, to: str | None = None, dtype: torch.dtype | None = None, shard: int = 5 * 10**9,
    pool: str = "mean", normalise: bool = False, language: str | None = None, overwrite: bool = False,
    tell: ProgressCallback | None = None,
) -> None:  # fmt: skip
    """Write a model the way others read it: a directory for transformers' from_pretrained, or (ELMo) options.json with
    one hdf5 file; and a model card. A directory that is there already is replaced with `overwrite` only, once the new
    one is complete.

    `to` sentence-transformers writes a model without its head that SentenceTransformer opens, with the `pool` and
    `normalise` of formers.embed; `to` vllm, tei, ctranslate2 or onnx what that server reads. `language` (en, ko) is
    that of the model card; by default the vocabulary tells."""
    if not all(bool(value.isfinite().all()) for value in former.model.parameters() if not value.is_meta):
        raise NonFinite("weights")
    known = ("transformers", "sentence-transformers", *SERVING_TARGETS)
    if to is not None and to not in known:
        raise Error(f"there is no export to {to!r}", fix=f"choose one of {', '.join(known)}")
    with safe_files.replace_directory(out, overwrite) as folder:
        if to is not None and to in SERVING_TARGETS:
            write_serving_export(
                former, folder, to, shard=shard, pool=pool, normalise=normalise, dtype=dtype, language=language,
                tell=tell,
            )  # fmt: skip
        elif to == "sentence-transformers":
            huggingface.write_sentence_encoder(
                former, folder, shard=shard, pool=pool, normalise=normalise, dtype=dtype, language=language, tell=tell
            )
        elif to is None and former.definition.bilm_format is not None:
            bilm.write_checkpoint(former, folder, dtype=dtype, language=language, tell=tell)
        else:
            huggingface.write_checkpoint(former, folder, shard=shard, dtype=dtype, language=language, tell=tell)


def save(
    former: Former, path: str | Path, *, shard: int = 5 * 10**9, overwrite: bool = False, storage: Storage = "full",
    tell: ProgressCallback | None = None,
) -> None:  # fmt: skip
    """Write a formers directory; it appears only when it is complete. One that is there already is replaced with
    `overwrite` only. `storage` full keeps the weights as they are; bf16 halves them, and int8 (rows of 8-bit integers,
    each with a scale) takes a quarter: both lose precision once, and are loaded as float32."""
    if storage not in STORAGES:
        raise Error(f"there is no storage {format_value(storage)}", fix=f"choose {', '.join(STORAGES)}")
    check_has_weights(former.model)
    state = dict(former.model.named_parameters())
    about = {
        "format": FORMAT_VERSION if storage == "full" else COMPACT_FORMAT_VERSION,
        **({} if storage == "full" else {"storage": storage}), "family": former.family, "head": former.head,
        "config": dataclasses.asdict(former.config), "labels": list(former.labels),
        "special": {} if former.tokenizer is None else get_special_tokens(former.tokenizer),
        "tokenizer": None if former.tokenizer is None else former.tokenizer.fingerprint, "task": former.task,
        **({"tasks": former.tasks} if former.tasks else {}), **({"adapters": True} if former.adapters else {}),
        **({"training": former.training_info} if former.training_info else {}),
    }  # fmt: skip
    with safe_files.replace_directory(path, overwrite) as place, stage_directory(place) as folder:
        groups = (compress_tensor(name, value, storage) for name, value in state.items())
        width = {"full": None, "bf16": 2, "int8": 1}[storage]  # bytes of a number
        write_weights(folder, groups, [v.numel() * (width or v.itemsize) for v in state.values()], shard, tell)
        if former.adapters:
            sizes = [v.nbytes for v in former.adapters.values()]
            parts = ({name: value} for name, value in former.adapters.items())
            write_weights(folder, parts, sizes, sum(sizes) + 1, None, stem="adapters")
        if former.tokenizer is not None:
            former.tokenizer.save(folder / "tokenizer.json", compact=storage != "full")
        if former.source_files:
            (folder / ORIGINALS_FOLDER).mkdir()
            for name, data in former.source_files.items():
                (folder / ORIGINALS_FOLDER / name).write_bytes(data)
        safe_files.write_json(folder / MANIFEST_FILE, add_checksums(folder, about))


def add_checksums(folder: Path, about: Mapping[str, object]) -> JSONObject:
    """Return what formers.json says, with the checksums of all files that are in the folder by now."""
    hashers = [FileHasher(path) for path in sorted(folder.rglob("*")) if path.is_file()]
    files = {one.path.relative_to(folder).as_posix(): one.wait_for_digest() for one in hashers}
    values = {**json.loads(json.dumps(about)), "files": files}
    return {"seal": hash_json(values), **values}  # the first line, so that it can be taken out


def hash_json(values: Mapping[str, object]) -> str:
    """Return the checksum of a JSON object, whatever its spacing and order."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@contextmanager
def check_files(folder: Path) -> Iterator[None]:
    """Compare the files of a formers directory with their checksums while they are read: in threads, beside the work.
    An Error names the first file that differs, also where the work failed for that reason without naming it."""
    jobs = [(FileHasher(path), digest) for path, digest in list_checksums(folder)]
    try:
        yield
        failure = None
    except Error as error:
        failure = error
    except BaseException:
        for job, _ in jobs:
            job.is_stopped = True
        raise
    damaged = [job.path for job, digest in jobs if job.wait_for_digest() != digest]
    if failure is not None and (not damaged or failure.where in [to_printable_line(str(path)) for path in damaged]):
        raise failure
    if damaged:
        fix = f'restore it; if you have changed it yourself, take "files" and "seal" out of {MANIFEST_FILE}'
        raise Error("is damaged: it is not the file that was saved", where=damaged[0], fix=fix)


def list_checksums(folder: Path) -> Iterator[tuple[Path, str]]:
    """List the files whose checksums formers.json holds, by base name in this folder or in huggingface/."""
    files, about = safe_files.read_json(folder, MANIFEST_FILE).get("files", {}), folder / MANIFEST_FILE
    if not isinstance(files, dict):
        raise Error(f"files is not a table but {format_value(files)}", where=about, fix="the file is damaged")
    safe_files.check_tensor_count(len(files), about)
    for name, digest in files.items():
        if not isinstance(digest, str):
            what = f"the checksum of {format_value(name)} is not text"
            raise Error(what, where=about, fix="the file is damaged")
        home = folder / ORIGINALS_FOLDER if name.startswith(f"{ORIGINALS_FOLDER}/") else folder
        path = safe_files.resolve_file(home, name.removeprefix(f"{ORIGINALS_FOLDER}/"))
        if home != folder and home.is_symlink():
            raise Error(f"{ORIGINALS_FOLDER} is a link", where=folder, fix="copy the folder itself")
        if home != folder and not path.exists():  # it is needed for an export alone, and may be left out
            continue
        if not path.is_file():
            raise Error("the file is missing", where=path, fix="is the download complete?")
        yield path, digest


class FileHasher:
    """The SHA-256 of a file, made by a thread of its own; hashing lets other threads of Python run."""

    def __init__(self, path: Path):
        self.path, self.sha256, self.is_stopped = path, hashlib.sha256(), False
        self.read_error: OSError | None = None
        self.thread = threading.Thread(target=self.hash_file, daemon=True, name="formers-checksum")
        self.thread.start()

    def hash_file(self) -> None:
        """Read and hash."""
        buffer = memoryview(bytearray(CHUNK_BYTES))
        try:
            with open(self.path, "rb", buffering=0) as file:
                while not self.is_stopped and (size := file.readinto(buffer)):
                    self.sha256.update(buffer[:size])
        except OSError as error:
            self.read_error = error

    def wait_for_digest(self) -> str:
        """Wait for the checksum."""
        self.thread.join()
        if self.read_error is not None:
            raise safe_files.make_read_error(self.path, self.read_error)
        return self.sha256.hexdigest()
