"""Scheduled sampling and teacher forcing against functions written from the papers, one word at a time."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

import formers
from formers import Error
from formers.data.loader import load_batches
from formers.data.plans import TokenSource
from formers.objectives.registry import build_objective
from formers.objectives.scheduled_sampling import add_gumbel_noise
from formers.objectives.seq2seq import Seq2Seq
from formers.training.config_merge import configure_pretraining
from formers.training.executor import Step
from formers.training.train_config import TrainConfig
from formers.training.trainer import Trainer
from tests.models import reference_rnn as reference
from tests.objectives import toys

TOKENIZER = toys.build_tokenizer()
STORE = toys.build_store(
    [[[7, 8, 9], [10, 11, 12, 13]], [[12], [13, 14, 15]], [[7, 9], [8]], [[14, 15], [9, 9, 7]]] * 4
)
FAMILIES = {
    "plain": ("seq2seq", {"embed": 5}),
    "cho": ("seq2seq", {"embed": 5, "feed": True, "cell": "gru"}),
    "additive": ("seq2seq", {"embed": 5, "attention": "additive", "cell": "gru", "bidirectional": True}),
    "local-m": ("seq2seq", {"embed": 5, "attention": "local", "predict": False, "window": 1}),
    "local-p-fed": ("seq2seq", {"embed": 5, "attention": "local", "window": 2, "feed": True, "layers": 2}),
    "gnmt": ("gnmt", {"layers": 3}),
}


def build_model(kind, **more):
    family, sizes = FAMILIES[kind]
    f = formers.build(family, vocab=len(TOKENIZER), dim=6, **{"dropout": 0.0, **sizes, **more})
    return reference.draw_large_weights(f)


def make_objective(**options):
    return build_objective("seq2seq", TOKENIZER, 8, **options)


def make_batch(objective):
    return next(load_batches(TokenSource(STORE, objective), 24))[0].to("cpu")


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_decoder_reads_its_own_words_where_the_batch_says_so(kind):
    """The loss and the gradient of every weight, each input chosen by hand: the target's word or the likeliest."""
    f, objective = build_model(kind), make_objective(teacher_forcing=0.4, sampled_token="likeliest")
    torch.manual_seed(3)
    batch = objective.prepare_step_batch(make_batch(objective), 0)
    p, run = reference.copy_weights(f), reference.run_gnmt if kind == "gnmt" else reference.run_seq2seq
    total, count = objective.loss(f.model.train(), batch)["lm"]
    want, fed = torch.zeros(()), 0
    for d in np.flatnonzero(batch.sample.numpy() >= 0):
        low, high = batch.starts[d], batch.starts[d + 1]
        source = batch.source.ids[batch.source.starts[d] : batch.source.starts[d + 1]].tolist()
        words, own = batch.ids[low:high].tolist(), batch.predicted_inputs[low:high].tolist()
        for t in range(len(words)):
            hidden, _ = run(p, f.config, source, words[: t + 1])
            logits = hidden[-1] @ p["heads.lm.out.weight"].T + p["heads.lm.out.bias"]
            want = want - logits.log_softmax(-1)[batch.labels[low + t]]
            if t + 1 < len(words) and own[t + 1]:
                fed += words[t + 1] != int(logits.argmax())
                words[t + 1] = int(logits.argmax())
    assert fed > 2, "some words were not the target's"
    torch.testing.assert_close(total, want)
    assert count == (batch.labels >= 0).sum()
    total.backward()
    want.backward()
    for name, w in f.model.named_parameters():
        torch.testing.assert_close(w.grad, p[name.removeprefix("body.")].grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_share_of_one_is_teacher_forcing(kind):
    f = build_model(kind)
    forced, linear = make_objective(), make_objective(sampling_schedule="linear", sampling_decay=0.1)
    batch = make_batch(forced)
    assert forced.prepare_step_batch(batch, 7) is batch, "nothing is drawn"
    begun = linear.prepare_step_batch(batch, 0)
    assert not begun.predicted_inputs.any()
    torch.testing.assert_close(linear.loss(f.model, begun)["lm"][0], forced.loss(f.model, batch)["lm"][0])


def test_words_are_drawn_from_the_softmax():
    logits = torch.tensor([2.0, 0.0, 1.0, -1.0, -math.inf])
    torch.manual_seed(0)
    drawn = add_gumbel_noise(logits.expand(40_000, -1)).argmax(-1)
    seen = torch.bincount(drawn, minlength=5) / 40_000
    torch.testing.assert_close(seen, logits.softmax(-1), atol=0.01, rtol=0)
    f, drawing, counts = build_model("additive"), make_objective(teacher_forcing=0.0), []
    batch = drawing.prepare_step_batch(make_batch(drawing), 0)
    for objective in (drawing, dataclasses.replace(drawing, sampled_token="likeliest")):
        counts.append(len({objective.loss(f.model, batch)["lm"][0].item() for _ in range(5)}))
    assert counts[0] > 1
    assert counts[1] == 1


@pytest.mark.parametrize(
    ("options", "formula"),
    [
        ({"teacher_forcing": 0.3}, lambda i: 0.3),
        ({"sampling_schedule": "linear", "sampling_decay": 0.01}, lambda i: max(0, 1 - 0.01 * i)),
        (
            {
                "sampling_schedule": "linear",
                "sampling_decay": 0.01,
                "min_teacher_forcing": 0.25,
                "teacher_forcing": 0.9,
            },
            lambda i: max(0.25, 0.9 - 0.01 * i),
        ),
        ({"sampling_schedule": "exponential", "sampling_decay": 0.98}, lambda i: 0.98**i),
        ({"sampling_schedule": "inverse-sigmoid", "sampling_decay": 20.0}, lambda i: 20 / (20 + math.exp(i / 20))),
        ({"sampling_schedule": "inverse-sigmoid", "sampling_decay": 1.0}, lambda i: 1 / (1 + math.exp(min(i, 700)))),
    ],
)
def test_the_share_falls_by_the_papers_formulas(options, formula):
    objective, batch = make_objective(**options), make_batch(make_objective())
    torch.manual_seed(0)
    for step in (0, 1, 10, 60, 90, 5000):
        assert objective.compute_teacher_forcing(step) == pytest.approx(formula(step))
        draws = [objective.prepare_step_batch(batch, step).predicted_inputs.float().mean() for _ in range(200)]
        assert float(torch.stack(draws).mean()) == pytest.approx(1 - formula(step), abs=0.03)


def test_numpy_batches_stay_numpy():
    objective = make_objective(teacher_forcing=0.5)
    batch = next(load_batches(TokenSource(STORE, objective), 24))[0]
    assert isinstance(objective.prepare_step_batch(batch, 0).predicted_inputs, np.ndarray)


def build_trainer(**options):
    settings = TrainConfig(steps=6, batch_tokens=24, accumulate=2, seq_length=8, lr=1e-2, warmup_steps=1)
    return Trainer(build_model("additive", dropout=0.1).model, [make_objective(**options)], settings)


def train_until(t, until=None):
    source = TokenSource(STORE, t.objectives[0])
    return [r.loss for r in t.train(lambda phase, position: load_batches(source, 24, 0, position), until)]


def test_stopped_and_resumed_is_as_if_never_stopped():
    options = {"sampling_schedule": "inverse-sigmoid", "sampling_decay": 2.0}
    whole, first, second = (build_trainer(**options) for _ in range(3))
    losses = train_until(whole)
    before = train_until(first, 3)
    second.restore_state(*first.get_state())
    torch.manual_seed(99)  # the caller's generator does not matter
    assert before + train_until(second) == losses
    for a, b in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert losses != train_until(build_trainer()), "the schedule counts"
    assert losses != train_until(build_trainer(**options | {"sampling_decay": 3.0}))


def test_the_trainer_counts_the_steps(monkeypatch):
    seen, compute = [], Seq2Seq.compute_teacher_forcing
    monkeypatch.setattr(Seq2Seq, "compute_teacher_forcing", lambda self, i: seen.append(i) or compute(self, i))
    options = {"sampling_schedule": "exponential", "sampling_decay": 0.5}
    first, second = build_trainer(**options), build_trainer(**options)
    train_until(first, 2)
    second.restore_state(*first.get_state())
    train_until(second, 4)
    assert seen == [0, 0, 1, 1, 2, 2, 3, 3], "of every batch of a step"


def test_validation_reads_the_target():
    f, sampled = build_model("additive"), make_objective(teacher_forcing=0.0)
    batch = make_batch(sampled)
    losses = Step(f.model.eval(), sampled)(batch, count_correct_tokens=True)
    assert losses["lm"][0].item() == make_objective().loss(f.model, batch)["lm"][0].item()


def test_under_autocast_the_output_layer_learns():
    """It is used twice, for predictions, which have no gradient, and for the loss."""
    f, objective = build_model("additive"), make_objective(teacher_forcing=0.0)
    batch = objective.prepare_step_batch(make_batch(objective), 0)
    with torch.autocast("cpu", torch.bfloat16):
        objective.loss(f.model, batch)["lm"][0].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in f.model.parameters())
    assert f.model.parts["lm"].out.weight.grad.any()


