"""A crash at any write, a power loss at any moment, a full disk, flipped bits: the newest whole checkpoint is found.

The long form (make faults) tries every place and prints its count.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import threading
from pathlib import Path

import pytest
import torch

from formers import Error
from formers.atomic_files import to_checked_json
from formers.training.checkpoint import local
from formers.training.checkpoint.local import TEMPORARY_PREFIX, BackgroundWriter, Checkpoints, FileSystem


def make_content(step):
    g = torch.Generator().manual_seed(step)
    weights = {"a": torch.randn(7, 5, generator=g), "b": torch.randn(3, generator=g).bfloat16(), "none": torch.zeros(0)}
    moments = {"a.exp_avg": torch.randn(7, 5, generator=g), "rng": torch.randint(0, 255, (50,), generator=g).byte()}
    return {"model": weights, "optimizer": moments}, {"step": step, "position": step * 11, "note": "가나다"}


def check_content(found, step):
    groups, state = make_content(step)
    got, read = found
    assert read == state
    assert {name: set(part) for name, part in got.items()} == {name: set(part) for name, part in groups.items()}
    assert all(
        torch.equal(got[n][k], t) and got[n][k].dtype == t.dtype for n, p in groups.items() for k, t in p.items()
    )


def test_there_and_back(tmp_path):
    kept = Checkpoints(tmp_path / "steps")
    assert kept.load_newest() is None
    kept.save(3, *make_content(3))
    kept.save(12, *make_content(12))
    step, *found = kept.load_newest()
    assert step == 12
    check_content(found, 12)
    check_content(kept.load(3), 3)
    assert kept.save(12, *make_content(12)) == kept.get_step_path(12)  # once more: it is there


def test_retention(tmp_path):
    kept = Checkpoints(tmp_path, keep_last=2, keep_best=1, keep_every=10)
    for step, score in ((5, 1.0), (10, 9.0), (15, 0.5), (20, 3.0), (25, 2.0), (30, 4.0), (35, 6.0)):
        kept.save(step, *make_content(step), score=score)
    assert kept.list_steps() == [10, 15, 20, 30, 35]
    assert kept.load_best()[0] == 15
    assert not list(tmp_path.glob(f"{TEMPORARY_PREFIX}*"))


def test_at_least_two_are_kept_and_none_retires_within_a_streak(tmp_path):
    kept = Checkpoints(tmp_path, keep_last=1, keep_best=1)
    for step, score in ((1, 3.0), (2, 2.0), (3, 1.0), (4, None)):
        kept.save(step, *make_content(step), score=score)
    assert kept.list_steps() == [3, 4]
    for step in (5, 6):
        groups, state = make_content(step)
        kept.save(step, groups, {**state, "bad_steps": step - 4})
    assert kept.list_steps() == [3, 4, 5, 6], "these may hold ruined weights"
    kept.save(7, *make_content(7), score=0.5)
    assert kept.list_steps() == [6, 7]


class Broken(FileSystem):
    """Fails at the n-th call, in the middle of a file if it is a write; after that the process is dead."""

    def __init__(self, at, error=None):
        self.at, self.count, self.error = at, 0, error or KeyboardInterrupt()

    def turn(self):
        self.count += 1
        return self.count == self.at

    def write(self, path, chunks):
        if self.turn():
            chunk = bytes(next(iter(chunks)))
            path.write_bytes(chunk[: len(chunk) // 2])
            raise self.error
        super().write(path, chunks)

    def make_folder(self, path):
        if self.turn():
            raise self.error
        super().make_folder(path)

    def rename(self, old, new):
        if self.turn():
            raise self.error
        super().rename(old, new)

    def sync(self, folder):
        if self.turn():
            raise self.error
        super().sync(folder)

    def remove(self, folder):
        if self.turn():
            for file in sorted(folder.iterdir())[:1]:
                file.unlink()
            raise self.error
        super().remove(folder)


def count_calls(tmp_path):
    disk = Broken(0)
    kept = Checkpoints(tmp_path / "count", keep_last=1, keep_best=0, file_system=disk)
    for step in (1, 2, 3):  # the third retires the first
        kept.save(step, *make_content(step))
    return disk.count


def save_three_steps(kept, kind):
    """Save three steps as far as it goes: how many did, and what was said."""
    done = 0
    try:
        for step in (1, 2, 3):
            kept.save(step, *make_content(step))
            done = step
    except kind as error:
        return done, str(error)
    return done, ""


def test_killed_at_every_call(tmp_path):
    total = count_calls(tmp_path)
    assert total > 12
    for at in range(1, total + 1):
        folder = tmp_path / f"kill{at}"
        kept = Checkpoints(folder, keep_last=1, keep_best=0, file_system=Broken(at))
        done = save_three_steps(kept, KeyboardInterrupt)[0]
        assert done < 3
        again = Checkpoints(folder, keep_last=1, keep_best=0)
        assert not list(folder.glob(f"{TEMPORARY_PREFIX}*"))
        found = again.load_newest()
        if found is None:
            assert done == 0
            continue
        assert found[0] >= done
        check_content(found[1:], found[0])


def test_disk_full_at_every_write(tmp_path):
    total, seen = count_calls(tmp_path), 0
    for at in range(1, total + 1):
        folder = tmp_path / f"full{at}"
        kept = Checkpoints(
            folder, keep_last=1, keep_best=0, file_system=Broken(at, OSError(errno.ENOSPC, "No space left on device"))
        )
        done, error = save_three_steps(kept, Error)
        assert done == 3 or all(word in error for word in ("bytes", str(folder), "--resume"))
        seen += bool(error)
        found = Checkpoints(folder).load_newest()
        if found is not None:
            check_content(found[1:], found[0])
    assert seen > 8


class Recorder(FileSystem):
    """Notes what is done, in order, to be played again up to any point."""

    def __init__(self):
        self.log = []

    def write(self, path, chunks):
        data = b"".join(bytes(chunk) for chunk in chunks)
        self.log += [("write", path, data), ("fsync", path, None)]
        super().write(path, iter([data]))

    def make_folder(self, path):
        self.log.append(("make", path, None))
        super().make_folder(path)

    def rename(self, old, new):
        self.log.append(("rename", old, new))
        super().rename(old, new)

    def sync(self, folder):
        self.log.append(("sync", folder, None))
        super().sync(folder)


def replay_power_loss(log, root, rng):
    """The disk after a power loss: what was synced is there; of the rest, some files are lost, cut or zero."""
    synced = {path for kind, path, _ in log if kind == "fsync"}
    where = {}
    for kind, path, more in log:
        if kind == "make":
            (root / path.name).mkdir()
        elif kind == "write":
            data = more
            if path not in synced:
                data = rng.choice([b"", more[: len(more) // 2], bytes(len(more)), more])
            target = where.get(path.parent, root / path.parent.name) / path.name
            target.write_bytes(data)
        elif kind == "rename":
            os.rename(root / path.name, root / more.name)
            where[path] = root / more.name


def test_power_loss_at_every_moment(tmp_path):
    disk = Recorder()
    kept = Checkpoints(tmp_path / "run", keep_last=9, file_system=disk)
    for step in (1, 2, 3):
        kept.save(step, *make_content(step))
    rng = random.Random(0)
    renames = [i for i, (kind, *_) in enumerate(disk.log) if kind == "rename"]
    for stop in range(len(disk.log) + 1):
        root = tmp_path / f"after{stop}"
        root.mkdir()
        replay_power_loss(disk.log[:stop], root, rng)
        found = Checkpoints(root, keep_last=9).load_newest()
        whole = sum(i < stop for i in renames)
        assert (found is None) == (whole == 0)
        if found is not None:
            assert found[0] == whole
            check_content(found[1:], whole)
        shutil.rmtree(root)


def test_flips_and_truncations_are_noticed(tmp_path, request):
    count = 1000 if request.config.getoption("--full") else 60
    kept = Checkpoints(tmp_path, keep_last=9)
    for step in (1, 2):
        kept.save(step, *make_content(step))
    rng, files, told = random.Random(1), sorted(kept.get_step_path(2).iterdir()), []
    silent = 0
    for turn in range(2 * count):
        path = rng.choice(files)
        before = path.read_bytes()
        if turn % 2:
            after = bytearray(before)
            after[rng.randrange(len(after))] ^= 1 << rng.randrange(8)
        else:
            after = before[: rng.randrange(len(before))]
        path.write_bytes(after)
        step, *found = kept.load_newest(told.append)
        if step == 2:  # a flip in the manifest that leaves its meaning
            meaning = json.loads(bytes(after)) if path.name == "manifest.json" else None
            silent += meaning is None
            check_content(found, 2)
        else:
            check_content(found, 1)
        path.write_bytes(before)
    print(f"\n{count} flips and {count} truncations: {silent} silent, {len(told)} passed over")
    assert silent == 0
    assert len(told) > 1.8 * count


def test_in_the_background(tmp_path):
    kept = Checkpoints(tmp_path)
    writer = BackgroundWriter(kept)
    groups, state = make_content(4)
    writer.save(4, groups, state)
    groups["model"]["a"].zero_()  # training continues meanwhile
    writer.wait()
    check_content(kept.load(4), 4)
    kept.file_system = Broken(2, OSError(errno.ENOSPC, "No space left on device"))
    writer.save(5, *make_content(5))
    with pytest.raises(Error, match="the disk is full"):
        writer.wait()
    assert kept.load_newest()[0] == 4
    writer.wait()


def test_two_in_the_background_are_written_in_turn(tmp_path, monkeypatch):
    """As on a GPU: the copies lie in one block, and a second save does not wait for the first."""
    monkeypatch.setattr(local, "is_packed", lambda tensor: tensor.numel() > 0)
    kept, started, go = Checkpoints(tmp_path), threading.Event(), threading.Event()
    real = kept.file_system.make_folder

    def make_folder(path):
        started.set()
        go.wait(60)
        real(path)

    kept.file_system.make_folder = make_folder
    writer = BackgroundWriter(kept)
    monkeypatch.setattr(local, "has_room_for_copy", lambda groups: True)
    contents = {step: make_content(step) for step in (4, 5)}
    with monkeypatch.context() as patch:
        patch.setattr(writer, "wait", lambda most: None)
        for step, (groups, state) in contents.items():
            writer.save(step, groups, state)
            for part in groups.values():
                for tensor in part.values():
                    tensor.zero_()
    assert started.wait(60)
    assert kept.list_steps() == []
    go.set()
    writer.wait()
    for step in contents:
        check_content(kept.load(step), step)


def test_a_checkpoint_of_an_earlier_format_is_refused_and_left_alone(tmp_path):
    """It is intact: to pass it over would begin the run anew, and put it aside as broken."""
    kept = Checkpoints(tmp_path)
    for step in (1, 2):
        kept.save(step, *make_content(step))
    manifest = kept.get_step_path(2) / "manifest.json"
    about = json.loads(manifest.read_text()) | {"format": 1}
    about.pop("seal")
    manifest.write_text(to_checked_json(about))
    said = []
    for load in (lambda: kept.load_newest(said.append), kept.load_best):
        with pytest.raises(Error, match="checkpoint format 1 is not supported. Train again with --overwrite"):
            load()
    assert not said
    assert kept.list_steps() == [1, 2]


def test_other_formats_and_places(tmp_path):
    kept = Checkpoints(tmp_path)
    kept.save(1, *make_content(1))
    about = json.loads((kept.get_step_path(1) / "manifest.json").read_text()) | {"format": 9}
    about.pop("seal")
    (kept.get_step_path(1) / "manifest.json").write_text(to_checked_json(about))
    with pytest.raises(Error, match="checkpoint format 9 is not supported.* pip install --upgrade formers"):
        kept.load(1)
    (tmp_path / "file").write_text("")
    with pytest.raises(Error, match="cannot write here"):
        Checkpoints(tmp_path / "file")
    assert isinstance(kept.folder, Path)
