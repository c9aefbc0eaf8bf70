"""Costs of masked heads and pruning by them; states, their projection and neighbours; two texts side by side; what only
some families have."""

from __future__ import annotations

import copy
import dataclasses
import json
import math

import pytest
import torch

import formers
from formers import Error
from formers.inspection.attribution import METHODS, attribute
from formers.inspection.heads import measure_heads
from formers.inspection.recording import fill_memory
from formers.inspection.sides import encode_inputs
from formers.inspection.states import project
from tests.small_models import get_verb_model as model

TEXT = "the cat sat on the mat"


def test_costs_of_heads_by_hand():
    f = model("gpt2", "lm")
    inputs = encode_inputs(f, TEXT)
    made = measure_heads(f, inputs)
    ids = inputs.batch.ids[None]

    def loss(heads):
        with torch.no_grad():
            scores = f.logits(ids, heads=heads)[0, :-1].log_softmax(-1)
        return float(-scores.gather(1, ids[0, 1:, None]).mean()) / math.log(2)

    whole = torch.ones(f.config.layers, f.config.heads)
    assert made.baseline == pytest.approx(loss(whole), abs=1e-5)
    for layer, head in ((0, 0), (1, 2)):
        mask = whole.clone()
        mask[layer, head] = 0
        assert made.costs["decoder"][layer, head] == pytest.approx(loss(mask) - loss(whole), abs=1e-5)
    assert made.costs["decoder"].abs().max() > 1e-4


@pytest.mark.parametrize(("name", "head"), [("bert", "mlm"), ("t5", "lm"), ("xlnet", "lm"), ("bert", "classify")])
def test_every_kind_of_head_has_a_cost(name, head):
    f = model(name, head)
    made = measure_heads(f, encode_inputs(f, TEXT, "the mat" if name == "t5" else None))
    assert set(made.costs) == ({"encoder", "decoder", "cross"} if name == "t5" else set(made.costs))
    for table in made.costs.values():
        assert table.shape == (f.config.layers, f.config.heads)
        assert table.isfinite().all()
        assert table.abs().max() > 0
    json.dumps(made.to_dict())
    assert measure_heads(model("textcnn", "classify"), encode_inputs(model("textcnn", "classify"), TEXT)) is None


def test_pruning_takes_the_cheapest_and_leaves_one_of_each_layer():
    f = dataclasses.replace(model("bert", "mlm"), model=copy.deepcopy(model("bert", "mlm").model))
    made = measure_heads(f, encode_inputs(f, TEXT))
    heads = made.choose_pruned(0.5)
    count = sum(map(len, heads.values()))
    assert count == f.config.layers * f.config.heads // 2
    costs = made.costs["encoder"]
    gone = [float(costs[layer, head]) for layer, row in heads.items() for head in row]
    assert max(gone) <= sorted(costs.flatten().tolist())[count + 1]
    most = made.choose_pruned(0.99)
    assert all(len(row) < f.config.heads for row in most.values())
    f.prune(heads)
    again = measure_heads(f, encode_inputs(f, TEXT))
    assert int(again.costs["encoder"].isnan().sum()) == count
    pair = model("t5", "lm")
    by_stack = measure_heads(pair, encode_inputs(pair, TEXT, "the mat")).choose_pruned(0.3)
    assert set(by_stack) <= {"encoder", "decoder", "cross"}
    with pytest.raises(Error, match="share of heads"):
        made.choose_pruned(1.5)


def test_states_are_the_hidden_states():
    for name in ("bert", "gpt2"):
        f = model(name, "mlm" if name == "bert" else "lm")
        inputs = encode_inputs(f, TEXT)
        states = f.inspect(TEXT, views="states").states
        with torch.no_grad():
            want = f.hidden(inputs.batch.ids[None], layer=None)[:, 0]
        got = torch.stack([layer.vectors for layer in states.layers])
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
        for layer in states.layers:
            unit = torch.nn.functional.normalize(layer.vectors, dim=-1)
            cosine = (unit @ unit.T).fill_diagonal_(-2)
            assert [row[0].index for row in layer.neighbours] == cosine.argmax(-1).tolist()


