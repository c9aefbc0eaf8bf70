"""Peers side by side in one process run: each work is timed for formers and for the peer, and the ratio printed.

Times of different runs on a shared machine do not compare; ratios inside one run do. On a CPU the candidates of one
work take turns, so that a noisy neighbour disturbs all of them alike.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

BACKGROUND = "FORMERS_BACKGROUND"  # variable with a process that waits, with all it started, while something is timed


def exit_with_help(text: str | None) -> None:
    """Print a benchmark's docstring and end, if the command line asks for help."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print((text or "").strip())
        sys.exit()


def describe_machine() -> dict[str, Any]:
    """What the figures belong to."""
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = "?"
    device = (
        torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    )
    return {"commit": commit, "torch": torch.__version__, "device": device}


@dataclass
class Timing:
    """Seconds of one candidate: the median of its repetitions."""

    name: str
    seconds: float
    units_per_second: float
    detail: dict[str, Any] = field(default_factory=dict)


def synchronise_gpu() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def time_median(step: Callable[[], Any], warm: int, repeat: int) -> float:
    """The median time of a step after some warmup steps."""
    for _ in range(warm):
        step()
    synchronise_gpu()
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        step()
        synchronise_gpu()
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2]


def wait_for_turn() -> None:
    """In a process of run_in_turns: say that all is compiled, then wait until the others are quiet."""
    folder = Path(os.environ.get("FORMERS_TURNS", ""))
    if folder.name:
        synchronise_gpu()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        (folder / f"{os.getpid()}.ready").touch()
        while not (folder / f"{os.getpid()}.go").exists():
            time.sleep(0.05)


def run_in_turns(commands: Sequence[Sequence[str]], at_once: int, seconds: float = math.inf) -> Iterator[str]:
    """Start processes, `at_once` at a time. Whichever calls wait_for_turn first is timed first: the others are stopped
    meanwhile, so that nothing disturbs it, and continue then. Yield what each wrote to its standard output; those
    that have not ended after so many seconds are killed."""
    deadline, waiting, started = time.monotonic() + seconds, list(commands), list[subprocess.Popen[str]]()
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"FORMERS_TURNS": folder}
        try:
            while (waiting or started) and time.monotonic() < deadline:
                while waiting and len(started) < at_once:
                    command = waiting.pop(0)
                    started.append(
                        subprocess.Popen(command, stdout=subprocess.PIPE, env=env, text=True, start_new_session=True)
                    )
                ready = (p for p in started if p.poll() is not None or (Path(folder) / f"{p.pid}.ready").exists())
                if (process := next(ready, None)) is None:
                    time.sleep(0.05)
                    continue
                started.remove(process)
                signal_groups(started, signal.SIGSTOP)
                signal_background(signal.SIGSTOP)
                try:
                    (Path(folder) / f"{process.pid}.go").touch()
                    yield process.communicate(timeout=max(0.1, min(deadline - time.monotonic(), 1e6)))[0]
                except subprocess.TimeoutExpired:
                    started.append(process)
                    break
                finally:
                    signal_groups(started, signal.SIGCONT)
                    signal_background(signal.SIGCONT)
        finally:
            signal_groups(started, signal.SIGKILL)


def run_one_ahead(commands: Sequence[Sequence[str]], seconds: float) -> Iterator[int | None]:
    """Run processes that print for themselves one after the other, the next one begun before: it imports and reads
    its text up to wait_for_turn while the one before has the GPU. Yield how each ended, None for one that was killed
    after so many seconds of its turn."""
    waiting, started = list(commands), list[subprocess.Popen[bytes]]()
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"FORMERS_TURNS": folder}
        try:
            while waiting or started:
                while waiting and len(started) < 2:
                    started.append(subprocess.Popen(waiting.pop(0), env=env))
                (Path(folder) / f"{started[0].pid}.go").touch()
                try:
                    code: int | None = started[0].wait(seconds)
                except subprocess.TimeoutExpired:
                    started[0].kill()
                    started[0].wait()
                    code = None
                started.pop(0)
                yield code
        finally:
            for process in started:
                process.kill()
                process.wait()


def signal_background(number: signal.Signals) -> None:
    """Send a signal to the processes in the background, if there are any, and to all that they have started: some of
    these lead groups of their own."""
    if group := os.environ.get(BACKGROUND):
        for process in list_descendants(int(group)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, number)


def list_descendants(root: int) -> list[int]:
    """Return a process, the members of its group and of its session, and all their descendants (Linux)."""
    children: dict[int, list[int]] = {}
    found = [root]
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            parent, *group_and_session = (int(word) for word in stat.read_text().rpartition(")")[2].split()[1:4])
            process = int(stat.parent.name)
            children.setdefault(parent, []).append(process)
            found += [process] if root in group_and_session and process != root else []
    for process in found:  # grows while it is read
        found += [child for child in children.get(process, ()) if child not in found]
    return found


def signal_groups(processes: Sequence[subprocess.Popen[str]], number: signal.Signals) -> None:
    """Send a signal to processes that lead a group of their own, and to all that they have started."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        if number == signal.SIGKILL:
            process.wait()


def time_in_turns(
    work: str,
    units: int,
    candidates: dict[str, Callable[[], Any]],
    rounds: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Timing]:
    """Time candidates in turns; the best of the rounds counts, since noise only ever adds."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for step in candidates.values():
        step()
    for _ in range(rounds):
        for name, step in candidates.items():
            began = clock()
            step()
            times[name].append(clock() - began)
    timings = [Timing(name, min(t), units / min(t)) for name, t in times.items()]
    print_timings(work, timings)
    return timings


def print_timings(work: str, timings: list[Timing]) -> None:
    """One JSON line per candidate, with its ratio to the first."""
    for timing in timings:
        line = {
            "work": work,
            "candidate": timing.name,
            "per_second": round(timing.units_per_second, 1),
            "ms": round(timing.seconds * 1e3, 2),
        }
        if timing is not timings[0]:
            line["ratio"] = round(timing.units_per_second / timings[0].units_per_second, 3)
        print(json.dumps(line | timing.detail), flush=True)
