"""What new examples are worth: accuracy with and without them, learned from 100, 300 and 1,000 examples.

    python -m benchmarks.augment my-bert --train nsmc.train.tsv.xz --test nsmc.test.tsv.xz --out runs/augment
    python -m benchmarks.augment my-bert --train few.tsv --test test.tsv --teach 10 --label-names 0=나쁨,1=좋음 --jobs 6
    python -m benchmarks.augment my-gpt2 --train few.tsv --test test.tsv --teach 5 --rate 1 --tune my-bert

Two classifiers: the model itself (or that of --tune), fine-tuned, and a linear one over n-grams where scikit-learn is
installed. Those new examples stay whose label the classifier sees that was fine-tuned on the few. Each size is drawn
anew for every seed. One line of JSON for each size, after one for each draw; the new examples are left in --out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import formers
from formers.data.counter_rng import shuffle_indices
from formers.evaluation.metrics import run_baseline
from formers.generation.augment import augment
from formers.tasks.examples import Examples, read_examples
from formers.training.runs.continue_pretraining import train_conditional

from .run import UNCOMPILED, sample_evenly

ExampleRow = dict[str, Any]
MIN_TUNE_STEPS, TUNE_BATCH = 200, 32  # of fine-tuning, at least: few examples are seen more often


def draw_balanced(rows: list[ExampleRow], size: int, seed: int) -> list[ExampleRow]:
    """A number of examples, balanced over the labels as far as possible."""
    groups: dict[str, list[ExampleRow]] = {}
    for i in shuffle_indices(len(rows), seed, 0xA06).tolist():
        groups.setdefault(rows[i]["label"], []).append(rows[i])
    turns = [group[turn] for turn in range(size) for group in groups.values() if turn < len(group)]
    return turns[:size]


def cast_for_speed(former: Any) -> Any:
    """The model in its fastest form: on a GPU in half precision, the type it was trained with."""
    if former.device.type == "cuda":
        former.model.to(torch.bfloat16)
    return former


def finetune_and_test(
    train: list[ExampleRow], test: list[ExampleRow], given: argparse.Namespace, seed: int
) -> tuple[float, Any]:
    """The accuracy of a fine-tuned model, and the model; of the last step: none is left to choose by."""
    epochs = max(3.0, MIN_TUNE_STEPS * TUNE_BATCH / len(train))
    how = {"tune.epochs": epochs, "tune.batch_size": TUNE_BATCH, "tune.evals_per_epoch": 1 / epochs,
           "tune.baseline": False, "tune.seq_length": 128, "train.seed": seed, **UNCOMPILED}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        run = formers.finetune(
            given.tune or given.model, train, train[:TUNE_BATCH], test=test, task="classify", out=Path(folder, "run"),
            device=given.device, overrides=how,
        )  # fmt: skip
    return run.test["accuracy"], cast_for_speed(run.former)


def measure_classifiers(
    train: list[ExampleRow], test: list[ExampleRow], given: argparse.Namespace, seed: int
) -> tuple[dict[str, float], Any]:
    """The accuracy of each classifier that learned from these examples, and the fine-tuned one."""
    right, former = finetune_and_test(train, test, given, seed)
    found = {"tuned": right}
    if importlib.util.find_spec("sklearn") is not None:
        found["linear"] = run_baseline(train, test)["accuracy"]
    return found, former


def make_examples(
    few: list[ExampleRow], keep: Any, given: argparse.Namespace, seed: int, adapted: bool
) -> list[ExampleRow]:
    """New examples, by the model as it is or after it was adapted to the examples of each label."""
    former, some = formers.load(given.model, device=given.device), Examples("classify", few, "")
    how: dict[str, Any] = {
        "times": given.times,
        "rate": given.rate,
        "seed": seed,
        "max_new_tokens": given.max_new_tokens,
    }
    with tempfile.TemporaryDirectory() as folder:
        if adapted:
            names = dict(pair.split("=", 1) for pair in given.label_names.split(",")) if given.label_names else {}
            former = train_conditional(
                former, some, folder, epochs=given.teach, label_names=names, seed=seed, compile=False
            )
            how |= {"conditional": True, "label_names": names}
        new = augment(cast_for_speed(former), some, label_filter=keep, **how)
    print(new.summary, flush=True)
    return [{key: value for key, value in row.items() if key != "from"} for row in new.rows]


def compare_augmentation(given: argparse.Namespace, size: int, seed: int) -> dict[str, Any]:
    """Each classifier's accuracy without and with new examples, and how many there were."""
    if given.jobs > 1:
        torch.set_num_threads(1)
    train, test = (read_examples(path, "classify").rows for path in (given.train, given.test))
    few, test = draw_balanced(train, size, seed), sample_evenly(test, given.tests)
    began, (plain, keep) = time.perf_counter(), measure_classifiers(few, test, given, seed)
    found: dict[str, Any] = {"size": size, "seed": seed, "without": plain}
    for name in ["new", *(["taught"] if given.teach else [])]:
        more = make_examples(few, keep, given, seed, name == "taught")
        found[name] = measure_classifiers([*few, *more], test, given, seed)[0] | {"examples": len(more)}
        if given.out:
            given.out.mkdir(parents=True, exist_ok=True)
            lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in more]
            (given.out / f"{name}-{size}-seed{seed}.jsonl").write_text("".join(lines), encoding="utf-8")
    found["seconds"] = round(time.perf_counter() - began, 1)
    print(json.dumps(found, ensure_ascii=False), flush=True)
    return found


def summarise_seeds(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds, their range, and the gain."""
    line: dict[str, Any] = {"size": found[0]["size"], "seeds": len(found)}
    for judge in found[0]["without"]:
        plain = statistics.fmean(one["without"][judge] for one in found)
        for name in [name for name in ("without", "new", "taught") if name in found[0]]:
            values = [one[name][judge] for one in found]
            mean = statistics.fmean(values)
            said = f"{mean:.4f} ({min(values):.4f}-{max(values):.4f})"
            line[f"{judge}, {name}"] = said if name == "without" else f"{said} {mean - plain:+.4f}"
    return line


def parse_arguments() -> argparse.Namespace:
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a masked model or a decoder")
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 300, 1000])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tests", type=int, default=5000, help="test examples, evenly over all; 0: all of them")
    parser.add_argument("--times", type=int, default=4, help="new examples of each")
    parser.add_argument("--rate", type=float, default=0.15, help="the share of words that is hidden")
    parser.add_argument("--max-new-tokens", type=int, default=40, help="what a decoder writes")
    parser.add_argument("--teach", type=float, default=0.0, help="epochs of learning how labels speak; 0: none")
    parser.add_argument("--label-names", default="", help="words for labels: 0=bad,1=good")
    parser.add_argument("--tune", help="the model to fine-tune, if it is another")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a folder for the new examples")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def main() -> None:
    """Every draw of every size, then one line for each size."""
    given = parse_arguments()
    draws = [(size, seed) for size in given.sizes for seed in range(given.seeds)]
    if given.jobs > 1:
        with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
            found = [one.result() for one in [pool.submit(compare_augmentation, given, *draw) for draw in draws]]
    else:
        found = [compare_augmentation(given, *draw) for draw in draws]
    for size in given.sizes:
        print(
            json.dumps(summarise_seeds([one for one in found if one["size"] == size]), ensure_ascii=False), flush=True
        )


if __name__ == "__main__":
    main()
