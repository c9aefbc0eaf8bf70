"""Checkpoints that survive a crash at any moment, a power loss, a full disk and a flipped bit.

    RUN/steps/step-00001000/
        manifest.json               format, step, score, and the SHA-256 of every file
        state.json                  what is not a tensor: TrainerState
        model.safetensors           parameters and buffers
        optimizer.safetensors       moments, as state/PARAMETER/NAME
        ema.safetensors             the moving average of the weights, if the run keeps one
        rng.safetensors             the states of each process's generators, as RANK/DEVICE
        carried_state.safetensors   memories of families that have one, as GROUP/NAME (SegmentMemory, LSTMState)
        shards/                     in place of model, optimizer and ema, where each process has a part of them
                                    (training/checkpoint/sharded.py)

`Trainer.get_state` collects it, `Trainer.restore_state` takes it back. A step's folder never changes: it is written
under a temporary name, every file is synced, the manifest comes last, and only then it gets its name. What is found
broken later is skipped, and the checkpoint before it is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from safetensors.torch import load
from torch import Tensor, nn

from ...atomic_files import hash_file, read_checked_json, sync_to_disk, to_checked_json
from ...config import JSONObject
from ...errors import Error, advise_on_write, is_disk_full

if TYPE_CHECKING:
    from .sharded import ShardedWriter

CHECKPOINT_FORMAT = 2  # 2: other names of files and of what is in state.json than before
TEMPORARY_PREFIX = ".writing-"
SHARD_FOLDER = "shards"
STAGING_BYTES = 2**25  # of pinned memory through which a copy on a GPU is read: 32 MiB are allocated at once
SNAPSHOT_ALIGNMENT = 512  # bytes, for every dtype and for fast copies
SHARDED_GROUPS = ("model", "optimizer", "ema")  # the files that the folder of shards stands for
Tensors = dict[str, Tensor]
TensorGroups = Mapping[str, Mapping[str, Tensor]]  # file name → tensors
Scatter = Callable[[Tensor, Tensor], Tensor]  # (a whole tensor, a tensor with the sharding that it gets) → its shard
Say = Callable[[str], None]
LoadedCheckpoint = tuple[int, dict[str, Tensors], JSONObject]  # step, tensors, state
SAFETENSORS_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


class TrainerState(TypedDict):
    """What state.json holds."""

    step: int  # the number of steps done
    tokens: int  # seen so far
    seconds: float  # spent so far
    bad_steps: int  # consecutive steps up to now that were skipped, as their loss or gradient was not finite
    positions: list[int]  # in the data, one for each phase
    recent_norms: list[float]  # of the gradient, by which a spike is recognised
    optimizer: object  # its state_dict with null for each tensor
    scaler: JSONObject  # of fp16
    carried_state: object  # what the memories hold besides tensors


class OtherFormat(Error):
    """Raised for a checkpoint of another version of formers: it is intact, so no earlier one is used instead."""


class FileSystem:
    """The operations on files that checkpoints need; tests replace it, to fail or to record."""

    def write(self, path: Path, chunks: Iterator[bytes | memoryview]) -> None:
        """Write a new file, synced."""
        with open(path, "xb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())

    def make_folder(self, path: Path) -> None:
        """Make a new folder."""
        path.mkdir()

    def rename(self, old: Path, new: Path) -> None:
        """Rename a folder."""
        os.rename(old, new)

    def sync(self, folder: Path) -> None:
        """Write the folder's list of names to the disk."""
        sync_to_disk(folder)

    def remove(self, folder: Path) -> None:
        """Remove a folder; it is renamed first, so that a half-removed one is never taken for a checkpoint."""
        if not folder.name.startswith(TEMPORARY_PREFIX):
            folder = folder.rename(folder.with_name(f"{TEMPORARY_PREFIX}gone-{folder.name}"))
        shutil.rmtree(folder)


def describe_file(path: Path) -> JSONObject:
    """Return the size and SHA-256 of a file."""
    return {"size": path.stat().st_size, "sha256": hash_file(path)}


