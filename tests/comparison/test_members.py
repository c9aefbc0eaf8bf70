"""Bodies of one size: widths are found for every kind of family, and what is shared or routed is counted apart."""

from __future__ import annotations

import pytest

from formers.comparison.members import choose_model, configure_member, count_steps, count_unrolled
from formers.comparison.settings import Budget, CompareConfig
from formers.former import build_empty
from formers.registry import FAMILIES
from formers.training.config_merge import build_model_config

CONFIG = CompareConfig(families=("bert",), body_size=400_000, layers=4)
VOCAB = 500


@pytest.mark.parametrize("family", ["bert", "albert", "gptj", "bloom", "t5", "switch", "elmo", "seq2seq", "xlnet"])
def test_every_body_has_the_size(family):
    settings = choose_model(family, CONFIG, VOCAB)
    sizes = build_model_config(configure_member(family, CONFIG, 100, settings), vocab=VOCAB)
    model = build_empty(family, sizes, FAMILIES[family].definition.pretraining_head).model
    stored, unrolled = count_unrolled(model, VOCAB)
    assert unrolled == pytest.approx(CONFIG.body_size, rel=CONFIG.tolerance)
    if family == "albert":
        assert stored < unrolled / 3, "four layers share one block"
    elif family == "switch":
        assert stored > 1.3 * unrolled, "four experts, of which a token meets one"
    else:
        assert stored == unrolled


def test_steps_of_a_budget():
    plan = {"epoch_steps": 12, "step_flops": 1e6}
    assert count_steps(plan, Budget.parse("epochs:2.5")) == 30
    assert count_steps(plan, Budget.parse("flops:5e7")) == 50
    assert count_steps(plan, Budget.parse("flops:bert"), 2e7) == 20
    assert count_steps(plan, Budget.parse("flops:1")) == 1
