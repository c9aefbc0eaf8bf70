"""Do the default recipes learn at any size? `formers pretrain FAMILY` with nothing but layers and width given: how far
the validation loss falls below that of token frequencies alone (the unigram).

    python -m benchmarks.depth --layers 2 6 12 24 --dims 128 768 --steps 400
    python -m benchmarks.depth bert gpt2 --layers 2 --dims 128 --steps 20 --processes 1

Data: FORMERS_DATA (WikiText-2, and Multi30k for the families that learn from pairs). Nothing is compiled: compiling 24
layers takes longer than the run. Prints a line of JSON for each run, then a table.
"""

from __future__ import annotations

import argparse
import json
import lzma
import multiprocessing
import os
import shutil
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from formers.registry import FAMILIES

PAIR_FAMILIES = ("transformer", "seq2seq", "gnmt")
MAX_CHARACTERS, MAX_PAIRS = 2_500_000, 12_000  # of the text, and of the pairs
SizeJob = tuple[str, int, int, int | None, dict[str, Any]]


def load_texts(family: str) -> list[str]:
    """Articles of WikiText-2, or German-English pairs with a tab between them."""
    data = Path(os.environ["FORMERS_DATA"])
    if family in PAIR_FAMILIES:
        file = data / "translate" / "multi30k.train.en-de.tsv.xz"
        return [row for row in read_xz(file).split("\n")[1:MAX_PAIRS] if "\t" in row]
    text = read_xz(data / "lm" / "wikitext2.train.txt.xz")[:MAX_CHARACTERS]
    articles: list[list[str]] = [[]]
    for line in text.split("\n"):
        if line.startswith(" = ") and not line.startswith(" = ="):
            articles.append([])
        articles[-1].append(line)
    return ["\n".join(lines) for lines in articles if any(lines)]


def read_xz(file: Path) -> str:
    """The text of an xz file."""
    with lzma.open(file, "rt", encoding="utf-8") as stream:
        return stream.read()


def train_one(job: SizeJob) -> dict[str, Any]:
    """One run in a folder that is removed again."""
    family, layers, dim, steps, more = job
    import torch

    import formers

    torch.set_num_threads(1)
    torch.nn.Module.compile = lambda self, **how: None  # graphs, no compiling
    began = time.perf_counter()
    memory = Path("/dev/shm")
    out = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    train: dict[str, Any] = {
        "save_every": 10**6,
        "keep_last": 1,
        "keep_best": 0,
        "samples": 0,
        "eval_every": 100,
        "workers": 1,
    }
    train |= {"steps": steps, "warmup_steps": steps // 4} if steps else {}
    row: dict[str, Any] = {"family": family, "layers": layers, "dim": dim, **more}
    overrides = {
        "model.layers": layers,
        "model.dim": dim,
        "train.eval_batches": 6,
        **{f"train.{k}": v for k, v in train.items()},
        **more,
    }
    try:
        run = formers.pretrain(family, load_texts(family), out=out / "run", overrides=overrides)
        about = json.loads((out / "run" / "run.json").read_text(encoding="utf-8"))["config"]["train"]
        curve = [(r["step"], round(r["valid"]["loss"] or float("nan"), 3)) for r in run.history if "valid" in r]
        row |= {"lr": about["lr"], "steps": about["steps"], "loss": round(run.score.loss, 3) if run.score else None}
        row |= {"unigram": round(run.baseline.loss, 3) if run.baseline else None, "curve": curve}
    except Exception as error:
        row |= {"error": f"{type(error).__name__}: {error}"[:300]}
    finally:
        shutil.rmtree(out, ignore_errors=True)
    return {**row, "seconds": round(time.perf_counter() - began, 1)}


def print_table(rows: list[dict[str, Any]]) -> None:
    """Family × (width, depth): nats below the unigram."""
    sizes = sorted({(row["dim"], row["layers"]) for row in rows})
    print("| family | " + " | ".join(f"{layers} × {dim}" for dim, layers in sizes) + " |")
    print("|---" * (len(sizes) + 1) + "|")
    for family in FAMILIES:
        cells = []
        for dim, layers in sizes:
            found = [r for r in rows if (r["family"], r["dim"], r["layers"]) == (family, dim, layers)]
            good = found and found[0].get("loss") is not None and found[0].get("unigram") is not None
            cells.append(f"{found[0]['unigram'] - found[0]['loss']:.2f}" if good else "error" if found else "–")
        if any(cell != "–" for cell in cells):
            print(f"| {family} | " + " | ".join(cells) + " |")


def main() -> None:
    """All families and sizes, the large ones first."""
    learned = [one.name for one in FAMILIES.values() if one.name not in ("textcnn", "vectors")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=learned)
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 6, 12, 24])
    parser.add_argument("--dims", type=int, nargs="+", default=[128, 768])
    parser.add_argument("--steps", type=int, default=None, help="instead of the recipe's own")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, default=None, help="a file for the lines of JSON as well")
    given = parser.parse_args()
    more = dict(pair.split("=", 1) for pair in given.set)
    jobs: list[SizeJob] = [
        (f, n, d, given.steps, more) for n in given.layers for d in given.dims for f in given.families
    ]
    jobs.sort(key=lambda job: -job[1] * job[2])
    rows = []
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.processes, mp_context=spawn) as pool:
        for done in as_completed([pool.submit(train_one, job) for job in jobs]):
            rows.append(done.result())
            line = json.dumps(rows[-1])
            print(line, flush=True)
            if given.out is not None:
                with open(given.out, "a", encoding="utf-8") as file:
                    file.write(line + "\n")
    print_table(rows)


if __name__ == "__main__":
    main()
