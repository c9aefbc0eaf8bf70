"""Every family pretrains with its own objective: the loss falls, two runs are equal bit for bit, the stored curve is
met to 1e-3 on any machine, and a run continues from its own checkpoint.

python -m tests.training.test_every_family writes the curves anew.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from formers.nn.block import BlockStack
from formers.registry import FAMILIES
from formers.training.checkpoint.local import Checkpoints
from tests.training.family_trainers import (
    build_family_trainer,
    collect_losses,
)

FALL = 0.3  # nats by which the loss falls at least
CURVES = Path(__file__).parent / "curves.json"
NAMES = [name for name, member in FAMILIES.items() if member.definition.objective]


@pytest.mark.parametrize("name", NAMES)
def test_it_learns_twice_the_same_and_continues(name, tmp_path):
    first = build_family_trainer(name)
    seen = collect_losses(first)
    half = build_family_trainer(name)
    begun = collect_losses(half, 7)
    kept = Checkpoints(tmp_path)
    kept.save(7, *half.get_state())
    again = build_family_trainer(name)
    again.restore_state(*kept.load(7))
    assert begun + collect_losses(again) == seen, "two runs, one of them stopped, are equal bit for bit"
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
    """Also where layers share a learned bias, and where a memory is carried between the two passes."""
    kept, again = build_family_trainer(name), build_family_trainer(name)
    calls = []
    for stack in (part for part in again.model.modules() if isinstance(part, BlockStack)):
        stack.checkpoint_activations = True
        stack[0].ff.register_forward_pre_hook(lambda *_: calls.append(1))
    want, got = collect_losses(kept, 4), collect_losses(again, 4)
    assert len(calls) >= 2 * 2 * 4, "every batch computes it twice"
    for a, b in zip(want, got, strict=True):
        assert b == pytest.approx(a, abs=1e-5)
    for a, b in zip(kept.model.parameters(), again.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


if __name__ == "__main__":
    curves = {name: collect_losses(build_family_trainer(name)) for name in NAMES}
    rows = (
        f'  "{name}": {json.dumps([{k: round(v, 5) for k, v in row.items()} for row in curve])}'
        for name, curve in curves.items()
    )
    CURVES.write_text("{\n" + ",\n".join(rows) + "\n}\n")
