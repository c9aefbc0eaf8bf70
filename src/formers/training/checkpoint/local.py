"""Checkpoints that survive a crash at any moment, a power loss, a full disk and a flipped bit.

This file stores them; what they hold is decided in `Trainer.get_state` and `Trainer.restore_state`.

    RUN/steps/step-00001000/    manifest.json, state.json, *.safetensors

A step's folder never changes: it is written under a temporary name, every file is synced, the manifest with the sums of
all files comes last, and only then it gets its name. What is found broken later is passed over for the one before.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor

from ...atomic_files import read_checked_json, sync_to_disk, to_checked_json
from ...errors import Error, advise_on_write, is_disk_full

CHECKPOINT_FORMAT = 1
TEMPORARY_PREFIX = ".writing-"
SHARD_FOLDER = "parts"  # the folder with what each process has of a model that is cut (training/checkpoint/sharded.py)
SHARDED_GROUPS = ("model", "optimizer", "average")  # the files that it stands for
TensorGroups = Mapping[str, Mapping[str, Tensor]]  # file name → tensors
LoadedCheckpoint = tuple[int, dict[str, dict[str, Tensor]], dict[str, Any]]  # step, tensors, state
SAFETENSORS_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


class FileSystem:
    """What is asked of the file system; tests put another in its place, to fail or to record."""

    def write(self, path: Path, chunks: Iterator[bytes | memoryview]) -> None:
        """A new file, synced."""
        with open(path, "xb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())

    def make_folder(self, path: Path) -> None:
        """A new folder."""
        path.mkdir()

    def rename(self, old: Path, new: Path) -> None:
        """Give a folder its name."""
        os.rename(old, new)

    def sync(self, folder: Path) -> None:
        """The folder's list of names is on the disk."""
        sync_to_disk(folder)

    def remove(self, folder: Path) -> None:
        """Take a folder away: first its name, so that half of it is never taken for the whole."""
        gone = folder.with_name(f"{TEMPORARY_PREFIX}gone-{folder.name}")
        if not folder.name.startswith(TEMPORARY_PREFIX):
            os.rename(folder, gone)
            folder = gone
        shutil.rmtree(folder)


