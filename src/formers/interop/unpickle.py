"""pytorch_model.bin, on an explicit word only: converted to safetensors by a process of its own, with limits.

`weights_only` alone is no boundary. The process that unpickles has bounded memory and time, and an audit hook that
ends it at the first attempt to start a program, open a socket or write anywhere but into its own folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import Error
from . import safe

SINGLE, INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
SECONDS, MEMORY = 600, 8 * 2**30


@contextmanager
def opened(where: Path, pickle: bool) -> Iterator[safe.Weights]:
    """The weights of a folder: its safetensors, or, only if there are none and a pickle is allowed, converted ones."""
    ready = any(safe.exists(where, name) for name in ("model.safetensors", "model.safetensors.index.json"))
    single, sharded = safe.exists(where, SINGLE), safe.exists(where, INDEX)
    if ready or not pickle or not (single or sharded):
        yield safe.Weights(where)
        return
    shards = {SINGLE: None} if single else safe.shards(where, INDEX)
    with tempfile.TemporaryDirectory(prefix="formers-") as temporary:
        folder, table = Path(temporary), dict[str, str]()
        for number, name in enumerate(shards):
            target = folder / f"shard-{number}.safetensors"
            convert(safe.member(where, name), target)
            table |= dict.fromkeys(safe.header(target), target.name)
        safe.write_json(folder / "model.safetensors.index.json", {"weight_map": table})
        yield safe.Weights(folder)


def convert(source: Path, target: Path) -> None:
    """Run the converter on one file."""
    if not source.is_file():
        raise Error("the file is missing", where=source, fix="is the download complete?")
    code = f"from formers.interop.unpickle import main; main({str(source.resolve())!r}, {str(target)!r})"
    environment = {
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "OMP_NUM_THREADS": "1",
        "PATH": os.environ.get("PATH", ""),
    }
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env=environment,
            cwd=target.parent,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Error(
            f"converting the pickle took more than {SECONDS} s", where=source, fix="do not use this file"
        ) from None
    if done.returncode or not target.is_file():
        lines = done.stderr.strip().splitlines()
        raise Error(
            f"the pickle was refused ({lines[-1][:200] if lines else f'exit {done.returncode}'})",
            where=source,
            fix="do not use this file unless you trust its author",
        )


def main(source: str, target: str) -> None:
    """Inside the process: limit it, unpickle tensors only, write safetensors."""
    import torch
    from safetensors.torch import save_file

    torch.zeros(1).clone()  # what torch loads on first use is loaded before the door closes
    confine(Path(target).parent, os.path.getsize(source))
    loaded = torch.load(source, map_location="cpu", weights_only=True, mmap=False)
    loaded = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else loaded
    if not isinstance(loaded, dict) or not all(
        isinstance(k, str) and isinstance(v, torch.Tensor) for k, v in loaded.items()
    ):
        raise SystemExit("it does not hold a table of tensors")
    save_file({key: value.detach().clone().contiguous() for key, value in loaded.items()}, target)


def confine(folder: Path, size: int) -> None:
    """Limits for this process: memory, time, and what it may touch."""
    try:
        import resource
    except ImportError:  # Windows has no such limits; the audit hook stands
        pass
    else:
        for limit, value in (
            (resource.RLIMIT_AS, MEMORY + 4 * size),
            (resource.RLIMIT_CPU, SECONDS),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.setrlimit(limit, (value, value))
    forbidden = (
        "socket.",
        "subprocess.",
        "os.system",
        "os.exec",
        "os.fork",
        "os.posix_spawn",
        "os.spawn",
        "os.remove",
        "os.rename",
        "shutil.",
        "ctypes.",
        "urllib.",
        "ftplib.",
        "webbrowser.",
    )

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event.startswith(forbidden):
            os._exit(77)
        if event == "open" and isinstance(arguments[1], str) and any(c in arguments[1] for c in "wxa+"):
            path = Path(os.fsdecode(arguments[0]) if isinstance(arguments[0], str | bytes) else "/").resolve()
            if not path.is_relative_to(folder.resolve()):
                os._exit(77)

    sys.addaudithook(hook)
