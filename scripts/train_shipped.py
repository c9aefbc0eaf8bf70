"""Train the models that come with formers, and measure them. Every stage is a command of its own:

    python scripts/train_shipped.py tokenizers CORPORA                     # on any machine, once (CORPORA/tokenizers)
    python scripts/train_shipped.py pretrain CORPORA --work W --out OUT --seconds 540      # all three side by side
    python scripts/train_shipped.py finetune --work W --data DATA --out OUT --seconds 540  # the encoder's tasks
    python scripts/train_shipped.py snapshot --work W --out OUT            # meanwhile: the newest checkpoints
    python scripts/train_shipped.py restore OUT --work W                   # elsewhere: models out of archives
    python scripts/train_shipped.py measure CORPORA --work W --out OUT     # bits per byte, ROUGE, minimal pairs
    python scripts/train_shipped.py pack OUT [OUT ...]                     # into src/formers/pretrained, with cards
    python scripts/train_shipped.py cards                                  # the cards anew, from their records
    python scripts/train_shipped.py check CORPORA --data DATA              # all of it, tiny, on a CPU, in minutes

CORPORA is the folder of scripts/prepare_corpora.py, DATA that of the evaluation sets, W a folder for runs (kept between
calls), OUT what is brought back: archives of at most 15 MiB (NAME.tar.00, .01, …) with the weights in bf16, and one
JSON file of records and figures a stage. Of CORPORA, pretraining reads *.train.*, *.valid.* and tokenizers (36 MiB).

A time budget decides the number of steps: the rate stays at its height until a fifth of the steps is left (schedule
wsd), and what is left is computed from the steps measured so far. Each call ends with a finished model; one that gets
SIGTERM or SIGINT ends with finished models within 100 seconds. The same call again continues from where the rate of
the one before began to fall; on another machine, or with another W, `pretrain --only encoder --init W/bf16/bert-mini`
continues from what `restore` made. Needs formers' core dependencies, without the command line's; runs offline.
`measure` needs no GPU (a 5-gram of the whole text is counted).

The plan, for one H200 that is lent for half an hour, in calls of ten minutes:

- Sizes follow from the limit of 12 MB for a model in int8, tokenizer included: 11.8, 9.3 and 6.9 MB; with the word
  vectors (2.9 MB) 31 of the 32 MB for all. The encoder has 7.4 million parameters in its blocks and 3.8 in its table.
- Start: the text is read and encoded in 183 s of one core (encoder 70, decoder 88, titler 25), in about 20 s with 16.
  A batch is made in 1 to 3 ms: two loader processes are more than enough.
- Speed: BERT-base takes 50 ms for 32,768 tokens in the loop (24 of them matrix products). A block 320 wide has 0.17 of
  its products and 0.42 of its elementwise work, and there are 6 for 12: about 8 ms, 4 million tokens a second for all
  runs together. Encoder and decoder beside the titler see about 1.2 million tokens a second each: a thousand million
  in 1,000 s, 32,000 steps.
- Text: an epoch of the encoder had 43 million tokens (English 19, bills 11, reviews 6 twice), so these are some 24
  epochs. Reviews are then read for about 290 million tokens, the number after which a BERT of 6 x 384 had 89.1 % on
  NSMC (87.9 after 98 million; benchmarks/RESULTS.md; 85.4 from scratch). The English, 11.6 million words, is read 24
  times: BabyLM's baselines had 10 million words 20 times.
- The encoder's rate: with norms after the sums, 1e-3 falling in a straight line (5e-4 on average) was measured for 6
  layers of 384; here 7e-4 and a plateau. Its dropout is that run's, 0.1 and none in attention. A fifth of the tokens is
  hidden: more than BERT's 15 %, because small models profit (Wettig et al. 2023), less than 30 %, because
  pseudo-likelihoods and tasks see whole sentences. Examples have 256 tokens, so that every position is learned.
- The decoder has no dropout: 8.6 million parameters do not learn 40 million tokens by heart in 25 epochs.
- The titler is the smallest: half of its time it restores spans of bills (11 million tokens), then it learns titles.
- Fine-tuning: small steps wait for launches, not for arithmetic, and processes that share a GPU take turns: uncompiled,
  a step costs all of them about 7 ms. So there are few of them: a rate is chosen with the first seed alone (38 runs for
  54), batches are larger, and blocks are compiled, which makes a step one launch. 52,000 steps in 14 processes, each of
  which takes run after run: 3 minutes if a step takes 2.5 ms, 6 uncompiled (--eager).

What came of it: the GPU was shared with the tests and the claims of the same half hour, so that encoder and decoder,
side by side, had 466 and 465 s and 0.55 million tokens a second each: 7,800 steps (255 million tokens, a quarter of the
plan) and 7,560. Fine-tuning took 250 s. The titler that is shipped is that of a CPU. The encoder preferred the right
sentence of 62.6 % of the English pairs, so `pretrain --only encoder --init` continued from it for 522 s, with
Wikipedia and books twice as often: 14,279 steps and 466 million tokens beside others under CUDA's multi-process
service, 27 steps a second over all, and 72.8 % (Korean 78.5 -> 80.8).

On two CPU cores, each stage with --scale cpu: an hour for the encoder on one core, half an hour for the decoder and
an hour for the titler on the other. In bf16 a core with AVX512-BF16 reads 3,000 to 4,700 tokens a second through 4
layers of 256, so that about 14 million tokens of the encoder and 7 of the decoder fit: wide models would not leave
the plateau at the beginning. A quarter of the tokens is hidden, there is no dropout, and reviews are half of the
encoder's text, for its tasks are about them. The titler learns from titles alone, and reads the first 95 tokens of a
bill: a title has 7 tokens, so that it takes an epoch (48,000 bills) to learn titles as such, and only then the bill
begins to count. After 12 minutes of spans and 12 of titles it wrote the same few titles whatever the bill.

One command starts both stages in a session of its own, so that they outlive the call; later calls look on, take
snapshots and fetch OUT:

    setsid sh -c 'python scripts/train_shipped.py pretrain CORPORA --work W --out OUT --seconds 1000;
        python scripts/train_shipped.py finetune --work W --data DATA --out OUT --seconds 400' > log 2>&1 &
"""

from __future__ import annotations

import argparse
import concurrent.futures
import io
import json
import lzma
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

import formers
from formers.config import JSONObject
from formers.data.store import Store
from formers.evaluation.api import evaluate_pairs, evaluate_perplexity
from formers.evaluation.metrics import rouge
from formers.evaluation.minimal_pairs import PHENOMENA, generate_pairs
from formers.interop.model_directory import load, save
from formers.interop.shipped_models import SHIPPED_FOLDER
from formers.interop.tokenizer_files import load_tokenizer
from formers.objectives.registry import build_objective
from formers.registry import train_tokenizer
from formers.text.tokenizer import Tokenizer
from formers.training.checkpoint.local import Checkpoints, set_weights
from formers.training.config_merge import configure_pretraining
from formers.training.loop import Stopped
from formers.training.run_folder import RunFolder, has_run
from formers.training.runs.pretrain import load_or_build_model

PART_BYTES = 15 * 2**20  # of an archive that is brought back
DECAY_SHARE = 0.2  # of the steps, at the end: that of the schedule wsd
ENDLESS = 10**7  # steps of a run whose end is not known yet
FINISH_SECONDS = 20.0  # the last evaluation, the model, the archive
TOTALS = ("steps", "tokens_seen", "seconds")  # what a model keeps of its training
STOP_SECONDS = 100.0  # that a run has for a falling rate and its model when a signal from outside asks it to end
SPARE_SECONDS = 30.0  # after its time, before a process is killed
SOURCE_LICENCES = {
    "wikipedia": "English Wikipedia of 2006 (prose of enwik8), CC BY-SA 3.0",
    "bills": "reasons for bills of the National Assembly of Korea 2016-2025 (korean-assembly-bills), CC BY 4.0",
    "books": "nine books of English fiction from Project Gutenberg, public domain",
    "addresses": "messages of US presidents to Congress, public domain",
    "reviews": "Korean film reviews (NSMC's authors; texts of NSMC's test set left out), CC0 1.0",
    "help": "LibreOffice's help in English and Korean, MPL-2.0",
}


