"""The main process is killed with -9: every process that it started ends within seconds, whatever it does just then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PATIENCE = 20  # seconds; half a second is what it takes
pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")

STARTER = """
import os, sys, threading, time
from pathlib import Path
from formers.data.loader import WorkerPool
from formers.data.preparation.document_encoder import EncoderPool, PrepareOptions
from formers.interop import sandbox
from formers.text.worker_processes import ProcessPool
from formers.registry import train_tokenizer

folder = Path(sys.argv[1])
pools = {how: WorkerPool(2, time.sleep, 1, how) for how in ("fork", "spawn")}
for pool in pools.values():  # the first of each is at work
    pool.pipes[0].send(600)
counters = ProcessPool(2)
counters.submit(time.sleep, 600)
counters.submit(os.getpid).result()  # and this one waits for something to do
def late():
    pools["thread"] = WorkerPool(1, time.sleep, 1)
    late_pools.append(ProcessPool(1))
    late_pools[0].submit(time.sleep, 600)
    late_pools[0].submit(time.sleep, 0)
late_pools = []
helper = threading.Thread(target=late)
helper.start(); helper.join()  # the thread that started them is gone, and they are not
tokenizer = train_tokenizer("bert", ["some words for a small tokenizer"] * 9, 60)
encoders = EncoderPool(2, tokenizer, PrepareOptions(splitter=None), folder)
encoders.__enter__()
encoders.executor.submit(time.sleep, 600)
encoders.executor.submit(len, "").result()
(folder / "source").write_text("")
code = "import time; time.sleep(600)"
inputs = (code, folder / "source", folder / "t", 600, "", "")
threading.Thread(target=sandbox.run_converter, args=inputs, daemon=True).start()
time.sleep(1.5)
print("ready", *(p.pid for name in ("fork", "thread") for p in pools[name].processes), flush=True)
time.sleep(600)
"""


def list_descendants(pid: int) -> dict[int, str]:
    """The processes that a process has started, and those started by them, with their command lines."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = (int(stat[1]), (entry / "cmdline").read_bytes().decode().replace("\0", " "))
            except OSError:
                continue
    found: dict[int, str] = {}
    while more := {p: line for p, (parent, line) in parents.items() if parent in (pid, *found) and p not in found}:
        found |= more
    return found


def is_alive(pid: int) -> bool:
    """It runs, and is no zombie that only waits to be counted."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_no_child_outlives_a_killed_parent(tmp_path):
    starter = subprocess.Popen([sys.executable, "-c", STARTER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    left: dict[int, str] = {}
    try:
        assert starter.stdout is not None
        word, *forked = starter.stdout.readline().split()
        assert word == "ready"
        left = list_descendants(starter.pid)
        assert set(map(int, forked)) < set(left)
        spawned = [line for line in left.values() if "spawn_main" in line]
        assert len(spawned) == 7, "two of a pool, two that count, one of a thread, two that encode"
        assert sum("time.sleep(600)" in line for line in left.values()) >= 1, "a converter"
        starter.send_signal(signal.SIGKILL)
        starter.wait()
        end = time.monotonic() + PATIENCE
        while (alive := [line for pid, line in left.items() if is_alive(pid)]) and time.monotonic() < end:
            time.sleep(0.1)
        assert not alive, alive
    finally:
        starter.kill()
        starter.wait()
        starter.stdout.close()
        for pid in filter(is_alive, left):
            os.kill(pid, signal.SIGKILL)
