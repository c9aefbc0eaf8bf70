"""GPU: large models and long texts in training and generation, each in a process of its own, one at a time on the GPU;
the next one reads its text meanwhile. Lines of JSON.

    python -m benchmarks.large                       # bert-large, gpt2-xl, t5-3b and bloom-7b1 shapes
    python -m benchmarks.large long                  # 64k tokens with bands and with a memory, generation after 32k
    python -m benchmarks.large fp8                   # 8-bit floats beside bf16: GPT-2 124M and 1.5B, with the losses
    python -m benchmarks.large gpt2-xl bloom-7b1-adamw

Training goes through the project's Trainer on text of FORMERS_DATA (WikiText-2 in windows that are all full), with the
published dropout, AdamW, bf16 autocast and clipping, as `formers pretrain` does; models are built on the GPU. MFU is
model FLOPs a second over 989 TFLOPS: six for each weight of a matrix and token that meets it, and 12 · heads · head dim
· length for each attention layer and token, causal or not; what activation checkpointing computes again does not count.
Peak memory is torch's max_memory_allocated. On a CPU tiny models show that the script runs.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import formers
from benchmarks.gpu_works import DEVICE, IS_DRY_RUN, choose_size
from benchmarks.harness import describe_machine, run_one_ahead, synchronise_gpu, wait_for_turn
from formers.batch import Batch
from formers.data.loader import load_batches
from formers.data.plans import TokenSource
from formers.data.store import Store
from formers.generation.runner import Runner
from formers.model import estimate_flops_per_token
from formers.objectives.registry import build_objective
from formers.registry import find_family, train_tokenizer
from formers.training.distributed.process_group import ProcessGroup
from formers.training.train_config import TrainConfig
from formers.training.trainer import Trainer

PEAK_FLOPS = 989e12  # dense bf16 of an H200, without sparsity
WARMUP_STEPS = choose_size(5, 2)
PIECES = choose_size(8192, 500)  # of the tokenizer; the model's vocabulary is the published one
SMALL_SIZES = {"dim": 64, "layers": 3, "heads": 2}
TINY_CONTEXT = 64  # tokens of an example of a dry run
TIME_LIMIT = 200  # seconds of one work


@dataclass(frozen=True)
class LargeCase:
    """One model, the shape of a step, and how it is trained."""

    family: str
    rows: int
    seq_length: int
    steps: int = 15
    preset: str | None = None
    objective: str | None = None  # None: the family's own
    model: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    streams: bool = False  # rows are read on from step to step, for a model with a memory

    def build_model(self) -> Any:
        """Build the model where it is trained."""
        head = find_family(self.family).definition.pretraining_head
        preset = {} if IS_DRY_RUN or self.preset is None else {"preset": self.preset}
        sizes = {**self.model, **SMALL_SIZES, **({"head_dim": 32} if self.family == "t5" else {})}
        sizes = choose_size(dict(self.model), {**sizes, "vocab": 1024, **self.shrink_context()})
        with torch.device(DEVICE):
            return formers.build(self.family, head=head, seed=0, **preset, **sizes).model

    def shrink_context(self) -> dict[str, int]:
        """Return the sizes of a dry run that have to do with length."""
        return {key: TINY_CONTEXT for key in ("context", "memory", "window") if key in self.model}


LARGE_CASES = {
    "bert-large": LargeCase("bert", 64, 512, preset="bert-large", objective="mlm", train={"compile": "blocks"}),
    "gpt2-xl": LargeCase("gpt2", 16, 1024, preset="gpt2-xl"),
    "t5-3b": LargeCase("t5", 16, 512, preset="t5-3b"),
    "bloom-7b1": LargeCase(
        "bloom", 4, 2048, 10, preset="bloom-7b1", train={"activation_checkpointing": True, "optimizer": "adamw8bit"}
    ),
    # More ways to train the same shapes
    "bloom-7b1-adamw": LargeCase("bloom", 4, 2048, 10, preset="bloom-7b1", train={"activation_checkpointing": True}),
    "gpt2-xl-8bit": LargeCase("gpt2", 16, 1024, preset="gpt2-xl", train={"optimizer": "adamw8bit"}),
    "gpt2-xl-checkpointing": LargeCase(
        "gpt2", 32, 1024, preset="gpt2-xl", train={"activation_checkpointing": True, "optimizer": "adamw8bit"}
    ),
    "gpt2-xl-bf16": LargeCase("gpt2", 16, 1024, 30, preset="gpt2-xl"),
    "gpt2-xl-fp8": LargeCase("gpt2", 16, 1024, 30, preset="gpt2-xl", train={"precision": "fp8"}),
    "gpt2-bf16": LargeCase("gpt2", 32, 1024, 100, preset="gpt2"),
    "gpt2-fp8": LargeCase("gpt2", 32, 1024, 100, preset="gpt2", train={"precision": "fp8"}),
    # One text of 65,536 tokens in a step: bands in every layer, in every other layer, and everywhere everything
    "bands-64k": LargeCase(
        "gpt3", 1, 65536, 12, model={"context": 65536, "window": 256, "pattern": ("local",)},
        train={"compile": "blocks"},
    ),
    "bands-64k-alternating": LargeCase(
        "gpt3", 1, 65536, 12, model={"context": 65536, "window": 256}, train={"compile": "blocks"}
    ),
    # Four texts of 65,536 tokens, read in 32 segments of 2,048 with a memory of as many
    "memory-64k": LargeCase(
        "transformer_xl", 4, 2048, 32, preset=None, streams=True,
        model={"vocab": 8192, "cutoffs": (), "embed": 1024, "dim": 1024, "layers": 18, "heads": 16, "head_dim": 64,
               "ff": 4096, "memory": 2048, "clamp": None, "same_length": False, "order": "pre"},
        train={"compile": False},
    ),
}  # fmt: skip


def read_text(name: str = "train") -> str:
    """Return a part of WikiText-2."""
    file = Path(os.environ["FORMERS_DATA"]) / "lm" / f"wikitext2.{name}.txt.xz"
    with lzma.open(file, "rt", encoding="utf-8") as stream:
        return stream.read()


def build_store(tokenizer: Any, limit: int) -> Store:
    """Encode about `limit` characters of text as one document, repeated until even the longest windows are full."""
    lines = [line for line in read_text()[:limit].split("\n") if line.strip()]
    ids = np.concatenate([np.array(tokenizer.encode(line, special=False), np.uint16) for line in lines])
    ids = np.tile(ids, choose_size(max(1, 700_000 // len(ids)), 1))
    return Store(ids, np.array([0, len(ids)]), len(tokenizer), tokenizer.fingerprint)


def measure_training(case: LargeCase) -> dict[str, Any]:
    """Train for some steps; return memory, speed and the losses."""
    family, length = find_family(case.family).definition, choose_size(case.seq_length, TINY_CONTEXT)
    rows, steps = choose_size(case.rows, 2), choose_size(case.steps, 4)
    tokenizer = train_tokenizer(case.family, read_text()[:200_000].split("\n"), PIECES)
    store = build_store(tokenizer, choose_size(3_000_000 if steps > 20 else 1_000_000, 30_000))
    options = {"num_streams": rows, "streams_per_batch": rows} if case.streams else {}
    objective: Any = build_objective(case.objective or family.objective, tokenizer, length, **options)
    train = {
        "steps": 1000, "warmup_steps": 20, "lr": 1e-4, "schedule": "constant", "seq_length": length,
        "batch_tokens": rows * length, "optimizer": "adamw", **choose_size(dict(case.train), dry_run_train(case)),
    }  # fmt: skip
    wait_for_turn()
    model = case.build_model()
    parameters = sum(p.numel() for p in model.parameters())
    trainer = Trainer(model, [objective], TrainConfig(**train), ProcessGroup(device=torch.device(DEVICE)))
    batches: list[Batch] = []

    def load(phase: int, position: int) -> Iterator[tuple[Batch, int]]:
        source = TokenSource(store, objective)
        for batch, after in load_batches(source, rows * length, 0, position, pin=not IS_DRY_RUN):
            batches[:] = [batch]
            yield batch, after

    times, losses, tokens = [time.perf_counter()], [], 0
    results = trainer.train(load, steps)
    for step, result in enumerate(results, 1):
        if step <= WARMUP_STEPS or step == steps:
            synchronise_gpu()
            times.append(time.perf_counter())
        tokens += batches[0].count_tokens() if step > WARMUP_STEPS else 0
        losses.append(result)
    seconds, batch = times[-1] - times[WARMUP_STEPS], batches[0]
    predicted = sum(objective.count_labels(batch).values()) / len(batch.ids)
    target = len(batch.ids) / batch.count_tokens()
    flops = estimate_flops_per_token(model, length, predicted, target)
    speed = tokens / seconds
    peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
    states = sum(t.nbytes for one in trainer.executor.optimizer.state.values() for t in one.values()) / 2**30
    return {
        "parameters": parameters, "step": f"{rows} x {length}", "settings": dict(case.train),
        "peak_gib": round(peak, 1), "optimizer_gib": round(states, 2), "tokens_per_second": round(speed),
        "ms": round(seconds / (steps - WARMUP_STEPS) * 1e3, 1), "mfu": round(speed * flops / PEAK_FLOPS, 3),
        "gflops_per_token": round(flops / 1e9, 2), "first_step_s": round(times[1] - times[0], 1),
        "is_compiled": trainer.executor.is_compiled,
        "losses": [round(result.loss, 3) for result in losses[:: max(1, steps // 10)]] + [round(losses[-1].loss, 3)],
    }  # fmt: skip


def dry_run_train(case: LargeCase) -> dict[str, Any]:
    """Return the settings of a dry run: a CPU has no 8-bit floats, and compiles for long."""
    return {**case.train, "compile": False, "precision": "fp32"}


@torch.inference_mode()
def measure_generation(prompt_length: int, tokens: int) -> dict[str, Any]:
    """Read a long prompt with GPT-2's shape and a longer context, and continue it greedily."""
    wait_for_turn()
    prompt_length, tokens = choose_size(prompt_length, 64), choose_size(tokens, 8)
    sizes = choose_size({"vocab": 50304}, {**SMALL_SIZES, "vocab": 512})
    with torch.device(DEVICE):
        f = formers.build("gpt2", eos=None, context=prompt_length + tokens, **sizes)
    f = f.to(DEVICE, torch.bfloat16 if DEVICE == "cuda" else torch.float32)
    prompt = torch.randint(5, 500, (1, prompt_length)).tolist()
    found: dict[str, Any] = {}
    for _ in range(2):  # the second time what was compiled and recorded is there
        runner = Runner(f, 1, prompt_length + tokens)
        synchronise_gpu()
        began = time.perf_counter()
        new = runner.score_next(prompt).argmax(-1)
        synchronise_gpu()
        prefill = time.perf_counter() - began
        for _ in range(tokens // 2):
            new = runner.step(new).argmax(-1)
        synchronise_gpu()
        began = time.perf_counter()
        for _ in range(tokens - tokens // 2 - 1):
            new = runner.step(new).argmax(-1)
        synchronise_gpu()
        each = (time.perf_counter() - began) / (tokens - tokens // 2 - 1)
        peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
        found = {"prompt": prompt_length, "prefill_s": round(prefill, 3), "tokens_per_second": round(1 / each, 1),
                 "ms": round(each * 1e3, 2), "peak_gib": round(peak, 2)}  # fmt: skip
        del runner
    return found


WORKS: dict[str, Callable[[], dict[str, Any]]] = {
    **{name: partial(measure_training, case) for name, case in LARGE_CASES.items()},
    "generate-32k": partial(measure_generation, 32768, 129),
}
GROUPS = {
    "large": ("bert-large", "gpt2-xl", "t5-3b", "bloom-7b1"),
    "more": ("bloom-7b1-adamw", "gpt2-xl-8bit", "gpt2-xl-checkpointing"),
    "long": ("generate-32k", "bands-64k", "bands-64k-alternating", "memory-64k"),
    "fp8": ("gpt2-bf16", "gpt2-fp8", "gpt2-xl-bf16", "gpt2-xl-fp8"),
}


def run_work(name: str) -> None:
    """Run one work in this process; an error becomes its line."""
    began = time.perf_counter()
    try:
        found = WORKS[name]()
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"}
    print(json.dumps({"work": name, **found, "seconds": round(time.perf_counter() - began, 1)}), flush=True)


def main() -> None:
    """Run the works that are named, one after the other, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="*", metavar="WORK", help=f"of {', '.join([*GROUPS, *WORKS])}; else large")
    parser.add_argument("--here", action="store_true", help="in this process")
    given = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    names = [one for name in given.works or ["large"] for one in GROUPS.get(name, (name,))]
    if unknown := [name for name in names if name not in WORKS]:
        parser.error(f"there is no work {unknown[0]}")
    if not given.here:
        print(json.dumps(describe_machine()), flush=True)
    if given.here:
        for name in names:
            run_work(name)
        return
    commands = [[sys.executable, "-m", "benchmarks.large", name, "--here"] for name in names]
    for name, code in zip(names, run_one_ahead(commands, TIME_LIMIT), strict=True):
        if code != 0:
            error = f"not done after {TIME_LIMIT} s" if code is None else f"ended with {code}"
            print(json.dumps({"work": name, "error": error}), flush=True)


if __name__ == "__main__":
    main()
