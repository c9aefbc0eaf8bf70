"""The machine of a run: its name, its peak speed, and the memory in use."""

from __future__ import annotations

import os
import platform
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from .. import __version__
from ..config import JSONObject
from ..errors import Error, is_out_of_memory
from .distributed.process_group import ProcessGroup
from .train_config import LoopConfig

LEFT_SHARE = 0.03  # share of free memory that is left to the system
LIMIT_SECONDS = 0.5  # between two readings of free memory
CGROUPS = (  # folder, files of the limit and of what is used, and the counts of cached pages that can be given back
    ("/sys/fs/cgroup", "memory.max", "memory.current", ("inactive_file", "active_file")),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     ("total_inactive_file", "total_active_file")),
)  # fmt: skip


@dataclass
class MemoryUse:
    """What is known of a run's use of memory."""

    train: LoopConfig | None = None  # None before the run is built


@contextmanager
def explain_out_of_memory(device: torch.device, parameters: int | None = None) -> Iterator[MemoryUse]:
    """Turn an out-of-memory error within the block into one with sizes and settings to change."""
    use = MemoryUse()
    try:
        with limit_memory(device):
            yield use
    except (MemoryError, OSError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        request = re.search(r"allocate ([\d.,]+ ?[KMGT]?i?(B|bytes))", " ".join(str(error).split()))
        more = f", {request[1]} more were asked for" if request else ""
        size = "the model"
        if parameters is not None:
            size = f"about {parameters:,} parameters ({16 * parameters:,} bytes to train)"
        beside, fix = ("its data", "take a smaller model") if use.train is None else use.train.explain_memory()
        used = f"{get_peak_memory(device) / 2**30:.1f} GiB in use at most{more}"
        raise Error(f"out of memory on {device}: {size} and {beside}; {used}", fix=fix) from None


class MemoryLimit:
    """Limits what this process may ask for to the memory that is free, as long as any block of `limit_memory` is
    active. Linux grants more than there is, and kills a process that then uses it."""

    def __init__(self) -> None:
        self.lock, self.blocks = threading.Lock(), 0
        self.before = (-1, -1)  # soft and hard limit
        self.has_ended = threading.Event()

    def enter(self) -> None:
        """Begin a block; the first one sets the limit and follows what is free."""
        import resource

        with self.lock:
            self.blocks += 1
            if self.blocks == 1:
                self.before, self.has_ended = resource.getrlimit(resource.RLIMIT_DATA), threading.Event()
                with suppress(RuntimeError):  # no memory for another thread: then the limit stays as it is
                    threading.Thread(target=self.follow, args=(self.has_ended,), daemon=True).start()
                self.set_limit()

    def leave(self) -> None:
        """End a block; the last one restores the limit of before."""
        import resource

        with self.lock:
            self.blocks -= 1
            if not self.blocks:
                self.has_ended.set()
                resource.setrlimit(resource.RLIMIT_DATA, self.before)

    def follow(self, has_ended: threading.Event) -> None:
        """Set the limit anew from time to time, until the end."""
        while not has_ended.wait(LIMIT_SECONDS):
            with self.lock:
                if not has_ended.is_set():
                    self.set_limit()

    def set_limit(self) -> None:
        """Set the limit to what is used and what is free; a system that does not tell or allow it has none."""
        import resource

        with suppress(OSError, ValueError, MemoryError):
            free = get_free_memory()
            if free is not None:
                limits = [read_bytes(Path("/proc/self/status"), "VmData") + int((1 - LEFT_SHARE) * free), *self.before]
                lowest = min(limit for limit in limits if limit != resource.RLIM_INFINITY)
                resource.setrlimit(resource.RLIMIT_DATA, (lowest, self.before[1]))


MEMORY_LIMIT = MemoryLimit()  # of the process


@contextmanager
def limit_memory(device: torch.device) -> Iterator[None]:
    """Limit a run on a CPU, under Linux, to the memory that is free: too large a run is then usually an error that can
    be explained, not a process that the system has killed. Processes started within the block inherit the limit."""
    if device.type != "cpu" or sys.platform != "linux" or get_free_memory() is None:
        yield
        return
    MEMORY_LIMIT.enter()
    try:
        yield
    finally:
        MEMORY_LIMIT.leave()


def get_free_memory() -> int | None:
    """Return the bytes that this process could still get, swap included, on Linux: of the machine or of its container,
    whichever has less. None where that cannot be known."""
    try:
        memory = Path("/proc/meminfo")
        free = [read_bytes(memory, "MemAvailable") + read_bytes(memory, "SwapFree")]
        for name, limit, used, cached in CGROUPS:
            folder = Path(name)
            if (folder / limit).is_file() and (most := (folder / limit).read_text().strip()) != "max":
                cache = sum(read_bytes(folder / "memory.stat", pages) for pages in cached)
                free.append(int(most) - int((folder / used).read_text()) + cache)
        return max(0, min(free))
    except (OSError, ValueError):
        return None


def read_bytes(file: Path, name: str) -> int:
    """Read one number of bytes from a file of /proc or of a cgroup: lines of a name and a number, in kB or bytes."""
    for line in file.read_text().splitlines():
        if (words := line.split()) and words[0].rstrip(":") == name:
            return int(words[1]) * (1024 if words[2:] else 1)
    raise ValueError(f"{file} does not say {name}")


@contextmanager
def use_deterministic(is_on: bool) -> Iterator[None]:
    """Make torch deterministic within the block if `is_on`; its earlier settings are restored."""
    before = torch.are_deterministic_algorithms_enabled()
    if is_on:  # torch reads this at its first product on a GPU, and refuses to continue without
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        if not before:  # the call takes torch seconds, so none is made that changes nothing
            torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as error:
        if not is_on or "deterministic" not in str(error):
            raise
        message = " ".join(str(error).split())[:120]
        late = "CuBLAS" in str(error)
        what = "this process has used the GPU before" if late else "not every operation is deterministic here"
        fix = "begin a new one, or set CUBLAS_WORKSPACE_CONFIG=:4096:8 for it" if late else "leave deterministic out"
        raise Error(f"{what} ({message})", fix=fix) from None
    finally:
        if torch.are_deterministic_algorithms_enabled() != before:
            torch.use_deterministic_algorithms(before)


def describe_hardware(world: ProcessGroup) -> JSONObject:
    """Describe machine and software for run.json and the report."""
    device = world.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "formers": __version__, "torch": torch.__version__, "python": platform.python_version(),
        "system": platform.platform(), "device": str(device.type), "name": name, "processes": world.size,
        "threads": torch.get_num_threads(), "command": sys.argv[1:],
    }  # fmt: skip


def get_peak_memory(device: torch.device) -> int:
    """Return the most bytes that were in use so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure_peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Measure in about a tenth of a second how many operations a second a large matrix product reaches."""
    size = 8192 if device.type == "cuda" else 1024
    a = torch.ones(size, size, device=device, dtype=dtype)
    a @ a  # the first one also sets things up
    best, until = 0.0, time.perf_counter() + 0.1
    while not best or time.perf_counter() < until:
        synchronize_device(device)
        began = time.perf_counter()
        a @ a
        synchronize_device(device)
        best = max(best, 2 * size**3 / (time.perf_counter() - began))
    return best


def synchronize_device(device: torch.device) -> None:
    """Wait until the device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
