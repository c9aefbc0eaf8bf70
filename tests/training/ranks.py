"""One process of several, for tests: does the jobs of a file one after the other and writes what it saw.

python -m tests.training.ranks JOBS.json, with torchrun's variables. `run_jobs` starts as many as wanted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
RNG = np.random.default_rng(0)
TEXT = [  # documents of unequal length, so that processes have unequal numbers of tokens
    ". ".join(" ".join(WORDS[(s + i) % 10] for i in range(6)) for s in RNG.integers(0, 10, n)) + "."
    for n in RNG.integers(1, 8, 80)
]
SIZES = {
    "dim": 16, "layers": 2, "heads": 2, "context": 24, "ff": 32, "experts": 4, "sparse": 1, "embed": 8, "memory": 8,
    "filters": ((1, 5), (2, 6)), "cell": 12, "slots": 9, "char_dim": 4, "dropout": 0.0, "attention_dropout": 0.0,
    "embed_dropout": 0.0, "head_dropout": 0.0, "summary_dropout": 0.0, "jitter": 0.0, "init": 0.1,
}  # fmt: skip
TRAIN = {
    "steps": 6, "batch_tokens": 120, "seq_length": 24, "warmup_steps": 2, "eval_every": 3, "eval_batches": 3,
    "save_every": 3, "lr": 1e-2, "samples": 1, "accumulate": 2, "keep_best": 0, "keep_last": 9,
}  # fmt: skip


def pretrain(family, out, *, train=None, data=None, text=True, **more):
    """A tiny run; what the family's config does not know is left out."""
    import formers
    from formers.registry import FAMILIES

    known = {field.name for field in dataclasses.fields(FAMILIES[family].definition.config_class)}
    sizes = {key: value for key, value in SIZES.items() if key in known}
    tables = {
        "model": sizes, "train": {**TRAIN, **(train or {})},
        "data": {"vocab_size": 300, "valid_fraction": 0.2, **(data or {})},
    }  # fmt: skip
    if more.get("resume") and (Path(out) / "run.json").is_file():
        tables = {"train": train or {}}
    return formers.pretrain(family, TEXT if text else None, out=out, device="cpu", **tables, **more)


LABELLED = [{"text": text, "label": WORDS.index(text.partition(" ")[0]) % 2} for text in TEXT]


def finetune(family, out=None, *, several=None, train=None, data=None, **more):
    """A tiny model learns to tell even beginnings from odd ones, once or several times."""
    from formers.registry import FAMILIES
    from formers.training.runs.cross_validation import compare_settings
    from formers.training.runs.finetune import finetune as teach

    known = {field.name for field in dataclasses.fields(FAMILIES[family].definition.config_class)}
    tables = {"model": SIZES, "train": {"lr": 1e-2, **(train or {})}, "data": {"vocab_size": 300, **(data or {})},
              "tune": {"epochs": 1.5, "batch_size": 8, "seq_length": 24, **more.pop("tune", {})}}  # fmt: skip
    given = {f"{table}.{key}": value for table, values in tables.items() for key, value in values.items()
             if table != "model" or key in known}  # fmt: skip
    if several is None:
        made = teach(family, LABELLED, task="classify", out=out, overrides=given, device="cpu", **more)
        return {"folder": str(made.folder), "valid": made.valid}
    found = compare_settings(family, LABELLED, task="classify", out=out, overrides=given, device="cpu", **several)
    return {"folder": str(found.folder), "trials": [trial.runs for trial in found.trials]}


