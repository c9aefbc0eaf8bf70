"""Run by test_tokenizers.py in a process of its own: python mutated_models.py FOLDER COUNT."""

from __future__ import annotations

import json
import random
import resource
import sys
import time
import warnings
from pathlib import Path

from formers import Error
from formers.registry import list_tokenizer_styles
from formers.text import published_files

MEMORY = 1 << 30  # bytes that any model may need on top of what the library itself takes


def mutate_bytes(data, draw):
    """Some bytes are others, left out, doubled, or the end is missing; in half of the cases one or two are others."""
    data, mild = bytearray(data), draw.random() < 0.5
    for _ in range(draw.randint(1, 2 if mild else 8)):
        place = draw.randrange(len(data))
        kind = 0 if mild else draw.randrange(4)
        if kind == 0:
            data[place] = draw.randrange(256)
        elif kind == 1:
            del data[place : place + draw.randint(1, 40)]
        elif kind == 2:
            data[place:place] = data[place : place + draw.randint(1, 40)]
        elif len(data) > 50:
            del data[draw.randrange(len(data) // 2, len(data)) :]
    return bytes(data)


def try_mutants(folder, count):
    """Every mutated model is an Error, or a tokenizer that works or fails with an Error, in so much memory."""
    warnings.simplefilter("ignore")
    models = [path.read_bytes() for path in sorted(Path(folder).iterdir())]
    styles = list_tokenizer_styles()
    draw, refused, slowest = random.Random(0), 0, 0.0
    for number in range(-3, count):
        data = mutate_bytes(models[number % 3], draw) if number >= 0 else models[number]
        if number == 0:  # all is loaded that is ever needed
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        began = time.process_time()
        try:
            made = published_files.from_spm(data, {}, styles)
            made.decode(made.encode("the cat 현행법 \u1112\u1161 é ½ </s>"))
            made.encode_batch(["the <pad> cat", "\u1112\u1161"], parse_special=False)
        except Error:
            refused += number >= 0
        except BaseException as error:
            sys.exit(f"mutation {number}: {type(error).__name__}: {error}")
        slowest = max(slowest, time.process_time() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(json.dumps({"refused": refused, "slowest": slowest, "peak": peak}))


if __name__ == "__main__":
    try_mutants(sys.argv[1], int(sys.argv[2]))
