"""The data side: formers prepare beside the bare tokenizers library, and the loader with each objective.

    FORMERS_DATA=... python -m benchmarks.data encode
    FORMERS_DATA=... python -m benchmarks.data prepare [--megabytes 20] [--workers 1 2]
    python -m benchmarks.data loader [--workers 0 1 2] [--length 512] [--total 65536] [--objectives mlm span-corruption]
    python -m benchmarks.data memory [--megabytes 50 200]

encode: what one worker does, beside `encode_batch` with its ids fetched, by seconds of work.
prepare: the command against a script with the bare library, the same text and tokenizer, so many processes against so
many threads of `encode_batch`, both from their start to their end, in turns; the best round counts. `cpu` compares the
seconds that were really worked in all processes, for machines with noisy neighbours.
loader: tokens per second of batches with their corruption, on a text of random words (no data is needed).
memory: the largest resident size of the main process and of its workers, for texts of two sizes.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import lzma
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import describe_machine
from formers import Error, Store
from formers.data.loader import load_batches
from formers.data.plans import TokenSource
from formers.data.preparation.document_encoder import encode_documents, get_splitter
from formers.data.preparation.pipeline import prepare
from formers.registry import train_tokenizer
from formers.text.tokenizer import Tokenizer


def print_result(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def build_corpus(megabytes: float) -> list[str]:
    """Articles of WikiText-2, repeated with other numbers up to a size; random words without the data."""
    where = os.environ.get("FORMERS_DATA")
    if where:
        with lzma.open(Path(where) / "lm" / "wikitext2.train.txt.xz", "rt", encoding="utf-8") as file:
            lines = [line.strip() for line in file if len(line) > 100]
    else:
        r = np.random.default_rng(0)
        words = np.array(["".join(chr(97 + c) for c in r.integers(0, 26, n)) for n in r.integers(2, 10, 5000)])
        lines = [" ".join(words[np.minimum(r.zipf(1.3, 90), 4999)]) + "." for _ in range(9000)]
    out, size = [], 0.0
    for turn in itertools.count():
        for i in range(0, len(lines), 5):
            out.append("\n".join(f"{line} {turn}." for line in lines[i : i + 5]))
            size += len(out[-1].encode())
            if size >= megabytes * 1e6:
                return out
    raise AssertionError("numbers do not end")


def measure_cpu_seconds() -> float:
    """Seconds of work of this process and of its children that have ended."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


def time_call(call: Any) -> tuple[float, float]:
    began, worked = time.perf_counter(), measure_cpu_seconds()
    call()
    return time.perf_counter() - began, measure_cpu_seconds() - worked


BARE_SCRIPT = """
import pathlib, sys, tokenizers
folder = pathlib.Path(sys.argv[1])
coder = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
documents = (folder / "text.txt").read_text(encoding="utf-8").split("\\n\\n")
for i in range(0, len(documents), 150):
    for row in coder.encode_batch(documents[i : i + 150], add_special_tokens=False):
        row.ids
"""


def run_bare_library(folder: Path, threads: int) -> None:
    """A script with the bare library, over chunks as large as ours, with the ids fetched and dropped."""
    more = {"TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false", "RAYON_NUM_THREADS": str(threads)}
    subprocess.run([sys.executable, "-c", BARE_SCRIPT, str(folder)], check=True, env=os.environ | more)


def run_prepare_command(folder: Path, workers: int, splitter: str) -> None:
    """The whole command from the file to the store, its start-up included."""
    shutil.rmtree(folder / "out", ignore_errors=True)
    words = f"prepare {folder / 'text.txt'} --tokenizer {folder / 'tokenizer.json'} --out {folder / 'out'} --unit block"
    more = f"--workers {workers} --splitter {splitter}"
    command = [sys.executable, "-m", "formers.cli.main", *words.split(), *more.split()]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def bench_encode(options: argparse.Namespace) -> None:
    """What a worker does, one thread, chunk by chunk in turns; the least seconds of work for each chunk count."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    documents = build_corpus(options.megabytes)
    chunks = [documents[i : i + 60] for i in range(0, len(documents), 60)]
    size = sum(len(d.encode()) for d in documents)
    for kind in ("bpe", "wordpiece"):
        tokenizer = train_tokenizer(kind, documents[:300], 8000)
        works = {
            "encode_batch": lambda t, c: [row.ids for row in t.backend.encode_batch(c, add_special_tokens=False)],
            "formers, sentences": lambda t, c: encode_documents(c, t, get_splitter("rules")),
            "formers": lambda t, c: encode_documents(c, t),
        }
        best = dict.fromkeys(itertools.product(works, range(len(chunks))), float("inf"))
        for _ in range(options.rounds):
            for (name, i), before in best.items():
                began = time.process_time()
                works[name](tokenizer, chunks[i])
                best[name, i] = min(before, time.process_time() - began)
        total = {name: sum(best[name, i] for i in range(len(chunks))) for name in works}
        for name, seconds in total.items():
            print_result(
                work="encode", tokenizer=kind, candidate=name,
                mb_per_s=round(size / seconds / 1e6, 2), ratio=round(total["encode_batch"] / seconds, 3),
            )  # fmt: skip


def bench_prepare(options: argparse.Namespace) -> None:
    documents = build_corpus(options.megabytes)
    size = sum(len(d.encode()) for d in documents)
    folder = Path(tempfile.mkdtemp())
    (folder / "text.txt").write_text("\n\n".join(documents), encoding="utf-8")
    for kind in ("bpe", "wordpiece"):
        tokenizer = train_tokenizer(kind, documents[:400], 8000)
        for workers in options.workers:
            tokenizer.save(folder / "tokenizer.json")
            ours = functools.partial(run_prepare_command, folder, workers)
            works = {
                "encode_batch": functools.partial(run_bare_library, folder, workers),
                "prepare": functools.partial(ours, "rules"),
                "prepare, no sentences": functools.partial(ours, "none"),
            }
            best: dict[str, tuple[float, float]] = {}
            for _ in range(options.rounds):
                for name, work in works.items():
                    took = time_call(work)
                    before = best.get(name, took)
                    best[name] = min(before[0], took[0]), min(before[1], took[1])
            peer = best["encode_batch"]
            for name, (seconds, cpu) in best.items():
                print_result(
                    work="prepare", tokenizer=kind, workers=workers, candidate=name,
                    mb_per_s=round(size / seconds / 1e6, 2), ratio=round(peer[0] / seconds, 3),
                    cpu_ratio=round(peer[1] / cpu, 3),
                )  # fmt: skip
    shutil.rmtree(folder)


def add_sentinels(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer with what T5 needs."""
    marks = ["</s>", *(f"<extra_id_{i}>" for i in reversed(range(100)))]
    grown = Tokenizer(tokenizer.json_text, tokenizer.special)
    grown.backend.add_special_tokens(marks)
    return Tokenizer(grown.backend.to_str(), {**tokenizer.special, "eos": "</s>"})