LICENCES_IN_KOREAN = {
    "wikipedia": "2006년 영어 위키백과(enwik8의 본문), CC BY-SA 3.0",
    "bills": "2016~2025년 대한민국 국회 법률안의 제안 이유(korean-assembly-bills), CC BY 4.0",
    "books": "프로젝트 구텐베르크의 영어 소설책 아홉 권, 퍼블릭 도메인",
    "addresses": "미국 대통령이 의회에 보낸 교서, 퍼블릭 도메인",
    "reviews": "한국어 영화 리뷰(NSMC를 만든 사람들의 데이터에서 NSMC 테스트 세트의 글을 뺀 것), CC0 1.0",
    "help": "LibreOffice의 영어와 한국어 도움말, MPL-2.0",
}
LIMITS_IN_KOREAN = {
    "bert-mini": "영어 대소문자를 구분하지 않습니다(모두 소문자로 바꿉니다). "
    "2006년 위키백과, 법률안과 영화 리뷰의 말은 알지만 그 밖에는 거의 모르고, "
    "믿을 만한 사실을 담고 있지 않습니다. 영어에서 주어와 동사 사이에 수가 다른 명사가 끼어 있으면 "
    "세 번에 두 번은 틀린 문장을 고릅니다. 학습한 글에는 쓴 사람들의 견해와 편견이 들어 있습니다.",
    "gpt2-mini": "문법에는 대체로 맞아도 앞뒤가 이어지지 않는 글을 쓰며, 쓴 내용을 믿어서는 안 됩니다. "
    "한국어 최소 대립쌍 가운데 높임, 분류사, 시제는 무작위와 거의 같습니다(52~53%). "
    "학습한 글에는 쓴 사람들의 견해와 편견이 들어 있습니다.",
    "t5-bill-titles": "법률안의 제안 이유에 제목을 붙입니다. 다른 글에도 법률 제목을 붙이며, "
    "드물거나 2025년 8월 뒤에 생긴 법률의 이름은 모릅니다.",
    "word-vectors": "뜻이 여럿이어도 단어마다 벡터는 하나이며 모두 소문자입니다. 조사가 붙은 한국어 단어는 "
    "서로 다른 단어로 봅니다. 그 밖의 단어에는 벡터가 없습니다. 학습한 글의 편견이 담겨 있습니다.",
}
FIGURES_IN_KOREAN = (  # patterns of what the cards say of figures, and their Korean
    (r"bits per byte, held-out wikipedia", "바이트당 비트 수, 학습하지 않은 위키백과"),
    (r"bits per byte, held-out books", "바이트당 비트 수, 학습하지 않은 소설"),
    (r"bits per byte, held-out bills", "바이트당 비트 수, 학습하지 않은 법률안"),
    (r"bits per byte, held-out reviews", "바이트당 비트 수, 학습하지 않은 영화 리뷰"),
    (r"minimal pairs \(en\), (\d+) phenomena", r"영어 최소 대립쌍, 현상 \1가지"),
    (r"minimal pairs \(ko\), (\d+) phenomena", r"한국어 최소 대립쌍, 현상 \1가지"),
    (r"analogies \(en\), (\d+) questions", r"영어 유추 문항 \1개"),
    (r"analogies \(ko\), (\d+) questions", r"한국어 유추 문항 \1개"),
    (r"linear classifier on mean vectors", "벡터의 평균을 읽는 선형 분류기"),
    (r"random vectors", "무작위 벡터"),
    (r"chance", "무작위"),
    (r"\baccuracy\b", "정확도"),
    (r"Spearman correlation", "스피어만 상관계수"),
    (r"Matthews correlation", "매슈스 상관계수"),
    (r"([\d,]+) examples", r"예제 \1개"),
    (r"(\d+) seeds", r"시드 \1개"),
    (r"same shape from scratch", "같은 구조를 처음부터 학습하면"),
    (r"ROUGE-L of titles, 2,000 bills newer than those of training", "새로운 법률안 2,000건의 제목, ROUGE-L"),
    (r"titles written exactly", "정답과 똑같이 쓴 제목(%)"),
    (r"copying the beginning", "앞부분을 그대로 쓰면"),
    (r"the most common title", "가장 흔한 제목을 쓰면"),
    (r"([\d,]+) s on one CPU core", r"CPU 코어 하나로 \1초"),
    (r"([\d,]+) s on two CPU cores", r"CPU 코어 두 개로 \1초"),
    (r"([\d,]+) s on one (.+) \(", r"\2 하나로 \1초 ("),
    (r" \(machine shared with other runs\)", "(다른 학습과 컴퓨터를 나누어 사용)"),
    (r" \(GPU shared with other runs\)", "(다른 학습과 GPU를 나누어 사용)"),
    (r" \(machine shared with other programs\)", "(다른 프로그램과 컴퓨터를 나누어 사용)"),
    (r"([\d,]+) words, (\d+) epochs", r"단어 \1개, \2 에포크"),
)  # fmt: skip
TASK_TITLES = {"nsmc": "NSMC", "korsts": "KorSTS", "cola": "CoLA", "sst2": "SST-2", "mrpc": "MRPC"}
METRIC_TITLES = {"accuracy": "accuracy", "spearman": "Spearman correlation", "matthews": "Matthews correlation"}
CPU_LIMITS = {  # of a model that was trained with --scale cpu: in English and in Korean
    "t5-bill-titles": (
        "Trained on a CPU, on the first 95 tokens of a bill.", "CPU에서, 법률안의 처음 95토큰으로 학습했습니다.",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """How one of the models is made: its shape, its tokenizer, its text with the times each source is read in an epoch,
    and its training."""

    family: str
    title: str
    model: JSONObject
    tokenizer: JSONObject  # options of train_tokenizer, with `size`
    sources: dict[str, float]  # less than 1: that share of its documents
    objective: JSONObject
    train: JSONObject
    languages: tuple[str, ...]
    limits: str
    validation: tuple[str, ...] = ("wikipedia", "bills", "reviews")
    tuning: JSONObject | None = None  # settings of fine-tuning on bills and their titles, after pretraining
    tuning_share: float = 0.5  # of the time; 1: the model learns from titles alone, without pretraining


PLANS = {
    "encoder": Plan(
        "bert", "bert-mini",
        {"dim": 320, "layers": 6, "heads": 5, "ff": 1280, "context": 256, "dropout": 0.1, "attention_dropout": 0.0},
        {"size": 11_776, "lower": True, "alphabet": 1700},
        {"wikipedia": 2, "books": 2, "addresses": 1, "help": 1, "bills": 1, "reviews": 2},
        {"name": "mlm", "mask_rate": 0.2},
        {"batch_tokens": 32_768, "seq_length": 256, "lr": 7e-4, "weight_decay": 0.05, "warmup_steps": 1000,
         "betas": (0.9, 0.98), "eps": 1e-6},
        ("en", "ko"),
        "Uncased: all text is lower-cased. Knows Wikipedia of 2006, the language of Korean bills and film "
        "reviews; little else, and no facts to be relied on. Where a noun of another number stands between an English "
        "subject and its verb, it prefers the wrong sentence two times in three. Its texts hold the views and the "
        "prejudices of their authors.",
    ),
    "decoder": Plan(
        "gpt2", "gpt2-mini",
        {"dim": 256, "layers": 7, "heads": 4, "context": 256, "dropout": 0.0, "attention_dropout": 0.0,
         "embed_dropout": 0.0},
        {"size": 12_032},
        {"wikipedia": 1, "books": 2, "addresses": 1, "help": 1, "bills": 1, "reviews": 1},
        {"name": "causal"},
        {"batch_tokens": 32_768, "seq_length": 256, "lr": 1e-3, "weight_decay": 0.1, "warmup_steps": 500,
         "betas": (0.9, 0.95)},
        ("en", "ko"),
        "Writes mostly grammatical but incoherent text; do not rely on anything it states. Korean minimal pairs of "
        "honorifics, counters and tense are near chance (52-53 %). Its texts hold the views and the prejudices of "
        "their authors.",
    ),
    "titler": Plan(
        "t5", "t5-bill-titles",
        {"dim": 256, "layers": 3, "decoder_layers": 2, "heads": 4, "head_dim": 64, "ff": 1024, "dropout": 0.1},
        {"size": 8064, "alphabet": 1500},
        {"bills": 1},
        {"name": "span-corruption"},
        {"batch_tokens": 32_768, "seq_length": 256, "optimizer": "rms-adamw", "lr": 1e-2, "weight_decay": 0.0,
         "warmup_steps": 300, "compile": "blocks"},
        ("ko",),
        "Writes a title for the reasons of a Korean bill; other text gets a title of a law too. Laws that are rare, or "
        "newer than August 2025, are not among its titles.",
        validation=("bills",),
        tuning={"batch_size": 96, "seq_length": 512, "optimizer": "rms-adamw", "lr": 3e-3, "train.compile": "blocks"},
    ),
}  # fmt: skip
SMALL_TRAIN: JSONObject = {"precision": "bf16", "compile": False, "workers": 1, "eval_every": 1000, "save_every": 500}
SMALL_PLANS = {  # for an hour of two CPU cores: fewer layers, shorter texts, a share of the text; --scale cpu
    "encoder": replace(
        PLANS["encoder"],
        model={"dim": 256, "layers": 4, "heads": 4, "ff": 1024, "context": 128, "dropout": 0.0,
               "attention_dropout": 0.0},
        sources={"wikipedia": 0.3, "books": 0.3, "addresses": 0.1, "help": 0.5, "bills": 0.2, "reviews": 2},
        objective={"name": "mlm", "mask_rate": 0.25},
        train={**PLANS["encoder"].train, **SMALL_TRAIN, "batch_tokens": 6144, "seq_length": 128, "lr": 1e-3,
               "warmup_steps": 200},
    ),
    "decoder": replace(
        PLANS["decoder"],
        model={"dim": 256, "layers": 4, "heads": 4, "context": 256, "dropout": 0.0, "attention_dropout": 0.0,
               "embed_dropout": 0.0},
        sources={"wikipedia": 0.3, "books": 1, "addresses": 0.2, "help": 0.5, "bills": 0.2, "reviews": 0.5},
        train={**PLANS["decoder"].train, **SMALL_TRAIN, "batch_tokens": 6144, "lr": 2e-3, "warmup_steps": 100},
    ),
    "titler": replace(
        PLANS["titler"],
        model={**PLANS["titler"].model, "layers": 2, "dropout": 0.0},
        train={**PLANS["titler"].train, **SMALL_TRAIN},
        tuning={"batch_size": 32, "seq_length": 96, "optimizer": "rms-adamw", "lr": 1e-2, "train.compile": False,
                "tune.warmup_ratio": 0.03, "train.schedule": "wsd"},
        tuning_share=1.0,
    ),
}  # fmt: skip
TINY_MODEL = {"dim": 64, "layers": 1, "heads": 2, "ff": 128}
TINY_TRAIN = {"batch_tokens": 1024, "seq_length": 64, "warmup_steps": 5, "compile": False}


@dataclass(frozen=True)
class TaskPlan:
    """A task that the encoder is fine-tuned on: its files (train, valid, test), how long it learns, and the rates that
    are tried from pretrained weights and from new ones; validation examples choose among them."""

    name: str
    task: str
    files: tuple[str, str | None, str]
    metric: str
    epochs: float
    batch_size: int
    rates: dict[str, tuple[float, ...]]
    most_examples: int | None = None  # of the training file
    precision: str = "auto"


def plan_task(
    name: str, task: str, place: str, parts: tuple[str, str | None, str], metric: str, epochs: float, batch_size: int,
    pretrained: tuple[float, ...] = (1e-4, 3e-4), scratch: tuple[float, ...] = (2e-4, 5e-4),
) -> TaskPlan:  # fmt: skip
    """Plan a task whose files are PLACE/NAME.PART."""
    train, valid, test = parts
    start, rates = f"{place}/{name}.", {"pretrained": pretrained, "scratch": scratch}
    files = start + train, None if valid is None else start + valid, start + test
    return TaskPlan(name, task, files, metric, epochs, batch_size, rates)


TASKS = {
    one.name: one
    for one in (
        # The rates of a BERT of 6 layers of 384 that was measured before (benchmarks/RESULTS.md)
        plan_task("nsmc", "classify", "classify", ("train", None, "test"), "accuracy", 3, 128, (1e-4,), (5e-4,)),
        plan_task("korsts", "regress", "pair", ("train", "dev", "test"), "spearman", 10, 48),
        plan_task("cola", "classify", "classify", ("train", None, "dev"), "matthews", 8, 48),
        plan_task("sst2", "classify", "classify", ("train", "dev", "test"), "accuracy", 6, 48),
        plan_task("mrpc", "classify", "pair", ("train", None, "test"), "accuracy", 8, 48),
    )
}


SMALL_TASKS = {  # --scale cpu
    "nsmc": replace(TASKS["nsmc"], epochs=4, batch_size=32, most_examples=10_000, precision="bf16"),
    "korsts": replace(
        TASKS["korsts"], epochs=5, batch_size=32, rates={"pretrained": (2e-4,), "scratch": (3e-4,)}, precision="bf16"
    ),
}

# ---------------------------------------------------------------------------------------------------- text


def read_text(corpora: Path, name: str, part: str) -> list[str]:
    """Return the documents of a source; of a table, its texts (bills), or both of its sides (help)."""
    path = next(corpora.glob(f"{name}.{part}.t*.xz"))
    with lzma.open(path, "rt", encoding="utf-8") as file:
        text = file.read()
    if name == "bills":
        return [line.partition("\t")[0] for line in text.splitlines()[1:]]
    if name == "help":
        rows = [line.split("\t") for line in text.splitlines()[1:]]
        return [" ".join(row[side] for row in rows[i : i + 8]) for i in range(0, len(rows), 8) for side in (0, 1)]
    return text.splitlines() if name == "reviews" else text.strip().split("\n\n")


def read_title_rows(corpora: Path, part: str) -> list[dict[str, str]]:
    """Return the bills with their titles."""
    with lzma.open(corpora / f"bills.{part}.tsv.xz", "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    return [{"text": text, "target": title} for text, title in rows[1:]]


def collect_documents(plan: Plan, corpora: Path, tiny: bool = False) -> list[str]:
    """Return the training text of a plan, each source as often as the plan says. Threads decompress side by side."""
    documents = []
    with concurrent.futures.ThreadPoolExecutor(len(plan.sources)) as pool:
        texts = pool.map(lambda name: read_text(corpora, name, "train"), plan.sources)
        for own, times in zip(texts, plan.sources.values(), strict=True):
            own = own[:40] if tiny else own
            documents += own * int(times) + own[: round(len(own) * (times % 1))]
    return documents


def collect_validation(plan: Plan, corpora: Path, tiny: bool = False) -> list[str]:
    """Return some held-out text of each source that the plan is validated on, about as much of each."""
    documents = []
    for name in plan.validation:
        size = 0
        for document in read_text(corpora, name, "valid"):
            documents.append(document)
            size += len(document)
            if size > (2_000 if tiny else 120_000):
                break
    return documents


def train_tokenizers(corpora: Path, only: list[str], folder: Path | None = None, tiny: bool = False) -> None:
    """Train the tokenizer of each plan on a sample of its text, equal parts of both languages."""
    folder = folder or corpora / "tokenizers"
    folder.mkdir(parents=True, exist_ok=True)
    limits = {"wikipedia": 14e6, "books": 3e6, "addresses": 2e6, "help": 1e6, "bills": 9e6, "reviews": 7e6}
    for name in only:
        plan, lines = PLANS[name], list[str]()
        for source in plan.sources:
            size = 0
            for document in read_text(corpora, source, "train"):
                lines += document.split("\n")
                size += len(document)
                if size > (40_000 if tiny else limits[source]):
                    break
        options = {key: value for key, value in plan.tokenizer.items() if key != "size"}
        if tiny and "alphabet" in options:
            options["alphabet"] = 600
        tokenizer = train_tokenizer(plan.family, lines, 2600 if tiny else plan.tokenizer["size"], **options)
        (folder / name).mkdir(exist_ok=True)
        tokenizer.save(folder / name / "tokenizer.json")
        text = " ".join(line for line in lines[:: max(1, len(lines) // 2000)])
        ids = tokenizer.encode(text)
        print(f"{name}: {len(tokenizer):,} pieces, {len(text) / len(ids):.2f} characters a piece", flush=True)


# ---------------------------------------------------------------------------------------------------- training


def prepare_stores(name: str, corpora: Path, work: Path, tiny: bool = False) -> list[Path]:
    """Encode the text of a plan and its validation text, once for all calls; return where the token stores are."""
    plan, places = PLANS[name], list[Path]()
    tokenizer = load_tokenizer((work if tiny else corpora) / "tokenizers" / name)
    for part, collect in (("valid", collect_validation), ("train", collect_documents)):
        places.insert(0, work / "stores" / f"{name}-{part}")
        if not (places[0] / "store.json").is_file():
            shutil.rmtree(places[0], ignore_errors=True)  # what a call that was killed left
            workers = min(8, (os.cpu_count() or 1) // 2)
            formers.prepare(collect(plan, corpora, tiny), tokenizer, places[0], splitter=None, workers=workers)
    return places


@dataclass
class Deadline:
    """A clock that ends a run: it watches each step, and sends the signal on which a run saves and stops."""

    seconds: float  # of all
    began: float = field(default_factory=time.perf_counter)
    first_step: tuple[float, int] | None = None  # when and which
    stop_at_decay: bool = True
    step: int = 0
    startup: float = 0.0  # seconds from the call to its first step: the next call needs as many
    called: float = 0.0
    has_stopped: bool = False  # whether this run was sent the signal: a second one would end it without saving
    rate: float = 0.0  # steps a second of this run
    is_short: bool = False  # whether a signal from outside has shortened it

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.seconds - (time.perf_counter() - self.began)

    def begin_run(self, stop_at_decay: bool) -> None:
        """Note that a run is about to begin."""
        self.called, self.first_step, self.stop_at_decay = time.perf_counter(), None, stop_at_decay
        self.has_stopped = False

    def end_early(self, *_: object) -> None:
        """Leave only the time for a falling rate and the model: someone has asked this process to end."""
        self.seconds, self.is_short = min(self.seconds, self.seconds - self.left + STOP_SECONDS), True

    def count_final_steps(self) -> int:
        """Return the steps with a falling rate that follow a run that was stopped: a fifth of all, or what the time
        allows. One that was stopped from outside gets less time."""
        if not self.has_stopped:
            self.end_early()
        most = self.rate * (self.left - FINISH_SECONDS - min(self.startup, 60.0))
        return max(1, min(round(self.step * DECAY_SHARE / (1 - DECAY_SHARE)), int(most)))

    def __call__(self, row: JSONObject) -> None:
        """Look at a line of the metrics."""
        if "loss" not in row:
            return
        now, self.step = time.perf_counter(), row["step"]
        if self.first_step is None:
            self.first_step, self.startup = (now, self.step), now - self.called
            return
        steps = self.step - self.first_step[1]
        rate = self.rate = steps / max(1e-9, now - self.first_step[0])
        if steps % 500 == 0:
            print(f"step {self.step:,} loss {row['loss']:.3f}, {rate:.1f} steps/s, {self.left:.0f} s left", flush=True)
        spare = self.left - FINISH_SECONDS
        if self.stop_at_decay:
            spare -= min(self.startup, 60.0) + self.step * DECAY_SHARE / (1 - DECAY_SHARE) / max(rate, 1e-9)
        if spare <= 0 and not self.has_stopped:  # on a GPU one more step is told after the signal
            self.has_stopped = True
            os.kill(os.getpid(), signal.SIGINT)


def pretrain_one(
    name: str, corpora: Path, work: Path, out: Path, seconds: float, init: Path | None, tiny: bool
) -> None:
    """Pretrain one of the models within a time, fine-tune the titler, and write what is brought back."""
    plan, deadline = PLANS[name], Deadline(seconds)
    signal.signal(signal.SIGTERM, deadline.end_early)  # where no run is under way, which has its own way to stop
    earlier = read_totals(init) if init else None
    rest = plan.tuning_share * seconds if plan.tuning else 0.0  # for fine-tuning
    deadline.seconds -= rest
    if plan.tuning and plan.tuning_share == 1.0:
        former = build_untrained(plan, load_tokenizer((work if tiny else corpora) / "tokenizers" / name), tiny)
        record: JSONObject = {"name": plan.title, "stage": "pretrain"}
    else:
        former, record = run_pretraining(name, corpora, work, deadline, init, tiny)
    if plan.tuning:
        deadline.seconds += 0.0 if deadline.is_short else rest
        save(former, work / f"{name}-base", overwrite=True)
        save(former, work / "base" / plan.title, storage="bf16", overwrite=True)
        out.mkdir(parents=True, exist_ok=True)
        write_archive(work / "base" / plan.title, out, f"{name}-base")  # what is left if the time runs out
        former, more = finetune_titler(work / f"{name}-base", corpora, work, deadline, tiny)
        record |= {key: value for key, value in more.items() if key not in record}
    record |= {
        "seconds": round(max(time.perf_counter() - deadline.began, record.get("seconds", 0.0)), 1),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "parameters": former.num_parameters,
    }  # fmt: skip
    if earlier is not None:
        record["earlier"] = earlier
    former = former.to("cpu")
    former.training_info = {**add_up_runs(record), **({} if plan.tuning else {"objective": plan.objective["name"]})}
    save(former, work / "full" / plan.title, overwrite=True)
    save(former, work / "shipped" / plan.title, storage="int8", overwrite=True)
    save(former, work / "bf16" / plan.title, storage="bf16", overwrite=True)
    write_record(out, f"{name}.pretrain.json", record)
    write_archive(work / "bf16" / plan.title, out, name)
    for path in out.glob(f"{name}-base.tar.*"):
        path.unlink()
    print(f"{name}: done after {record['steps']:,} steps, {deadline.left:.0f} s left", flush=True)


def read_totals(model: Path) -> JSONObject:
    """Return steps, tokens and seconds that a model says it was trained for."""
    known = load(model).training_info
    if missing := [key for key in TOTALS if key not in known]:
        raise SystemExit(f"{model} does not say its {', '.join(missing)}: continue from a model of this script")
    return {key: known[key] for key in TOTALS}


def add_up_runs(record: JSONObject) -> JSONObject:
    """Return steps, tokens and seconds of a training run and of the one that it continued."""
    earlier = record.get("earlier", dict.fromkeys(TOTALS, 0))
    return {key: record[key] + earlier[key] for key in TOTALS}


def get_model_settings(plan: Plan, tiny: bool) -> JSONObject:
    """Return the settings of a plan's model, small ones if `tiny`."""
    return {**plan.model, **({k: v for k, v in TINY_MODEL.items() if k in plan.model} if tiny else {})}


def build_untrained(plan: Plan, tokenizer: Tokenizer, tiny: bool) -> formers.Former:
    """Build a model of the plan's shape with new weights."""
    former = formers.build(plan.family, head="lm", seed=1, vocab=len(tokenizer), **get_model_settings(plan, tiny))
    former.tokenizer = tokenizer
    return former


def run_pretraining(
    name: str, corpora: Path, work: Path, deadline: Deadline, init: Path | None, tiny: bool
) -> tuple[formers.Former, JSONObject]:
    """Pretrain a model until the deadline: at the full rate, then with a falling one; return it with its record."""
    plan = PLANS[name]
    folder, held = work / name, work / f"{name}-held"
    text, validation = (Store.open(where) for where in prepare_stores(name, corpora, work, tiny))
    print(f"{name}: {len(text.tokens):,} tokens an epoch after {deadline.seconds - deadline.left:.0f} s", flush=True)
    if held.is_dir():  # an earlier call: from where its rate began to fall
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(held, folder)
    train: JSONObject = {
        "compile": True,  # the same in both parts, whose steps differ: the second finds it compiled
        **plan.train, **(TINY_TRAIN if tiny else {}), "schedule": "wsd", "workers": 0 if tiny else 2, "samples": 0,
        "eval_every": 20 if tiny else 4000, "save_every": 20 if tiny else 4000, "keep_last": 1, "keep_best": 0,
    }  # fmt: skip
    where: JSONObject = {"init": str(init)} if init else {"model": get_model_settings(plan, tiny)}
    common: JSONObject = {
        "valid": validation, "out": folder, "hook": deadline, "objective": plan.objective, **where,
    }  # fmt: skip
    resume, done = (folder / "run.json").is_file(), 0
    try:
        deadline.begin_run(stop_at_decay=True)
        formers.pretrain(plan.family, text, resume=resume, train={**train, "steps": ENDLESS}, **common)
        raise SystemExit("an endless run has ended")
    except Stopped:
        done = deadline.step
        steps = max(done + deadline.count_final_steps(), train["warmup_steps"] + 1)
    shutil.rmtree(held, ignore_errors=True)
    shutil.copytree(folder, held)
    print(f"{name}: {done:,} steps at the full rate, now {steps - done:,} with a falling one", flush=True)
    deadline.begin_run(stop_at_decay=False)
    try:
        result = formers.pretrain(plan.family, text, resume=True, train={**train, "steps": steps}, **common)
    except Stopped:  # slower than measured, or asked to end: one more step, evaluated and saved
        print(f"{name}: out of time at step {deadline.step:,}", flush=True)
        deadline.seconds += 60
        steps = deadline.step + 1
        last = {**train, "steps": steps, "compile": False}
        result = formers.pretrain(plan.family, text, resume=True, train=last, **common)
    history = result.history
    record: JSONObject = {
        "name": plan.title, "stage": "pretrain", "steps": steps,
        "tokens_seen": max((row.get("tokens", 0) for row in history), default=0),
        "seconds": max((row.get("seconds", 0.0) for row in history), default=0.0),
        "validation_loss": result.score and result.score.loss, "unigram_loss": result.baseline and result.baseline.loss,
        "validation_accuracy": result.score and result.score.accuracy,
        "curve": [[row["step"], row["valid"]["loss"]] for row in history if "valid" in row],
    }  # fmt: skip
    return result.former, record


def write_snapshots(names: list[str], work: Path, out: Path) -> None:
    """Write the newest checkpoint of runs that are under way as archives, in case the machine is lost: `restore` and
    `pretrain --init` begin from them."""
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        run = RunFolder(work / name)
        newest = Checkpoints(run.path / "steps", remove_stale=False).load_newest() if has_run(run.path) else None
        if newest is None:
            print(f"{name}: no checkpoint yet", flush=True)
            continue
        plan, (step, groups, _) = PLANS[name], newest
        config = configure_pretraining(plan.family, run.read_info()["config"], {})
        tokenizer = load_tokenizer(work / "stores" / f"{name}-train")
        options = {key: value for key, value in plan.objective.items() if key != "name"}
        objective = build_objective(plan.objective["name"], tokenizer, config.train.seq_length, **options)
        former = load_or_build_model(config, tokenizer, objective, print)
        set_weights(former.model, groups["model"])
        former.training_info = {"objective": plan.objective["name"], "steps": step}
        with tempfile.TemporaryDirectory() as temporary:
            save(former, Path(temporary) / plan.title, storage="bf16")
            write_archive(Path(temporary) / plan.title, out, name)
        print(f"{name}: step {step:,}", flush=True)


def finetune_titler(
    base: Path, corpora: Path, work: Path, deadline: Deadline, tiny: bool
) -> tuple[formers.Former, JSONObject]:
    """Teach the pretrained encoder-decoder to title bills, as many epochs as fit."""
    rows = {part: read_title_rows(corpora, part) for part in ("train", "valid", "test")}
    if tiny:
        rows = {part: some[:60] for part, some in rows.items()}
    settings: JSONObject = {"train.weight_decay": 0.0, "train.samples": 0, **(PLANS["titler"].tuning or {})}
    settings |= {"batch_size": 8, "train.compile": False} if tiny else {}
    common: JSONObject = {
        "task": "summarise", "batch_size": settings.pop("batch_size"), "seq_length": settings.pop("seq_length"),
        "long_texts": "cut", "baseline": False, "max_output_tokens": 40, "evals_per_epoch": 0.5, "hook": deadline,
        "optimizer": settings.pop("optimizer"), "lr": settings.pop("lr"),
    }  # fmt: skip
    # one short run says how long an epoch takes
    began, small = time.perf_counter(), rows["train"][: len(rows["train"]) // 12]
    deadline.begin_run(stop_at_decay=False)
    try:
        formers.finetune(
            base, small, rows["valid"][:50], out=work / "titler-probe", epochs=1, overwrite=True, overrides=settings,
            **common,
        )  # fmt: skip
        spent = time.perf_counter() - (deadline.first_step[0] if deadline.first_step else began)
        left = deadline.left - FINISH_SECONDS - 40
        epochs = max(1, min(20, int(0.75 * left / max(1e-6, 12 * spent)))) if not tiny else 1
    except Stopped:
        left, epochs = 0.0, 1
    print(f"titler: {epochs} epochs in {left:.0f} s", flush=True)
    deadline.begin_run(stop_at_decay=False)
    deadline.seconds += 120  # the epochs are counted: no signal of ours ends this run
    common |= {"out": work / "titler-tuned", "epochs": epochs}
    examples = rows["train"], rows["valid"][:300]
    try:
        run = formers.finetune(base, *examples, overwrite=True, overrides=settings, **common)
    except Stopped:  # asked to end: one more step, evaluated and saved
        steps = {"train.steps": deadline.step + 1, "train.compile": False}
        run = formers.finetune(base, *examples, resume=True, overrides={**settings, **steps}, **common)
    deadline.seconds -= 120
    history = [row for row in run.history if "tokens" in row]
    record = {"finetune_epochs": epochs, "finetune_valid": run.valid}
    return run.former, {**record, "steps": history[-1]["step"], "tokens_seen": history[-1]["tokens"]}


def write_record(out: Path, name: str, record: JSONObject) -> None:
    """Write a record of a stage."""
    out.mkdir(parents=True, exist_ok=True)
    (out / name).write_text(json.dumps(record, indent=1, ensure_ascii=False), encoding="utf-8")


def merge_records(out: Path, stage: str, names: list[str]) -> None:
    """Join the records of a stage into one file, because few files can be brought back."""
    path = out / f"{stage}.json"
    records = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for name in names:
        own = out / f"{name}.{stage}.json"
        if own.exists():
            records[name] = json.loads(own.read_text(encoding="utf-8"))
            own.unlink()
    write_record(out, path.name, records)


def write_archive(folder: Path, out: Path, name: str) -> None:
    """Write a folder as one archive, cut into parts."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(folder, arcname=folder.name)
    data = buffer.getvalue()
    for number, low in enumerate(range(0, len(data), PART_BYTES)):
        (out / f"{name}.tar.{number:02d}").write_bytes(data[low : low + PART_BYTES])


def unpack(folder: Path, target: Path) -> list[str]:
    """Join the parts of archives that were brought back, and unpack them; return the names of the models."""
    names = []
    for first in sorted(folder.glob("*.tar.00")):
        data = b"".join(part.read_bytes() for part in sorted(folder.glob(first.name[:-2] + "*")))
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            archive.extractall(target, filter="data")
            names.append(archive.getnames()[0].split("/")[0])
    return names


def restore(folders: list[Path], work: Path) -> None:
    """Unpack what was brought back into a folder of runs: all weights in bf16, and as they ship; the newest comes
    last."""
    for folder in folders:
        for title in unpack(folder, work / "bf16"):
            save(load(work / "bf16" / title), work / "shipped" / title, storage="int8", overwrite=True)
            print(work / "shipped" / title)


def run_side_by_side(
    commands: dict[str, list[str]], jobs: int, seconds: float, logs: Path, note: Callable[[], object] = lambda: None
) -> dict[str, int]:
    """Run commands of this script as processes, `jobs` at a time; their output goes to logs and, marked, to ours. After
    each, `note` writes what is known by then. SIGTERM and SIGINT are passed on to the processes, which are waited for;
    no other is started then."""
    lock, running, is_stopping = threading.Lock(), set[subprocess.Popen[bytes]](), threading.Event()
    logs.mkdir(parents=True, exist_ok=True)
    began, threads = time.perf_counter(), str(max(1, (os.cpu_count() or 1) // max(1, min(jobs, len(commands)))))
    environment = {"OMP_NUM_THREADS": threads, "TORCHINDUCTOR_COMPILE_THREADS": threads} | dict(os.environ)

    def run_one(name: str) -> tuple[str, int]:
        log = logs / f"{name}.log"
        left = seconds - (time.perf_counter() - began)
        if left < 10 or is_stopping.is_set():
            log.write_text("no time was left\n")
            return name, 124
        with open(log, "w", encoding="utf-8") as file:
            command = [sys.executable, __file__, *commands[name]]
            # In a session of its own: a signal to this process's whole group would reach it twice.
            process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
            running.add(process)
            try:
                code = process.wait(left)
            except subprocess.TimeoutExpired:
                process.kill()
                code = 124
            running.discard(process)
        tail = log.read_text(encoding="utf-8").splitlines()[-3:]
        print(f"[{time.perf_counter() - began:5.0f} s] {name}: exit {code}; " + " | ".join(tail)[-400:], flush=True)
        with lock:
            note()
        return name, code

    def pass_on(number: int, frame: object) -> None:
        processes = [] if is_stopping.is_set() else list(running)  # a second signal would end them without saving
        is_stopping.set()
        for process in processes:
            process.send_signal(signal.SIGTERM)

    handlers = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            return dict(pool.map(run_one, commands))
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


# ---------------------------------------------------------------------------------------------------- measuring


def read_rows(data: Path, name: str, tiny: bool) -> list[dict[str, str]]:
    """Return the rows of an evaluation table."""
    with lzma.open(data / f"{name}.tsv.xz", "rt", encoding="utf-8") as file:
        lines = [line.rstrip("\n").split("\t") for line in file]
    header = lines[0]
    rows = [line for line in lines[1:] if len(line) == len(header) and all(cell.strip() for cell in line)]
    return [dict(zip(header, row, strict=True)) for row in (rows[:80] if tiny else rows)]


def find_trained(work: Path, name: str) -> Path:
    """Return the folder of a model as it ships: of this run, else of the package."""
    title = PLANS[name].title
    return place if (place := work / "shipped" / title).is_dir() else SHIPPED_FOLDER / title


def name_finetuning(task: str, start: str, seed: int, rate: float) -> str:
    """Return the name of a run of fine-tuning and of its figures."""
    return f"{task}-{start}-{seed}-{rate:g}"


def list_finetuning(tasks: list[str], seeds: int) -> dict[str, list[str]]:
    """List the processes of fine-tuning by name, each with its arguments: a task from one start, with all its seeds.
    Where only one rate is tried, no seed waits for another: each has a process."""
    groups: dict[str, list[str]] = {}
    for task in tasks:  # the longest first
        for start, rates in TASKS[task].rates.items():
            alone = [[str(seed)] for seed in range(seeds)]
            for group in alone if len(rates) == 1 else [[str(seed) for seed in range(seeds)]]:
                groups[f"{task}-{start}-{group[0]}"] = [task, start, *group]
    return groups


def finetune_group(task: str, start: str, seeds: list[int], work: Path, data: Path, tiny: bool, compile_: bool) -> None:
    """Fine-tune the encoder on a task: the first seed with every rate, the others with the rate that is best on
    validation examples. Runs whose figures are there are not repeated."""
    plan = TASKS[task]
    parts = [None if part is None else read_rows(data, part, tiny) for part in plan.files]
    parts[0] = (parts[0] or [])[: plan.most_examples]
    found: dict[float, float] = {}
    for number, seed in enumerate(seeds):
        best = [max(found, key=lambda rate: found[rate])] if number else plan.rates[start]
        for rate in best:
            path = work / "figures" / f"{name_finetuning(task, start, seed, rate)}.json"
            if not path.exists():
                finetune_one(task, start, seed, rate, work, parts, tiny, compile_)
            if not number:
                found[rate] = json.loads(path.read_text(encoding="utf-8"))["valid"][plan.metric]


def finetune_one(
    task: str, start: str, seed: int, rate: float, work: Path, parts: list[list[dict[str, str]] | None], tiny: bool,
    compile_: bool,
) -> None:  # fmt: skip
    """Fine-tune the encoder on a task, from the shipped weights or from new ones of its shape; write the figures."""
    plan, model, name = TASKS[task], find_trained(work, "encoder"), name_finetuning(task, start, seed, rate)
    if start == "scratch":
        like, model = load(model), work / "scratch" / name
        fresh = formers.build(like.family, head=like.head, seed=seed, **like.config.to_settings())
        fresh.tokenizer = like.tokenizer
        save(fresh, model, overwrite=True)
    train, valid, test = parts
    limit = {"valid_fraction": 0.02} if task == "nsmc" and plan.most_examples is None and not tiny else {}
    began = time.perf_counter()
    run = formers.finetune(
        model, train, valid, test=test, task=plan.task, out=work / "tuned" / name, overwrite=True,
        epochs=1 if tiny else plan.epochs, batch_size=plan.batch_size, seq_length=128, seed=seed, long_texts="cut",
        lr=rate, baseline=False, metric=plan.metric, **limit,
        overrides={"train.samples": 0, "train.compile": "blocks" if compile_ else False, "train.keep_last": 1,
                   "train.precision": plan.precision},
    )  # fmt: skip
    record = {"task": task, "start": start, "seed": seed, "rate": rate, "test": run.test, "valid": run.valid,
              "metric": plan.metric, "seconds": round(time.perf_counter() - began, 1)}  # fmt: skip
    write_record(work / "figures", f"{name}.json", record)
    shutil.rmtree(work / "tuned" / name, ignore_errors=True)  # checkpoints of all runs would fill a small disk
    print(json.dumps(record), flush=True)


def measure_decoder(corpora: Path, work: Path, tiny: bool) -> JSONObject:
    """Compute bits per byte of the decoder on held-out text of each source, beside a unigram and a 5-gram model."""
    sys.path.insert(0, str(Path(__file__).parent))
    from ngram_baseline import NgramModel

    plan = PLANS["decoder"]
    former = load(find_trained(work, "decoder"), device="cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = get_tokenizer(former)
    documents = collect_documents(plan, corpora, tiny)
    ngrams = {n: NgramModel(n, len(tokenizer)) for n in (1, 5)}
    encoded = encode_documents(tokenizer, documents)
    for model in ngrams.values():
        model.count(encoded)
    figures: JSONObject = {}
    for source in ("wikipedia", "books", "bills", "reviews"):
        texts = take_characters(read_text(corpora, source, "test"), 3_000 if tiny else 400_000)
        scores = evaluate_perplexity(former, texts, batch_size=64)
        size = scores["bytes"]
        rows = encode_documents(tokenizer, texts)
        figures[source] = {"model": scores["bits_byte"]} | {
            f"{n}-gram" if n > 1 else "unigram": -model.compute_log_prob(rows) / math.log(2) / size
            for n, model in ngrams.items()
        }
        print(source, figures[source], flush=True)
    return figures


def get_tokenizer(former: formers.Former) -> Tokenizer:
    """Return the tokenizer, which every model here has."""
    if former.tokenizer is None:
        raise SystemExit("the model has no tokenizer")
    return former.tokenizer


def encode_documents(tokenizer: Tokenizer, documents: list[str]) -> list[list[int]]:
    """Return the ids of documents, without marks."""
    return [one.ids for one in tokenizer.backend.encode_batch(documents, add_special_tokens=False)]


def take_characters(documents: list[str], count: int) -> list[str]:
    """Return the first documents, as many as have so many characters."""
    taken, size = [], 0
    for document in documents:
        if size >= count:
            break
        taken.append(document)
        size += len(document)
    return taken


def measure_titler(corpora: Path, work: Path, tiny: bool) -> JSONObject:
    """Compute ROUGE of titles that the model writes, beside copying the beginning of the bill."""
    former = load(find_trained(work, "titler"), device="cuda" if torch.cuda.is_available() else "cpu")
    rows = read_title_rows(corpora, "test")[: 20 if tiny else None]
    references = [row["target"] for row in rows]
    written = former.summarise([row["text"] for row in rows], max_new_tokens=40)
    words = round(sum(len(title.split()) for title in references) / len(references))
    copied = [" ".join(row["text"].split()[:words]) for row in rows]
    titles = Counter(row["target"] for row in read_title_rows(corpora, "train"))
    common = titles.most_common(1)[0][0]
    return {
        "model": rouge(references, written), "copy": rouge(references, copied),
        "most_common_title": rouge(references, [common] * len(rows)),
        "exact": sum(a == b for a, b in zip(references, written, strict=True)) / len(rows),
        "most_common_exact": references.count(common) / len(rows),
        "examples": [{"title": a, "written": b} for a, b in list(zip(references, written, strict=True))[:10]],
    }  # fmt: skip


def measure_pairs(former: formers.Former, each: int) -> JSONObject:
    """Compute the share of minimal pairs whose good sentence is the likelier, by language and phenomenon."""
    figures: JSONObject = {}
    for language in PHENOMENA:
        rows = list(generate_pairs(language, each))
        sentences = [(row["good"], row["bad"]) for row in rows]
        found = evaluate_pairs(former, sentences, [row["phenomenon"] for row in rows], batch_size=128)
        figures[language] = {"mean": found["accuracy_mean"]} | {name: found[name] for name in PHENOMENA[language]}
    return figures


def measure_one(name: str, corpora: Path, work: Path, out: Path, tiny: bool) -> None:
    """Measure one of the models as it ships."""
    figures: JSONObject = {}
    if name == "decoder":
        figures["bits_per_byte"] = measure_decoder(corpora, work, tiny)
    if name == "titler":
        figures["titles"] = measure_titler(corpora, work, tiny)
    else:
        former = load(find_trained(work, name), device="cuda" if torch.cuda.is_available() else "cpu")
        figures["minimal_pairs"] = measure_pairs(former, 5 if tiny else 60)
        print({language: round(values["mean"], 3) for language, values in figures["minimal_pairs"].items()}, flush=True)
    write_record(out, f"{name}.measure.json", figures)


def summarise_finetuning(work: Path) -> JSONObject:
    """Return mean and spread over seeds of each task and start, with the rate that is best on validation examples with
    the first seed: the only one that every rate has."""
    groups: dict[str, dict[str, dict[float, list[JSONObject]]]] = {}
    for path in sorted((work / "figures").glob("*-*-*-*.json")):
        one = json.loads(path.read_text(encoding="utf-8"))
        groups.setdefault(one["task"], {}).setdefault(one["start"], {}).setdefault(one["rate"], []).append(one)
    figures: JSONObject = {}
    for task, starts in groups.items():
        metric = TASKS[task].metric
        figures[task] = {"metric": metric, "examples": TASKS[task].most_examples}
        for start, rates in starts.items():
            firsts = {rate: run for rate, runs in rates.items() for run in runs if run["seed"] == 0}
            if not firsts:
                continue
            best = max(firsts, key=lambda rate: firsts[rate]["valid"][metric])
            values = [run["test"][metric] for run in rates[best]]
            figures[task][start] = {
                "mean": sum(values) / len(values), "spread": max(values) - min(values), "seeds": len(values),
                "values": values, "rate": best, "rates_tried": sorted(rates),
            }  # fmt: skip
    return figures


# ---------------------------------------------------------------------------------------------------- word vectors

VECTOR_TITLE = "word-vectors"
VECTOR_WORDS, VECTOR_DIM = 22_000, 112
VECTOR_LIMITS = (
    "One vector for each word in lower case, whatever its sense; Korean words with their particles are words "
    "of their own. Other words have no vector. They hold the prejudices of their texts."
)
ANALOGIES = {  # rows of a kind share a relation: every two rows make a question
    "en": (
        ("man woman", "king queen", "boy girl", "father mother", "son daughter", "brother sister", "husband wife"),
        ("france paris", "england london", "germany berlin", "italy rome", "russia moscow", "japan tokyo",
         "greece athens"),
        ("good better", "large larger", "high higher", "small smaller", "old older", "strong stronger",
         "great greater"),
        ("city cities", "country countries", "year years", "war wars", "child children", "man men", "state states"),
        ("write wrote", "take took", "give gave", "see saw", "know knew", "become became", "begin began"),
    ),
    "ko": (
        ("영화 영화를", "배우 배우를", "연기 연기를", "감독 감독을", "내용 내용을", "사람 사람을"),
        ("영화는 영화가", "내용은 내용이", "감독은 감독이", "연기는 연기가", "스토리는 스토리가"),
        ("국가 국가가", "정부 정부가", "국회 국회가", "국민 국민이", "법률 법률이"),
        ("남자 여자", "아들 딸", "아빠 엄마", "오빠 언니"),
        ("재미있는 재미있다", "슬픈 슬프다", "좋은 좋다", "예쁜 예쁘다", "무서운 무섭다"),
    ),
}  # fmt: skip


def train_vectors(corpora: Path, work: Path, epochs: int, threads: int, tiny: bool) -> None:
    """Train word vectors of both languages on the text of the encoder; every source is read once."""
    from formers.training.word_vectors.word2vec import split_texts, train_word_vectors

    began, plan = time.perf_counter(), PLANS["encoder"]
    documents = [d for name in plan.sources for d in read_text(corpora, name, "train")[: 60 if tiny else None]]
    counts = Counter(word for words in split_texts(documents, True) for word in words)
    ranked = sorted(counts.values(), reverse=True)
    least = ranked[min(VECTOR_WORDS, len(ranked)) - 1] + 1
    print(f"{len(documents):,} documents, {sum(ranked):,} words; {least:,} times at least", flush=True)
    former = train_word_vectors(
        documents, "skipgram", epochs=epochs, threads=threads, seed=1, dim=VECTOR_DIM, window=5, min_count=least,
        sample=1e-4, tell=lambda what, done, of, detail: print(f"{what} {done}/{of} {detail}", flush=True),
    )  # fmt: skip
    former.training_info = {"objective": "skip-gram"}
    save(former, work / "full" / VECTOR_TITLE, overwrite=True)
    save(former, work / "shipped" / VECTOR_TITLE, storage="int8", overwrite=True)
    seconds = round(time.perf_counter() - began)
    record = {"words": sum(ranked), "epochs": epochs, "seconds": seconds, "vocab": len(counts)}
    write_record(work / "figures", f"{VECTOR_TITLE}.json", record)


def measure_analogies(former: formers.Former) -> JSONObject:
    """Compute how often b - a + c is nearest to d, for every two rows of a kind; unknown words do not count."""
    from formers.tasks.word_vectors import find_nearest_words, get_unit_vectors

    words, figures = get_tokenizer(former).backend.get_vocab(), JSONObject()
    for language, kinds in ANALOGIES.items():
        right = asked = 0
        for rows in kinds:
            pairs = [row.split() for row in rows]
            for a, b in pairs:
                for c, d in pairs:
                    if a == c or any(word not in words for word in (a, b, c, d)):
                        continue
                    units = get_unit_vectors(former, (a, b, c))
                    nearest = find_nearest_words(former, units[1] - units[0] + units[2], 1, without=(a, b, c))
                    right, asked = right + (nearest[0][0] == d), asked + 1
        figures[language] = {"right": right, "asked": asked, "accuracy": right / max(1, asked)}
    return figures


def measure_vectors(work: Path, data: Path, out: Path, tiny: bool) -> None:
    """Measure the word vectors as they ship: analogies, and a linear classifier of two tasks on the mean of a text's
    vectors, beside random vectors of the same words."""
    former = load(work / "shipped" / VECTOR_TITLE)
    words, table = get_tokenizer(former).backend.get_vocab(), former.model.body.embedding_table.detach()
    figures: JSONObject = {"analogies": measure_analogies(former), "tasks": {}}
    noise = torch.randn(table.shape, generator=torch.Generator().manual_seed(0))
    for task in ("sst2", "nsmc"):
        plan = TASKS[task]
        train, test = (read_rows(data, name, tiny)[:20_000] for name in (plan.files[0], plan.files[2]))
        row: JSONObject = {"train": len(train)}
        for name, vectors in (("random", noise), ("vectors", table / table.norm(dim=1, keepdim=True).clamp(min=1e-9))):
            inputs = [embed_by_mean(rows, words, vectors) for rows in (train, test)]
            labels = [torch.tensor([int(one["label"]) for one in rows]) for rows in (train, test)]
            row[name] = fit_linear_classifier(inputs[0], labels[0], inputs[1], labels[1])
        figures["tasks"][task] = row
        print(task, row, flush=True)
    write_record(out, "vectors.measure.json", figures)


def embed_by_mean(rows: list[dict[str, str]], words: dict[str, int], table: torch.Tensor) -> torch.Tensor:
    """Return the mean of the vectors of each text's words; zeros where it has none that are known."""
    from formers.training.word_vectors.word2vec import split_texts

    means = torch.zeros(len(rows), table.shape[1])
    for number, parts in enumerate(split_texts([row["text"] for row in rows], True)):
        if ids := [words[word] for word in parts if word in words]:
            means[number] = table[ids].mean(0)
    return means


def fit_linear_classifier(
    inputs: torch.Tensor, labels: torch.Tensor, test_inputs: torch.Tensor, test_labels: torch.Tensor
) -> float:
    """Return the accuracy of a logistic regression on test examples."""
    mean, spread = inputs.mean(0), inputs.std(0) + 1e-6
    layer = torch.nn.Linear(inputs.shape[1], 2)
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def compute_loss() -> torch.Tensor:
        optimizer.zero_grad()
        logits = layer((inputs - mean) / spread)
        loss = torch.nn.functional.cross_entropy(logits, labels) + 1e-4 * layer.weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(compute_loss)
    return float((layer((test_inputs - mean) / spread).argmax(1) == test_labels).float().mean())


def pack_vectors(work: Path, out: Path, target: Path) -> None:
    """Make the shipped word vectors, with their record and cards."""
    from formers.interop.model_card import write_shipped_card

    made = json.loads((work / "figures" / f"{VECTOR_TITLE}.json").read_text(encoding="utf-8"))
    measured = json.loads((out / "vectors.measure.json").read_text(encoding="utf-8"))
    figures = [
        {"what": f"analogies ({language}), {row['asked']} questions", "value": round(100 * row["accuracy"], 1),
         "beside": "chance 0.0"}
        for language, row in measured["analogies"].items()
    ] + [
        {"what": f"linear classifier on mean vectors, {TASK_TITLES[task]}, {row['train']:,} examples",
         "value": round(100 * row["vectors"], 2), "beside": f"random vectors {100 * row['random']:.2f}"}
        for task, row in measured["tasks"].items()
    ]  # fmt: skip
    place = target / VECTOR_TITLE
    former = load(work / "shipped" / VECTOR_TITLE)
    former.training_info = {"objective": "skip-gram"}
    save(former, place, storage="int8", overwrite=place.exists())
    record = add_korean({
        "title": VECTOR_TITLE, "languages": ["en", "ko"], "license": "cc-by-sa-3.0", "figures": figures,
        "data": [SOURCE_LICENCES[source] for source in PLANS["encoder"].sources],
        "seen": f"{made['words']:,} words, {made['epochs']} epochs",
        "compute": f"{made['seconds']} s on two CPU cores (machine shared with other programs)",
        "recipe": "python scripts/train_shipped.py vectors CORPORA --work W",
        "limits": VECTOR_LIMITS,
    })  # fmt: skip
    write_shipped_card(place, load(place), record, "int8")
    print(f"{VECTOR_TITLE}: {sum(p.stat().st_size for p in place.rglob('*') if p.is_file()) / 1e6:.2f} MB")


# ---------------------------------------------------------------------------------------------------- packing


def pack(folders: list[Path], target: Path) -> None:
    """Make shipped models of what was brought back: int8 weights, a record (card.json) and cards."""
    from formers.interop.model_card import write_shipped_card

    records: dict[str, JSONObject] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.json")):
            record, (name, _, stage) = json.loads(path.read_text(encoding="utf-8")), path.stem.partition(".")
            if stage:  # of a stage that was cut off before its records were joined
                records.setdefault(f"{stage}.json", {})[name] = record
            else:
                records.setdefault(path.name, {}).update(record)
    for name, plan in PLANS.items():
        made = records.get("pretrain.json", {}).get(name)
        source = next((folder for folder in reversed(folders) if (folder / f"{name}.tar.00").exists()), None)
        if made is None or source is None:
            print(f"{name}: not among what was brought back")
            continue
        place = target / plan.title
        with tempfile.TemporaryDirectory() as unpacked:
            unpack(source, Path(unpacked))
            former = load(Path(unpacked) / plan.title)
        former.training_info |= add_up_runs(made)
        save(former, place, storage="int8", overwrite=place.exists())
        former = load(place)
        measured = records.get("measure.json", {}).get(name, {})
        tuned = records.get("finetune.json", {}) if name == "encoder" else {}
        write_shipped_card(place, former, build_card(name, made, measured, tuned), "int8")
        size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
        print(f"{plan.title}: {size / 1e6:.2f} MB")


def rewrite_cards(target: Path) -> None:
    """Make the cards of models that are packed anew, from their records (card.json)."""
    from formers.interop.model_card import write_shipped_card

    limits = {plan.title: plan.limits for plan in PLANS.values()} | {VECTOR_TITLE: VECTOR_LIMITS}
    for path in sorted(target.glob("*/card.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        record = add_korean({**record, "limits": limits[record["title"]]})
        write_shipped_card(path.parent, load(path.parent), record, "int8")


def build_card(name: str, made: JSONObject, measured: JSONObject, tuned: JSONObject) -> JSONObject:
    """Return the record of a shipped model, from those of its stages."""
    plan, figures, totals = PLANS[name], list[JSONObject](), add_up_runs(made)
    on_cpu = made["device"] == "CPU"
    device, scale, shared = ("CPU core", " --scale cpu", "machine") if on_cpu else (made["device"], "", "GPU")
    recipe = f"python scripts/train_shipped.py pretrain CORPORA --work W --out OUT --only {name}{scale}"
    again = recipe.replace("--work W", "--work W2")  # W would continue its own run
    for task, row in tuned.items():
        unit = 100.0
        pretrained, scratch = row.get("pretrained", {}), row.get("scratch", {})
        few = f", {row['examples']:,} examples" if row.get("examples") else ""
        figures.append({
            "what": f"{TASK_TITLES[task]}, {METRIC_TITLES[row['metric']]}{few}, {pretrained.get('seeds', 0)} seeds",
            "value": round(unit * pretrained.get("mean", math.nan), 2),
            "beside": f"same shape from scratch {unit * scratch.get('mean', math.nan):.2f}",
        })  # fmt: skip
    for source, row in measured.get("bits_per_byte", {}).items():
        figures.append({
            "what": f"bits per byte, held-out {source}", "value": round(row["model"], 3),
            "beside": f"unigram {row['unigram']:.3f}, 5-gram {row['5-gram']:.3f}",
        })  # fmt: skip
    if "titles" in measured:
        titles = measured["titles"]
        figures.append({
            "what": "ROUGE-L of titles, 2,000 bills newer than those of training",
            "value": round(100 * titles["model"]["rougeL"], 1),
            "beside": f"copying the beginning {100 * titles['copy']['rougeL']:.1f}, the most common title "
            f"{100 * titles['most_common_title']['rougeL']:.1f}",
        })  # fmt: skip
        figures.append(
            {
                "what": "titles written exactly",
                "value": round(100 * titles["exact"], 1),
                "beside": f"the most common title {100 * titles['most_common_exact']:.1f}",
            }
        )
    for language, row in measured.get("minimal_pairs", {}).items():
        figures.append({
            "what": f"minimal pairs ({language}), {len(row) - 1} phenomena", "value": round(100 * row["mean"], 1),
            "beside": "chance 50",
        })  # fmt: skip
    return add_korean({
        "title": plan.title, "languages": list(plan.languages), "limits": plan.limits, "figures": figures,
        "license": "cc-by-sa-3.0" if "wikipedia" in plan.sources else "cc-by-4.0",
        "data": [SOURCE_LICENCES[source] for source in plan.sources],
        "tokens_seen": totals["tokens_seen"], "steps": totals["steps"],
        "compute": f"{totals['seconds']:,.0f} s on one {device} ({shared} shared with other runs)",
        "recipe": f"{recipe} && {again} --init W/bf16/{plan.title}" if "earlier" in made else recipe,
    })  # fmt: skip


def translate_figure(text: str) -> str:
    """Return in Korean what a card says of a figure."""
    for pattern, korean in FIGURES_IN_KOREAN:
        text = re.sub(pattern, korean, text)
    return text


def add_korean(record: JSONObject) -> JSONObject:
    """Add what the Korean card says to the record of a shipped model."""
    in_korean = {SOURCE_LICENCES[source]: words for source, words in LICENCES_IN_KOREAN.items()}
    cpu_limits = CPU_LIMITS.get(record["title"]) if "--scale cpu" in record["recipe"] else None
    limits, korean_limits = record["limits"], LIMITS_IN_KOREAN[record["title"]]
    if cpu_limits is not None:
        limits, korean_limits = f"{limits} {cpu_limits[0]}", f"{korean_limits} {cpu_limits[1]}"
    korean: JSONObject = {
        "limits": korean_limits, "data": [in_korean[text] for text in record["data"]],
        "compute": translate_figure(record["compute"]),
        "figures": [
            {"what": translate_figure(row["what"]), "value": row["value"], "beside": translate_figure(row["beside"])}
            for row in record["figures"]
        ],
    }  # fmt: skip
    if "seen" in record:
        korean["seen"] = translate_figure(record["seen"])
    return {**record, "limits": limits, "korean": korean}


# ---------------------------------------------------------------------------------------------------- commands


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the stages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = parser.add_subparsers(dest="stage", required=True)

    def add(name: str, *wanted: str) -> argparse.ArgumentParser:
        stage = stages.add_parser(name)
        if "corpora" in wanted:
            stage.add_argument("corpora", type=Path)
        stage.add_argument("--tiny", action="store_true", help="very small, to see that everything runs")
        stage.add_argument(
            "--scale", choices=("gpu", "cpu"), default="gpu", help="cpu: what two cores train in an hour"
        )
        if "only" in wanted:
            stage.add_argument("--only", nargs="+", choices=PLANS, default=list(PLANS))
        for option in ("work", "out", "data"):
            if option in wanted:
                stage.add_argument(f"--{option}", type=Path, required=True)
        if "seconds" in wanted:
            stage.add_argument("--seconds", type=float, default=540.0)
        return stage

    add("tokenizers", "corpora", "only")
    for name in ("pretrain", "pretrain-one"):
        add(name, "corpora", "only", "work", "out", "seconds").add_argument("--init", type=Path)
    tuning = add("finetune", "work", "data", "out", "seconds")
    tuning.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    tuning.add_argument("--seeds", type=int, default=3)
    tuning.add_argument("--jobs", type=int, default=14)
    group = add("finetune-group", "work", "data")
    group.add_argument("task", choices=TASKS)
    group.add_argument("start", choices=("pretrained", "scratch"))
    group.add_argument("seeds", type=int, nargs="+")
    for stage in (tuning, group):
        stage.add_argument("--eager", action="store_true", help="compile nothing")
    add("measure", "corpora", "only", "work", "out", "seconds")
    add("measure-one", "corpora", "only", "work", "out")
    vectors = add("vectors", "corpora", "work")
    vectors.add_argument("--epochs", type=int, default=4)
    vectors.add_argument("--threads", type=int, default=2)
    add("vectors-measure", "work", "data", "out")
    add("vectors-pack", "work", "out").add_argument("--target", type=Path, default=SHIPPED_FOLDER)
    packing = add("pack")
    packing.add_argument("folders", type=Path, nargs="+")
    packing.add_argument("--target", type=Path, default=SHIPPED_FOLDER)
    add("cards").add_argument("--target", type=Path, default=SHIPPED_FOLDER)
    add("snapshot", "only", "work", "out")
    add("restore", "work").add_argument("folders", type=Path, nargs="+")
    add("check", "corpora", "data").add_argument("--work", type=Path, default=None)
    return parser


def main() -> None:
    """Run a stage."""
    asked = build_parser().parse_args()
    tiny = [*(["--tiny"] if asked.tiny else []), "--scale", asked.scale]
    if asked.scale == "cpu":
        PLANS.update(SMALL_PLANS)
        TASKS.update(SMALL_TASKS)
    if asked.stage == "tokenizers":
        train_tokenizers(asked.corpora, asked.only, tiny=asked.tiny)
    elif asked.stage == "pretrain-one":
        pretrain_one(asked.only[0], asked.corpora, asked.work, asked.out, asked.seconds, asked.init, asked.tiny)
    elif asked.stage == "pretrain":
        common = [str(asked.corpora), "--work", str(asked.work), "--out", str(asked.out), *tiny]
        common += ["--init", str(asked.init)] if asked.init else []
        commands = {
            name: ["pretrain-one", *common, "--only", name, "--seconds", str(asked.seconds - 15)] for name in asked.only
        }
        codes = run_side_by_side(commands, len(commands), asked.seconds + SPARE_SECONDS, asked.work / "logs")
        merge_records(asked.out, "pretrain", asked.only)
        finish("pretrain", codes)
    elif asked.stage == "finetune-group":
        compiles = torch.cuda.is_available() and not asked.eager
        finetune_group(asked.task, asked.start, asked.seeds, asked.work, asked.data, asked.tiny, compiles)
    elif asked.stage == "finetune":
        where = ["--work", str(asked.work), "--data", str(asked.data), *tiny]
        where += ["--eager"] if asked.eager else []
        groups = list_finetuning(asked.tasks, asked.seeds)
        commands = {name: ["finetune-group", *arguments, *where] for name, arguments in groups.items()}

        def note() -> None:
            write_record(asked.out, "finetune.json", summarise_finetuning(asked.work))

        codes = run_side_by_side(commands, asked.jobs, asked.seconds, asked.work / "logs", note)
        figures = summarise_finetuning(asked.work)
        for task, row in figures.items():
            print(task, {key: value for key, value in row.items() if key != "values"}, flush=True)
        finish("finetune", codes)
    elif asked.stage == "measure-one":
        measure_one(asked.only[0], asked.corpora, asked.work, asked.out, asked.tiny)
    elif asked.stage == "measure":
        common = [str(asked.corpora), "--work", str(asked.work), "--out", str(asked.out), *tiny]
        commands = {name: ["measure-one", *common, "--only", name] for name in asked.only}
        codes = run_side_by_side(commands, len(commands), asked.seconds, asked.work / "logs")
        merge_records(asked.out, "measure", asked.only)
        finish("measure", codes)
    elif asked.stage == "vectors":
        train_vectors(asked.corpora, asked.work, asked.epochs, asked.threads, asked.tiny)
    elif asked.stage == "vectors-measure":
        measure_vectors(asked.work, asked.data, asked.out, asked.tiny)
    elif asked.stage == "vectors-pack":
        pack_vectors(asked.work, asked.out, asked.target)
    elif asked.stage == "snapshot":
        write_snapshots(asked.only, asked.work, asked.out)
    elif asked.stage == "restore":
        restore(asked.folders, asked.work)
    elif asked.stage == "cards":
        rewrite_cards(asked.target)
    elif asked.stage == "pack":
        pack(asked.folders, asked.target)
    else:
        check_stages(asked.corpora, asked.data, asked.work)


def finish(stage: str, codes: dict[str, int]) -> None:
    """End with an error if a part of a stage did; the others' results are written."""
    if bad := [f"{name} ({code})" for name, code in codes.items() if code]:
        raise SystemExit(f"{stage}: not finished: {', '.join(bad)}; the same command does them again")


def check_stages(corpora: Path, data: Path, work: Path | None) -> None:
    """Run every stage, tiny, in a temporary folder."""
    with tempfile.TemporaryDirectory() as temporary:
        place = work or Path(temporary)
        train_tokenizers(corpora, list(PLANS), place / "tokenizers", tiny=True)
        run = [sys.executable, __file__]
        where = ["--work", str(place), "--out", str(place / "out"), "--tiny"]
        for stage in (
            ["pretrain", str(corpora), *where, "--seconds", "150"],
            ["snapshot", "--work", str(place), "--out", str(place / "snapshot")],
            ["finetune", *where, "--data", str(data), "--seeds", "1", "--jobs", "2"],
            ["measure", str(corpora), *where],
            ["pack", str(place / "out"), "--target", str(place / "pretrained")],
        ):
            print("$", " ".join(stage), flush=True)
            subprocess.run(run + stage, check=True)
        for path in sorted((place / "pretrained").iterdir()):
            print(load(path))


if __name__ == "__main__":
    main()
