"""GPU: all measurements of a machine that is there for a limited time, the most important first.

    python -m benchmarks.gpu_suite --seconds 540 --results results.jsonl
    python -m benchmarks.gpu_suite --seconds 540 --results results.jsonl  # again: what is missing or failed
    python -m benchmarks.gpu_suite loop generate --seconds 300
    python -m benchmarks.gpu_suite --background "python scripts/train_shipped.py pretrain CORPORA --work W --out OUT"
    python -m benchmarks.gpu_suite --list

A stage is one of the scripts of benchmarks/ or the GPU tests, with a list of works and a limit of its own; processes
compile side by side and are timed one at a time; stages that time nothing run at the same time. A command in the
background uses the GPU while others compile, and is stopped while something is timed. Every line that a work prints
goes to the results at once, with the stage and the time, so that nothing is lost when the machine is taken back. Works
that have a line without an error are left out when the same results are given again. The run ends in time whatever the
works do. On a CPU tiny models rehearse the same code.

What a machine without a network needs beside the repository: FORMERS_DATA with lm/wikitext2.*; for the peers' loops
accelerate, which can be brought along (pip install --no-deps --target site accelerate, then PYTHONPATH=site). What is
compiled lies in TORCHINDUCTOR_CACHE_DIR: kept and brought along, it saves most of a first step (XLNet 8 s for 74).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from benchmarks.harness import BACKGROUND, signal_background

ROOT = Path(__file__).parents[1]
NINE = ("gpt2", "bert-full", "bert", "t5", "bart", "switch", "xlnet", "albert", "bloom")
MORE_LOOPS = (
    "bert-joined", "bart-pairs", "gpt2-saving", "gpt2-peer", "bert-peer", "bert-full-peer", "albert-peer",
    "xlnet-memory", "transformer-xl",
)  # fmt: skip
OWN_OPTIMIZERS = ("t5-quick", "t5-paper", "albert-paper")
SHORTEST = 20.0  # seconds that are left under which no stage is begun
RESERVE = 5.0  # seconds kept for the end of a process


@dataclass(frozen=True)
class Stage:
    """Works that one command measures: its arguments after `python -m`, made of the works that are left and of the
    seconds that it may take."""

    name: str
    works: tuple[str, ...]
    seconds: float
    build_command: Callable[[Sequence[str], float], list[str]]
    key: str = "work"  # of a line of results, that names the work
    timing: Literal["whole", "turns", "none"] = "whole"  # is it timed from end to end, in run_in_turns, or not at all
    needs: tuple[str, ...] = ()  # packages without which there is nothing to measure

    def find_missing_package(self) -> str | None:
        """Return a package that is needed and not installed."""
        return next((name for name in self.needs if not can_import(name)), None)


def can_import(package: str) -> bool:
    """Return whether a package is installed, without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def build_loop_command(which: str, works: Sequence[str], seconds: float) -> list[str]:
    """Return the command of the whole loop; as many compile at once as memory allows."""
    profile = ["--profile"] if which == "--no-peer" else []
    return ["benchmarks.loop", *works, which, *profile, "--together", str(len(NINE)),
            "--seconds", f"{seconds - RESERVE:.0f}"]  # fmt: skip


def build_learning_command(work: str, works: Sequence[str], seconds: float) -> list[str]:
    """Return the command of loss curves of some families."""
    return ["benchmarks.equal_learning", work, "--families", *works]


def build_test_command(works: Sequence[str], seconds: float) -> list[str]:
    """Return the command of the GPU tests: a process for each file, no plugins that happen to be there."""
    return ["benchmarks.gpu_suite", "--tests", *works, "--seconds", f"{seconds - RESERVE:.0f}"]