def hash_bytes(data: bytes) -> dict[str, Any]:
    """The size and sum of a file's bytes."""
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def hash_file(path: Path) -> dict[str, Any]:
    """Size and SHA-256 of a file, read in chunks."""
    with open(path, "rb") as file:
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def stream_safetensors(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file, one tensor after the other, so that no second copy of all arises."""
    about: dict[str, Any] = {}
    reach = 0
    for name, t in tensors.items():
        about[name] = {
            "dtype": SAFETENSORS_DTYPES[t.dtype],
            "shape": list(t.shape),
            "data_offsets": [reach, reach + t.nbytes],
        }
        reach += t.nbytes
    head = json.dumps(about, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    yield struct.pack("<Q", len(head)) + head
    for t in tensors.values():
        if t.numel():
            yield t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


@dataclass
class Checkpoints:
    """The step folders of a run. Kept are the `keep_last` newest, the `keep_best` by score (lower is better), every
    `keep_every`-th step, and never less than two: whether the newest is any good, only the next step can tell."""

    folder: Path
    keep_last: int = 2
    keep_best: int = 1
    keep_every: int | None = None
    file_system: FileSystem = field(default_factory=FileSystem)
    remove_stale: bool = True  # take away what a crash left; of several processes only one may

    def __post_init__(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for stale in self.folder.glob(f"{TEMPORARY_PREFIX}*") if self.remove_stale else ():
                self.file_system.remove(stale)
        except OSError as error:
            raise Error(f"cannot write here ({error.strerror})", where=self.folder, fix="choose another") from None

    def get_step_path(self, step: int) -> Path:
        """Where a step's checkpoint is."""
        return self.folder / f"step-{step:08d}"

    def list_steps(self) -> list[int]:
        """The steps that there are, oldest first; whether they are whole is another question."""
        names = (path.name.removeprefix("step-") for path in self.folder.glob("step-*"))
        return sorted(int(name) for name in names if name.isdigit())

    def save(
        self,
        step: int,
        groups: TensorGroups,
        state: Mapping[str, Any],
        score: float | None = None,
        sharded_writer: Any = None,
    ) -> Path:
        """Write a step: tensors by file, and what is not a tensor as JSON. With a `sharded_writer`, every process
        writes what it has of the tensors in SHARDED_GROUPS, and the main one the rest."""
        target, temporary = self.get_step_path(step), self.folder / f"{TEMPORARY_PREFIX}{step:08d}"
        if target.exists():
            return target  # what there is was written from the same state
        size = sum(t.nbytes for tensors in groups.values() for t in tensors.values())
        try:
            if sharded_writer is not None:
                sharded_writer.write_shards(
                    temporary, {name: tensors for name, tensors in groups.items() if name in SHARDED_GROUPS}
                )
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
                sums |= {f"{SHARD_FOLDER}/{path.name}": hash_file(path) for path in written}
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
            fix = advise_on_write(error, "go on with --resume")
            fix += "; earlier checkpoints are whole" if self.folder.is_dir() else ""
            raise Error(f"step {step} could not be written ({what})", where=target, fix=fix) from None
        if not state.get("skipped"):  # else the weights may be ruined, and the good ones are needed
            self.delete_old()
        return target

    def write_hashed_file(self, path: Path, chunks: Iterator[bytes | memoryview]) -> dict[str, Any]:
        """Write a file; its size and sum."""
        digest, size = hashlib.sha256(), 0

        def hash_chunks() -> Iterator[bytes | memoryview]:
            nonlocal size
            for chunk in chunks:
                digest.update(chunk)
                size += len(chunk)
                yield chunk

        self.file_system.write(path, hash_chunks())
        return {"size": size, "sha256": digest.hexdigest()}

    def read_manifest(self, step: int) -> dict[str, Any]:
        """What a step's folder says of itself; an Error if that cannot be read."""
        where = self.get_step_path(step) / "manifest.json"
        try:
            about = read_checked_json(where)
            if about.get("step") != step:
                raise Error(f"is of step {about.get('step')}")
        except Error:
            raise Error("the manifest is broken", where=where, fix="the checkpoint before it will be used") from None
        if about.get("format") != CHECKPOINT_FORMAT:
            what = f"format {about.get('format')} is not the one that is read here ({CHECKPOINT_FORMAT})"
            raise Error(what, where=where, fix="use the version of formers that wrote it")
        return about

    def read_scores(self) -> dict[int, float | None]:
        """The score of each step, oldest first."""
        scores: dict[int, float | None] = {}
        for step in self.list_steps():
            try:
                scores[step] = self.read_manifest(step).get("score")
            except Error:
                scores[step] = None
        return scores

    def delete_old(self) -> None:
        """Take away the checkpoints that are no longer wanted."""
        scores = self.read_scores()
        ranked = sorted((score, step) for step, score in scores.items() if score is not None)
        kept = {*list(scores)[-self.keep_last :], *(step for _, step in ranked[: self.keep_best])}
        kept |= {*list(scores)[-2:]} if len(kept) < 2 else set()
        for step in scores:
            if step not in kept and not (self.keep_every and step % self.keep_every == 0):
                with suppress(OSError):  # it is no longer needed: that it stays must not stop a run
                    self.file_system.remove(self.get_step_path(step))

    def load(self, step: int, assemble_shards: bool = True) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """A step's tensors by file, and its state; an Error names what is broken. Those that lie in parts are put
        together, or else have no content: every process reads its own."""
        groups, state = {}, {}
        files = self.read_manifest(step)["files"]
        for name, wanted in files.items():
            path = (
                self.get_step_path(step)
                / (SHARD_FOLDER if name.startswith(f"{SHARD_FOLDER}/") else "")
                / Path(name).name
            )
            try:
                data = path.read_bytes() if path.parent == self.get_step_path(step) else None
                found = hash_file(path) if data is None else hash_bytes(data)
            except OSError as error:
                raise Error(f"cannot be read ({error.strerror})", where=path, fix="take an earlier step") from None
            if found != wanted:
                raise Error("is damaged: its sum is not that of the manifest", where=path, fix="take an earlier step")
            if name == "state.json" and data is not None:
                state = json.loads(data)
            elif data is not None:
                groups[path.stem] = load(data)
        if any(name.startswith(f"{SHARD_FOLDER}/") for name in files):
            from . import sharded

            groups |= (sharded.load_full_tensors if assemble_shards else sharded.load_meta_tensors)(
                self.get_step_path(step)
            )
        return groups, state

    def load_newest(self, say: Any = None, assemble_shards: bool = True) -> LoadedCheckpoint | None:
        """The newest whole checkpoint: its step, tensors and state. What is broken is passed over and told."""
        return self.load_first_intact(reversed(self.list_steps()), say, assemble_shards)

    def load_best(self) -> LoadedCheckpoint | None:
        """The whole checkpoint with the best score, the newest if none has one."""
        scores = self.read_scores()
        ranked = sorted(scores, key=lambda step: (scores[step] is None, scores[step] or 0.0, -step))
        return self.load_first_intact(ranked)

    def load_first_intact(
        self, steps: Iterable[int], say: Any = None, assemble_shards: bool = True
    ) -> LoadedCheckpoint | None:
        """The first of some checkpoints that is whole."""
        for step in steps:
            try:
                return step, *self.load(step, assemble_shards)
            except Error as error:
                if say is not None:
                    say(f"passing over {error}")
        return None

    def quarantine_after(self, after: int) -> None:
        """Put aside what is behind a step, broken or of no use, so that it can be written anew."""
        for step in self.list_steps():
            if step > after:
                aside = self.folder / f"broken-{step:08d}"
                shutil.rmtree(aside, ignore_errors=True)
                os.rename(self.get_step_path(step), aside)


class BackgroundWriter:
    """Saves in the background: the state is copied at once, the disk has its time while training goes on."""

    def __init__(self, checkpoints: Checkpoints, parts: Any = None):
        self.checkpoints, self.sharded_writer = checkpoints, parts
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None

    def save(self, step: int, groups: TensorGroups, state: Mapping[str, Any], score: float | None = None) -> None:
        """Copy, and write when the one before is through."""
        self.wait()
        groups = {n: {k: t.detach().to("cpu", copy=True) for k, t in part.items()} for n, part in groups.items()}
        plain = json.loads(json.dumps(state))
        self.thread = threading.Thread(
            target=self.write_checkpoint, args=(step, groups, plain, score, self.sharded_writer)
        )
        self.thread.start()

    def write_checkpoint(self, *given: Any) -> None:
        """What the thread does."""
        try:
            self.checkpoints.save(*given)
        except BaseException as error:
            self.error = error

    def wait(self) -> None:
        """Until all is on the disk; raises what went wrong there."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        if self.error is not None:
            error, self.error = self.error, None
            raise error
