"""pytorch_model.bin, on an explicit word only: converted to safetensors by a process of its own, with limits.

`weights_only` alone is no boundary. The process that unpickles has bounded memory, time and output, and an audit hook
that ends it at the first thing beyond reading the one file and writing into its own folder: no import, no program, no
socket, no other file. What it hands over is a safetensors file, which is checked like any other.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import Error
from . import safe

SINGLE, INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
SECONDS, MEMORY = 600, 2**30  # memory beyond what the libraries take, and
COPIES = 4  # as many times the file: T5 may name its largest tensor four times
INHERITED = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR", "TEMP")
HARMLESS = {"object.__getattr__", "object.__setattr__", "object.__delattr__", "sys._getframe", "builtins.id"}
PROGRAM = "from formers.interop.unpickle import main; main({source!r}, {target!r}, {memory}, {seconds})"


@contextmanager
def opened(where: Path, pickle: bool) -> Iterator[safe.Weights]:
    """The weights of a folder: its safetensors, or, only if there are none and a pickle is allowed, converted ones."""
    ready = any(safe.exists(where, name) for name in ("model.safetensors", "model.safetensors.index.json"))
    single, sharded = safe.exists(where, SINGLE), safe.exists(where, INDEX)
    if ready or not pickle or not (single or sharded):
        yield safe.Weights(where)
        return
    shards = [SINGLE] if single else list(safe.shards(where, INDEX))
    with scratch() as folder:
        table: dict[str, str] = {}
        for number, name in enumerate(shards):
            target = folder / f"shard-{number}.safetensors"
            convert(safe.member(where, name), target)
            table |= dict.fromkeys(safe.header(target), target.name)
        safe.write_json(folder / "model.safetensors.index.json", {"weight_map": table})
        yield safe.Weights(folder)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is gone afterwards."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="formers-", ignore_cleanup_errors=True)
    except OSError as error:
        what = f"there is no place for temporary files ({error.strerror or error})"
        raise Error(what, fix="set TMPDIR to a folder on a disk with room") from None
    with folder as name:
        yield Path(name)


def convert(source: Path, target: Path) -> None:
    """Run the converter on one file."""
    if not source.is_file():
        raise Error("the file is missing", where=source, fix="is the download complete?")
    code = PROGRAM.format(source=str(source.resolve()), target=str(target), memory=MEMORY, seconds=SECONDS)
    environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
    environment |= {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            env=environment,
            cwd=target.parent,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Error(
            f"converting the pickle took more than {SECONDS} s", where=source, fix="do not use this file"
        ) from None
    except OSError as error:
        raise Error(f"the converter cannot run ({error.strerror or error})", where=source, fix="try again") from None
    if done.returncode or not target.is_file():
        lines = done.stderr.strip().splitlines()
        raise Error(
            f"the pickle was refused ({lines[-1][:200] if lines else f'exit {done.returncode}'})",
            where=source,
            fix="do not use this file unless you trust its author",
        )


def main(source: str, target: str, memory: int, seconds: int) -> None:
    """Inside the process: limit it, unpickle tensors only, write safetensors."""
    import warnings

    import torch
    from safetensors.torch import save_file

    warnings.simplefilter("ignore")  # to show one, Python reads other files
    rehearse(Path(target).with_name("rehearsal.bin"))
    size = os.path.getsize(source)
    confine(source, Path(target).parent, memory + 2 * COPIES * size, COPIES * size + 2**24, seconds)
    try:
        loaded = torch.load(source, map_location="cpu", weights_only=True, mmap=False)
        loaded = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else loaded
        if not isinstance(loaded, dict) or not all(
            isinstance(k, str) and isinstance(v, torch.Tensor) for k, v in loaded.items()
        ):
            raise Error("it does not hold a table of tensors")
        claimed = sum(value.numel() * value.element_size() for value in loaded.values())
        if claimed > COPIES * size:
            raise Error(f"its tensors claim {claimed:,} bytes, the file has {size:,}")
        save_file({key: value.detach().clone().contiguous() for key, value in loaded.items()}, target)
    except BaseException as error:
        end(reason(error))
    end()


def rehearse(path: Path) -> None:
    """Do it once with an honest file: what torch imports on first use is imported before the door closes."""
    import torch
    from safetensors.torch import save_file

    for modern in (True, False):
        torch.save({"x": torch.nn.Parameter(torch.zeros(1))}, path, _use_new_zipfile_serialization=modern)
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=False)
        save_file({"x": loaded["x"].detach().clone().contiguous()}, path)
    os.remove(path)


def reason(error: BaseException) -> str:
    """One line out of torch's several: which global it will not have, or what else is wrong."""
    text = str(error)
    if isinstance(error, Error):
        return text
    if asked := re.search(r"GLOBAL (\S+)", text):
        return f"it asks for {asked[1]}"
    inner = re.search(r"WeightsUnpickler error:\s*(.+)", text)
    lines = (inner[1] if inner else text).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def end(refusal: str = "") -> None:
    """Leave the process at once: nothing that a file may have left behind runs on the way out."""
    os.write(2, " ".join(refusal.split()).encode(errors="replace"))
    os._exit(1 if refusal else 0)


def confine(source: str, folder: Path, memory: int, output: int, seconds: int) -> None:
    """Limits for this process: memory beyond today's, bytes of a file, time, and what it may touch."""
    with suppress(ImportError):  # Windows has no such limits; the audit hook stands
        import resource

        wanted = {"FSIZE": output, "CPU": seconds, "CORE": 0}
        with suppress(OSError):  # where the system says what is mapped now
            mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            wanted["AS"] = mapped + memory
        for name, value in wanted.items():
            limit = getattr(resource, f"RLIMIT_{name}")
            _, most = resource.getrlimit(limit)
            value = value if most == resource.RLIM_INFINITY else min(value, most)
            resource.setrlimit(limit, (value, value))
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    own, home = os.path.realpath(source), os.path.realpath(folder)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            if path.startswith(home + os.sep) or (path == own and not arguments[2] & writing):
                return
            end(f"it tried to open {path}")
        if event not in HARMLESS:
            end(f"it tried {event}")

    sys.addaudithook(hook)
