"""What new examples are worth: accuracy with and without them, learned from 100, 300 and 1,000 examples.

    python -m benchmarks.augment my-bert --train nsmc.train.tsv.xz --test nsmc.test.tsv.xz
    python -m benchmarks.augment my-gpt2 --train few.tsv --test test.tsv --teach 5 --rate 1 --finetune my-bert

The classifier is a linear model over n-grams, or with --finetune a pretrained one. Each size is drawn anew for every
seed; the mean and the range over seeds are printed, and one line of JSON for each size.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import formers
from formers.data.draws import shuffled
from formers.generation.augment import augment, teach
from formers.tasks.baseline import baseline
from formers.tasks.examples import Examples, read_examples

Row = dict[str, Any]


def drawn(rows: list[Row], size: int, seed: int) -> list[Row]:
    """So many examples, as many of each label as there can be."""
    groups: dict[str, list[Row]] = {}
    for i in shuffled(len(rows), seed, 0xA06).tolist():
        groups.setdefault(rows[i]["label"], []).append(rows[i])
    turns = [group[turn] for turn in range(size) for group in groups.values() if turn < len(group)]
    return turns[:size]


def learned(train: list[Row], test: list[Row], model: str | None, seed: int) -> float:
    """The accuracy on test examples of what learned from the others."""
    if model is None:
        return baseline(train, test)["accuracy"]
    with tempfile.TemporaryDirectory() as folder:
        run = formers.finetune(
            model,
            train,
            test=test,
            task="classify",
            out=Path(folder, "run"),
            seed=seed,
            epochs=max(3, 3000 // len(train)),
        )
        return run.test["accuracy"]


def compared(given: argparse.Namespace, former: Any, size: int, seed: int, train: list[Row], test: list[Row]) -> Any:
    """Accuracy without and with new examples, and how many there were."""
    few, judge = drawn(train, size, seed), former
    how = {"times": given.times, "rate": given.rate, "seed": seed, "tokens": given.tokens}
    with tempfile.TemporaryDirectory() as folder:
        if given.teach:
            judge = teach(former, Examples("classify", few, ""), folder, epochs=given.teach)
            how["conditional"] = True
        new = augment(judge, Examples("classify", few, ""), **how)
    more = [{key: value for key, value in row.items() if key != "from"} for row in new.rows]
    plain = learned(few, test, given.finetune, seed)
    return plain, learned([*few, *more], test, given.finetune, seed), len(more)


def main() -> None:
    """One line for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a masked model or a decoder")
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 300, 1000])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--times", type=int, default=4)
    parser.add_argument("--rate", type=float, default=0.15)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--teach", type=float, default=0.0, help="epochs of learning how labels speak")
    parser.add_argument("--finetune", help="a model to fine-tune instead of the linear one")
    given = parser.parse_args()
    former = formers.load(given.model, device="cuda" if torch.cuda.is_available() else None)
    train, test = (read_examples(path, "classify").rows for path in (given.train, given.test))
    print(f"{'examples':>8} {'new':>6} {'without':>22} {'with':>22} {'gain':>8}")
    for size in given.sizes:
        began = time.perf_counter()
        found = [compared(given, former, size, seed, train, test) for seed in range(given.seeds)]
        without, more = ([row[i] for row in found] for i in (0, 1))
        gain = statistics.mean(more) - statistics.mean(without)
        told = [f"{statistics.mean(v):.4f} ({min(v):.4f}-{max(v):.4f})" for v in (without, more)]
        print(f"{size:>8,} {found[0][2]:>6,} {told[0]:>22} {told[1]:>22} {gain:>+8.4f}")
        line = {"size": size, "without": without, "with": more, "gain": gain, "seconds": time.perf_counter() - began}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