def measure_exchange(family, parallel, accumulate=2, steps=2):
    """What this process holds and sends in a step: bytes of weights, gradients and optimizer state, bytes handed to
    collective operations by their kind, and the tokens of its last batch."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from formers.training.distributed.process_group import connect_processes
    from formers.training.runs.prepare_data import prepare_data
    from formers.training.runs.pretrain import PretrainRun

    sent = {}

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.namespace == "c10d":
                kind = func.overloadpacket.__name__
                whole = 0 if "gather" in kind else 1 if "scatter" in kind or "alltoall" in kind else 0
                given = args[whole]
                for one in given if isinstance(given, list) else [given]:
                    if isinstance(one, torch.Tensor):
                        sent[kind] = sent.get(kind, 0) + one.nbytes
            return func(*args, **(kwargs or {}))

    config = make_exchange_config(family, parallel, accumulate)
    world = connect_processes("cpu")
    with tempfile.TemporaryDirectory() as folder:
        run = PretrainRun(config, prepare_data(family, config.data, Path(folder), TEXT), world)
        done = run.trainer.train(run.iter_batches, steps)
        next(done)
        with Recorder():
            for _ in done:
                pass
        batch = next(itertools.islice(run.iter_batches(1, 0), steps - 1, None))[0]
    local = [
        getattr(p, "_local_tensor", p.data) for p in run.trainer.executor.step_module.parameters() if p.numel() > 1
    ]
    state = sum(
        getattr(t, "_local_tensor", t).nbytes
        for one in run.trainer.executor.optimizer.state.values() for t in one.values() if t.dim()
    )  # fmt: skip
    tokens = len(batch.ids) + (0 if batch.source is None else len(batch.source.ids))
    vocab = run.former.config.vocab
    return {"sent": sent, "weights": sum(t.nbytes for t in local), "state": state, "tokens": tokens, "vocab": vocab}


def make_exchange_config(family, parallel, accumulate=2):
    """The settings of measure_exchange."""
    from formers.registry import FAMILIES
    from formers.training.config_merge import configure_pretraining

    known = {field.name for field in dataclasses.fields(FAMILIES[family].definition.config_class)}
    given = {f"model.{key}": value for key, value in SIZES.items() if key in known}
    given |= {f"train.{key}": value for key, value in TRAIN.items()}
    given |= {"train.parallel": parallel, "train.accumulate": accumulate, "data.vocab_size": 300}
    return configure_pretraining(family, None, given)


@contextlib.contextmanager
def watch_steps():
    """The examples that this process learns from, step by step, and how often gradients are exchanged in each."""
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    from formers.training.distributed.strategies import DataParallel
    from formers.training.executor import Executor
    from formers.training.trainer import Trainer

    seen, calls = [], []
    name = (
        "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"
    )  # torch < 2.13
    before = Executor.compute_gradient, Trainer.train_step, DataParallel.wrap_step, getattr(dist, name)

    def compute_gradient(self, batch, *rest):
        seen[-1].append([int(n) for n in batch.sample if n >= 0])
        return before[0](self, batch, *rest)

    def move(self, *given):
        seen.append([])
        calls.append(0)
        return before[1](self, *given)

    def hook(state, bucket):
        calls[-1] += 1
        return allreduce_hook(state, bucket)

    def wrap(self, step):
        made = before[2](self, step)
        if made is not step:  # one process alone exchanges nothing
            made.register_comm_hook(None, hook)
        return made

    def scatter(*given, **more):
        calls[-1] += 1
        return before[3](*given, **more)

    Executor.compute_gradient, Trainer.train_step, DataParallel.wrap_step = compute_gradient, move, wrap
    setattr(dist, name, scatter)
    try:
        yield seen, calls
    finally:
        Executor.compute_gradient, Trainer.train_step, DataParallel.wrap_step = before[:3]
        setattr(dist, name, before[3])


def run_job(about):
    """One run, of all processes or of the first one alone; what was seen goes beside its folder."""
    import torch.distributed as dist

    from formers import Error

    about, rank, size = dict(about), os.environ["RANK"], os.environ["WORLD_SIZE"]
    name, alone, error, result = about.pop("name"), about.pop("alone", False), None, None
    verb, beside = about.pop("verb", "pretrain"), Path(about.pop("beside", None) or Path(about["out"]).parent)
    if not (alone and rank != "0"):
        os.environ["WORLD_SIZE"] = "1" if alone else size
        with watch_steps() as (seen, calls):
            try:
                if verb == "pretrain":
                    pretrain(**about)
                elif verb == "measure":
                    result = measure_exchange(**about)
                else:
                    with contextlib.chdir(beside):  # runs without a name are made here
                        result = finetune(**about)
            except Error as failure:
                error = str(failure)
        os.environ["WORLD_SIZE"] = size
        told = json.dumps({"seen": seen, "calls": calls, "error": error, "result": result})
        (beside / f"{name}-{rank}.json").write_text(told)
    dist.barrier()


def find_free_port():
    """One that is free."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start_processes(words, ranks=2, **variables):
    """A command in several processes that belong together."""
    environment = {
        **os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_port()), "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(ranks), "CUDA_VISIBLE_DEVICES": "", **variables,
    }  # fmt: skip
    return [
        subprocess.Popen(words, env={**environment, "RANK": str(r), "LOCAL_RANK": str(r)}, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, cwd=Path(__file__).parents[2])
        for r in range(ranks)
    ]  # fmt: skip


def wait_for_all(started, seconds=120):
    """Their exit codes and words; whoever is still there after some seconds is killed, and that is an error."""
    until = time.monotonic() + seconds
    try:
        said = [p.communicate(timeout=max(0.1, until - time.monotonic()))[0] for p in started]
    finally:
        for p in started:
            if p.poll() is None:
                p.kill()
                p.wait()
    return [p.returncode for p in started], said


def run_jobs(folder, jobs, ranks=2, seconds=120):
    """Do jobs in several processes; all must end well. What they said."""
    file = Path(folder) / f"jobs-{time.monotonic_ns()}.json"
    file.write_text(json.dumps(jobs))
    codes, said = wait_for_all(
        start_processes([sys.executable, "-m", "tests.training.ranks", str(file)], ranks), seconds
    )
    assert codes == [0] * ranks, "\n".join(said)
    return said


def read_records(folder, name):
    """What the processes saw in a job, by rank."""
    return [json.loads(path.read_text()) for path in sorted(Path(folder).glob(f"{name}-[0-9].json"))]


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    for about in json.loads(Path(sys.argv[1]).read_text()):
        run_job(about)
    torch.distributed.destroy_process_group()
