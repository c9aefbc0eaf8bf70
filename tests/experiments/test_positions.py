from __future__ import annotations

import pytest
import torch

from formers.experiments.positions import VARIANTS, compute_rotary_scores, measure_order_blindness
from formers.nn.attention.positions import SinusoidalPositions


def test_every_scheme_is_trained(run_experiment):
    page, found = run_experiment("positions", steps=1, length=8)
    assert len(page.tables[0].rows) == len(VARIANTS) == 7
    losses = [found[names[0]] for names in VARIANTS]
    assert len(set(losses)) == len(losses), "every change of the model changes the loss"


def test_position_zero_reads_zero_and_one():
    assert SinusoidalPositions(6)(torch.tensor([0]))[0].tolist() == [0, 1, 0, 1, 0, 1]


def test_without_positions_a_two_sided_model_is_blind_for_order():
    blind, sighted = measure_order_blindness()
    assert blind < 1e-5
    assert sighted > 0.1


def test_rotary_scores_are_largest_at_distance_zero():
    scores = [y for _, y in compute_rotary_scores(32, 64)]
    assert scores[0] == pytest.approx(1.0)
    assert max(scores[1:]) < 1