def stream_safetensors(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a safetensors file, one tensor after the other, without a second copy of all."""
    header: JSONObject = {}
    end = 0
    for name, t in tensors.items():
        begin, end = end, end + t.nbytes
        header[name] = {"dtype": SAFETENSORS_DTYPES[t.dtype], "shape": list(t.shape), "data_offsets": [begin, end]}
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    yield struct.pack("<Q", len(head)) + head
    staging = allocate_staging() if any(t.is_cuda for t in tensors.values()) else None
    for t in tensors.values():
        if t.numel():
            yield from stream_bytes(t.detach().contiguous().reshape(-1).view(torch.uint8), staging)


def stream_bytes(content: Tensor, staging: Tensor | None) -> Iterator[memoryview]:
    """Yield the bytes of a flat tensor; from a GPU in pieces through pinned memory, each of which the next overwrites.
    Only the calling thread waits for the device."""
    if staging is None or not content.is_cuda:
        yield content.cpu().numpy().data
        return
    for piece in content.split(len(staging)):
        part = staging[: len(piece)]
        part.copy_(piece, non_blocking=True)
        copied = torch.cuda.Event(blocking=True)
        copied.record()
        copied.synchronize()
        yield part.numpy().data


def allocate_staging() -> Tensor:
    """Return pinned memory for pieces of a file: torch keeps what was freed, so only the first call takes long."""
    return torch.empty(STAGING_BYTES, dtype=torch.uint8, pin_memory=True)


@dataclass
class Checkpoints:
    """The step folders of a run. Kept are the `keep_last` newest, the `keep_best` by score (lower is better), every
    `keep_every`-th step, and never fewer than two: only the next step shows whether the newest is good."""

    folder: Path
    keep_last: int = 2
    keep_best: int = 1
    keep_every: int | None = None
    file_system: FileSystem = field(default_factory=FileSystem)
    remove_stale: bool = True  # remove the remains of a crash; only one of several processes may do so

    def __post_init__(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for stale in self.folder.glob(f"{TEMPORARY_PREFIX}*") if self.remove_stale else ():
                self.file_system.remove(stale)
        except OSError as error:
            raise Error(f"cannot write here ({error.strerror})", where=self.folder, fix="choose another") from None

    def get_step_path(self, step: int) -> Path:
        """Return the folder of a step's checkpoint."""
        return self.folder / f"step-{step:08d}"

    def list_steps(self) -> list[int]:
        """List the steps with a checkpoint, intact or not, oldest first."""
        names = (path.name.removeprefix("step-") for path in self.folder.glob("step-*"))
        return sorted(int(name) for name in names if name.isdigit())

    def save(
        self, step: int, groups: TensorGroups, state: Mapping[str, object], score: float | None = None,
        sharded_writer: ShardedWriter | None = None,
    ) -> Path:  # fmt: skip
        """Write a step: tensors by file, and what is not a tensor as JSON. With a `sharded_writer`, every process
        writes what it has of the tensors in SHARDED_GROUPS, and the main one the rest."""
        target, temporary = self.get_step_path(step), self.folder / f"{TEMPORARY_PREFIX}{step:08d}"
        if target.exists():
            return target  # it was written from the same state
        size = sum(t.nbytes for tensors in groups.values() for t in tensors.values())
        try:
            if sharded_writer is not None:
                sharded_writer.write_shards(temporary, {n: groups[n] for n in SHARDED_GROUPS if n in groups})
                if not sharded_writer.is_main:
                    return target
                groups = {name: tensors for name, tensors in groups.items() if name not in SHARDED_GROUPS}
            else:
                if temporary.exists():
                    self.file_system.remove(temporary)
                self.file_system.make_folder(temporary)
            files = {f"{name}.safetensors": stream_safetensors(tensors) for name, tensors in groups.items()}
            files["state.json"] = iter([json.dumps(state, ensure_ascii=False).encode()])
            sums = {name: self.write_hashed_file(temporary / name, chunks) for name, chunks in files.items()}
            if sharded_writer is not None:
                written = sorted((temporary / SHARD_FOLDER).iterdir())
                sums |= {f"{SHARD_FOLDER}/{path.name}": describe_file(path) for path in written}
                self.file_system.sync(temporary / SHARD_FOLDER)
            about = {"format": CHECKPOINT_FORMAT, "step": step, "score": score, "files": sums}
            self.file_system.write(temporary / "manifest.json", iter([to_checked_json(about).encode()]))
            self.file_system.sync(temporary)
            self.file_system.rename(temporary, target)
            self.file_system.sync(self.folder)
        except OSError as error:
            full = f"the disk is full: a checkpoint needs {size:,} bytes"
            what = full if is_disk_full(error) else f"{error.strerror or error}"
            shutil.rmtree(temporary, ignore_errors=True)
            fix = advise_on_write(error, "continue with --resume")
            fix += "; earlier checkpoints are intact" if self.folder.is_dir() else ""
            raise Error(f"step {step} could not be written ({what})", where=target, fix=fix) from None
        if not state.get("bad_steps"):  # else the weights may be ruined, and the good ones are needed
            self.delete_old()
        return target

    def write_hashed_file(self, path: Path, chunks: Iterator[bytes | memoryview]) -> JSONObject:
        """Write a file; return its size and SHA-256."""
        digest, size = hashlib.sha256(), 0

        def hash_chunks() -> Iterator[bytes | memoryview]:
            nonlocal size
            for chunk in chunks:
                digest.update(chunk)
                size += len(chunk)
                yield chunk

        self.file_system.write(path, hash_chunks())
        return {"size": size, "sha256": digest.hexdigest()}

    def read_manifest(self, step: int) -> JSONObject:
        """Read the manifest of a step; an Error if it is damaged, or of another format."""
        where = self.get_step_path(step) / "manifest.json"
        try:
            about = read_checked_json(where)
            if about.get("step") != step:
                raise Error(f"is of step {about.get('step')}")
        except Error:
            raise Error("the manifest is broken", where=where, fix="the checkpoint before it will be used") from None
        if (version := about.get("format")) != CHECKPOINT_FORMAT:
            fix = "it was made by a newer formers: pip install --upgrade formers"
            if isinstance(version, int) and version < CHECKPOINT_FORMAT:
                fix = "train again with --overwrite or another --out; a model saved in the run still opens"
            raise OtherFormat(f"checkpoint format {version} is not supported", where=where, fix=fix)
        return about

    def read_scores(self) -> dict[int, float | None]:
        """Return the score of each step, oldest first."""
        scores: dict[int, float | None] = dict.fromkeys(self.list_steps())
        for step in scores:
            with suppress(Error):
                scores[step] = self.read_manifest(step).get("score")
        return scores

    def delete_old(self) -> None:
        """Remove the checkpoints that need not be kept."""
        scores = self.read_scores()
        ranked = sorted((score, step) for step, score in scores.items() if score is not None)
        kept = {*list(scores)[-self.keep_last :], *(step for _, step in ranked[: self.keep_best])}
        kept |= {*list(scores)[-2:]} if len(kept) < 2 else set()
        for step in scores:
            if step not in kept and not (self.keep_every and step % self.keep_every == 0):
                with suppress(OSError):  # one that cannot be removed must not stop a run
                    self.file_system.remove(self.get_step_path(step))

    def load(self, step: int, assemble_shards: bool = True) -> tuple[dict[str, Tensors], JSONObject]:
        """Read a step's tensors by file, and its state; an Error names what is broken. Shards are put together, or
        else have no content: every process reads its own."""
        groups: dict[str, Tensors] = {}
        state, has_shards, folder = {}, False, self.get_step_path(step)
        for name, expected in self.read_manifest(step)["files"].items():
            is_shard = name.startswith(f"{SHARD_FOLDER}/")
            path = folder / (SHARD_FOLDER if is_shard else "") / Path(name).name
            try:
                data = None if is_shard else path.read_bytes()
                sums = None if data is None else {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                description = sums or describe_file(path)
            except OSError as error:
                raise Error(f"cannot be read ({error.strerror})", where=path, fix="take an earlier step") from None
            if description != expected:
                raise Error("is damaged: its checksum differs", where=path, fix="take an earlier step")
            if data is None:
                has_shards = True
            elif name == "state.json":
                state = json.loads(data)
            else:
                groups[path.stem] = load(data)
        if has_shards:
            from . import sharded

            groups |= (sharded.load_full_tensors if assemble_shards else sharded.load_meta_tensors)(folder)
        return groups, state

    def load_newest(self, say: Say | None = None, assemble_shards: bool = True) -> LoadedCheckpoint | None:
        """Read the newest intact checkpoint: step, tensors and state. Broken ones are skipped and reported."""
        return self.load_first_intact(reversed(self.list_steps()), say, assemble_shards)

    def load_best(self) -> LoadedCheckpoint | None:
        """Read the intact checkpoint with the best score, the newest if none has one."""
        scores = self.read_scores()
        ranked = sorted(scores, key=lambda step: (scores[step] is None, scores[step] or 0.0, -step))
        return self.load_first_intact(ranked)

    def load_first_intact(
        self, steps: Iterable[int], say: Say | None = None, assemble_shards: bool = True
    ) -> LoadedCheckpoint | None:
        """Read the first of some checkpoints that is intact."""
        for step in steps:
            try:
                return step, *self.load(step, assemble_shards)
            except OtherFormat:
                raise
            except Error as error:
                if say is not None:
                    say(f"skipping {error}")
        return None

    def quarantine_after(self, after: int) -> None:
        """Move aside the checkpoints after a step, which are broken or useless, so that they can be written again."""
        for step in self.list_steps():
            if step > after:
                aside = self.folder / f"broken-{step:08d}"
                shutil.rmtree(aside, ignore_errors=True)
                os.rename(self.get_step_path(step), aside)


class BackgroundWriter:
    """Saves in the background: the state is copied on its device, and a thread writes it from there. A checkpoint waits
    for the one before in its own thread; training continues meanwhile, while there is memory for both copies."""

    def __init__(self, checkpoints: Checkpoints, sharded_writer: ShardedWriter | None = None):
        self.checkpoints, self.sharded_writer = checkpoints, sharded_writer
        self.threads: list[threading.Thread] = []  # oldest first; each waits for the one before it
        self.error: BaseException | None = None
        if torch.cuda.is_initialized():
            allocate_staging()  # before the first step, not while one is launched

    def save(self, step: int, groups: TensorGroups, state: Mapping[str, object], score: float | None = None) -> None:
        """Copy the state now, and write it as soon as the previous checkpoint is written."""
        is_on_gpu = any(t.is_cuda for part in groups.values() for t in part.values())
        self.wait(most=int(is_on_gpu and self.sharded_writer is None and has_room_for_copy(groups)))
        # Without memory for a copy it is moved to the host at once, and the device waits.
        snapshot = copy_tensors(groups) if has_room_for_copy(groups) else copy_to_host(groups)
        copied = torch.cuda.Event() if torch.cuda.is_available() else None
        if copied is not None:
            copied.record()
        plain = json.loads(json.dumps(state))
        previous = self.threads[-1] if self.threads else None
        arguments = (previous, copied, step, snapshot, plain, score)
        self.threads.append(threading.Thread(target=self.write_checkpoint, args=arguments))
        self.threads[-1].start()

    def write_checkpoint(
        self, previous: threading.Thread | None, copied: torch.cuda.Event | None, step: int, groups: TensorGroups,
        state: Mapping[str, object], score: float | None,
    ) -> None:  # fmt: skip
        """Write in the thread, unless the checkpoint before failed; the next call of `wait` raises an error."""
        try:
            if previous is not None:
                previous.join()
            if self.error is not None:
                return
            with torch.cuda.stream(None if copied is None else torch.cuda.Stream()):
                if copied is not None:
                    torch.cuda.current_stream().wait_event(copied)
                if self.sharded_writer is not None:  # torch writes shards from the host
                    groups = {n: {k: t.to("cpu") for k, t in part.items()} for n, part in groups.items()}
                self.checkpoints.save(step, groups, state, score, self.sharded_writer)
        except BaseException as error:
            self.error = error

    def wait(self, most: int = 0) -> None:
        """Wait until all checkpoints but the newest `most` are on the disk; raise the error of a thread."""
        while len(self.threads) > most:
            self.threads[0].join()
            del self.threads[0]
        if self.error is not None:
            for thread in self.threads:
                thread.join()
            self.threads.clear()
            error, self.error = self.error, None
            raise error


def copy_tensors(groups: TensorGroups) -> dict[str, Tensors]:
    """Copy tensors on their device; those of a GPU into one block of its memory, which is allocated at once."""
    plain = [t for part in groups.values() for t in part.values() if is_packed(t)]
    sizes = [-(-t.nbytes // SNAPSHOT_ALIGNMENT) * SNAPSHOT_ALIGNMENT for t in plain]
    block = torch.empty(sum(sizes), dtype=torch.uint8, device=plain[0].device) if plain else torch.empty(0)
    places = iter(block.split(sizes) if plain else ())

    def copy(tensor: Tensor) -> Tensor:
        if not is_packed(tensor):
            return tensor.detach().clone()
        place = next(places)[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        return place.copy_(tensor.detach())

    return {name: {key: copy(t) for key, t in part.items()} for name, part in groups.items()}


def is_packed(tensor: Tensor) -> bool:
    """Return whether a tensor is copied into a block with others: a plain one on a GPU, not a shard."""
    return type(tensor) in (Tensor, nn.Parameter) and tensor.is_cuda and tensor.numel() > 0


def copy_to_host(groups: TensorGroups) -> dict[str, Tensors]:
    """Copy tensors to the host, waiting for the device."""
    return {n: {k: t.detach().to("cpu", copy=True) for k, t in part.items()} for n, part in groups.items()}


def has_room_for_copy(groups: TensorGroups) -> bool:
    """Return whether the device has memory for a copy of the tensors, and as much again for the next step."""
    if not (size := sum(t.nbytes for part in groups.values() for t in part.values() if t.is_cuda)):
        return True
    return 2 * size < torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


def flatten_state(value: object, name: str = "") -> tuple[Tensors, object]:
    """Split nested dicts and lists into their tensors by path, and the rest, with None in place of each tensor."""
    if isinstance(value, Tensor):
        return {name: value}, None
    if not isinstance(value, Mapping | list | tuple):
        return {}, value
    tensors: Tensors = {}
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    rest: dict[str, object] = {}
    for key, inner in items:
        inner_tensors, left = flatten_state(inner, f"{name}/{key}" if name else str(key))
        tensors |= inner_tensors
        rest[str(key)] = left
    return tensors, rest if isinstance(value, Mapping) else list(rest.values())


def unflatten_state(tensors: Mapping[str, Tensor], rest: object, name: str = "") -> Any:  # dynamic: nested as `rest` is
    """Undo flatten_state; keys that are whole numbers become integers again."""
    if name in tensors:
        return tensors[name]
    items = rest.items() if isinstance(rest, Mapping) else enumerate(rest) if isinstance(rest, list) else None
    if items is None:
        return rest
    inner = {key: unflatten_state(tensors, value, f"{name}/{key}" if name else str(key)) for key, value in items}
    if isinstance(rest, list):
        return list(inner.values())
    return {int(key) if isinstance(key, str) and key.isdigit() else key: value for key, value in inner.items()}


def get_rng_state() -> Tensors:
    """Return the states of torch's generators, on the CPU and on every GPU."""
    states = {"cpu": torch.random.get_rng_state()}
    if torch.cuda.is_available():
        states |= {f"cuda{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    return states


def set_rng_state(states: Mapping[str, Tensor]) -> None:
    """Set the states of torch's generators; a GPU without a saved state keeps its own."""
    torch.random.set_rng_state(states["cpu"])
    for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        if f"cuda{i}" in states:
            torch.cuda.set_rng_state(states[f"cuda{i}"], i)


def get_weights(model: nn.Module) -> Tensors:
    """Return a model's parameters and buffers; a tensor with two names is listed once."""
    seen: dict[int, str] = {}
    every = model.state_dict(keep_vars=True).items()
    return {name: tensor for name, tensor in every if seen.setdefault(id(tensor), name) == name}


@torch.no_grad()
def set_weights(model: nn.Module, tensors: Mapping[str, Tensor], scatter: Scatter = lambda whole, like: whole) -> None:
    """Set a model's parameters and buffers; `scatter` returns this process's part of each."""
    own = get_weights(model)
    if set(own) != set(tensors):
        differing = sorted(set(own) ^ set(tensors))
        raise Error(f"the checkpoint does not fit the model: {differing[0]}", fix="resume with the run's own settings")
    for name, tensor in own.items():
        if tensor.shape != tensors[name].shape:
            what = f"{name} has shape {tuple(tensors[name].shape)}, the model's {tuple(tensor.shape)}"
            raise Error(what, fix="resume with the run's own settings")
        tensor.copy_(scatter(tensors[name], tensor))
