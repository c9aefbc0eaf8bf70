"""Heads with choices of their own: how a text becomes one vector, and a BiLSTM or a CNN over a model's states."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import formers
from formers.batch import Batch
from formers.config import get_schema
from formers.data.loader import load_batches
from formers.data.plans import TokenSource
from formers.errors import Error
from formers.interop.onnx_export import check_onnx_support
from formers.model import estimate_flops_per_token
from formers.nn.attention.segment_memory import SegmentMemory
from formers.nn.recurrent import projected_lstm
from formers.nn.recurrent.convolution import PackedConv
from formers.nn.recurrent.rnn import RecurrentLayer
from formers.objectives.registry import OBJECTIVES, build_objective, list_options
from formers.registry import FAMILIES, find_family
from formers.training.executor import CarriedStates, Step
from tests.objectives.toys import OBJECTIVE_OPTIONS, TOKENIZER
from tests.small_models import select_sizes
from tests.training.family_trainers import PAIRS, TEXT
from tests.training.toy_runs import REVIEWS, finetune_toy

ASKED = ["this is a lovely film number 5", "this is a dull film number 5"]
ROWS = [[5, 6, 7, 8, 9, 10], [11, 12], [13, 14, 15, 16]]
SIZES = {"vocab": 40, "dim": 16, "layers": 2, "heads": 2, "ff": 32, "context": 16}


@pytest.fixture
def batch():
    return Batch.from_rows(ROWS, torch.device("cpu"))


def build(head, family="bert", **more):
    sizes = {**SIZES, **more}
    return formers.build(family, head=head, labels=3, **{k: v for k, v in sizes.items() if v is not None})


@pytest.mark.parametrize("pool", ["first", "mean", "max", "attention", "last"])
def test_a_pooling_makes_one_vector_of_each_text(batch, pool):
    former = build(f"classify@pool={pool}")
    model = former.model.eval()
    part = model.parts["classify"]
    with torch.no_grad():
        hidden = model(batch)
        got = model.logits(hidden, batch, "classify")
        pooled = []
        for states in hidden.split([len(row) for row in ROWS]):
            if pool == "attention":
                scores = part.attention_pool.query(torch.tanh(part.attention_pool.dense(states)))
                pooled.append((scores.softmax(0) * states).sum(0))
            else:
                ways = {"first": states[0], "last": states[-1], "mean": states.mean(0), "max": states.amax(0)}
                pooled.append(ways[pool])
        want = part.out(torch.tanh(part.dense(torch.stack(pooled))), None)
    assert torch.allclose(got, want, atol=1e-6)


def test_a_bilstm_reads_the_states_of_each_text_alone(batch):
    """torch's own two-layer LSTM is the reference, text by text."""
    model = build("tag@concat4,encoder=bilstm", layers=4).model.eval()
    encoder = model.parts["tag"].encoder
    reference = nn.LSTM(4 * 16, 8, 2, bidirectional=True, batch_first=True)
    with torch.no_grad():
        for number, layer in enumerate(encoder.layers):
            for cell, end in zip(layer.cells, ("", "_reverse"), strict=True):
                names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
                for name, weight in zip(names, cell.kernel_weights, strict=True):
                    weight.normal_(0, 0.3)
                    getattr(reference, f"{name}_l{number}{end}").copy_(weight)
        got = model(batch).split([len(row) for row in ROWS])
        model.parts["tag"].encoder = None
        states = model(batch).split([len(row) for row in ROWS])
        for ours, text in zip(got, states, strict=True):
            assert torch.allclose(ours, reference(text[None])[0][0], atol=1e-6)


