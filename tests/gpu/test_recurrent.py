"""On a GPU: recurrent models give what they give on a CPU in double precision, also compiled, also in bf16."""

from __future__ import annotations

import pytest
import torch

import formers
from tests.nn.packing import pack_rows

pytestmark = pytest.mark.gpu
MODELS = {
    "none": ("seq2seq", {"layers": 2, "bidirectional": True}),
    "additive": ("seq2seq", {"attention": "additive", "cell": "gru", "bidirectional": True}),
    "local": ("seq2seq", {"attention": "local", "feed": True, "cell": "rnn"}),
    "gnmt": ("gnmt", {"layers": 3}),
    "textcnn": ("textcnn", {}),
}


def compute_step(name, device, dtype, compiled=False):
    family, more = MODELS[name]
    small = {"embed": 24} if family == "textcnn" else {"dim": 24}
    f = formers.build(family, vocab=50, **{**small, **more, "init": 0.3, "dropout": 0.0}).to(device, dtype)
    batch = pack_rows([[5, 6, 7, 8], [9], [3, 4, 5, 6, 7, 8, 9]])
    if family != "textcnn":
        batch = batch.replace(source=pack_rows([[3, 4], [5, 6, 7, 8, 9, 10], [11]]))
    batch = batch.to(device)

    def run(model, batch):
        return model.logits(model(batch), batch)

    out = (torch.compile(run, fullgraph=True) if compiled else run)(f.model, batch)
    out.square().mean().backward()  # in evaluation mode: cuDNN must be told that a gradient is wanted
    return [out, *(p.grad for p in f.model.parameters())]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_as_on_a_cpu(name, dtype, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    want = compute_step(name, "cpu", torch.float64)
    for got, expected in zip(compute_step(name, "cuda", dtype), want, strict=True):
        error = (got.double().cpu() - expected).norm() / expected.norm()
        assert error < (1e-4 if dtype == torch.float32 else 0.2), error


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # torch's advice on speed; these tests want fp32
@pytest.mark.filterwarnings(r"ignore:\s*Online softmax is disabled")  # and how inductor splits a sum
@pytest.mark.parametrize("name", ["additive", "gnmt", "textcnn"])
def test_compiled(name):
    torch._dynamo.reset()
    want = compute_step(name, "cpu", torch.float64)
    for got, expected in zip(compute_step(name, "cuda", torch.float32, compiled=True), want, strict=True):
        assert (got.double().cpu() - expected).norm() / expected.norm() < 1e-3
