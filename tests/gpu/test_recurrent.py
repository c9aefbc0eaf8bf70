"""On a GPU: recurrent models give what they give on a CPU in double precision, also compiled, also in bf16."""

from __future__ import annotations

import pytest
import torch

import formers
from formers.data.loader import load_batches
from formers.data.plans import TokenSource
from formers.objectives.registry import build_objective
from formers.training.distributed.process_group import ProcessGroup
from formers.training.train_config import TrainConfig
from formers.training.trainer import Trainer
from tests.nn.packing import pack_rows
from tests.objectives import toys

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


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
@pytest.mark.filterwarnings(r"ignore:\s*Online softmax is disabled")
@pytest.mark.parametrize("name", ["additive", "gnmt"])
def test_scheduled_sampling_is_recorded_and_resumes(name):
    """Compiled and recorded as a CUDA graph, whose draws differ from step to step and continue after a restart."""
    tokenizer, (family, more) = toys.build_tokenizer(), MODELS[name]
    store = toys.build_store([[[7, 8, 9], [10, 11, 12]], [[12], [13, 14]], [[7, 9], [8]], [[14, 15], [9, 9, 7]]] * 8)
    objective = build_objective(
        "seq2seq", tokenizer, 8, sampling_schedule="linear", sampling_decay=0.2, label_smoothing=0.1
    )

    def build_trainer():
        torch._dynamo.reset()
        f = formers.build(family, vocab=len(tokenizer), dim=24, dropout=0.1, **more).to("cuda")
        config = TrainConfig(steps=10, batch_tokens=48, seq_length=8, lr=1e-3, warmup_steps=1)
        return Trainer(f.model, [objective], config, ProcessGroup(device=torch.device("cuda")))

    def train_until(t, until=None):
        source = TokenSource(store, objective)
        return [r.loss for r in t.train(lambda phase, position: load_batches(source, 48, 0, position), until)]

    whole, first, second = build_trainer(), build_trainer(), build_trainer()
    losses, before = train_until(whole), train_until(first, 6)
    second.restore_state(*first.get_state())
    assert all(loss == loss for loss in losses)  # no NaN
    assert before + train_until(second) == pytest.approx(losses, rel=1e-3)
    assert whole.executor.cuda_graphs
    assert all(graph.graph is not None for graph in whole.executor.cuda_graphs.values())
