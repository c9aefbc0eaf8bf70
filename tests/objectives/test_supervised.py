"""What tasks ask for: packed, filled up or trimmed, the losses are those of plain torch on padded rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import formers
from formers.batch import IGNORE_INDEX
from formers.data.encoded_examples import EncodedSource, ExampleCollector
from formers.data.loader import load_batches
from formers.objectives.supervised import Supervised, compute_class_weights, compute_label_weights
from formers.training.runs.finetune import drop_dummy_documents

SMALL = {
    "vocab": 40,
    "context": 32,
    "dim": 16,
    "layers": 1,
    "heads": 2,
    "ff": 32,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}


def draw_documents(seed=0):
    """Documents of different lengths."""
    draw = np.random.RandomState(seed)
    return [draw.randint(5, 40, size) for size in (3, 9, 5, 12, 4, 7, 11, 6)]


def build_bert(head, labels=3):
    return formers.build("bert", head=head, labels=labels, **SMALL)


def collect_examples(kind):
    made = ExampleCollector()
    for number, ids in enumerate(draw_documents()):
        answer, marks = None, None
        if kind == "class":
            answer = np.int64(number % 3)
        elif kind == "number":
            answer = np.array([number / 2, 1.0], np.float32)
        elif kind == "many":
            answer = np.array([number % 2, 1, number % 3 == 0], np.float32)
        elif kind == "span":
            answer = np.array([1, 2 + number % 2], np.int64)
        elif kind == "tags":
            marks = np.where(np.arange(len(ids)) % 2, IGNORE_INDEX, np.arange(len(ids)) % 3)
        elif kind == "choice":
            answer = np.int64(number % 2)
        made.add_document(ids, None, answer, labels=marks)
        if kind != "choice":
            made.add_example(number)
        elif number % 2:
            made.add_example(number // 2, 2)
    return made.pack()


def compute_expected_loss(kind, former, rows):
    """The same by plain torch, a row at a time."""
    total = 0.0
    scores = [former.logits(torch.tensor(ids)[None])[0] for ids in rows]
    for number, score in enumerate(scores):
        if kind == "class":
            total += F.cross_entropy(score[None], torch.tensor([number % 3]))
        elif kind == "number":
            total += ((score - number / 2) / 2.0) ** 2
        elif kind == "many":
            truth = torch.tensor([number % 2, 1, number % 3 == 0]).float()
            total += F.binary_cross_entropy_with_logits(score, truth)
        elif kind == "span":
            ends = torch.tensor([1, 2 + number % 2])
            total += sum(F.cross_entropy(score[None, :, i], ends[i : i + 1]) for i in (0, 1)) / 2
        elif kind == "tags":
            marks = torch.where(torch.arange(len(score)) % 2 == 1, IGNORE_INDEX, torch.arange(len(score)) % 3)
            total += F.cross_entropy(score, marks, reduction="sum")
    if kind == "choice":
        pairs = torch.stack([score.reshape(()) for score in scores]).view(-1, 2)
        total = F.cross_entropy(pairs, torch.ones(len(pairs), dtype=torch.long), reduction="sum")
    return torch.as_tensor(total).detach().item()


HEADS = {"class": "classify", "number": "classify", "many": "classify", "span": "answer", "tags": "tag",
         "choice": "choose"}  # fmt: skip


@pytest.mark.parametrize("kind", HEADS)
def test_the_loss_is_that_of_plain_torch(kind):
    head = HEADS[kind]
    former = build_bert(head, 1 if kind == "number" else 3)
    data = collect_examples(kind)
    goal = Supervised(EncodedSource(data), kind, head, target_std=2.0)
    want = compute_expected_loss(kind, former, draw_documents())
    for cut in (lambda batch: batch, drop_dummy_documents):
        total, count = 0.0, 0
        for batch, _ in load_batches(goal.source, 24, epochs=1):
            batch = cut(batch)
            value, places = goal.loss(former.model, batch.to("cpu"))[head]
            assert int(places) == goal.count_labels(batch)[head]
            total, count = total + value.detach().item(), count + int(places)
        assert total == pytest.approx(want, rel=1e-5)
        asked = data.labels != IGNORE_INDEX if kind == "tags" else data.row_index
        assert count == (int(asked.sum()) if kind == "tags" else len(asked))


def test_dummies_leave_no_trace_in_gradients():
    for pool in ("bert", "t5"):
        sizes = SMALL if pool == "bert" else {"vocab": 40, "dim": 16, "layers": 1, "heads": 2, "head_dim": 8, "ff": 32,
                                              "dropout": 0.0, "head_dropout": 0.0, "eos": 1, "start": 0}  # fmt: skip
        former = formers.build(pool, head="classify", labels=3, **sizes)
        made = ExampleCollector()
        for number, ids in enumerate(draw_documents()):
            made.add_document([*ids, 1], None, np.int64(number % 3))
            made.add_example(number)
        goal = Supervised(
            EncodedSource(made.pack(), start=0, shift_source=former.is_encoder_decoder), "class", "classify"
        )
        found = []
        for cut in (lambda batch: batch, drop_dummy_documents):
            former.model.zero_grad()
            for batch, _ in load_batches(goal.source, 40, epochs=1):
                goal.loss(former.model, cut(batch).to("cpu"))["classify"][0].backward()
            found.append({n: p.grad.clone() for n, p in former.model.named_parameters() if p.grad is not None})
        assert all(torch.isfinite(g).all() for g in found[0].values())
        assert all(torch.allclose(g, found[1][n], atol=1e-6) for n, g in found[0].items())


@pytest.mark.parametrize("kind", ["class", "number"])
def test_both_orders_are_added(kind):
    """GPT §3.3, which reads a similarity in both orders; a label may be learned so as well."""
    former = build_bert("classify", 3 if kind == "class" else 1)
    rows, made = draw_documents(), ExampleCollector()
    answers = {
        "class": (1, IGNORE_INDEX),
        "number": (np.array([1.5, 1], np.float32), np.full(2, IGNORE_INDEX, np.float32)),
    }[kind]
    for number in range(0, 8, 2):
        for ids, answer in zip(rows[number : number + 2], answers, strict=True):
            made.add_document(ids, None, np.asarray(answer))
        made.add_example(number // 2, 2)
    goal = Supervised(EncodedSource(made.pack()), kind, "classify")
    scores = torch.stack([former.logits(torch.tensor(ids)[None])[0] for ids in rows])
    both = scores[::2] + scores[1::2]
    if kind == "class":
        want = F.cross_entropy(both, torch.ones(4, dtype=torch.long), reduction="sum")
    else:
        want = (both - 1.5).square().sum()
    found = sum(
        goal.loss(former.model, b.to("cpu"))["classify"][0].detach().item()
        for b, _ in load_batches(goal.source, 30, epochs=1)
    )
    assert found == pytest.approx(want.detach().item(), rel=1e-5)


def test_the_language_model_helps_by_its_share():
    sizes = {"vocab": 40, "context": 32, "dim": 16, "layers": 1, "heads": 2}
    former = formers.build("gpt", head="classify+lm", labels=3, **sizes)
    goal = Supervised(EncodedSource(collect_examples("class")), "class", "classify", lm_weight=0.5)
    plain = formers.build("gpt", head="lm", **sizes)
    plain.model.load_state_dict({n: t for n, t in former.model.state_dict().items() if "classify" not in n})
    want = sum(
        F.cross_entropy(plain.logits(torch.tensor(ids)[None])[0, :-1], torch.tensor(ids[1:]), reduction="sum")
        for ids in draw_documents()
    )
    total, count = 0.0, 0
    for batch, _ in load_batches(goal.source, 30, epochs=1):
        value, places = goal.loss(former.model, batch.to("cpu"))["lm"]
        assert int(places) == goal.count_labels(batch)["lm"]
        total, count = total + value.detach().item(), count + int(places)
    assert total == pytest.approx(0.5 * want.detach().item(), rel=1e-5)
    assert count == sum(len(ids) - 1 for ids in draw_documents())


def test_weights_of_classes():
    weights = compute_class_weights(np.array([0, 0, 0, 1, -100]), 2)
    assert weights == pytest.approx((4 / 6, 2.0))
    assert sum(weights[c] for c in (0, 0, 0, 1)) == pytest.approx(4)
    former, data = build_bert("classify", 3), collect_examples("class")
    heavy = Supervised(EncodedSource(data), "class", "classify", class_weights=(2.0, 2.0, 2.0))
    batch = drop_dummy_documents(next(load_batches(heavy.source, 200, epochs=1))[0]).to("cpu")
    light = Supervised(EncodedSource(data), "class", "classify")
    twice, once = (goal.loss(former.model, batch)["classify"][0].detach().item() for goal in (heavy, light))
    assert twice == pytest.approx(2 * once)


def test_weights_of_several_labels():
    """For each label, all its yes count as much as all its no; their mean is 1."""
    answers = np.array([[1, 0], [0, 0], [0, 1], [0, 0], [-100, -100]], np.float32)
    weights = compute_label_weights(answers, 2)
    assert weights == pytest.approx((2, 2, 4 / 6, 4 / 6))
    former, data = build_bert("classify", 3), collect_examples("many")
    light, heavy = (
        Supervised(EncodedSource(data), "many", "classify", class_weights=w)
        for w in ((), (3.0, 1.0, 1.0, 1.0, 1.0, 1.0))
    )
    batch = drop_dummy_documents(next(load_batches(light.source, 200, epochs=1))[0]).to("cpu")
    logits = former.model.logits(former.model(batch), batch, "classify").detach()
    once, more = (goal.compute_head_loss(logits, batch)[0].item() for goal in (light, heavy))
    first = torch.nn.functional.softplus(-logits[:, 0])[batch.document_labels[:, 0] == 1].sum().item()
    assert first > 0
    assert more - once == pytest.approx(2 * first / 3, rel=1e-5)
