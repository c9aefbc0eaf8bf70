"""The whole loop on one GPU: data, copies, step, clipping, checks, metrics; GPT-2 124M and BERT-base on made-up text.

python -m benchmarks.loop
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import formers
from formers.batch import Batch
from formers.data.loader import load_batches
from formers.data.plans import TokenSource
from formers.data.store import Store
from formers.objectives.causal import CausalLM
from formers.objectives.masking import MaskedLM
from formers.training.distributed.process_group import ProcessGroup
from formers.training.train_config import TrainConfig
from formers.training.trainer import Trainer

TRAIN_STEPS = 60


def time_training(
    name: str, family: str, head: str, objective: Any, tokens: int, length: int, workers: int, special_tokens: int = 0
) -> None:
    """Tokens a second of the loop, after its first steps."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    edges = np.arange(0, 4_000_000, length - special_tokens)
    store = Store(np.random.default_rng(0).integers(10, 30000, edges[-1]).astype(np.uint16), edges, 30522, "x")
    f = formers.build(family, head=head)
    settings = TrainConfig(
        steps=TRAIN_STEPS, batch_tokens=tokens, seq_length=length, lr=1e-4, warmup_steps=10, workers=workers
    )
    t = Trainer(f.model.to(device), [objective], settings, ProcessGroup(device=device))

    def make_batches(phase: int, position: int) -> Iterator[tuple[Batch, int]]:
        return load_batches(
            TokenSource(store, objective), tokens, 0, position, workers=workers, pin=device.type == "cuda"
        )

    began = time.perf_counter()
    steps = t.train(make_batches)
    next(steps)
    first = time.perf_counter() - began
    for _ in itertools.islice(steps, 19):
        pass
    began, before = time.perf_counter(), t.tokens
    for _ in steps:
        pass
    speed = (t.tokens - before) / (time.perf_counter() - began)
    peak = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
    print(f"{name}: {speed:,.0f} tokens/s, first step {first:.0f} s, {peak:.1f} GiB", flush=True)


def main() -> None:
    """Both works."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    given = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    time_training("GPT-2 124M, 32 x 1024", "gpt2", "lm", CausalLM(1024), 32 * 1024, 1024, given.workers)
    masked = MaskedLM(512, 30522, 103, tuple(range(5)), ((101,), (102,)))
    time_training("BERT-base, 64 x 512", "bert", "mlm", masked, 64 * 512, 512, given.workers, 2)


if __name__ == "__main__":
    main()
