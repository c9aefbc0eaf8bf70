"""The golden files: what transformers computed, met without transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

import formers
from formers.registry import find_family
from tests.parity.cases import RENAMED, pull_outputs, run_formers
from tests.tolerance import bound_rounding

FOLDERS = sorted((Path(__file__).parent / "golden").glob("*/expected.safetensors"))


def test_there_are_golden_files():
    assert len(FOLDERS) >= 12


@pytest.mark.parametrize("path", FOLDERS, ids=lambda p: p.parent.name)
def test_golden(path):
    expected = load_file(path)
    former = formers.load(path.parent)
    given = {name.removeprefix("input."): t for name, t in expected.items() if name.startswith("input.")}
    got = run_formers(former, given)
    for name, value in got.items():
        assert (value - expected[f"output.{name}"]).abs().max() <= 1e-5, name
    pull_outputs(got).backward()
    parameters = dict(former.model.named_parameters())
    gradients = {name.removeprefix("gradient."): t for name, t in expected.items() if name.startswith("gradient.")}
    bound = bound_rounding(former.model, max(1.0, *(float(t.abs().max()) for t in gradients.values())))
    compared = set()
    for move in (
        find_family(former.family)
        .definition.hf_format.build_key_map(former.config, former.head)
        .map_tensors(parameters)
    ):
        if not parameters[move.ours].requires_grad:
            continue
        for name, grad in move.save(parameters[move.ours].grad).items():
            name = RENAMED.get(name, name)
            if name not in gradients:  # an expert that no token took
                assert not grad.any(), name
                continue
            assert (grad - gradients[name]).abs().max() <= bound, name
            compared.add(name)
    assert compared == set(gradients)
