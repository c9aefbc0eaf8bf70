"""Tasks on real data, from raw files to the numbers that people publish: mean and deviation over seeds.

    python -m benchmarks.tasks mr subj cr trec sst2 sms --out runs/tasks --jobs 8
    python -m benchmarks.tasks transformer seq2seq
    python -m benchmarks.tasks reviews                # pretrain on Korean reviews, then:
    python -m benchmarks.tasks nsmc

Data: FORMERS_DATA (what is published on it stands in its README). Runs that are done are not repeated, so that the
same command shows the figures again. --jobs runs so many at once, each with one thread.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import formers
from formers.tasks.examples import read_examples
from formers.tasks.metrics import judge
from formers.text.trainers import train as train_tokenizer
from formers.training.folds import parted

DATA = Path(os.environ.get("FORMERS_DATA", "data"))
GERMAN = "text=de,target=en"


@dataclass(frozen=True)
class Run:
    """One fine-tuning run; `label` says what its figures stand for, and figures of one label and seed are averaged."""

    label: str
    seed: int
    model: str
    train: str
    valid: str | None = None
    test: str | None = None
    fold: tuple[int, int] | None = None  # (folds, which): it is the test, and the epoch is chosen by others
    task: str = "classify"
    columns: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of its folder."""
        fold = f"-fold{self.fold[1]}" if self.fold else ""
        return f"{self.label.replace(' ', '-').replace(',', '')}-seed{self.seed}{fold}"


def file(name: str) -> str:
    """A table of the data folder."""
    return str(DATA / f"{name}.tsv.xz")


def go(run: Run, out: Path, device: str, threads: int = 0) -> dict[str, float]:
    """Do a run, unless it is done; its measures on the test examples (else on the held-out ones)."""
    if threads:
        torch.set_num_threads(threads)
    where = out / run.name
    if not (where / "evaluation.json").is_file():
        train: Any = run.train
        test: Any = run.test
        if run.fold:
            train, test = parted(read_examples(run.train, run.task, run.columns), *run.fold)
        formers.finetune(
            run.model, train, run.valid, test=test, task=run.task, columns=None if run.fold else run.columns, out=where,
            resume=(where / "run.json").is_file(), device=device, overrides={**run.settings, "train.seed": run.seed},
        )  # fmt: skip
    found = json.loads((where / "evaluation.json").read_text(encoding="utf-8"))["measures"]
    made = {**(found["test"] or found["valid"])}
    if run.task in ("classify", "regress"):
        made |= {f"TF-IDF {name}": value for name, value in found["baseline"].items() if name in made}
    made |= translated(where, run, device) if run.task == "translate" else {}
    print(run.name, {name: round(value, 4) for name, value in made.items()}, flush=True)
    return made


def translated(where: Path, run: Run, device: str, beams: int = 5) -> dict[str, float]:
    """BLEU on the test set with a beam: of lower-cased tokens, and as sacrebleu counts by default."""
    assert run.test is not None
    rows = read_examples(run.test, "translate", run.columns).rows
    texts, truths = [row["text"] for row in rows], [row["target"] for row in rows]
    guesses = formers.load(where / "model", device=device).translate(texts, beams=beams)
    (where / "test.txt").write_text("\n".join(guesses), encoding="utf-8")
    plain = judge("translate", truths, guesses)
    lower = judge("translate", [text.lower() for text in truths], [text.lower() for text in guesses])
    return {"BLEU, lower case": lower["bleu"], "BLEU, raw": plain["bleu"], "chrF, raw": plain["chrf"]}


def folded(name: str, folds: int, epochs: int = 10) -> Callable[[int, Path], list[Run]]:
    """Kim's TextCNN with random vectors on a set without parts of its own. Published: MR 75.9, Subj 89.2, CR 78.3."""
    return lambda seeds, _: [
        Run(name, seed, "textcnn", file(f"classify/{name}"), fold=(folds, fold), settings={"tune.epochs": epochs})
        for seed in range(seeds)
        for fold in range(folds)
    ]


def trec(seeds: int, _: Path) -> list[Run]:
    """Published: 88.2 % with random vectors."""
    test = file("classify/trec.test")
    return [Run("trec", s, "textcnn", file("classify/trec.train"), test=test) for s in range(seeds)]


def sst2(seeds: int, _: Path) -> list[Run]:
    """Sentences alone; published with phrases, which are not here: 83.5 %."""
    dev, test = file("classify/sst2.dev"), file("classify/sst2.test")
    return [Run("sst2", s, "textcnn", file("classify/sst2.train"), dev, test) for s in range(seeds)]


def multi30k(family: str) -> Callable[[int, Path], list[Run]]:
    """German to English. Published on lower-cased tokens: Bahdanau 28.3, Transformer 36.5."""
    train, valid, test = (file(f"translate/multi30k.{part}.en-de") for part in ("train", "val", "test_2016"))
    settings = {"tune.epochs": 15} if family == "seq2seq" else {}
    return lambda seeds, _: [
        Run(f"{family} de-en", seed, family, train, valid, test, None, "translate", GERMAN, settings)
        for seed in range(seeds)
    ]


