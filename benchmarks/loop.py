"""GPU: the whole loop of nine works, as `formers pretrain` runs it, beside transformers' Trainer.

    python -m benchmarks.loop gpt2 bert
    python -m benchmarks.loop --no-peer --steps 80
    python -m benchmarks.loop --together 5
    python -m benchmarks.loop gpt2 --no-peer --profile      # what the kernels of a step take

Ours reads documents of real lengths (WikiText-2 under FORMERS_DATA: articles, for ragged BERT paragraphs) from worker
processes, with the published dropout, clipping, checks and metrics. The peer's Trainer (it needs accelerate) has the
best settings that it offers (bf16, compile, fused AdamW, workers, pinned memory) and rows that are full from the start,
made by benchmarks/gpu_works.py. The figure is real tokens a second (source and target) between the 20th step and the
last, by wall clock. The peer's GPT-2 has no dropout and its BERT none in attention; the works that end in -peer are
ours with the same. All works take AdamW but those that end in -quick and -paper, which take the recipe's optimizer.
Beside it stands the bare step: what the recorded step of the same run takes when it is replayed on its last batch with
nothing around it ("recorded" says whether that is a whole step or the gradient alone). With --together, so many
processes compile at a time, and are then timed one by one.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import json
import lzma
import math
import os
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch

import formers
from benchmarks.gpu_works import IS_DRY_RUN, TRAINING_CASES, choose_size
from benchmarks.harness import describe_machine, run_in_turns, synchronise_gpu, time_median, wait_for_turn
from formers.inspection.objective_steps import build_pair_store
from formers.registry import train_tokenizer
from formers.training.checkpoint.local import BackgroundWriter
from formers.training.executor import Executor, StepValues

WARMUP_STEPS = choose_size(20, 2)
PIECES = choose_size(8192, 400)  # of the tokenizer; the model's vocabulary is the published one
TOKENIZER_TEXTS = 2000  # that the tokenizer is trained on


@dataclass(frozen=True)
class LoopCase:
    """One work of ours: a preset or sizes, the shape of a step, and which documents it reads."""

    family: str
    vocab: int
    seq_length: int
    rows: int
    preset: str | None = None
    by_paragraph: bool = False
    by_pair: bool = False  # 300 words and the 75 after them
    model: Mapping[str, Any] = field(default_factory=dict)
    objective: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)

    def build_overrides(self, steps: int) -> dict[str, Any]:
        """Return the settings of a run: on a CPU those of a dry run of this script."""
        length, rows = choose_size((self.seq_length, self.rows), (32, 4))
        sizes = choose_size(dict(self.model), {"dim": 64, "layers": 2, "heads": 2})
        tables = {
            "model": {"vocab": choose_size(self.vocab, 1024), **sizes},
            "objective": self.objective,
            "train": {
                "steps": steps, "warmup_steps": 2, "lr": 1e-4, "seq_length": length, "batch_tokens": rows * length,
                "accumulate": 1, "optimizer": "adamw", "schedule": "constant", "short_length": None, "samples": 0,
                "workers": 4, "eval_every": 10 * steps, "save_every": 10 * steps,
                "compile": choose_size(True, None),  # as in a long run
                **self.train,
            },
        }  # fmt: skip
        return {f"{table}.{key}": value for table, values in tables.items() for key, value in values.items()}


OWN_OPTIMIZERS = {  # as the quick and the paper recipe of T5 and the paper recipe of ALBERT have them
    "t5-quick": LoopCase("t5", 32128, 512, 32, "t5-base", train={"optimizer": "rms-adamw"}),
    "t5-paper": LoopCase("t5", 32128, 512, 32, "t5-base", train={"optimizer": "adafactor"}),
    "albert-paper": LoopCase(
        "albert", 30000, 512, 32, "albert-base", objective={"name": "mlm"}, train={"optimizer": "lamb"}
    ),
}
NO_DROPOUT = {"dropout": 0.0, "embed_dropout": 0.0, "attention_dropout": 0.0}
LOOP_CASES = {
    "gpt2": LoopCase("gpt2", 50257, 1024, 32, "gpt2"),
    "bert": LoopCase("bert", 30522, 512, 64, "bert-base", by_paragraph=True, objective={"name": "mlm"}),
    "bert-full": LoopCase("bert", 30522, 512, 64, "bert-base", objective={"name": "mlm"}),
    "bert-joined": LoopCase(  # windows that are all full, as RoBERTa packs them
        "bert", 30522, 512, 64, "bert-base", objective={"name": "mlm", "across_documents": True}
    ),
    "t5": LoopCase("t5", 32128, 512, 32, "t5-base"),
    "bart": LoopCase("bart", 50265, 512, 32, "bart-base"),
    "bart-pairs": LoopCase("bart", 50265, 512, 32, "bart-base", by_pair=True, objective={"name": "seq2seq"}),
    "switch": LoopCase("switch", 32128, 512, 32, "switch-base-8", model={"sparse": 3, "ff": 2048}),  # as the peer
    "xlnet": LoopCase("xlnet", 32000, 512, 32, "xlnet-base", train={"carry_memory": False}),  # the peer has none
    "xlnet-memory": LoopCase("xlnet", 32000, 512, 32, "xlnet-base"),
    "albert": LoopCase("albert", 30000, 512, 32, "albert-base", objective={"name": "mlm"}),
    "bloom": LoopCase(
        "bloom", 32000, 1024, 32, model={"dim": 768, "layers": 12, "heads": 12}, objective={"across_documents": True}
    ),
    "transformer-xl": LoopCase(  # of enwik8's size, with a memory
        "transformer_xl", 8192, 512, 32,
        model={"dim": 512, "embed": 512, "layers": 12, "heads": 8, "head_dim": 64, "ff": 2048, "memory": 512,
               "cutoffs": (), "same_length": False, "clamp": None, "order": "pre"},
    ),
    "gpt2-saving": LoopCase("gpt2", 50257, 1024, 32, "gpt2", train={"save_every": 30}),  # how long does a save wait?
    "gpt2-peer": LoopCase("gpt2", 50257, 1024, 32, "gpt2", model=NO_DROPOUT),
    "bert-peer": LoopCase(
        "bert", 30522, 512, 64, "bert-base", by_paragraph=True, model={"attention_dropout": 0.0},
        objective={"name": "mlm"},
    ),
    "bert-full-peer": LoopCase(
        "bert", 30522, 512, 64, "bert-base", model={"attention_dropout": 0.0}, objective={"name": "mlm"}
    ),
    "albert-peer": LoopCase(
        "albert", 30000, 512, 32, "albert-base", model={"dropout": 0.0, "attention_dropout": 0.0},
        objective={"name": "mlm"},
    ),
    **OWN_OPTIMIZERS,
}  # fmt: skip


def read_documents(by_paragraph: bool) -> list[str]:
    """Return WikiText-2's articles, or its paragraphs."""
    file = Path(os.environ["FORMERS_DATA"]) / "lm" / "wikitext2.train.txt.xz"
    with lzma.open(file, "rt", encoding="utf-8") as stream:
        lines = [line.strip() for line in stream]
    if by_paragraph:
        return [line for line in lines if line and not line.startswith("=")]
    articles: list[list[str]] = [[]]
    for line in lines:
        if line.startswith("= ") and not line.startswith("= ="):
            articles.append([])
        articles[-1].append(line)
    return ["\n".join(lines) for lines in articles if any(lines)]