def test_it_compiles_too():
    torch._dynamo.reset()
    f, objective = build_model("local-p-fed"), make_objective(teacher_forcing=0.5, sampled_token="likeliest")
    torch.manual_seed(0)
    batch = objective.prepare_step_batch(make_batch(objective), 0)
    want = objective.loss(f.model, batch)["lm"][0]
    step = torch.compile(Step(f.model, objective), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(step(batch)["lm"][0], want, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"teacher_forcing": 1.2}, "teacher_forcing is a share between 0 and 1"),
        ({"min_teacher_forcing": 0.2}, "min_teacher_forcing belongs to a sampling_schedule"),
        ({"sampling_decay": 0.2}, "sampling_decay belongs to a sampling_schedule. Choose one"),
        ({"sampling_schedule": "linear"}, "linear needs a sampling_decay between 0 and 1. For example"),
        ({"sampling_schedule": "linear", "sampling_decay": 0.0}, "between 0 and 1, got 0"),
        ({"sampling_schedule": "exponential", "sampling_decay": 1.0}, "between 0 and 1, got 1"),
        ({"sampling_schedule": "inverse-sigmoid", "sampling_decay": 0.5}, "at least 1, got 0.5"),
        ({"sampling_schedule": "cosine"}, "'sampling_schedule' cannot be 'cosine'"),
    ],
)
def test_odd_settings_are_refused(options, message):
    with pytest.raises(Error, match=message):
        make_objective(**options)


def test_other_families_are_refused():
    for name in ("seq2seq", "gnmt"):
        configure_pretraining(name, overrides={"objective.teacher_forcing": 0.5})
    for family, option in (("transformer", "teacher_forcing"), ("transformer", "sampling_schedule")):
        value = 0.5 if option == "teacher_forcing" else "linear"
        with pytest.raises(Error, match=f"objective.{option} does not apply to transformer: only a recurrent decoder"):
            configure_pretraining(family, overrides={f"objective.{option}": value})
    with pytest.raises(Error, match="objective causal: unknown setting 'teacher_forcing'"):
        configure_pretraining("gpt2", overrides={"objective.teacher_forcing": 0.5})
    f, objective = formers.build("transformer", vocab=len(TOKENIZER), dim=8, heads=2, layers=1, ff=8), make_objective()
    batch = dataclasses.replace(objective, teacher_forcing=0.5).prepare_step_batch(make_batch(objective), 0)
    with pytest.raises(Error, match="only a recurrent decoder can be trained on its own predictions"):
        objective.loss(f.model, batch)
