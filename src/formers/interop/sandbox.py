"""Processes of their own for files whose format is risky to read: bounded memory, time and output, and an audit hook.

No torch here: such a process starts quickly and has little in it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import Error

INHERITED_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR", "TEMP")
HARMLESS_EVENTS = {"object.__getattr__", "object.__setattr__", "object.__delattr__", "sys._getframe", "builtins.id"}


@contextmanager
def make_temporary_folder() -> Iterator[Path]:
    """A folder that is gone afterwards."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="formers-", ignore_cleanup_errors=True)
    except OSError as error:
        what = f"there is no place for temporary files ({error.strerror or error})"
        raise Error(what, fix="set TMPDIR to a folder on a disk with room") from None
    with folder as name:
        yield Path(name)


def run_converter(code: str, source: Path, target: Path, seconds: int, what: str, fix: str) -> None:
    """Run a converter, a line of Python that makes `target` out of `source`; `what` it is that may be refused."""
    if not source.is_file():
        raise Error("the file is missing", where=source, fix="is the download complete?")
    environment = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    environment |= {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1"}
    code = f"from formers.text.worker_processes import exit_with_parent; exit_with_parent({os.getpid()}); {code}"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            env=environment,
            cwd=target.parent,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Error(f"converting {what} took more than {seconds} s", where=source, fix="do not use this file") from None
    except OSError as error:
        raise Error(f"the converter cannot run ({error.strerror or error})", where=source, fix="try again") from None
    if done.returncode or not target.is_file():
        lines = done.stderr.strip().splitlines()
        raise Error(
            f"{what} was refused ({lines[-1][:200] if lines else f'exit {done.returncode}'})",
            where=source,
            fix=fix,
        )


def exit_process(refusal: str = "") -> None:
    """Leave the process at once: nothing that a file may have left behind runs on the way out."""
    os.write(2, " ".join(refusal.split()).encode(errors="replace"))
    os._exit(1 if refusal else 0)


def confine_process(source: str, folder: Path, memory: int, output: int, seconds: int) -> None:
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

    def audit_event(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            if path.startswith(home + os.sep) or (path == own and not arguments[2] & writing):
                return
            exit_process(f"it tried to open {path}")
        if event not in HARMLESS_EVENTS:
            exit_process(f"it tried {event}")

    sys.addaudithook(audit_event)