def cut_pairs(articles: list[str], source: int = 300, target: int = 75) -> Iterator[str]:
    """Yield tab-separated pairs: so many words of an article and those that follow, of the last what is left."""
    for article in articles:
        words = article.split()
        for i in range(0, len(words) - source, source + target):
            yield " ".join(words[i : i + source]) + "\t" + " ".join(words[i + source : i + source + target])


class Finished(Exception):
    """All that is timed has been: no checkpoint of a gigabyte has to be written while other works wait."""


class HostClock:
    """Adds up what the main thread spends in some calls: where it waits for a batch, launches a step, waits for the
    values of the one before and hands a checkpoint over. What is left of a step's time is its own work."""

    CALLS = (
        (queue.Queue, "get", "batch"), (Executor, "start_step", "launch"), (StepValues, "read", "values"),
        (BackgroundWriter, "save", "save"),
    )  # fmt: skip

    def __init__(self) -> None:
        self.seconds = dict.fromkeys((name for _, _, name in self.CALLS), 0.0)
        self.longest = dict(self.seconds)  # of a single call
        for owner, method, name in self.CALLS:
            self.wrap_call(owner, method, name)

    def wrap_call(self, owner: type, method: str, name: str) -> None:
        """Time a method of a class from now on."""
        original = getattr(owner, method)

        def call(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return original(*arguments, **options)
            finally:
                if threading.current_thread() is threading.main_thread():
                    spent = time.perf_counter() - began
                    self.seconds[name] += spent
                    self.longest[name] = max(self.longest[name], spent)

        setattr(owner, method, call)


class StepClock:
    """Notes when each step was logged, and how many tokens there were until then; `last` is the number of the last
    step, after which the bare step is timed and the run ends."""

    def __init__(self, last: int, is_profiled: bool = False) -> None:
        self.began, self.rows, self.last = time.perf_counter(), list[tuple[int, int, float]](), last
        self.bare_step_ms: float | None = None
        self.recorded: str | None = None  # what was: a whole step, or the gradient alone
        self.host, self.host_at_start = HostClock(), dict[str, float]()
        self.is_profiled, self.kernels = is_profiled, dict[str, list[float]]()

    def __call__(self, row: dict[str, Any]) -> None:
        """Take a line of metrics.jsonl."""
        if "tokens" not in row:
            return
        if row["step"] == WARMUP_STEPS:
            wait_for_turn()
            self.host_at_start = dict(self.host.seconds)
        self.rows.append((row["step"], row["tokens"], time.perf_counter() - self.began))
        if row["step"] == self.last:
            self.host_at_end = dict(self.host.seconds)
            self.recorded, graph = find_recorded_step()
            if graph is not None:
                self.bare_step_ms = time_median(graph.replay, 2, 12) * 1e3
                self.kernels = profile_kernels(graph) if self.is_profiled else {}
            raise Finished

    def summarise(self) -> dict[str, Any]:
        """Return tokens a second and milliseconds a step after the warmup, what the host waits for in a step, and the
        share of the bare step in it."""
        (first, before, start), (last, after, end) = self.rows[WARMUP_STEPS - 1], self.rows[-1]
        ms = (end - start) / (last - first) * 1e3
        found = {"tokens_per_second": round((after - before) / (end - start)), "ms": round(ms, 2)}
        times = [time for _, _, time in self.rows[WARMUP_STEPS:]]
        found["longest_ms"] = round(max(b - a for a, b in itertools.pairwise(times)) * 1e3, 2)
        spent = {name: end - self.host_at_start[name] for name, end in self.host_at_end.items()}
        found["host_ms"] = {name: round(seconds / (last - first) * 1e3, 2) for name, seconds in spent.items()}
        if self.host.longest["save"]:  # what a checkpoint holds a step up; a step that saves is evaluated too
            found["longest_save_ms"] = round(self.host.longest["save"] * 1e3, 2)
        found["first_step_s"] = round(self.rows[0][2], 1)  # from raw text on
        if self.bare_step_ms is not None:
            found |= {"bare_step_ms": round(self.bare_step_ms, 2), "step_in_loop": round(self.bare_step_ms / ms, 3)}
            found["recorded"] = self.recorded
        if not IS_DRY_RUN:
            found["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        return found | ({"kernels": self.kernels} if self.kernels else {})


def find_recorded_step() -> tuple[str, torch.cuda.CUDAGraph] | tuple[None, None]:
    """Return what the run has recorded, a step or its gradient, and the graph; None and None if not exactly one."""
    executors = [one for one in gc.get_objects() if type(one) is Executor]
    recorded = [(key[0], step.graph) for one in executors for key, step in one.cuda_graphs.items() if step.graph]
    synchronise_gpu()
    return recorded[0] if len(recorded) == 1 else (None, None)


def profile_kernels(graph: torch.cuda.CUDAGraph, steps: int = 3, most: int = 40) -> dict[str, list[float]]:
    """Return the kernels of a recorded step that take longest: milliseconds of a step and how often each runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            graph.replay()
        synchronise_gpu()
    rows = sorted(profile.key_averages(), key=lambda one: -one.self_device_time_total)
    found = {"all": [round(sum(one.self_device_time_total for one in rows) / steps / 1e3, 3), len(rows)]}
    found |= {
        one.key[:110]: [round(one.self_device_time_total / steps / 1e3, 3), one.count / steps] for one in rows[:most]
    }
    return found


def time_ours(case: LoopCase, steps: int, is_profiled: bool = False) -> dict[str, Any]:
    """Pretrain for some steps in a folder that is removed again."""
    texts = read_documents(case.by_paragraph)
    texts = texts[: choose_size(len(texts), 60)]
    texts = list(cut_pairs(texts)) if case.by_pair else texts
    options = {"recipe": "paper"} if case.preset and not IS_DRY_RUN else {}
    clock = StepClock(steps, is_profiled)
    words = train_tokenizer("bpe", texts[:TOKENIZER_TEXTS], PIECES, style=case.family)  # the quickest kind
    data = build_pair_store(texts, words) if case.by_pair else texts
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(Finished):
        formers.pretrain(
            case.family, data, out=Path(folder) / "run", preset=None if IS_DRY_RUN else case.preset, hook=clock,
            overrides=case.build_overrides(steps), tokenizer=words, **options,
        )  # fmt: skip
    return clock.summarise()


def time_peer(name: str, steps: int) -> dict[str, Any]:
    """Train the peer's model with transformers' Trainer on rows that lie ready in memory."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    case = TRAINING_CASES[name]()
    inputs = case.peer_inputs
    rows = len(next(iter(inputs.values())))
    data = [{key: value[i % rows] for key, value in inputs.items()} for i in range(rows * 8)]
    times: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            if len(times) == WARMUP_STEPS - 1:
                wait_for_turn()
            times.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder, per_device_train_batch_size=rows, max_steps=steps, bf16=not IS_DRY_RUN,
            torch_compile=not IS_DRY_RUN, optim="adamw_torch_fused", learning_rate=1e-4, logging_steps=10,
            save_strategy="no", report_to=[], dataloader_num_workers=choose_size(4, 0), disable_tqdm=True,
        )  # fmt: skip
        Trainer(model=case.build_peer(), args=settings, train_dataset=data, callbacks=[Clock()]).train()
    synchronise_gpu()
    seconds = time.perf_counter() - times[WARMUP_STEPS - 1]
    count = len(times) - WARMUP_STEPS
    return {"tokens_per_second": round(case.tokens * count / seconds), "ms": round(seconds / count * 1e3, 2)}


def run_in_processes(works: list[str], peers: list[bool], options: list[str], at_once: int, seconds: float) -> None:
    """Time each work in a process of its own."""
    end = time.monotonic() + seconds
    for is_peer in peers:
        rest = ["--only-peer" if is_peer else "--no-peer", *options]
        commands = [[sys.executable, "-m", "benchmarks.loop", work, *rest] for work in works]
        count = max(1, at_once // 2) if is_peer else at_once  # peers need more memory
        for output in run_in_turns(commands, count, end - time.monotonic()):
            print("".join(line for line in output.splitlines(keepends=True) if '"work"' in line), end="", flush=True)


def main() -> None:
    """All works, ours and the peer's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="*", metavar="WORK", help=f"of {', '.join(LOOP_CASES)}; all without any")
    parser.add_argument("--steps", type=int, default=choose_size(80, 6))
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--no-peer", action="store_true")
    which.add_argument("--only-peer", action="store_true")
    parser.add_argument("--profile", action="store_true", help="list the kernels of our steps that take longest")
    parser.add_argument("--together", type=int, metavar="N", help="processes that compile at a time")
    parser.add_argument("--seconds", type=float, default=math.inf, help="with --together: end after so many")
    given = parser.parse_args()
    if unknown := [name for name in given.works if name not in LOOP_CASES]:
        parser.error(f"there is no work {unknown[0]}")
    torch.set_float32_matmul_precision("high")
    print(json.dumps(describe_machine()), flush=True)
    works = given.works or list(LOOP_CASES)
    peers = [True] if given.only_peer else [False] if given.no_peer else [False, True]
    if given.together:
        options = ["--steps", str(given.steps), *(["--profile"] if given.profile else [])]
        return run_in_processes(works, peers, options, given.together, given.seconds)
    for name in works:
        row: dict[str, Any] = {"work": name}
        for is_peer in peers:
            try:
                timing = (
                    time_peer(name, given.steps) if is_peer
                    else time_ours(LOOP_CASES[name], given.steps, given.profile)
                )  # fmt: skip
            except Exception as error:  # a work that fails must not take the others with it
                row["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
                continue
            row["transformers" if is_peer else "formers"] = timing
        if "formers" in row and "transformers" in row:
            row["ratio"] = round(row["formers"]["tokens_per_second"] / row["transformers"]["tokens_per_second"], 2)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
