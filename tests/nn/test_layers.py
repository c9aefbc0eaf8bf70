"""Feed-forward, embeddings and initialisation, each against lines written from the papers."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

from formers import Error
from formers.batch import Batch
from formers.nn.layers import ACTIVATIONS, Embeddings, FeedForward, get_activation, initialise_weights


def test_feed_forward():
    x = torch.randn(5, 4)
    plain = FeedForward(4, 6, "relu")
    expected = (x @ plain.up.weight.T + plain.up.bias).clamp(min=0) @ plain.down.weight.T + plain.down.bias
    torch.testing.assert_close(plain(x), expected)
    gated = FeedForward(4, 6, "gelu_tanh", gated=True, bias=False)
    gate = x @ gated.gate.weight.T
    gelu = 0.5 * gate * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
    torch.testing.assert_close(gated(x), (gelu * (x @ gated.up.weight.T)) @ gated.down.weight.T)
    assert gated.up.bias is None
    assert plain.gate is None
    assert gated.down.bias is None


def test_feed_forward_drops_between_its_layers_in_training_only():
    layer = FeedForward(4, 400, "linear", dropout=0.5, bias=False)
    with torch.no_grad():
        layer.up.weight.fill_(1.0)
        layer.down.weight.fill_(1.0 / 400)
    x = torch.ones(1, 4)
    assert layer.eval()(x)[0, 0].item() == pytest.approx(4.0)
    out = layer.train()(x)[0, 0].item()
    assert out != pytest.approx(4.0)
    assert 3 < out < 5


def test_activations():
    x = torch.linspace(-3, 3, 13, dtype=torch.float64)
    exact = {
        "relu": x.clamp(min=0), "relu2": x.clamp(min=0) ** 2, "gelu": x * 0.5 * (1 + torch.erf(x / 2**0.5)),
        "gelu_tanh": 0.5 * x * (1 + torch.tanh((2 / math.pi) ** 0.5 * (x + 0.044715 * x**3))),
        "gelu_quick": x / (1 + torch.exp(-1.702 * x)), "silu": x / (1 + torch.exp(-x)),
        "mish": x * torch.tanh(torch.log1p(torch.exp(x))), "tanh": torch.tanh(x), "sigmoid": 1 / (1 + torch.exp(-x)),
        "elu": torch.where(x > 0, x, torch.exp(x) - 1), "leaky_relu": torch.where(x > 0, x, 0.01 * x), "linear": x,
    }  # fmt: skip
    assert set(exact) == set(ACTIVATIONS)
    for name, values in exact.items():
        torch.testing.assert_close(get_activation(name)(x), values)
    with pytest.raises(Error, match="unknown activation 'gleu'"):
        get_activation("gleu")


def pack_documents(*documents, **more):
    ids = torch.tensor([i for d in documents for i in d])
    starts = torch.tensor([0, *itertools.accumulate(map(len, documents))], dtype=torch.int32)
    return Batch(ids, starts, max(map(len, documents)), **more)


def test_embeddings_add_up():
    embed = Embeddings(4, 10, positions=6, segments=2, offset=2)
    batch = pack_documents([3, 1, 4], [1, 5], segments=torch.tensor([0, 1, 1, 0, 1]))
    t, p, s = embed.token.weight, embed.position.weight, embed.segment.weight
    expected = torch.stack(
        [t[3] + p[2] + s[0], t[1] + p[3] + s[1], t[4] + p[4] + s[1], t[1] + p[2] + s[0], t[5] + p[3] + s[1]]
    )
    torch.testing.assert_close(embed(batch, batch.layout), expected)
    assert p.shape == (8, 4)
    without = batch.replace(segments=None)
    torch.testing.assert_close(embed(without, batch.layout)[2], t[4] + p[4] + s[0])
    given_ = batch.replace(positions=torch.tensor([5, 4, 3, 2, 1]))
    torch.testing.assert_close(embed(given_, batch.layout)[0], t[3] + p[7] + s[0])
    later = embed(batch, batch.layout, torch.tensor([3, 1]))
    torch.testing.assert_close(later[0], t[3] + p[5] + s[0])
    torch.testing.assert_close(later[4], t[5] + p[4] + s[1])


@pytest.mark.parametrize("documents", [([3, 1], [4, 1]), ([3, 1, 4], [1])], ids=["uniform", "ragged"])
def test_positions_count_from_each_document_are_given_or_continue(documents):
    embed = Embeddings(4, 10, positions=6, offset=1)
    batch = pack_documents(*documents)
    t, p = embed.token.weight[batch.ids], embed.position.weight
    lengths = [len(d) for d in documents]
    counted = torch.tensor([i for n in lengths for i in range(n)])
    torch.testing.assert_close(embed(batch, batch.layout), t + p[counted + 1])
    given_ = batch.replace(positions=torch.tensor([5, 0, 2, 2]))
    torch.testing.assert_close(embed(given_, batch.layout), t + p[torch.tensor([6, 1, 3, 3])])
    later = torch.tensor([i + past for n, past in zip(lengths, (2, 3), strict=True) for i in range(n)])
    torch.testing.assert_close(embed(batch, batch.layout, torch.tensor([2, 3])), t + p[later + 1])


def test_embeddings_of_gpt2_take_segments_as_tokens_and_albert_projects_up():
    embed = Embeddings(4, 10)
    batch = pack_documents([3, 1], segments=torch.tensor([7, 8]))
    torch.testing.assert_close(embed(batch, batch.layout)[1], embed.token.weight[1] + embed.token.weight[8])
    norm = nn.LayerNorm(4)
    nn.init.normal_(norm.weight)
    wide = Embeddings(4, 10, norm=norm, up=7)
    batch = pack_documents([3, 1])
    torch.testing.assert_close(wide(batch, batch.layout), wide.up(norm(wide.token(batch.ids))))
    dropped = Embeddings(4, 10, dropout=0.5).train()
    assert (dropped(batch, batch.layout) == 0).any()


def test_initialise():
    model = nn.ModuleDict({"norm": nn.LayerNorm(8), "wide": nn.Linear(300, 300), "qkv": nn.Linear(300, 900)})
    rules = {"*": 0.02, "wide.weight": 0.5, "qkv.weight": (0.1, 0.2, 0.3)}
    initialise_weights(model, rules, seed=3)
    assert torch.equal(model["norm"].weight, torch.ones(8))
    assert not model["norm"].bias.any()
    assert not model["wide"].bias.any()
    assert model["wide"].weight.std().item() == pytest.approx(0.5, rel=0.02)
    assert [p.std().item() for p in model["qkv"].weight.chunk(3)] == pytest.approx([0.1, 0.2, 0.3], rel=0.02)
    before = {n: p.clone() for n, p in model.named_parameters()}
    initialise_weights(model, rules, seed=3)
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    initialise_weights(model, rules, seed=4, only={"wide.weight"})
    assert not torch.equal(model["wide"].weight, before["wide.weight"])
    assert torch.equal(model["qkv"].weight, before["qkv.weight"])
    assert not torch.equal(model["qkv"].weight[:300], model["wide"].weight)
    initialise_weights(nn.Linear(2, 2, device="meta"), rules, seed=0)


def test_a_seed_keeps_its_meaning():
    """The numbers that seed 5 has given from the beginning, and no two parameters or seeds share theirs."""
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    initialise_weights(model, {"*": 0.02, "1.weight": 1.0}, seed=5)
    first = [-0.0000983701, -0.0021055674, 0.0105108991, 0.0443035886, 0.0054913722, 0.016882671]
    assert model[0].weight.flatten().tolist() == pytest.approx(first, rel=1e-5)
    assert model[1].weight.flatten().tolist() == pytest.approx([-2.466974, 2.304099, -1.9966835, 0.3536666], rel=1e-5)
    drawn = set()
    for seed in range(4):
        stack = nn.Sequential(*[nn.Linear(2, 2, bias=False) for _ in range(5)])
        initialise_weights(stack, {"*": 1.0}, seed)
        drawn |= {p.flatten()[0].item() for p in stack.parameters()}
    assert len(drawn) == 20


def test_a_table_is_drawn_whatever_its_name():
    model = nn.ParameterDict({"bias": nn.Parameter(torch.zeros(40, 50)), "scale": nn.Parameter(torch.zeros(3))})
    initialise_weights(model, {"*": 0.5}, seed=0)
    assert model["bias"].std().item() == pytest.approx(0.5, rel=0.1)
    assert model["scale"].tolist() == [1, 1, 1]