def bench_loader(options: argparse.Namespace) -> None:
    from formers.objectives.registry import OBJECTIVES, build_objective

    documents = build_corpus(4)
    tokenizers = [train_tokenizer(kind, documents[:100], 8000) for kind in ("wordpiece", "bpe")]
    tokenizers.append(add_sentinels(tokenizers[0]))
    for name in options.objectives or OBJECTIVES:
        goal, made, why = None, None, ""
        for tokenizer in tokenizers:
            try:
                goal = build_objective(name, tokenizer, options.length)
                made = Store.from_documents(documents, tokenizer, sentences="rules")
                next(load_batches(TokenSource(made, goal), options.total))
                break
            except Error as error:
                why, goal = str(error), None
        if goal is None:
            print_result(work="loader", objective=name, skipped=why)
        for workers in options.workers if goal is not None else ():
            assert made is not None
            assert goal is not None
            run: Any = load_batches(TokenSource(made, goal), options.total, workers=workers)
            for _ in range(2 * workers + 1):
                next(run)
            tokens, began = 0, time.perf_counter()
            while time.perf_counter() - began < options.seconds:
                batch, _ = next(run)
                tokens += max(len(batch.ids), 0 if batch.source is None else len(batch.source.ids))
            seconds = time.perf_counter() - began
            run.close()
            print_result(work="loader", objective=name, workers=workers, tokens_per_s=round(tokens / seconds))


def bench_memory(options: argparse.Namespace) -> None:
    folder = Path(tempfile.mkdtemp())
    documents = [d.replace("\n", " ") for d in build_corpus(1)]
    tokenizer = train_tokenizer("bpe", documents, 4000)
    for megabytes in sorted(options.megabytes):
        with open(folder / "text.txt", "w", encoding="utf-8") as file:
            for turn in range(int(megabytes)):
                file.writelines(f"{turn} {document}\n" for document in documents)
        pid = os.fork()
        if not pid:
            prepare(folder / "text.txt", tokenizer, folder / str(megabytes), unit="line", workers=1, shard=4_000_000)
            who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
            main, worker = (resource.getrusage(w).ru_maxrss / 1024 for w in who)
            print_result(work="memory", megabytes=megabytes, main_mb=round(main), worker_mb=round(worker))
            os._exit(0)
        os.waitpid(pid, 0)
    shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser()
    parts = parser.add_subparsers(required=True)
    one = parts.add_parser("prepare")
    one.add_argument("--megabytes", type=float, default=20)
    one.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    one.add_argument("--rounds", type=int, default=3)
    one.set_defaults(run=bench_prepare)
    zero = parts.add_parser("encode")
    zero.add_argument("--megabytes", type=float, default=1.5)
    zero.add_argument("--rounds", type=int, default=8)
    zero.set_defaults(run=bench_encode)
    two = parts.add_parser("loader")
    two.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    two.add_argument("--length", type=int, default=512)
    two.add_argument("--total", type=int, default=65536)
    two.add_argument("--seconds", type=float, default=3)
    two.add_argument("--objectives", nargs="*")
    two.set_defaults(run=bench_loader)
    three = parts.add_parser("memory")
    three.add_argument("--megabytes", type=float, nargs="+", default=[20, 80])
    three.set_defaults(run=bench_memory)
    options = parser.parse_args()
    print_result(**describe_machine(), cores=os.cpu_count())
    options.run(options)


if __name__ == "__main__":
    main()
