"""GPU: what a banded layer of gpt3 and gpt_neo costs beside a dense one, as texts get longer.

    python -m benchmarks.bands

Four texts of n tokens, 16 heads of 128, a band of 256, bf16, forward and backward; the median of 20 runs. `attention`
is the door alone, `layer` a whole block of the model (its products grow with n as well). Twice the tokens must cost the
banded layer about twice, the dense one four times in the end.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import torch

import formers
from benchmarks.harness import machine, median
from formers.batch import Batch
from formers.nn.attention import Attention
from formers.nn.door import Sight, attend, choose
from formers.nn.masks import both, causal, window

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZES = (1024, 2048, 4096, 8192, 16384) if DEVICE == "cuda" else (256, 512, 1024)
HEADS, WIDTH, BAND = (16, 128, 256) if DEVICE == "cuda" else (2, 16, 32)
ROWS = 4
REPEAT = 20 if DEVICE == "cuda" else 3


def attention(n: int, mask: Any) -> tuple[float, str]:
    """Milliseconds of attention alone, and the path that the door takes."""
    batch = Batch.of(torch.zeros(ROWS, n, dtype=torch.long, device=DEVICE))
    shape = (ROWS * n, HEADS, WIDTH)
    q, k, v = (torch.randn(shape, device=DEVICE, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    pull = torch.randn_like(q)

    def step() -> None:
        torch.autograd.grad(attend(q, k, v, Sight(batch.layout, mask=mask), WIDTH**-0.5), (q, k, v), pull)

    return median(step, 5, REPEAT) * 1e3, choose(q, k, Sight(batch.layout, mask=mask), 0.0, None)


def layer(family: str, n: int, kind: str) -> float:
    """Milliseconds of a model of one layer without its vocabulary."""
    sizes = {"dim": HEADS * WIDTH, "heads": HEADS, "layers": 1, "context": n, "vocab": 8, "window": BAND}
    quiet = {"dropout": 0.0, "embed_dropout": 0.0, "attention_dropout": 0.0}
    with torch.device(DEVICE):
        f = formers.build(family, head="none", pattern=(kind,), **sizes, **quiet)
    model = f.model.to(torch.bfloat16)
    assert any(isinstance(part, Attention) for part in model.modules())
    batch = Batch.of(torch.zeros(ROWS, n, dtype=torch.long, device=DEVICE))

    def step() -> None:
        model(batch).sum().backward()

    return median(step, 5, REPEAT) * 1e3


def main() -> None:
    print(machine(), flush=True)
    kinds = {"dense": causal, "band": both(causal, window(BAND))}
    rows: dict[tuple[str, str], list[float]] = {}
    for n in SIZES:
        for kind, mask in kinds.items():
            ms, path = attention(n, mask)
            rows.setdefault(("attention", f"{kind} ({path})"), []).append(ms)
        for family in ("gpt3", "gpt_neo"):
            for kind, name in (("dense", "global"), ("band", "local")):
                rows.setdefault((f"{family} layer", kind), []).append(layer(family, n, name))
    for (work, kind), times in rows.items():
        growth = [round(b / a, 2) for a, b in itertools.pairwise(times)]
        line = {"work": work, "kind": kind, "tokens": SIZES, "ms": [round(t, 3) for t in times], "growth": growth}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