TILED_KERNELS = tuple(
    f"{module}-{name}"
    for module in ("biased_flash", "relative_flash")
    for name in ("forward", "backward_queries", "backward_keys")
)
TEST_FILES = tuple(sorted(path.stem for path in (ROOT / "tests" / "gpu").glob("test_*.py")))
STAGES = (
    Stage("loop", NINE, 280, partial(build_loop_command, "--no-peer"), timing="turns"),
    Stage("more-loops", MORE_LOOPS, 240, partial(build_loop_command, "--no-peer"), timing="turns"),
    Stage("own-optimizers", OWN_OPTIMIZERS, 240, partial(build_loop_command, "--no-peer"), timing="turns"),
    Stage("generate", ("generate",), 120, lambda works, seconds: ["benchmarks.generate", "gpu"], key="stage"),
    Stage("packed", ("packed",), 60, lambda works, seconds: ["benchmarks.attention", "recorded"], key="stage"),
    Stage("kernels", ("loss", "relative", *TILED_KERNELS), 120, lambda w, s: ["benchmarks.kernels", *w],
          key="group"),
    Stage("curves", ("gpt2", "bert", "t5", "xlnet"), 300, partial(build_learning_command, "curves"), key="family",
          timing="none"),
    Stage("tests", TEST_FILES, 300, build_test_command, timing="none"),
    Stage("peers", NINE, 400, partial(build_loop_command, "--only-peer"), timing="turns",
          needs=("transformers", "accelerate")),
    Stage("large", ("bloom-7b1", "bloom-7b1-adamw", "t5-3b", "bert-large", "gpt2-xl"), 400,
          lambda w, s: ["benchmarks.large", *w]),
    Stage("long", ("bands-64k", "memory-64k", "generate-32k"), 240, lambda w, s: ["benchmarks.large", *w]),
    Stage("fp8", ("gpt2-bf16", "gpt2-fp8", "gpt2-xl-bf16", "gpt2-xl-fp8"), 240, lambda w, s: ["benchmarks.large", *w]),
    Stage("dropout", ("gpt2", "bert"), 240, partial(build_learning_command, "attention-dropout"), key="family",
          timing="none"),
    Stage("more", ("gpt2-xl-8bit", "gpt2-xl-checkpointing", "bands-64k-alternating"), 240,
          lambda w, s: ["benchmarks.large", *w]),
    Stage("generate-peers", ("generate",), 200, lambda w, s: ["benchmarks.generate", "gpu", "--peer"], key="stage",
          needs=("transformers",)),
)  # fmt: skip


def read_results(file: Path) -> list[dict[str, Any]]:
    """Return the lines of earlier results; a line that was cut off is left out."""
    rows = []
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        rows += [row] if isinstance(row, dict) else []
    return rows