def test_centred_windows_do_not_cross_texts():
    conv, lengths = PackedConv(4, 6, (3, 4, 5), centred=True), (6, 1, 2)
    x = torch.randn(sum(lengths), 4)
    batch = Batch.from_rows([[1] * n for n in lengths], torch.device("cpu"))
    with torch.no_grad():
        got = conv(x, batch.layout).split(lengths)
        for ours, text in zip(got, x.split(lengths), strict=True):
            line = text.T[None]
            want = [f(nn.functional.pad(line, ((h - 1) // 2, h // 2)))[0].T
                    for h, f in zip(conv.sizes, conv.filters, strict=True)]  # fmt: skip
            assert torch.allclose(ours, torch.cat(want, 1), atol=1e-6)


def test_what_an_encoder_has_read_is_pooled_by_its_maximum(batch):
    """Conneau et al. 2017; a pooling that is named goes before it."""
    for head, pool in (("classify@encoder=bilstm", torch.amax), ("classify@pool=mean,encoder=bilstm", torch.mean)):
        model = build(head).model.eval()
        part = model.parts["classify"]
        with torch.no_grad():
            hidden = model(batch)
            pooled = [pool(states, 0) for states in hidden.split([len(row) for row in ROWS])]
            want = part.out(torch.tanh(part.dense(torch.stack(pooled))), None)
            assert torch.allclose(model.logits(hidden, batch, "classify"), want, atol=1e-6)


SAVED = ("classify@pool=attention", "classify@last,pool=max,encoder=bilstm", "tag@encoder=cnn",
         "answer@encoder=bilstm", "choose@pool=mean,encoder=cnn")  # fmt: skip


@pytest.mark.parametrize("head", SAVED)
def test_such_heads_are_saved_and_loaded_and_not_exported(tmp_path, head):
    former = build(head)
    former.model.eval()
    formers.save(former, tmp_path / "own")
    again = formers.load(tmp_path / "own")
    again.model.eval()
    ids = torch.tensor(ROWS[0])[None]
    ids = ids[None] if head.startswith("choose") else ids
    assert again.head == head
    assert torch.equal(former.logits(ids), again.logits(ids))
    with pytest.raises(Error, match="its layers, pooling or encoder were chosen"):
        formers.export(former, tmp_path / "out")
    with pytest.raises(Error, match="ONNX Runtime cannot run it"):
        check_onnx_support(former)


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("classify@pool=middle", "a head cannot pool by 'middle'"),
        ("classify@encoder=gru", "a head cannot read with 'gru'"),
        ("classify@colour=red", "a head has no 'colour'"),
        ("tag@pool=mean", "answers for each token does not pool"),
        ("pretraining@encoder=cnn", "a head of the parts mlm, nsp takes no cnn"),
    ],
)
def test_a_head_that_cannot_be_is_refused(head, said):
    with pytest.raises(Error, match=said):
        build(head)


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5", "bart", "xlnet", "elmo", "textcnn"])
def test_every_kind_of_body_takes_them(family):
    """A gradient reaches every weight of the head."""
    sizes = {"elmo": {"dim": 16, "cell": 16, "vocab": 40}, "textcnn": {"embed": 8, "filters": 4, "vocab": 40}}
    declared = find_family(family).definition
    known = get_schema(declared.config_class)
    former = formers.build(family, head="classify@pool=attention,encoder=bilstm", labels=3,
                           **{k: v for k, v in sizes.get(family, SIZES).items() if k in known})  # fmt: skip
    ids = torch.randint(5, 40, (2, 6, 50) if family == "elmo" else (2, 6))
    more = {"target": ids} if former.is_encoder_decoder else {}
    former.model.train()
    former.logits(ids, **more).square().sum().backward()
    head = former.model.heads["classify"]
    missing = [name for name, weight in head.named_parameters() if weight.grad is None or not weight.grad.any()]
    assert not missing


@pytest.mark.parametrize(
    ("more", "head"),
    [({"pool": "attention"}, "classify@pool=attention"), ({"head": "bilstm"}, "classify@encoder=bilstm"),
     ({"head": "cnn", "features": "last"}, "classify@last,encoder=cnn")],
)  # fmt: skip
def test_a_task_is_learned_with_them(tmp_path, more, head):
    run = finetune_toy(out=tmp_path / "one", epochs=1)
    run = finetune_toy(str(run.folder / "model"), out=tmp_path / "two", epochs=12, lr=3e-3, **more)
    assert run.former.head == head
    assert run.valid["accuracy"] >= 0.9
    former = formers.load(tmp_path / "two" / "model")
    assert [found.label for found in former.classify(ASKED)] == ["yes", "no"]
    again = finetune_toy(str(tmp_path / "two" / "model"), out=tmp_path / "three", lr=1e-99, **more)
    name = "heads.classify.out.weight"
    kept = again.former.model.get_parameter(name), run.former.model.get_parameter(name)
    assert torch.allclose(*kept), "the same choices with the same labels go on with the same head"


def test_a_frozen_model_teaches_a_bilstm_to_tag(tmp_path):
    rows = [{"words": row["text"].split(), "tags": ["B" if w in ("film", "number") else "O"
                                                    for w in row["text"].split()]} for row in REVIEWS]  # fmt: skip
    finetune_toy(out=tmp_path / "one")
    run = finetune_toy(str(tmp_path / "one" / "model"), rows, rows[:12], task="tag", out=tmp_path / "two", epochs=12,
                       lr=1e-2, features="last", head="bilstm")  # fmt: skip
    assert run.valid["accuracy"] == 1.0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"task": "tag", "pool": "mean"}, "tune.pool does not apply to tag"),
        ({"model": "gpt2", "pool": "first"}, "the first token of a gpt2 sees none of the text after it"),
        ({"model": "gpt2", "head": "cnn", "lm_loss_weight": 0.5}, "cannot be combined with tune.head cnn"),
        ({"model": "t5", "task": "translate", "head": "bilstm"}, "tune.head bilstm does not apply to translate"),
    ],
)
def test_a_choice_that_does_nothing_is_refused(tmp_path, given, said):
    rows = [{"text": row["text"], "label": row["label"]} for row in REVIEWS]
    if given.get("task") == "tag":
        rows = [{"words": row["text"].split(), "tags": ["a"] * 4 + ["b"] * (len(row["text"].split()) - 4)}
                for row in REVIEWS]  # fmt: skip
    if given.get("task") == "translate":
        rows = [{"text": row["text"], "target": row["label"]} for row in REVIEWS]
    sizes = {"dim": 16, "layers": 1, "heads": 2}
    with pytest.raises(Error, match=said):
        finetune_toy(given.pop("model", "bert"), rows, rows[:8], out=tmp_path / "run", sizes=sizes, **given)


