from __future__ import annotations

import torch

from formers.experiments.activations_norms_schedules import measure_input_share


def test_a_new_post_norm_stack_forgets_its_input():
    ids = torch.randint(50, (4, 32), generator=torch.Generator().manual_seed(0))
    post, pre = (measure_input_share(family, 12, 48, ids) for family in ("gpt", "gpt2"))
    assert len(post) == 13
    assert post[-1] < 0.1 < pre[-1]


def test_everything_is_compared(run_experiment):
    page, found = run_experiment("activations-norms-schedules", steps=1, depths=(1, 2), dim=16)
    assert {"relu", "gelu", "pre 1", "post 1", "warm 1"} <= set(found)
    assert found["relu"] != found["gelu"]
    assert len(page.tables) == 2
    cosines, losses = (
        next(part for part in page.body if f"<figcaption>{title}" in part) for title in ("cosine", "training")
    )
    assert "post, 2 layers" in cosines
    assert "1 layer" not in cosines, "depths whose weights differ are no comparison"
    assert "post, warmup, 1 layer" in losses
