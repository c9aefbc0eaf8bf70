"""What bf16 and 8 bits cost: the perplexity of a GPT-2 on WikiText-2, on which it was trained.

    python -m benchmarks.perplexity runs/wikitext --steps 4000   # trains it there, if it is not there (a GPU: minutes)
    python -m benchmarks.perplexity runs/wikitext --kinds fp32 bf16 int8 --limit 500

Data: FORMERS_DATA. Perplexities are measured on a CPU, by `evaluate`, on the test part.
"""

from __future__ import annotations

import argparse
import json
import lzma
import time
from pathlib import Path

import torch

import formers
from formers.nn.cpu_inference import check_cpu_bf16

from .run import DATA_FOLDER

MODEL_SIZES = {"dim": 384, "layers": 6, "heads": 6, "context": 256, "dropout": 0.2, "embed_dropout": 0.2}


def read_sections(part: str) -> list[str]:
    """The sections of a part; each begins with a line like " = Title = "."""
    with lzma.open(DATA_FOLDER / "lm" / f"wikitext2.{part}.txt.xz", "rt", encoding="utf-8") as lines:
        whole = lines.read()
    return [piece for piece in whole.replace("\n = ", "\n\0 = ").split("\0") if piece.strip()]


def main() -> None:
    """One line for each kind of numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--kinds", nargs="*", default=["fp32", "bf16", "int8"])
    parser.add_argument("--limit", type=int, help="no more sections than this")
    given = parser.parse_args()
    check_cpu_bf16(torch.bfloat16, torch.device("cpu"))  # before anything is computed
    if not (given.run / "model").is_dir():
        begun = (given.run / "run.json").is_file()
        formers.pretrain(
            "gpt2", read_sections("train"), out=given.run, resume=begun, model=MODEL_SIZES,
            data={"vocab_size": 8192, "valid_fraction": 0.01}, say=print,
            train={"steps": given.steps, "batch_tokens": 16_384, "seq_length": 256, "lr": 1e-3, "schedule": "cosine",
                   "warmup_steps": given.steps // 20, "weight_decay": 0.1, "eval_every": 500, "workers": 4,
                   "samples": 0},
        )  # fmt: skip
    plain, sections = None, read_sections("test")[: given.limit]
    for kind in given.kinds:
        began, former = time.perf_counter(), formers.load(given.run / "model").freeze(kind)
        found = former.evaluate(sections, "perplexity").metrics["perplexity"]
        plain = plain or found
        line = {"kind": kind, "perplexity": round(found, 4), "to_first": round(found / plain - 1, 6)}
        print(json.dumps(line | {"seconds": round(time.perf_counter() - began)}), flush=True)


if __name__ == "__main__":
    main()
