"""Checkpoints that survive a crash at any moment, a power loss, a full disk and a flipped bit.

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

from ..data.shards import seal, unseal
from ..errors import Error, advise_on_write, is_disk_full
from ..interop.safe import sync

FORMAT = 1
TEMPORARY = ".writing-"
PARTS = "parts"  # the folder with what each process has of a model that is cut (training/cut.py)
CUT = ("model", "optimizer", "average")  # the files that it stands for
Groups = Mapping[str, Mapping[str, Tensor]]  # file name → tensors
Found = tuple[int, dict[str, dict[str, Tensor]], dict[str, Any]]  # step, tensors, state
NAMES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
         torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL"}  # fmt: skip


class Disk:
    """What is asked of the file system; tests put another in its place, to fail or to record."""

    def write(self, path: Path, chunks: Iterator[bytes | memoryview]) -> None:
        """A new file, synced."""
        with open(path, "xb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())

    def make(self, path: Path) -> None:
        """A new folder."""
        path.mkdir()

    def rename(self, old: Path, new: Path) -> None:
        """Give a folder its name."""
        os.rename(old, new)

    def sync(self, folder: Path) -> None:
        """The folder's list of names is on the disk."""
        sync(folder)

    def remove(self, folder: Path) -> None:
        """Take a folder away: first its name, so that half of it is never taken for the whole."""
        gone = folder.with_name(f"{TEMPORARY}gone-{folder.name}")
        if not folder.name.startswith(TEMPORARY):
            os.rename(folder, gone)
            folder = gone
        shutil.rmtree(folder)


