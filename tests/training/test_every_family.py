"""Every family pretrains with its own objective: the loss falls, two runs are equal bit for bit, the stored curve is
met to 1e-3 on any machine, and a run goes on from its own checkpoint.

python -m tests.training.test_every_family writes the curves anew.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import formers
from formers.data.loader import load_batches
from formers.data.plans import TokenSource
from formers.nn.block import BlockStack
from formers.objectives.registry import OBJECTIVES, build_objective, list_options
from formers.registry import FAMILIES
from formers.training.checkpoint.local import Checkpoints
from formers.training.runs.pretrain import has_carried_state
from formers.training.train_config import TrainConfig
from formers.training.trainer import Trainer
from tests.objectives import toys
from tests.objectives.test_every_family import MORE, TOKENIZER
from tests.small_models import select_sizes

CURVES = Path(__file__).parent / "curves.json"
NAMES = [name for name, member in FAMILIES.items() if member.definition.objective]
STEPS, FALL = 16, 0.3  # nats by which the loss falls at least


def few(seed, documents, sentences):
    """Text of few words, some of them far more frequent: something to learn within a few steps."""
    r = np.random.default_rng(seed)
    word = lambda: (toys.PLAIN + np.minimum(r.geometric(0.3, r.integers(4, 20)), 30)).tolist()  # noqa: E731
    made = toys.store([[word() for _ in range(sentences(r))] for _ in range(documents)], end=TOKENIZER.id("eos"))
    return toys.with_units(made, r.integers(0, 4, len(made.tokens)).astype(np.uint8))


TEXT = few(0, 60, lambda r: r.integers(1, 12))
PAIRS = few(1, 60, lambda r: 2)


def trainer(name):
    family = FAMILIES[name].definition
    sizes = select_sizes(name, vocab=80, context=24, pad=TOKENIZER.id("pad"), memory=12)
    f = formers.build(name, head=family.pretraining_head, seed=0, **sizes)
    options = dict(MORE.get(family.objective, {}))
    known = list_options(OBJECTIVES[family.objective].objective_class)
    if has_carried_state(family) and "num_streams" in known:
        options |= {"num_streams": 8, "streams_per_batch": 4}
    goal = build_objective(family.objective, TOKENIZER, 24, **options)
    return Trainer(
        f.model, [goal], TrainConfig(steps=STEPS, batch_tokens=96, accumulate=2, seq_length=24, lr=1e-2, warmup_steps=2)
    )


def source(t):
    goal = t.objectives[0]
    store = PAIRS if type(goal).__name__ == "Seq2Seq" else TEXT
    return lambda phase, position: load_batches(TokenSource(store, goal), 96, 0, position)


def losses(t, until=None):
    return [report.losses for report in t.train(source(t), until)]


@pytest.mark.parametrize("name", NAMES)
def test_it_learns_twice_the_same_and_goes_on(name, tmp_path):
    first = trainer(name)
    seen = losses(first)
    half = trainer(name)
    begun = losses(half, 7)
    kept = Checkpoints(tmp_path)
    kept.save(7, *half.get_state())
    again = trainer(name)
    again.restore_state(*kept.load(7))
    assert begun + losses(again) == seen, "two runs, one of them stopped, are equal bit for bit"
    for a, b in zip(first.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert first.carried_states.streams == (8 if name in ("elmo", "transformer_xl", "xlnet") else 0)
    total = [sum(each.values()) for each in seen]
    assert sum(total[-3:]) / 3 < total[0] - FALL
    stored = json.loads(CURVES.read_text())[name]
    for step, (now, then) in enumerate(zip(seen, stored, strict=True)):
        assert now == pytest.approx(then, abs=1e-3), f"step {step}"


@pytest.mark.parametrize("name", ["bert", "t5", "switch", "transformer_xl", "xlnet", "bart"])
def test_checkpointing_gives_the_same(name):
    """Also where layers share a learned bias, and where a memory goes on between the two passes."""
    kept, again = trainer(name), trainer(name)
    calls = []
    for stack in (part for part in again.model.modules() if isinstance(part, BlockStack)):
        stack.checkpoint_activations = True
        stack[0].register_forward_pre_hook(lambda *_: calls.append(1))
    want, got = losses(kept, 4), losses(again, 4)
    assert len(calls) >= 2 * 2 * 4, "every batch computes it twice"
    for a, b in zip(want, got, strict=True):
        assert b == pytest.approx(a, abs=1e-5)
    for a, b in zip(kept.model.parameters(), again.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


if __name__ == "__main__":
    rows = (
        f'  "{n}": {json.dumps([{k: round(v, 5) for k, v in row.items()} for row in losses(trainer(n))])}'
        for n in NAMES
    )
    CURVES.write_text("{\n" + ",\n".join(rows) + "\n}\n")
