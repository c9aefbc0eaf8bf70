"""GPU: what a banded layer of gpt3 and gpt_neo costs beside a dense one, as texts get longer.

    python -m benchmarks.bands

Four texts of n tokens, 16 heads of 128, a band of 256, bf16, forward and backward; the median of 20 runs. `attention`
is the attention function alone, `layer` a whole block of the model (its products grow with n as well). Twice the tokens
must cost the banded layer about twice, the dense one four times in the end.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import torch

import formers
from benchmarks.harness import describe_machine, exit_with_help, time_median
from formers.batch import Batch
from formers.nn.attention.attention import Attention
from formers.nn.attention.context import AttentionContext
from formers.nn.attention.dispatch import AttentionCall, attend, choose_kernel
from formers.nn.attention.masks import WindowMask, causal, combine_masks

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TEXT_LENGTHS = (1024, 2048, 4096, 8192, 16384) if DEVICE == "cuda" else (256, 512, 1024)
HEADS, HEAD_DIM, WINDOW = (16, 128, 256) if DEVICE == "cuda" else (2, 16, 32)
BATCH_SIZE = 4
REPEATS = 20 if DEVICE == "cuda" else 3


def time_attention(n: int, mask: Any) -> tuple[float, str]:
    """Milliseconds of attention alone, and the kernel that the dispatch chooses."""
    batch = Batch.from_padded(torch.zeros(BATCH_SIZE, n, dtype=torch.long, device=DEVICE))
    shape = (BATCH_SIZE * n, HEADS, HEAD_DIM)
    q, k, v = (torch.randn(shape, device=DEVICE, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    pull = torch.randn_like(q)

    def step() -> None:
        torch.autograd.grad(attend(q, k, v, AttentionContext(batch.layout, mask=mask), HEAD_DIM**-0.5), (q, k, v), pull)

    call = AttentionCall(q, k, v, AttentionContext(batch.layout, mask=mask), HEAD_DIM**-0.5)
    return time_median(step, 5, REPEATS) * 1e3, choose_kernel(call)


def time_layer(family: str, n: int, kind: str) -> float:
    """Milliseconds of a model of one layer without its vocabulary."""
    sizes = {"dim": HEADS * HEAD_DIM, "heads": HEADS, "layers": 1, "context": n, "vocab": 8, "window": WINDOW}
    quiet = {"dropout": 0.0, "embed_dropout": 0.0, "attention_dropout": 0.0}
    with torch.device(DEVICE):
        f = formers.build(family, head="none", pattern=(kind,), **sizes, **quiet)
    model = f.model.to(torch.bfloat16)
    assert any(isinstance(part, Attention) for part in model.modules())
    batch = Batch.from_padded(torch.zeros(BATCH_SIZE, n, dtype=torch.long, device=DEVICE))

    def step() -> None:
        model(batch).sum().backward()

    return time_median(step, 5, REPEATS) * 1e3


def main() -> None:
    exit_with_help(__doc__)
    print(describe_machine(), flush=True)
    kinds = {"dense": causal, "band": combine_masks(causal, WindowMask(WINDOW))}
    rows: dict[tuple[str, str], list[float]] = {}
    for n in TEXT_LENGTHS:
        for kind, mask in kinds.items():
            ms, path = time_attention(n, mask)
            rows.setdefault(("attention", f"{kind} ({path})"), []).append(ms)
        for family in ("gpt3", "gpt_neo"):
            for kind, name in (("dense", "global"), ("band", "local")):
                rows.setdefault((f"{family} layer", kind), []).append(time_layer(family, n, name))
    for (work, kind), times in rows.items():
        growth = [round(b / a, 2) for a, b in itertools.pairwise(times)]
        line = {
            "work": work,
            "kind": kind,
            "tokens": TEXT_LENGTHS,
            "ms": [round(t, 3) for t in times],
            "growth": growth,
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