def sum_of(data: bytes) -> dict[str, Any]:
    """The size and sum of a file's bytes."""
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def summed(path: Path) -> dict[str, Any]:
    """The same of a large file, which is not held whole."""
    with open(path, "rb") as file:
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def packed(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file, one tensor after the other, so that no second copy of all arises."""
    about: dict[str, Any] = {}
    reach = 0
    for name, t in tensors.items():
        about[name] = {"dtype": NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [reach, reach + t.nbytes]}
        reach += t.nbytes
    head = json.dumps(about, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    yield struct.pack("<Q", len(head)) + head
    for t in tensors.values():
        if t.numel():
            yield t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


@dataclass
class Checkpoints:
    """The step folders of a run. Kept are the `last` newest, the `best` by score (lower is better), every `every`-th
    step, and never less than two: whether the newest is any good, only the next step can tell."""

    folder: Path
    last: int = 2
    best: int = 1
    every: int | None = None
    disk: Disk = field(default_factory=Disk)
    clean: bool = True  # take away what a crash left; of several processes only one may

    def __post_init__(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for stale in self.folder.glob(f"{TEMPORARY}*") if self.clean else ():
                self.disk.remove(stale)
        except OSError as error:
            raise Error(f"cannot write here ({error.strerror})", where=self.folder, fix="choose another") from None

    def path(self, step: int) -> Path:
        """Where a step's checkpoint is."""
        return self.folder / f"step-{step:08d}"

    def steps(self) -> list[int]:
        """The steps that there are, oldest first; whether they are whole is another question."""
        names = (path.name.removeprefix("step-") for path in self.folder.glob("step-*"))
        return sorted(int(name) for name in names if name.isdigit())

    def save(
        self, step: int, groups: Groups, state: Mapping[str, Any], score: float | None = None, parts: Any = None
    ) -> Path:
        """Write a step: tensors by file, and what is not a tensor as JSON. With `parts`, every process writes what it
        has of the tensors in CUT, and the first one the rest."""
        target, temporary = self.path(step), self.folder / f"{TEMPORARY}{step:08d}"
        if target.exists():
            return target  # what there is was written from the same state
        size = sum(t.nbytes for tensors in groups.values() for t in tensors.values())
        try:
            if parts is not None:
                parts.write(temporary, {name: tensors for name, tensors in groups.items() if name in CUT})
                if not parts.first:
                    return target
                groups = {name: tensors for name, tensors in groups.items() if name not in CUT}
            else:
                if temporary.exists():
                    self.disk.remove(temporary)
                self.disk.make(temporary)
            files = {f"{name}.safetensors": packed(tensors) for name, tensors in groups.items()}
            files["state.json"] = iter([json.dumps(state, ensure_ascii=False).encode()])
            sums = {name: self.put(temporary / name, chunks) for name, chunks in files.items()}
            if parts is not None:
                written = sorted((temporary / PARTS).iterdir())
                sums |= {f"{PARTS}/{path.name}": summed(path) for path in written}
                self.disk.sync(temporary / PARTS)
            about = {"format": FORMAT, "step": step, "score": score, "files": sums}
            self.disk.write(temporary / "manifest.json", iter([seal(about).encode()]))
            self.disk.sync(temporary)
            self.disk.rename(temporary, target)
            self.disk.sync(self.folder)
        except OSError as error:
            full = f"the disk is full: a checkpoint needs {size:,} bytes"
            what = full if is_disk_full(error) else f"{error.strerror or error}"
            shutil.rmtree(temporary, ignore_errors=True)
            fix = advise_on_write(error, "go on with --resume")
            fix += "; earlier checkpoints are whole" if self.folder.is_dir() else ""
            raise Error(f"step {step} could not be written ({what})", where=target, fix=fix) from None
        if not state.get("skipped"):  # else the weights may be ruined, and the good ones are needed
            self.retire()
        return target

    def put(self, path: Path, chunks: Iterator[bytes | memoryview]) -> dict[str, Any]:
        """Write a file; its size and sum."""
        digest, size = hashlib.sha256(), 0

        def counted() -> Iterator[bytes | memoryview]:
            nonlocal size
            for chunk in chunks:
                digest.update(chunk)
                size += len(chunk)
                yield chunk

        self.disk.write(path, counted())
        return {"size": size, "sha256": digest.hexdigest()}

    def manifest(self, step: int) -> dict[str, Any]:
        """What a step's folder says of itself; an Error if that cannot be read."""
        where = self.path(step) / "manifest.json"
        try:
            about = unseal(where)
            if about.get("step") != step:
                raise Error(f"is of step {about.get('step')}")
        except Error:
            raise Error("the manifest is broken", where=where, fix="the checkpoint before it will be used") from None
        if about.get("format") != FORMAT:
            what = f"format {about.get('format')} is not the one that is read here ({FORMAT})"
            raise Error(what, where=where, fix="use the version of formers that wrote it")
        return about

    def scores(self) -> dict[int, float | None]:
        """The score of each step, oldest first."""
        scores: dict[int, float | None] = {}
        for step in self.steps():
            try:
                scores[step] = self.manifest(step).get("score")
            except Error:
                scores[step] = None
        return scores

    def retire(self) -> None:
        """Take away the checkpoints that are no longer wanted."""
        scores = self.scores()
        ranked = sorted((score, step) for step, score in scores.items() if score is not None)
        kept = {*list(scores)[-self.last :], *(step for _, step in ranked[: self.best])}
        kept |= {*list(scores)[-2:]} if len(kept) < 2 else set()
        for step in scores:
            if step not in kept and not (self.every and step % self.every == 0):
                with suppress(OSError):  # it is no longer needed: that it stays must not stop a run
                    self.disk.remove(self.path(step))

    def load(self, step: int, whole: bool = True) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """A step's tensors by file, and its state; an Error names what is broken. Those that lie in parts are put
        together, or else have no content: every process reads its own."""
        groups, state = {}, {}
        files = self.manifest(step)["files"]
        for name, wanted in files.items():
            path = self.path(step) / (PARTS if name.startswith(f"{PARTS}/") else "") / Path(name).name
            try:
                data = path.read_bytes() if path.parent == self.path(step) else None
                found = summed(path) if data is None else sum_of(data)
            except OSError as error:
                raise Error(f"cannot be read ({error.strerror})", where=path, fix="take an earlier step") from None
            if found != wanted:
                raise Error("is damaged: its sum is not that of the manifest", where=path, fix="take an earlier step")
            if name == "state.json" and data is not None:
                state = json.loads(data)
            elif data is not None:
                groups[path.stem] = load(data)
        if any(name.startswith(f"{PARTS}/") for name in files):
            from . import cut

            groups |= (cut.read if whole else cut.outline)(self.path(step))
        return groups, state

    def newest(self, say: Any = None, whole: bool = True) -> Found | None:
        """The newest whole checkpoint: its step, tensors and state. What is broken is passed over and told."""
        return self.first(reversed(self.steps()), say, whole)

    def leading(self) -> Found | None:
        """The whole checkpoint with the best score, the newest if none has one."""
        scores = self.scores()
        ranked = sorted(scores, key=lambda step: (scores[step] is None, scores[step] or 0.0, -step))
        return self.first(ranked)

    def first(self, steps: Iterable[int], say: Any = None, whole: bool = True) -> Found | None:
        """The first of some checkpoints that is whole."""
        for step in steps:
            try:
                return step, *self.load(step, whole)
            except Error as error:
                if say is not None:
                    say(f"passing over {error}")
        return None

    def part_with(self, after: int) -> None:
        """Put aside what is behind a step, broken or of no use, so that it can be written anew."""
        for step in self.steps():
            if step > after:
                aside = self.folder / f"broken-{step:08d}"
                shutil.rmtree(aside, ignore_errors=True)
                os.rename(self.path(step), aside)


class Writer:
    """Saves in the background: the state is copied at once, the disk has its time while training goes on."""

    def __init__(self, checkpoints: Checkpoints, parts: Any = None):
        self.checkpoints, self.parts = checkpoints, parts
        self.thread: threading.Thread | None = None
        self.failed: BaseException | None = None

    def save(self, step: int, groups: Groups, state: Mapping[str, Any], score: float | None = None) -> None:
        """Copy, and write when the one before is through."""
        self.wait()
        groups = {n: {k: t.detach().to("cpu", copy=True) for k, t in part.items()} for n, part in groups.items()}
        plain = json.loads(json.dumps(state))
        self.thread = threading.Thread(target=self.run, args=(step, groups, plain, score, self.parts))
        self.thread.start()

    def run(self, *given: Any) -> None:
        """What the thread does."""
        try:
            self.checkpoints.save(*given)
        except BaseException as error:
            self.failed = error

    def wait(self) -> None:
        """Until all is on the disk; raises what went wrong there."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        if self.failed is not None:
            error, self.failed = self.failed, None
            raise error
