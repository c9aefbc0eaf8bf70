"""On a GPU: steps replayed from a CUDA graph train like steps run one by one."""

from __future__ import annotations

import pytest
import torch

import formers
from formers.batch import Batch
from formers.training import executor
from formers.training.distributed.process_group import ProcessGroup
from formers.training.executor import GraphedStep
from formers.training.optimizer import build_optimizer
from formers.training.train_config import TrainConfig
from formers.training.trainer import Trainer
from tests.training.toy_trainer import OBJECTIVE, build_toy_model, train_to_end

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
SIZES = {"vocab": 128, "context": 32, "dim": 64, "layers": 2, "heads": 4}
QUIET = {"dropout": 0.0, "embed_dropout": 0.0, "attention_dropout": 0.0}


def train_steps(recorded, batches, **settings):
    model = formers.build("gpt2", seed=1, **SIZES, **settings).to("cuda").model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True, capturable=True)

    def step(batch):
        loss = (model.logits(model(batch)) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    run = GraphedStep(step, warmup=2) if recorded else step
    losses = [float(run(batch)) for batch in batches]
    return losses, torch.cat([p.detach().flatten() for p in model.parameters()])


def test_as_without():
    torch.manual_seed(0)
    batches = [Batch.from_padded(torch.randint(0, 128, (4, 16), device="cuda")) for _ in range(6)]
    (got, weights), (want, expected) = train_steps(True, batches, **QUIET), train_steps(False, batches, **QUIET)
    assert got == pytest.approx(want, rel=1e-4)
    assert len(set(want)) == 6
    torch.testing.assert_close(weights, expected, atol=1e-3, rtol=1e-3)


def test_dropout_is_drawn_anew():
    batch = Batch.from_padded(torch.randint(0, 128, (4, 16), device="cuda"))
    model = formers.build("gpt2", seed=1, **SIZES, **QUIET | {"dropout": 0.5}).to("cuda").model.train()

    def step(batch):
        loss = (model.logits(model(batch)) ** 2).mean()
        loss.backward()
        return loss.detach()

    replay = GraphedStep(step, warmup=1)  # nothing is learned: only dropout differs
    assert len({float(replay(batch)) for _ in range(6)}) == 6


def test_another_shape_is_refused():
    batches = [Batch.from_padded(torch.randint(0, 128, (4, size), device="cuda")) for size in (16, 16, 16, 12)]
    with pytest.raises(formers.Error, match="recorded"):
        train_steps(True, batches, **QUIET)


def update_weights(name, is_recorded, bad=(4, 6), steps=9):
    """Update weights of several shapes by given gradients, at a rate that changes, and skip the steps `bad`; recorded,
    all after the third are replays. Return weights and state after each step."""
    g = torch.Generator("cuda").manual_seed(0)
    shapes = (130, 150), (70, 90), (9,)
    weights = torch.nn.ParameterList([torch.randn(shape, generator=g, device="cuda") for shape in shapes])
    optimizer = build_optimizer(name, weights, 0.05, weight_decay=0.1)
    lr, optimizer.found_inf = torch.empty((), device="cuda"), torch.empty((), device="cuda")
    for p in weights:
        p.grad = torch.empty_like(p)
    for group in optimizer.param_groups:
        group["lr"] = lr
    graph, history = None, []
    for step in range(steps):
        lr.fill_(0.05 / (step + 1))
        optimizer.found_inf.fill_(float(step in bad))
        for p in weights:
            p.grad.copy_(torch.randn(p.shape, generator=g, device="cuda") * (torch.nan if step in bad else 1))
        if is_recorded and step == 3:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                optimizer.step()
        optimizer.step() if graph is None else graph.replay()
        state = [t for p in weights for t in optimizer.state[p].values()]
        history.append([t.detach().clone() for t in (*weights, *state)])
    return history


@pytest.mark.parametrize("name", ["adafactor", "rms-adamw", "lamb"])
def test_an_optimizer_of_our_own_can_be_recorded(name):
    """Weights and state are those of steps that are not recorded, and a skipped step changes nothing."""
    got, want = update_weights(name, True), update_weights(name, False)
    for step, (some, others) in enumerate(zip(got, want, strict=True)):
        for a, b in zip(some, others, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7, msg=lambda text, at=step: f"step {at}: {text}")
    for step in (4, 6):
        assert all(torch.equal(a, b) for a, b in zip(got[step], got[step - 1], strict=True))
    assert not torch.equal(got[-1][0], got[6][0])


@pytest.mark.parametrize("name", ["adafactor", "rms-adamw", "lamb"])
def test_recorded_updates_train_like_launched_ones(name, monkeypatch):
    def train(names):
        monkeypatch.setattr(executor, "CAPTURABLE_OPTIMIZERS", names)
        settings = TrainConfig(
            steps=12,
            batch_tokens=128,
            seq_length=16,
            lr=1e-2,
            warmup_steps=2,
            optimizer=name,
            precision="fp32",
            ema=0.9,
        )
        world = ProcessGroup(device=torch.device("cuda"))
        t = Trainer(build_toy_model(dropout=0.0).cuda(), [OBJECTIVE], settings, world)
        losses = [result.loss for result in train_to_end(t)]
        assert all(one.graph is not None for one in t.executor.cuda_graphs.values())
        matrices = [p for p in (*t.model.parameters(), *t.ema.weights.values()) if p.dim() > 1]
        return [key[0] for key in t.executor.cuda_graphs], losses, matrices  # a key's bias is moved by rounding alone

    (graphs, got, weights), (others, want, expected) = train({name}), train(set())
    assert (graphs, others) == (["step"], ["gradient"])
    assert got == pytest.approx(want, rel=1e-4)
    for a, b in zip(weights, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