def list_missing_works(stage: Stage, rows: Iterable[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """Return the works of a stage without any result, and those whose results are errors."""
    mine = [row for row in rows if row.get("stage") == stage.name]
    if stage.key == "stage":  # one command, done when it ended well
        ends = [row["ended"] for row in mine if "ended" in row]
        return ([] if ends else list(stage.works)), ([] if 0 in ends or not ends else list(stage.works))
    found = {row[stage.key] for row in mine if stage.key in row and "error" not in row}
    failed = {row[stage.key] for row in mine if stage.key in row} - found
    tried = found | failed
    return [work for work in stage.works if work not in tried], [work for work in stage.works if work in failed]


def run_stage(stage: Stage, works: Sequence[str], seconds: float, results: Path) -> None:
    """Run a stage for at most so many seconds, its lines go to the results as they come; the background waits for one
    that is timed from end to end."""
    began = time.monotonic()
    if stage.timing == "whole":
        signal_background(signal.SIGSTOP)
    command = [sys.executable, "-m", *stage.build_command(works, seconds)]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True,
        errors="replace",
    )  # fmt: skip
    timer = threading.Timer(seconds, partial(end_group, process))
    timer.start()
    last_words: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if isinstance(row, dict):
                append_result(results, {"stage": stage.name, "after_s": round(time.monotonic() - began, 1), **row})
            elif line.strip():
                last_words = [*last_words[-7:], line.strip()[:300]]
        code = process.wait()
    finally:
        timer.cancel()
        end_group(process)
        signal_background(signal.SIGCONT)
    row = {"stage": stage.name, "works": list(works), "ended": code, "seconds": round(time.monotonic() - began, 1)}
    append_result(results, row | ({"last_words": last_words} if code else {}))


def end_group(process: subprocess.Popen[Any]) -> None:
    """Interrupt a process and those that it started, which end others in turn, and kill what is left."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(RESERVE / 2)


def append_result(results: Path, row: dict[str, Any]) -> None:
    """Print a line, and write it to the results so that it outlasts this process."""
    line = json.dumps(row, ensure_ascii=False)
    print(line, flush=True)
    with results.open("a") as stream:
        stream.write(line + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def run_stages(stages: Sequence[Stage], seconds: float, results: Path) -> None:
    """Run what has no result yet, then once more what failed, as long as there is time."""
    end = time.monotonic() + seconds
    for again in (False, True):
        before = read_results(results)
        todo = [(stage, works) for stage in stages if (works := list_missing_works(stage, before)[again])]
        # What times nothing stands together, anything else alone
        for _, some in groupby(todo, lambda one: one[0].timing == "none" or one[0].name):
            threads = [threading.Thread(target=begin_stage, args=(*one, end, results)) for one in some]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()


def begin_stage(stage: Stage, works: Sequence[str], end: float, results: Path) -> None:
    """Run a stage, unless a package is missing or hardly any time is left."""
    left = end - time.monotonic()
    if (package := stage.find_missing_package()) is not None:
        print(json.dumps({"stage": stage.name, "left_out": f"{package} is not installed"}), flush=True)
    elif left > SHORTEST:
        run_stage(stage, works, min(stage.seconds, left - RESERVE), results)


def run_tests(files: Sequence[str], seconds: float) -> None:
    """Run files of tests/gpu at the same time, each in a process of its own; print a line for each."""
    end, running = time.monotonic() + seconds, {}
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    for name in files:
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-rfE", f"tests/gpu/{name}.py"]
        running[name] = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=environment
        )
    for name, process in running.items():
        row: dict[str, Any] = {"work": name}
        try:
            output = process.communicate(timeout=max(0.1, end - time.monotonic()))[0]
            row |= {"passed": process.returncode == 0}  # 5: no test has the mark
        except subprocess.TimeoutExpired:
            process.kill()
            output = process.communicate()[0]
            row["error"] = "not done in time"
        row["output"] = output.strip()[-1500:]
        print(json.dumps(row), flush=True)


def main() -> None:
    """Run the stages, or list them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [stage.name for stage in STAGES]
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"of {', '.join(names)}; all without any")
    parser.add_argument("--seconds", type=float, default=540, help="of the whole run (default: 540)")
    default = Path() / "gpu-suite.jsonl"
    parser.add_argument("--results", type=Path, default=default, help=f"file of results (default: {default})")
    parser.add_argument("--list", action="store_true", help="print the stages with what is missing, and end")
    parser.add_argument("--background", metavar="COMMAND", help="what to run while nothing is timed")
    parser.add_argument("--tests", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.tests:
        return run_tests(given.stages, given.seconds)
    if unknown := [name for name in given.stages if name not in names]:
        parser.error(f"there is no stage {unknown[0]}")
    stages = [stage for stage in STAGES if not given.stages or stage.name in given.stages]
    if given.list:
        rows = read_results(given.results)
        for stage in stages:
            missing, failed = list_missing_works(stage, rows)
            print(f"{stage.name:15} {stage.seconds:4.0f} s  missing: {' '.join(missing) or '-'}", end="")
            print(f"  failed: {' '.join(failed)}" if failed else "")
        return None
    if given.background is None:
        return run_stages(stages, given.seconds, given.results)
    end = time.monotonic() + given.seconds
    with given.results.with_name("background.log").open("w") as log:
        background = subprocess.Popen(
            given.background, shell=True, start_new_session=True, stdout=log, stderr=subprocess.STDOUT
        )
        os.environ[BACKGROUND] = str(background.pid)
        try:
            run_stages(stages, given.seconds, given.results)
            with contextlib.suppress(subprocess.TimeoutExpired):
                background.wait(max(0.1, end - time.monotonic()))
        finally:
            end_group(background)
    return None


if __name__ == "__main__":
    main()