def test_gpts_own_language_model_gives_way_to_a_head_with_an_encoder(tmp_path):
    run = finetune_toy("gpt", out=tmp_path / "run", sizes={"dim": 16, "layers": 1, "heads": 2}, head="cnn")
    assert set(run.history[0]["losses"]) == {"classify"}


COUNTED_LENGTH = 24


def count_product(total, left, right, **_):
    """Count a batch of products that is added in place, which torch's counter does not know."""
    return 2 * left[0] * left[1] * left[2] * right[2]


def count_forward_flops(name, monkeypatch):
    """Count the products of a family's forward pass with torch's own counter (times three: the backward pass has twice
    as many), and estimate them. The counter sees no fused attention and no loop inside an operation: both run plainly
    here."""
    monkeypatch.setattr(projected_lstm, "run_recurrence", projected_lstm.run_recurrence._init_fn)
    monkeypatch.setattr(RecurrentLayer, "forward", lambda self, x, steps, state=None: self.run_unrolled(
        x, steps, self.build_zero_state(x, steps.layout.rows) if state is None else state))  # fmt: skip
    family = find_family(name).definition
    wider = {"dim": 64, "ff": 256, "heads": 4, "head_dim": 16, "embed": 64, "cell": 128, "rotary": 8}
    known = get_schema(family.config_class)
    wider = {key: value for key, value in wider.items() if key in known and known[key] is int}
    sizes = select_sizes(name, vocab=80, context=COUNTED_LENGTH, pad=TOKENIZER.id("pad"), memory=12, cutoffs=()) | wider
    former = formers.build(name, head=family.pretraining_head, seed=0, **sizes)
    options = dict(OBJECTIVE_OPTIONS.get(family.objective, {}))
    if family.has_carried_state and "num_streams" in list_options(OBJECTIVES[family.objective].objective_class):
        options |= {"num_streams": 4, "streams_per_batch": 4}
    goal = build_objective(family.objective, TOKENIZER, COUNTED_LENGTH, **options)
    store = PAIRS if OBJECTIVES[family.objective].takes_pairs else TEXT
    states, step = CarriedStates(former.model, goal), Step(former.model, goal)
    batches = itertools.islice(load_batches(TokenSource(store, goal), 96), 3)
    counted = 0.0
    with torch.set_grad_enabled(not family.reads_characters), sdpa_kernel([SDPBackend.MATH]):
        for batch, _ in batches:  # of a model with a memory the last, which has one
            with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.baddbmm_: count_product}) as counter:
                step(batch.to(torch.device("cpu")), states.select_for_batch(batch), goal)
            counted = 3.0 * counter.get_total_flops()
    target = len(batch.ids)
    tokens = target + (0 if batch.source is None else len(batch.source.ids))
    predicted = (target if batch.chosen is None else len(batch.chosen)) / tokens
    memory = former.config.memory if issubclass(former.state_class, SegmentMemory) and states.streams else 0
    return counted, tokens * estimate_flops_per_token(former.model, COUNTED_LENGTH, predicted, target / tokens, memory)


@pytest.mark.parametrize("name", [n for n, entry in FAMILIES.items() if entry.is_pretrained])
def test_the_operations_of_a_token_are_those_that_torch_counts(name, monkeypatch):
    counted, estimated = count_forward_flops(name, monkeypatch)
    # Without a kernel of its own, the second stream's attention is computed at all places, not only at the targets.
    tolerance = 0.2 if find_family(name).definition.is_two_stream else 0.12
    assert estimated == pytest.approx(counted, rel=tolerance)


def test_a_window_bounds_the_operations_of_attention():
    def estimate(length, **sizes):
        model = formers.build("gpt3", head="lm", vocab=50, dim=16, layers=4, heads=2, context=64, **sizes).model
        return estimate_flops_per_token(model, length) - estimate_flops_per_token(model, 0)

    per_key = 12 * 16
    assert estimate(64, pattern=("global",)) == 4 * 64 * per_key
    assert estimate(64, pattern=("global", "local"), window=8) == 2 * (64 + 8) * per_key
    assert estimate(4, pattern=("local",), window=8) == 4 * 4 * per_key, "a text shorter than the window"
