"""GPU: does the fast path learn what plain formulas learn? Loss curves side by side, all runs at the same time.

    python -m benchmarks.equal_learning curves                 # GPT-2, BERT, T5, XLNet: 500 steps, fast and plain
    python -m benchmarks.equal_learning attention-dropout      # GPT-2 and BERT with and without it: validation loss
    python -m benchmarks.equal_learning curves --steps 100 --families gpt2 t5

`fast` is what `formers pretrain` chooses on this machine (on a GPU bf16, compiled, fused kernels, CUDA graphs), `plain`
is fp32 without compiling, attention by its formula (SDPA's math on padded grids). Both have the same seed, data, sizes
(4 layers of 256, 64 windows of 128 tokens of WikiText-2 under FORMERS_DATA, 8,192 pieces) and no dropout, whose draws
would differ. A curve is smoothed by the mean of 25 steps. The yardstick is the distance of two plain runs with
different seeds. `8bit` and `fp8` are the fast path with that optimizer or precision.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import formers
from benchmarks.gpu_works import IS_DRY_RUN, choose_size
from benchmarks.harness import describe_machine
from benchmarks.loop import read_documents
from formers.config import get_schema
from formers.nn.attention.dispatch import force_kernel
from formers.registry import find_family, train_tokenizer

FAMILIES = ("gpt2", "bert", "t5", "xlnet")
OBJECTIVES = {"bert": "mlm"}
SMOOTHED_STEPS = choose_size(25, 3)
MAX_DISTANCE, MEAN_DISTANCE = 0.05, 0.02  # nats between smoothed curves that count as equal: the largest, the mean
SIZES = choose_size({"dim": 256, "layers": 4, "heads": 4, "ff": 1024}, {"dim": 32, "layers": 2, "heads": 2, "ff": 64})
LENGTH, ROWS, PIECES = choose_size((128, 64, 8192), (32, 4, 512))
LEARNING_RATES = {"t5": 1e-3, "xlnet": 5e-4}
RATES = ("dropout", "attention_dropout", "embed_dropout")
PATHS: dict[str, dict[str, Any]] = {
    "fast": {}, "plain": {"train.precision": "fp32", "train.compile": False}, "8bit": {"train.optimizer": "adamw8bit"},
    "fp8": {"train.precision": "fp8"},
}  # fmt: skip


def prepare_stores(families: list[str], folder: Path) -> None:
    """Make a tokenizer and a store for each family, in processes of their own."""
    begun = [start_child("prepare", family, folder) for family in families]
    for child in begun:
        child.wait()


def prepare_store(family: str, folder: Path) -> None:
    """Train a family's tokenizer on WikiText-2's articles, and encode them."""
    texts = read_documents(by_paragraph=False)[: choose_size(300, 20)]
    tokenizer = train_tokenizer(family, (line for text in texts for line in text.split("\n")), PIECES)
    formers.prepare(texts, tokenizer, folder / f"{family}-store", validation=0.05)


@contextlib.contextmanager
def use_plain_attention(wanted: bool) -> Iterator[None]:
    """Compute attention by its formula within the block."""
    if not wanted:
        yield
        return
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with force_kernel("dense"), sdpa_kernel(SDPBackend.MATH):
        yield


def train_run(name: str, folder: Path, steps: int) -> None:
    """Train one run, FAMILY.PATH.SEED or FAMILY.PATH.SEED.DROPOUT, and write its losses."""
    family, path, seed, *dropout = name.split(".")
    torch.set_float32_matmul_precision("highest")
    model: dict[str, Any] = dict(SIZES)
    config = find_family(family).definition.config_class
    known = get_schema(config)
    # The published rates are the defaults of the family; the quick recipe has others.
    published = {f.name: f.default for f in dataclasses.fields(config) if f.name in RATES}
    model |= published if dropout else dict.fromkeys(published, 0.0)
    if dropout == ["zero"]:
        model["attention_dropout"] = 0.0
    train = {
        "steps": steps, "warmup_steps": max(1, steps // 10), "lr": LEARNING_RATES.get(family, 1e-3),
        "optimizer": "adamw", "schedule": "linear", "seq_length": LENGTH, "batch_tokens": ROWS * LENGTH,
        "accumulate": 1, "short_length": None,
        "seed": int(seed), "eval_every": 10 * steps, "eval_batches": choose_size(100, 2),
        "save_every": 10 * steps, "samples": 0,
        "workers": 0 if IS_DRY_RUN else 1, "residual_init": 1.0,
    }  # fmt: skip
    model["context"] = LENGTH
    overrides = {f"train.{key}": value for key, value in train.items()} | PATHS[path]
    overrides |= {f"model.{key}": value for key, value in model.items() if key in known}
    if family in OBJECTIVES:
        overrides["objective.name"] = OBJECTIVES[family]
    losses: list[float] = []
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as out, use_plain_attention(path == "plain"):
        run = formers.pretrain(
            family, folder / f"{family}-store", out=Path(out) / "run", overrides=overrides, say=print,
            hook=lambda row: losses.append(row["loss"]) if "losses" in row else None,
        )  # fmt: skip
    valid = None if run.score is None else run.score.loss
    found = {"losses": losses, "valid": valid, "seconds": time.perf_counter() - began}
    (folder / f"{name}.json").write_text(json.dumps(found))


def start_child(job: str, name: str, folder: Path, steps: int = 0) -> subprocess.Popen[bytes]:
    """Begin a job in a process of its own, whose output goes to a file."""
    command = [sys.executable, "-m", "benchmarks.equal_learning", job, "--run", name, "--folder", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "TORCHINDUCTOR_COMPILE_THREADS": "4"}
    with open(folder / f"{job}-{name}.log", "wb") as log:
        return subprocess.Popen(
            [*command, "--steps", str(steps)], stdout=log, stderr=subprocess.STDOUT, env=environment
        )


def train_all(
    names: list[str], folder: Path, steps: int, at_once: int
) -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
    """Train runs at the same time. As soon as all of a family have ended, yield it with what each of them found,
    without those that failed, which are printed."""
    waiting, running = list(names), dict[str, subprocess.Popen[bytes]]()
    families = list(dict.fromkeys(name.split(".")[0] for name in names))
    while families:
        while waiting and len(running) < at_once:
            name = waiting.pop(0)
            running[name] = start_child("train", name, folder, steps)
        running = {name: child for name, child in running.items() if child.poll() is None}
        busy = {name.split(".")[0] for name in (*waiting, *running)}
        for family in [family for family in families if family not in busy]:
            families.remove(family)
            yield family, read_runs([name for name in names if name.split(".")[0] == family], folder)
        time.sleep(0.2)


def read_runs(names: list[str], folder: Path) -> dict[str, dict[str, Any]]:
    """Return what runs that have ended found; print how the others failed."""
    found = {}
    for name in names:
        if (file := folder / f"{name}.json").exists():
            found[name] = json.loads(file.read_text())
            continue
        log = (folder / f"train-{name}.log").read_text(errors="replace")
        print(json.dumps({"run": name, "error": " ".join(log.split())[-500:]}), flush=True)
    return found


def smooth(losses: list[float]) -> np.ndarray:
    """Return the means of SMOOTHED_STEPS steps in a row."""
    return np.convolve(np.array(losses), np.full(SMOOTHED_STEPS, 1 / SMOOTHED_STEPS), "valid")


def measure_distance(one: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    """Return the largest and the mean distance of two smoothed curves."""
    gap = np.abs(smooth(one["losses"]) - smooth(other["losses"]))
    return {"largest": round(float(gap.max()), 4), "mean": round(float(gap.mean()), 4)}


def compare_curves(families: list[str], folder: Path, steps: int, at_once: int) -> None:
    """Print the distance of the fast path from the plain one for each family, and of other paths from the fast one."""
    more = {"gpt2": choose_size(("8bit.0", "fp8.0"), ("8bit.0",))}
    names = [
        f"{family}.{run}" for family in families for run in ("fast.0", "plain.0", "plain.1", *more.get(family, ()))
    ]
    for family, found in train_all(names, folder, steps, at_once):
        fast, plain, other = (found.get(f"{family}.{run}") for run in ("fast.0", "plain.0", "plain.1"))
        if fast is None or plain is None:
            continue
        distance = measure_distance(fast, plain)
        row = {
            "family": family, "steps": len(fast["losses"]), "fast to plain": distance,
            "two seeds": None if other is None else measure_distance(plain, other),
            "tolerance": {"largest": MAX_DISTANCE, "mean": MEAN_DISTANCE},
            "equal": distance["largest"] <= MAX_DISTANCE and distance["mean"] <= MEAN_DISTANCE,
            "fast": pick_points(fast), "plain": pick_points(plain),
            "seconds": [round(fast["seconds"], 1), round(plain["seconds"], 1)],
        }  # fmt: skip
        print(json.dumps(row), flush=True)
        for path in ("8bit", "fp8"):
            if (third := found.get(f"{family}.{path}.0")) is not None:
                gaps = {"to fast": measure_distance(third, fast), "to plain": measure_distance(third, plain)}
                print(json.dumps({"family": family, "path": path, **gaps, "curve": pick_points(third)}), flush=True)


def pick_points(found: dict[str, Any], count: int = 10) -> list[float]:
    """Return some points of a smoothed curve, the last one included."""
    curve = smooth(found["losses"])
    return [round(float(curve[i]), 4) for i in np.linspace(0, len(curve) - 1, count).astype(int)]


def compare_attention_dropout(families: list[str], folder: Path, steps: int, at_once: int) -> None:
    """Print the validation loss with the published dropout and without that of attention, for two seeds each."""
    families = [family for family in families if family in ("gpt2", "bert")]
    kinds = ("published", "zero")
    names = [f"{family}.fast.{seed}.{kind}" for family in families for kind in kinds for seed in (0, 1)]
    for family, found in train_all(names, folder, steps, at_once):
        rows = {
            kind: [found[name]["valid"] for seed in (0, 1) if (name := f"{family}.fast.{seed}.{kind}") in found]
            for kind in kinds
        }
        row: dict[str, Any] = {
            "family": family,
            "steps": steps,
            **{k: [round(x, 4) for x in v] for k, v in rows.items()},
        }
        if all(rows.values()):
            row["zero minus published"] = round(float(np.mean(rows["zero"]) - np.mean(rows["published"])), 4)
        print(json.dumps(row), flush=True)


def main() -> None:
    """Run one work: stores first, then all runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=("curves", "attention-dropout", "prepare", "train"))
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--at-once", type=int, default=choose_size(16, 1), help="runs at the same time")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work == "prepare":
        return prepare_store(given.run, given.folder)
    if given.work == "train":
        return train_run(given.run, given.folder, given.steps)
    began = time.perf_counter()
    print(json.dumps(describe_machine()), flush=True)
    usual = choose_size(500 if given.work == "curves" else 2000, 8)
    compare = compare_curves if given.work == "curves" else compare_attention_dropout
    with tempfile.TemporaryDirectory() as folder:
        prepare_stores(given.families, Path(folder))
        print(json.dumps({"stores after s": round(time.perf_counter() - began, 1)}), flush=True)
        compare(given.families, Path(folder), given.steps or usual, given.at_once)
    print(json.dumps({"work": given.work, "seconds": round(time.perf_counter() - began, 1)}), flush=True)


if __name__ == "__main__":
    main()
