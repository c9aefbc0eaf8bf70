"""On a GPU: every member gives what it gives on a CPU in double precision, forward and backward; also compiled."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from formers.inputs import ModelInputs
from formers.nn.attention.context import Capture
from formers.registry import FAMILIES
from tests.small_models import add_declared_fields, build_small, make_inputs, sum_outputs

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
WIDE = {"dim": 64, "heads": 4, "head_dim": 16, "ff": 96, "embed": 64, "rotary": 8}  # what the kernels take
LENGTHS = {"ragged": (19, 1, 12, 7), "uniform": (16, 16, 16)}
COMPILED = ("gpt3", "bloom", "albert", "bart", "switch", "transformer_xl", "xlnet", "elmo")


def build_wide_model(name):
    """A model of a member's pretraining head, small but of a shape that the fast kernels take."""
    known = {field.name for field in dataclasses.fields(FAMILIES[name].definition.config_class)}
    sizes = {key: value for key, value in WIDE.items() if key in known and "heads" in known}
    return build_small(name, FAMILIES[name].definition.pretraining_head, **sizes)


def compute_step(f, batch, run=sum_outputs):
    """Loss and gradients of one step."""
    value = run(f.model, batch)
    value.backward()
    got = {"loss": value.detach()} | {n: p.grad.clone() for n, p in f.model.named_parameters() if p.grad is not None}
    f.model.zero_grad()
    return {key: tensor.double().cpu() for key, tensor in got.items()}


def assert_near_step(got, want, limit):
    whole_norm = torch.cat([g.flatten() for n, g in want.items() if n != "loss"]).norm()
    for key, expected in want.items():
        error = (got[key] - expected).norm()
        assert got[key].isfinite().all(), key
        scale = expected.norm() if key == "loss" else expected.norm() + 0.02 * whole_norm
        assert error < limit * scale, (key, float(error), float(scale))


@pytest.mark.parametrize("shape", LENGTHS)
@pytest.mark.parametrize("name", FAMILIES)
def test_as_on_a_cpu(name, shape):
    f = build_wide_model(name)
    batch = add_declared_fields(f, f.pack_inputs(ModelInputs(**make_inputs(f, LENGTHS[shape])))[0])
    want = compute_step(f.to("cpu", torch.float64), batch)
    f.to("cuda", torch.float32)
    assert_near_step(compute_step(f, batch.to("cuda")), want, 5e-3)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        rough = compute_step(f, batch.to("cuda"))
    assert all(value.isfinite().all() for value in rough.values())
    assert abs(rough["loss"] - want["loss"]) < 0.1 * want["loss"]  # weights are large here, and so is the noise


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("shape", [*LENGTHS, "one"])
@pytest.mark.parametrize("name", [n for n in FAMILIES if n != "vectors"])
@torch.inference_mode()
def test_capture_changes_nothing(name, shape, dtype):
    """What is recorded beside a pass leaves it equal bit for bit, by whichever kernel attention is computed."""
    f = build_wide_model(name).to("cuda", dtype)
    f.model.eval()
    lengths = LENGTHS.get(shape, (16,))
    batch = add_declared_fields(f, f.pack_inputs(ModelInputs(**make_inputs(f, lengths)))[0]).to("cuda")
    want = f.model(batch)
    capture = Capture(with_hidden=True, with_attention=True, with_vectors=True, routing=[])
    assert torch.equal(f.model(batch, capture=capture), want)
    assert torch.equal(f.model(batch), want), "the pass itself is the same each time"


@pytest.mark.parametrize("shape", LENGTHS)
@pytest.mark.parametrize("name", COMPILED)
def test_compiled(name, shape):
    torch._dynamo.reset()
    f = build_wide_model(name)
    batch = add_declared_fields(f, f.pack_inputs(ModelInputs(**make_inputs(f, LENGTHS[shape])))[0])
    want = compute_step(f.to("cpu", torch.float64), batch)
    f.to("cuda", torch.float32)
    assert_near_step(compute_step(f, batch.to("cuda"), torch.compile(sum_outputs, fullgraph=True)), want, 5e-3)
