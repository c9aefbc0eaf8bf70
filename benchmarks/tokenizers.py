"""Tokenizers: how long training takes on 500 MB, in how much memory; how fast they read beside the Rust library alone.

FORMERS_DATA=… python -m benchmarks.tokenizers train bpe wordpiece unigram --vocab-size 32000 --megabytes 500
FORMERS_DATA=… python -m benchmarks.tokenizers speed
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DATA_FOLDER = Path(os.environ.get("FORMERS_DATA", ""))
CORPUS_FILES = ("lm/wikitext2.train.txt.xz", "lm/movie_reviews_ko.txt.xz", "lm/tinyshakespeare.txt.xz")


def write_corpus(out: Path, megabytes: int, seed: int = 0) -> None:
    """The sample data, repeated; from the second time on, one character of each line is changed, so that new words
    keep coming as in real text."""
    text = "".join(lzma.decompress((DATA_FOLDER / name).read_bytes()).decode() for name in CORPUS_FILES)
    lines = [line for line in text.splitlines(keepends=True) if line.strip()]
    draw, size, number = random.Random(seed), 0, 0
    draw.shuffle(lines)
    with out.open("w", encoding="utf-8") as file:
        while size < megabytes * 10**6:
            line = lines[number % len(lines)]
            if number >= len(lines):
                other, place = lines[draw.randrange(len(lines))], draw.randrange(len(line))
                letter = other[draw.randrange(len(other))]
                if not letter.isspace() and not line[place].isspace():
                    line = line[:place] + letter + line[place + 1 :]
            number += 1
            size += len(line.encode())
            file.write(line)


def measure_tree_memory() -> int:
    """Bytes that this process and its children hold (Linux)."""
    pids, total = [os.getpid()], 0
    while pids:
        pid = pids.pop()
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            for task in Path(f"/proc/{pid}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
        except (OSError, ValueError):
            continue
    return total


class ResourceMonitor:
    """The time that a block takes, and the most memory that the processes held."""

    def __enter__(self) -> ResourceMonitor:
        self.peak_bytes, self.start_time, self.is_running = 0, time.perf_counter(), True
        self.thread = threading.Thread(target=self.sample_memory, daemon=True)
        self.thread.start()
        return self

    def sample_memory(self) -> None:
        while self.is_running:
            self.peak_bytes = max(self.peak_bytes, measure_tree_memory())
            time.sleep(0.2)

    def __exit__(self, *_: object) -> None:
        self.is_running, self.seconds = False, time.perf_counter() - self.start_time
        self.thread.join()


def read_lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as file:
        yield from file


def bench_training(kinds: list[str], vocab_size: int, megabytes: int, workers: int) -> None:
    from formers.registry import train_tokenizer

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus.txt"
        write_corpus(path, megabytes)
        print(f"{path.stat().st_size / 1e6:.0f} MB of text, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
        for kind in kinds:
            marks: dict[str, float] = {}
            began = time.perf_counter()

            def report_progress(
                what: str, done: int, of: int, detail: str, marks: Any = marks, began: float = began
            ) -> None:
                marks[what] = time.perf_counter() - began
                if done % 2000 == 0 or (what == "counting" and done % 20 == 0):
                    print(f"  {marks[what]:6.0f} s  {what} {done:,} {detail}", flush=True)

            with ResourceMonitor() as watch:
                made = train_tokenizer(kind, read_lines(path), vocab_size, workers=workers, tell=report_progress)
            row = {
                "kind": kind, "pieces": len(made), "megabytes": megabytes, "workers": workers,
                "minutes": round(watch.seconds / 60, 2), "gigabytes": round(watch.peak_bytes / 1e9, 2),
                "load": os.getloadavg()[0], "seconds": {k: round(v) for k, v in marks.items()},
                "fingerprint": made.fingerprint[:16],
            }  # fmt: skip
            print(json.dumps(row), flush=True)


def bench_encoding(vocab_size: int) -> None:
    """encode_batch beside the Rust library's own, on one core, turn by turn."""
    from formers.registry import train_tokenizer

    text = lzma.decompress((DATA_FOLDER / CORPUS_FILES[0]).read_bytes()) + lzma.decompress(
        (DATA_FOLDER / CORPUS_FILES[1]).read_bytes()
    )
    lines = [line for line in text.decode().splitlines() if line.strip()]
    random.Random(0).shuffle(lines)
    lines = lines[:20_000]
    for kind in ("gpt2", "bert", "t5", "gpt"):
        made = train_tokenizer(kind, lines, vocab_size)
        best = {"formers": float("inf"), "raw": float("inf")}
        for _ in range(5):
            for name, call in (
                ("formers", lambda m=made: m.encode_batch(lines, special=False)),
                ("raw", lambda m=made: [e.ids for e in m.backend.encode_batch_fast(lines, add_special_tokens=False)]),
            ):
                began = time.perf_counter()
                call()
                best[name] = min(best[name], time.perf_counter() - began)
        rate = sum(map(len, lines)) / 1e6 / best["formers"]
        print(f"{kind:8} {rate:5.2f} M characters/s, {best['raw'] / best['formers']:.0%} of the Rust library alone")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("train")
    one.add_argument("kinds", nargs="+")
    one.add_argument("--vocab-size", type=int, default=32_000)
    one.add_argument("--megabytes", type=int, default=500)
    one.add_argument("--workers", type=int, default=2)
    verbs.add_parser("speed").add_argument("--vocab-size", type=int, default=8000)
    options = parser.parse_args()
    if options.verb == "speed":
        bench_encoding(options.vocab_size)
    else:
        bench_training(options.kinds, options.vocab_size, options.megabytes, options.workers)


if __name__ == "__main__":
    main()