@pytest.mark.parametrize(
    "shape", [(7, 12), (12, 7), (1, 5), (2, 3), (9, 1), (200, 300), (400, 150), (300, 2), (200, 201)]
)
def test_projection_is_the_principal_components(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    placed, explained = project(x)
    assert placed.shape == (shape[0], 2)
    u, s, _ = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    want = torch.nn.functional.pad((u * s)[:, :2], (0, max(0, 2 - s.shape[0])))
    torch.testing.assert_close(placed.abs(), want.abs(), atol=1e-4 if max(shape) < 100 else 1e-3, rtol=1e-3)
    assert 0 <= float(explained.sum()) <= 1 + 1e-5
    torch.testing.assert_close(project(x)[0], placed)


def test_words_of_vectors_have_neighbours_in_the_vocabulary():
    f = model("vectors", "none")
    view = f.inspect("the cat unheardof")
    row = view.states.layers[0].neighbours
    assert [near.text for near in row[1]] == [word for word, _ in f.neighbours("cat", 3)]
    assert row[2] == []
    assert view.model.kind == "vectors"


def test_two_texts_side_by_side():
    f = model("gpt2", "lm")
    both = f.inspect("the cat sat on the mat", compare="the log sat on the mat")
    document = both.to_dict()
    assert [one["sides"]["text"]["text"] for one in document["compare"]] == [
        "the cat sat on the mat", "the log sat on the mat",
    ]  # fmt: skip
    changes = document["changes"]
    tokens = [one["sides"]["text"]["tokens"] for one in document["compare"]]
    assert all(tokens[0][i]["piece"] == tokens[1][j]["piece"] for i, j in changes["pairs"])
    first = changes["cosine"][-1]
    assert first[0] == pytest.approx(1.0, abs=1e-3)  # what comes before the change is as it was
    assert min(first) < 0.9999
    assert changes["surprisal"][1] == pytest.approx(0.0, abs=1e-3)
    assert any(abs(x) > 1e-3 for x in changes["surprisal"] if x is not None)
    other = model("gptj", "lm")
    models = f.inspect(TEXT, compare=other).to_dict()
    assert [one["model"]["family"] for one in models["compare"]] == ["gpt2", "gptj"]
    assert "changes" not in models


def test_strongest_ngrams():
    f = model("textcnn", "classify")
    view = f.inspect("the cat sat on the mat")
    found = view.extras.ngrams
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    side = view.sides["text"]
    for one in found:
        assert side.text[one.start : one.end] == one.text
        assert one.last - one.first + 1 == one.width
        words = [token.text for token in side.tokens[one.first : one.last + 1]]
        assert one.text.split() == [word.strip() for word in words if word.strip()]
    ids, by_hand = encode_inputs(f, "the cat sat on the mat").batch.ids, {}  # every filter at every place, by hand
    with torch.no_grad():
        x = f.model.body.embed.token(ids)
        for group, (width, conv) in enumerate(zip(f.config.widths, f.model.body.convolutions.filters, strict=True)):
            windows = x.unfold(0, width, 1)  # (places, dim, width)
            answers = torch.einsum("pdw,fdw->fp", windows, conv.weight) + conv.bias[:, None]
            for number, (score, place) in enumerate(zip(*answers.max(1), strict=True)):
                by_hand[group * f.config.filters + number] = float(score), int(place)
    strongest = sorted(by_hand, key=lambda number: -by_hand[number][0])[: len(found)]
    assert [one.filter for one in found] == strongest
    assert [one.first for one in found] == [by_hand[number][1] for number in strongest]
    assert [one.score for one in found] == pytest.approx([by_hand[number][0] for number in strongest], abs=1e-4)


def test_layer_mix_of_a_task():
    f = model("elmo", "classify")
    assert sum(f.inspect("the cat").extras.mix) == pytest.approx(1.0)
    assert len(f.inspect("the cat").extras.mix) == f.config.layers + 1
    assert f.inspect("the cat", views="extra").to_dict()["extra"]["mix"][0]["layer"] == 0
    assert model("elmo", "lm").inspect("the cat").extras.mix == []


def test_routing_of_experts():
    f = dataclasses.replace(model("switch", "lm"), model=copy.deepcopy(model("switch", "lm").model))
    for module in f.model.modules():
        if isinstance(module, formers.nn.experts.Experts):
            module.capacity = 2
    view = f.inspect(TEXT, "the mat")
    assert {one.side for one in view.extras.routing} == {"source", "target"}
    for one in view.extras.routing:
        assert len(one.experts) == len(view.sides[one.side].tokens)
        for expert in range(one.num_experts):
            mine = one.experts == expert
            assert int((mine & ~one.is_dropped).sum()) == min(2, int(mine.sum()))  # the first come are served
        assert (one.probability > 1 / one.num_experts - 1e-6).all()


@pytest.mark.parametrize(
    ("name", "kind", "title"),
    [("bert", "similarity", "learned"), ("transformer", "similarity", "sinusoids"), ("t5", "bias", "BucketBias"),
     ("bloom", "bias", "AlibiBias"), ("gptj", "rotation", "rotary"), ("transformer_xl", "bias", "relative"),
     ("xlnet", "bias", "relative")],
)  # fmt: skip
def test_maps_of_positions(name, kind, title):
    f = model(name, "mlm" if name == "bert" else "lm")
    found = f.inspect(TEXT, views="extra").extras.positions
    one = next(one for one in found if one.kind == kind)
    assert one.name == title
    if kind == "similarity":
        torch.testing.assert_close(one.values.diagonal(), torch.ones(len(one.values)))
    elif kind == "rotation":
        assert one.values[0, 0, one.distances.index(0)] == 1
    elif name == "bloom":
        assert one.values[0, 0, one.distances.index(-2)] == pytest.approx(-2 * f.model.body.bias.slopes[0])
    else:
        assert one.values.shape[-1] == len(one.distances)


def test_layers_that_share_weights_lose_a_head_together():
    """ALBERT's block is one: a head costs what it costs in all layers, and the rest still works."""
    f = dataclasses.replace(model("albert", "mlm"), model=copy.deepcopy(model("albert", "mlm").model))
    heads = f.inspect(TEXT, views="heads").heads
    assert heads.owners["encoder"] == [0] * f.config.layers
    chosen = heads.choose_pruned(0.5)
    assert list(chosen) == [0]
    total = heads.costs["encoder"].sum(0)
    assert set(chosen[0]) == set(total.argsort()[: len(total) // 2].tolist())
    assert set(heads.to_dict()["prune"]["encoder"]) == {str(layer) for layer in range(f.config.layers)}
    with pytest.warns(UserWarning, match="share one block"):
        f.prune(chosen)
    view = f.inspect(TEXT, views="all")
    assert view.chosen[2] not in chosen[0], "the head that is shown by dimension is one that is left"
    assert view.heads.costs["encoder"].isnan().any()


@pytest.mark.parametrize("name", ["transformer_xl", "xlnet"])
def test_everything_is_shown_of_a_text_with_a_memory(name):
    view = model(name, "lm").inspect(TEXT, before="the mat is on the log", views="all")
    assert set(view.attribution.methods) == set(METHODS)
    assert view.heads.costs
    assert view.neurons
    assert json.dumps(view.to_dict(), allow_nan=False)


def test_value_zeroing_leaves_the_memory_as_it_is():
    """By hand: the earlier text is read first, then the values of one token of the text are zero."""
    f = model("transformer_xl", "lm")
    inputs = encode_inputs(f, TEXT, before="the mat is on the log")
    made = attribute(f, inputs, methods=["value_zeroing"])
    for at in (1, 3):

        def drop(module, given, output, at=at):
            q, k, v = output.chunk(3, -1)
            v = v.clone()
            v[at] = 0.0
            return torch.cat((q, k, v), -1)

        with torch.no_grad():
            memory = fill_memory(f, inputs)
            hooks = [block.attn.qkv.register_forward_hook(drop) for block in f.model.body.blocks]
            logits = f.model.logits(f.model(inputs.batch, **memory))[-1]
        for hook in hooks:
            hook.remove()
        want = made.value - float(logits[made.target.id])
        assert made.methods["value_zeroing"].sides["text"][at] == pytest.approx(want, abs=1e-5)