BERT = {"dim": 384, "layers": 6, "heads": 6, "ff": 1536, "context": 128, "dropout": 0.1, "attention_dropout": 0.0}
STEPS = (500, 2000, 6000)  # of pretraining; the curve


def reviews(seeds: int, out: Path) -> list[Run]:
    """Pretrain the same BERT for more and more steps on 300,000 Korean reviews; none of NSMC's test is among them."""
    text = str(DATA / "lm" / "movie_reviews_ko.txt.xz")
    tokenizer: Any = out / "tokenizer.json"
    if not tokenizer.is_file():
        out.mkdir(parents=True, exist_ok=True)
        with lzma.open(text, "rt", encoding="utf-8") as lines:
            tokenizer.write_text(train_tokenizer("wordpiece", lines, 16_000).text, encoding="utf-8")
    for steps in STEPS:
        where = out / f"bert-{steps}"
        if not (where / "model").is_dir():
            run = formers.pretrain(
                "bert", text, out=where, resume=(where / "run.json").is_file(), tokenizer=tokenizer, model=BERT,
                data={"unit": "line", "held_out": 0.01}, objective={"name": "masked"}, say=print,
                train={"steps": steps, "tokens": 16_384, "length": 128, "lr": 1e-3, "schedule": "linear",
                       "warmup": steps // 10, "decay": 0.01, "check": 500, "save": 1000, "samples": 0,
                       "workers": 4})  # fmt: skip
            print(steps, run.history[-1], flush=True)
    return []


def nsmc(seeds: int, out: Path) -> list[Run]:
    """The same BERT from scratch and after pretraining. Published from scratch: 86.4 %; pretrained: 88.6 and more."""
    parts: tuple[str, None, str] = file("classify/nsmc.train"), None, file("classify/nsmc.test")
    made = out.parent / "reviews"
    words = {"data.tokenizer": str(made / "tokenizer.json"), "data.held_out": 0.02}
    sizes = {f"model.{name}": value for name, value in BERT.items()} | {"model.dropout": 0.2}
    tune = {"tune.batch": 128, "tune.length": 128, "train.check": 500, "tune.baseline": False}
    scratch = {**words, **sizes, **tune, "tune.epochs": 5, "train.lr": 5e-4}
    learnt = {"data.held_out": 0.02, **tune, "tune.epochs": 4, "train.lr": 1e-4}
    runs = [Run("nsmc from scratch", seed, "bert", *parts, settings=scratch) for seed in range(seeds)]
    for steps in STEPS:
        model, several = str(made / f"bert-{steps}" / "model"), seeds if steps == STEPS[-1] else 1
        runs += [Run(f"nsmc after {steps}", seed, model, *parts, settings=learnt) for seed in range(several)]
    return runs


WORKS: dict[str, Callable[[int, Path], list[Run]]] = {
    "mr": folded("mr", 10, 4), "subj": folded("subj", 10, 4), "cr": folded("cr", 10), "trec": trec, "sst2": sst2,
    "sms": folded("sms_spam", 5), "transformer": multi30k("transformer"), "seq2seq": multi30k("seq2seq"),
    "reviews": reviews, "nsmc": nsmc,
}  # fmt: skip


def spread(values: list[float]) -> str:
    """Mean and deviation."""
    mean = statistics.fmean(values)
    return f"{mean:.4g} ± {statistics.stdev(values):.2g}" if len(values) > 1 else f"{mean:.4g}"


def summed(runs: list[Run], found: list[dict[str, float]]) -> dict[str, dict[str, str]]:
    """For each label, each measure over seeds; of a seed's folds the mean."""
    made: dict[str, dict[str, str]] = {}
    for label in dict.fromkeys(run.label for run in runs):
        by_seed: dict[int, list[dict[str, float]]] = {}
        for run, measures in zip(runs, found, strict=True):
            if run.label == label:
                by_seed.setdefault(run.seed, []).append(measures)
        names = next(iter(by_seed.values()))[0]
        made[label] = {n: spread([statistics.fmean(m[n] for m in ms) for ms in by_seed.values()]) for n in names}
    return made


def main() -> None:
    """The works that are named; a line of JSON each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="+", choices=WORKS)
    parser.add_argument("--out", type=Path, default=Path("runs/tasks"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    for name in given.works:
        began = time.perf_counter()
        runs = WORKS[name](given.seeds, given.out / name)
        how = (given.out / name, given.device, 1 if given.jobs > 1 else 0)
        if given.jobs > 1:
            with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
                found = [one.result() for one in [pool.submit(go, run, *how) for run in runs]]
        else:
            found = [go(run, *how) for run in runs]
        took = round(time.perf_counter() - began)
        print(json.dumps({"work": name, "seconds": took, **summed(runs, found)}, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
