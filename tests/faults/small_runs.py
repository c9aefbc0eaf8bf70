"""Tiny runs of every family by the command line, in processes forked from this one: torch is imported only once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path

import numpy as np
import yaml

from formers.cli.main import main
from formers.registry import FAMILIES as ENTRIES
from tests.small_models import select_sizes

FAMILIES = [name for name, entry in ENTRIES.items() if entry.definition.objective]
CARRYING = ["transformer_xl", "xlnet", "elmo"]  # these take a memory or a state from batch to batch
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
TRAIN = {
    "steps": 8,
    "batch_tokens": 96,
    "seq_length": 24,
    "warmup_steps": 1,
    "eval_every": 4,
    "eval_batches": 2,
    "save_every": 1,
    "keep_last": 3,
    "samples": 1,
    "ema": 0.9,
}
FROM_TOKENIZER = {"vocab", "pad", "bos", "eos", "cutoffs", "slots"}


def make_texts(name="gpt2", documents=60, seed=0):
    """Documents of some sentences; of two, where a family learns from pairs."""
    r = np.random.default_rng(seed)
    count = 2 if ENTRIES[name].definition.objective == "seq2seq" else 5
    return [
        ". ".join(" ".join(WORDS[(s + i) % 10] for i in range(6)) for s in r.integers(0, 10, count)) + "."
        for _ in range(documents)
    ]


def make_settings(name, **train):
    """The settings of a tiny run, with dropout."""
    sizes = select_sizes(name, context=24, dropout=0.1, attention_dropout=0.1)
    return {
        "model": {key: value for key, value in sizes.items() if key not in FROM_TOKENIZER},
        "train": {**TRAIN, **train},
        "data": {"vocab_size": 300, "valid_fraction": 0.2},
    }


def fork_process(work, log, group=False):
    """Do something in a process of its own; what it says goes into a file, and its exit code is that of a command."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads in a process that forks
        number = os.fork()
    if number:
        return number
    code = 70
    try:
        if group:
            os.setpgid(0, 0)
        sys.stdout = sys.stderr = open(log, "a", encoding="utf-8")  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored if the tests themselves run under nohup
        work()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def wait_for_exit(number):
    """Wait for a process; its exit code as a shell says it."""
    status = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
    return status if status >= 0 else 128 - status


class Runs:
    """A folder of runs. Of each family there is one that was never interrupted, to compare with."""

    def __init__(self, root: Path, **train):
        self.root, self.train, self.count, self.known = root, train, 0, {}

    def words(self, name, out, *more, **train):
        """The command that begins or resumes a run."""
        file = out.with_name(f"{out.name}.yaml")
        settings = json.loads(json.dumps(make_settings(name, **{**self.train, **train})))
        file.write_text(yaml.safe_dump(settings), encoding="utf-8")
        return ["pretrain", name, "--config", str(file), "--out", str(out), *more]

    def start(self, name, out, *more, group=False, **train):
        """Begin or resume a run, in a process of its own."""
        words = self.words(name, out, "--resume", *more, **train)
        return fork_process(lambda: main(words), out.with_name(f"{out.name}.log"), group)

    def finish(self, name, out, *more, **train):
        """Go on to the end."""
        code = wait_for_exit(self.start(name, out, *more, **train))
        assert code == 0, self.said(out)

    def said(self, out):
        """What the processes of a run said."""
        log = out.with_name(f"{out.name}.log")
        return log.read_text(encoding="utf-8") if log.exists() else ""

    def fresh(self, name):
        """A folder for a run, with the tokenizer and the store that the uninterrupted one has made."""
        self.count += 1
        out = self.root / f"{name}-{self.count}"
        shutil.copytree(self.run_uninterrupted(name)[0] / "data", out / "data")
        return out

    def run_uninterrupted(self, name):
        """The folder of the uninterrupted run, what is in it, and how long it took."""
        if name not in self.known:
            out = self.root / name
            text = out.with_name(f"{name}.txt")
            text.write_text("\n".join(make_texts(name)) + "\n", encoding="utf-8")
            from formers.training.config_merge import PretrainDataConfig
            from formers.training.runs.prepare_data import prepare_data

            prepare_data(name, PretrainDataConfig(**make_settings(name)["data"]), out / "data", make_texts(name))
            began = time.perf_counter()
            self.finish(name, out)
            self.known[name] = out, read_run_state(out), time.perf_counter() - began
        return self.known[name]

    def check(self, name, out):
        """Is a run, bit for bit, the one that was never interrupted, with nothing left over?"""
        expected, found = self.run_uninterrupted(name)[1], read_run_state(out)
        for key in expected:
            assert found[key] == expected[key], f"{name}: {key} differs\n{self.said(out)}"
        assert "Traceback" not in self.said(out), self.said(out)
        shutil.rmtree(out)


def read_run_state(out):
    """All that a finished run is: the last checkpoint (weights, moments, average, generators, memories, position),
    measurements, samples, the model. What a clock said is left out; of the names, those of temporary files are kept."""
    last = max((out / "steps").glob("step-*"))
    found = {file.name: file.read_bytes() for file in last.glob("*.safetensors")}
    found["state"] = {k: v for k, v in json.loads((last / "state.json").read_text()).items() if k != "seconds"}
    found["metrics"] = [
        {k: v for k, v in row.items() if k != "seconds"} for row in read_json_lines(out / "metrics.jsonl")
    ]
    found["samples"] = read_json_lines(out / "samples.jsonl")
    found |= {f"model/{file.name}": file.read_bytes() for file in (out / "model").iterdir()}
    result = json.loads((out / "run.json").read_text())["result"]
    found["result"] = {key: result.get(key) for key in ("score", "baseline", "best", "parameters")}
    hidden = (p for p in out.rglob("*") if p.name.startswith(".") or p.name.endswith(".tmp") or p.name == "lock")
    found["temporary"] = sorted(str(path.relative_to(out)) for path in hidden)
    return found


def read_json_lines(file):
    """The lines of a file of JSON."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]


def has_ended(process):
    """Return whether a process has ended without help; it still has to be waited for."""
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def wait_until(process, there, patience=60.0):
    """Wait until something is there, or the process is over."""
    stop = time.monotonic() + patience
    while not there() and not has_ended(process) and time.monotonic() < stop:
        time.sleep(0.0003)


def kill_process(process):
    """Kill a process (SIGKILL); return whether it was still running."""
    missed = has_ended(process)
    os.kill(process, signal.SIGKILL)
    wait_for_exit(process)
    return not missed
