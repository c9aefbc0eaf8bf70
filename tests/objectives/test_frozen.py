"""A seed gives the same batches in every version: a run can be repeated.

`python -m tests.objectives.test_frozen` prints the sums anew, for a change that is meant."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import pytest

from formers.data.loader import load_batches
from formers.data.mixture import Mixture
from formers.data.plans import TokenSource
from formers.objectives.registry import build_objective
from tests.objectives import toys

TOKENIZER = toys.build_tokenizer(60, sentinels=20)
CASES = {
    "causal": {}, "causal across": {"across_documents": True}, "causal streams": {"num_streams": 3}, "prefix": {},
    "seq2seq": {"label_smoothing": 0.1}, "bidirectional": {"slots": 9}, "mlm": {},
    "mlm across": {"across_documents": True}, "mlm most": {"max_masked": 2, "mask_rate": 0.3}, "whole-word": {},
    "ngrams": {"mask_rate": 0.4}, "nsp": {}, "nsp short": {"short_seq_prob": 1.0}, "sop": {},
    "sop fallback": {"random_fallback": True}, "plm": {}, "plm released": {"as_released": True},
    "plm streams": {"num_streams": 4, "reversed": True}, "denoising": {}, "denoising released": {"as_released": True},
    "denoising all": {
        "mask_ratio": 0.1, "delete_ratio": 0.1, "insert_ratio": 0.1, "rotate_ratio": 0.5, "permute_ratio": 0.5,
        "infill_ratio": 0.2,
    },
    "denoising across": {"across_documents": True}, "span-corruption": {},
    "span-corruption across": {"across_documents": True, "mean_span_length": 2.0, "noise_density": 0.3},
    "switch": {}, "prefix-spans": {}, "deshuffle": {}, "ernie-units": {"stage": "basic"},
    "ernie-units all": {}, "continual": {},
    "ernie-units phrase": {"stage": "phrase", "task_id": 2}, "ernie-units entity": {"stage": "entity"},
    "unit-pairs": {"stage": "phrase"}, "dialogue": {},
    "mixture": {"tasks": [("span-corruption", 24), ("seq2seq", 24)]},
    "mixture masked": {"tasks": [("mlm", 16), ("whole-word", 24), ("ernie-units", 20)]},
    "mixture pairs": {"tasks": [("nsp", 24), ("sop", 20)]},
}  # fmt: skip
SUMS = """
causal 983f881f09c5
causal across decab6877af1
causal streams fe9bff301c1f
prefix d580de38179d
seq2seq 2eeaae03cd23
bidirectional f838633b0576
mlm bc8f9f97afa5
mlm across 27d961e18102
mlm most 9cc81d0db44d
whole-word 8e1e8d635e2e
ngrams 27f2dbd8d01e
nsp da98b4c3f268
nsp short 45489a08a1f5
sop 1bbcee31cf9e
sop fallback 463494ec02df
plm 0dc2b48049e1
plm released c623123a7f8b
plm streams 871bc3778862
denoising 42fd4980576f
denoising released 23dcb508b463
denoising all 6716bf035ea1
denoising across 9bfd848dcf4f
span-corruption d244d2af4314
span-corruption across 8ff488e42413
switch d244d2af4314
prefix-spans 2c3dcdb7973b
deshuffle 239e42030d2b
ernie-units 3412cc00c815
ernie-units all f58864350fb6
continual b004c1b100ea
ernie-units phrase ed72d0aef5a5
ernie-units entity f75d0f4aaeaa
unit-pairs f564f35228dc
dialogue 19aad3020d78
mixture a39f11241b7b
mixture masked 5794441d010d
mixture pairs f214cce2b354
"""


def make_numbers(count, below, seed):
    """Whole numbers that need no library."""
    made = []
    for _ in range(count):
        seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**64
        made.append((seed >> 33) % below)
    return made


def build_store(seed=1, end=TOKENIZER.id("eos")):
    sizes = iter(make_numbers(400, 16, seed))
    data = toys.build_store(
        [[1 + next(sizes) for _ in range(1 + count)] for count in make_numbers(40, 7, seed + 1)], end=end
    )
    data.tokens[data.tokens != end] = [7 + n for n in make_numbers(int((data.tokens != end).sum()), 53, seed + 2)]
    return toys.add_units(data, np.array(make_numbers(len(data.tokens), 4, seed + 3), np.uint8))


PAIRS = toys.build_store([[9, 7], [5, 6], [3, 4], [8, 8]] * 8)


def made_source(case):
    name = case.split()[0]
    if name == "mixture":
        tasks = [build_objective(task, TOKENIZER, *more) for task, *more in CASES[case]["tasks"]]
        stores = [
            PAIRS if task == "seq2seq" else build_store(10 * n) for n, (task, _) in enumerate(CASES[case]["tasks"])
        ]
        return Mixture(tuple(map(TokenSource, stores, tasks)), cap=40, epoch_examples=90)
    long = 64 if name in ("span-corruption", "switch", "denoising", "plm") else 24
    return TokenSource(
        PAIRS if name == "seq2seq" else build_store(), build_objective(name, TOKENIZER, long, **CASES[case])
    )


def compute_digest(case):
    """Over the plans of two epochs, the shape, and what the loader gives."""
    source = made_source(case)
    whole = hashlib.sha256()
    for epoch in (0, 1):
        plan = source.plan_epoch(5, epoch)
        for rows in getattr(plan, "rows", ()):  # of a mixture
            whole.update(rows.astype(np.int64).tobytes())
        for one in getattr(plan, "parts", (plan,)):
            for part in (one.begin, one.end, one.span_offsets, one.label):
                whole.update(np.asarray(part, np.int64).tobytes())
    whole.update(np.array(dataclasses.astuple(source.choose_shape(200, plan)), np.int64).tobytes())
    for batch, _ in load_batches(source, 200, 5, epochs=2):
        for side in (batch, batch.source):
            for field in dataclasses.fields(side) if side is not None else ():
                value = getattr(side, field.name)
                if isinstance(value, np.ndarray):
                    whole.update(field.name.encode() + value.astype(np.int64).tobytes())
    return whole.hexdigest()[:12]


@pytest.mark.parametrize("case", CASES)
def test_a_seed_gives_the_same_batches_in_every_version(case):
    known = dict(line.rsplit(" ", 1) for line in SUMS.strip().split("\n"))
    assert compute_digest(case) == known[case]


if __name__ == "__main__":
    for case in CASES:
        print(case, compute_digest(case))
