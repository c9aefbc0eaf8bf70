"""Masks, positions, feed-forward, embeddings, blocks, initialisation, each against lines written from the papers."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from formers import Error
from formers.batch import Batch, Layout
from formers.nn.attention.attention import Attention
from formers.nn.attention.context import AttentionContext, Capture
from formers.nn.attention.masks import (
    WindowMask,
    build_alibi,
    build_document_mask,
    causal,
    combine_masks,
    evaluate_on_grid,
)
from formers.nn.attention.positions import BucketBias
from formers.nn.block import Block, BlockStack
from formers.nn.layers import ACTIVATIONS, Embeddings, FeedForward, get_activation, initialise_weights
from tests.nn import reference

CPU = torch.device("cpu")


def layout(*lengths):
    starts = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    return Layout(starts, max(lengths), sum(lengths))


# ------------------------------------------------------------------ masks


def test_masks_as_pictures():
    def picture(mask, size=4):
        table = evaluate_on_grid(mask, (1, 1, size, size), CPU)[0, 0].expand(size, size)
        return ["".join("x" if seen else "." for seen in row) for row in table.tolist()]

    assert picture(causal) == ["x...", "xx..", "xxx.", "xxxx"]
    assert picture(combine_masks(causal, WindowMask(2))) == ["x...", "xx..", ".xx.", "..xx"]
    assert picture(WindowMask(1)) == ["xxxx", ".xxx", "..xx", "...x"]
    same = build_document_mask(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, 1]))
    assert picture(same) == ["x...", "x...", ".xxx", ".xxx"]
    assert picture(combine_masks(same, causal)) == ["x...", "x...", ".xx.", ".xxx"]


def test_both():
    assert combine_masks() is None
    assert combine_masks(None, None) is None
    assert combine_masks(None, causal) is causal
    three, two = WindowMask(3), WindowMask(2)
    assert combine_masks(combine_masks(causal, three), None, two).masks == (causal, three, two)


def test_evaluate_keeps_ignored_axes_narrow_and_shifts_queries():
    assert evaluate_on_grid(causal, (5, 3, 4, 4), CPU).shape == (1, 1, 4, 4)
    assert evaluate_on_grid(lambda b, h, q, k: b + 10 * h + 100 * q + 1000 * k, (2, 3, 4, 5), CPU)[1, 2, 3, 4] == 4321
    table = evaluate_on_grid(causal, (2, 1, 1, 5), CPU, offset=torch.tensor([0, 3]).view(2, 1, 1, 1))
    assert table[:, 0, 0].tolist() == [[True, False, False, False, False], [True, True, True, True, False]]


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 12, 16, 20])
def test_alibi_slopes(heads):
    assert build_alibi(heads).slopes == pytest.approx(reference.alibi_slopes(heads))
    bias = build_alibi(heads)
    table = evaluate_on_grid(bias, (1, heads, 3, 3), CPU)
    assert table[0, heads - 1, 2, 0] == pytest.approx(-2 * reference.alibi_slopes(heads)[-1])
    assert bias.compute_distance_bias(-2, 3, CPU)[0].tolist() == pytest.approx(
        [d * reference.alibi_slopes(heads)[0] for d in range(-2, 3)]
    )


@pytest.mark.parametrize("heads", [1, 2, 3, 12, 16, 20])
def test_alibi_is_the_same_compiled(heads):
    bias, places = build_alibi(heads), [torch.arange(n).view(shape) for n, shape in ((heads, (-1, 1, 1)), (3, (-1, 1)))]
    keys = torch.arange(5)
    plain = bias(torch.zeros(()), *places, keys)
    compiled = torch.compile(lambda h, q, k: bias(torch.zeros(()), h, q, k), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*places, keys), plain, rtol=1e-6, atol=0)


# ------------------------------------------------------------------ T5's buckets


@given(st.integers(-400, 400), st.sampled_from([4, 8, 16, 32, 64]), st.integers(33, 300), st.booleans())
def test_buckets(distance, count, far, both_ways):
    bias = BucketBias(1, count, far, both_ways)
    got = int(bias.compute_bucket(torch.tensor([distance]))[0])
    assert got == reference.bucket(distance, count, far, both_ways)
    assert 0 <= got < count


@pytest.mark.parametrize("both_ways", [True, False])
def test_bucket_bias_as_function_and_as_row(both_ways):
    bias = BucketBias(3, 8, 20, both_ways)
    nn.init.normal_(bias.weight)
    table = evaluate_on_grid(bias, (1, 3, 5, 7), CPU)
    row = bias.compute_distance_bias(-4, 7, CPU)
    assert row.shape == (3, 11)
    for i, j in itertools.product(range(5), range(7)):
        torch.testing.assert_close(table[0, :, i, j], row[:, j - i + 4])
        index = reference.bucket(j - i, 8, 20, both_ways)
        assert torch.equal(table[0, :, i, j], bias.weight[index])


# ------------------------------------------------------------------ feed-forward


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


# ------------------------------------------------------------------ embeddings


def pack(*documents, **more):
    ids = torch.tensor([i for d in documents for i in d])
    starts = torch.tensor([0, *itertools.accumulate(map(len, documents))], dtype=torch.int32)
    return Batch(ids, starts, max(map(len, documents)), **more)


def test_embeddings_add_up():
    embed = Embeddings(4, 10, positions=6, segments=2, offset=2)
    batch = pack([3, 1, 4], [1, 5], segments=torch.tensor([0, 1, 1, 0, 1]))
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
def test_positions_count_from_each_document_are_given_or_go_on(documents):
    embed = Embeddings(4, 10, positions=6, offset=1)
    batch = pack(*documents)
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
    batch = pack([3, 1], segments=torch.tensor([7, 8]))
    torch.testing.assert_close(embed(batch, batch.layout)[1], embed.token.weight[1] + embed.token.weight[8])
    norm = nn.LayerNorm(4)
    nn.init.normal_(norm.weight)
    wide = Embeddings(4, 10, norm=norm, up=7)
    batch = pack([3, 1])
    torch.testing.assert_close(wide(batch, batch.layout), wide.up(norm(wide.token(batch.ids))))
    dropped = Embeddings(4, 10, dropout=0.5).train()
    assert (dropped(batch, batch.layout) == 0).any()


# ------------------------------------------------------------------ blocks


def block(order="pre", **more):
    return Block(Attention(8, 2), FeedForward(8, 12), norm=lambda: nn.LayerNorm(8), norm_order=order, **more)


def randomise(module):
    for p in module.parameters():
        nn.init.normal_(p, 0.0, 0.5)
    return module


def test_orders_of_a_block():
    attn_context, x = AttentionContext(layout(3, 2), mask=causal), torch.randn(5, 8)
    pre = randomise(block("pre"))
    y = x + pre.attn(pre.attn_norm(x), attn_context)
    torch.testing.assert_close(pre(x, attn_context), y + pre.ff(pre.ff_norm(y)))
    post = randomise(block("post"))
    y = post.attn_norm(x + post.attn(x, attn_context))
    torch.testing.assert_close(post(x, attn_context), post.ff_norm(y + post.ff(y)))
    parallel = randomise(block("parallel"))
    expected = x + parallel.attn(parallel.attn_norm(x), attn_context) + parallel.ff(parallel.ff_norm(x))
    torch.testing.assert_close(parallel(x, attn_context), expected)
    shared = randomise(block("parallel", shared_norm=True))
    expected = x + shared.attn(shared.attn_norm(x), attn_context) + shared.ff(shared.attn_norm(x))
    torch.testing.assert_close(shared(x, attn_context), expected)
    assert len(list(shared.parameters())) == len(list(parallel.parameters())) - 2


def test_block_with_cross_attention():
    attn_context, x, memory = AttentionContext(layout(3, 2), mask=causal), torch.randn(5, 8), torch.randn(7, 8)
    cross_context = AttentionContext(attn_context.query_layout, layout(4, 3), encoder_output=memory, stack_name="cross")
    one = randomise(block("pre", cross=Attention(8, 2, cross=True)))
    y = x + one.attn(one.attn_norm(x), attn_context)
    y = y + one.cross(one.cross_norm(y), cross_context)
    torch.testing.assert_close(one(x, attn_context, cross_context), y + one.ff(one.ff_norm(y)))
    assert block().cross_norm is None


@pytest.mark.parametrize("order", ["pre", "post", "parallel"])
def test_block_drops_what_it_adds(order):
    attn_context, x = AttentionContext(layout(3, 2)), torch.randn(5, 8)
    one = randomise(block(order, dropout=0.5))
    assert torch.equal(one.eval()(x, attn_context), one(x, attn_context))
    assert not torch.equal(one.train()(x, attn_context), one(x, attn_context))


@pytest.mark.parametrize("order", ["pre", "post", "parallel"])
def test_of_a_block_that_drops_everything_only_the_residual_is_left(order):
    x, memory = torch.randn(5, 8), torch.randn(7, 8)
    attn_context = AttentionContext(layout(3, 2))
    cross_context = AttentionContext(attn_context.query_layout, layout(4, 3), encoder_output=memory)
    one = randomise(block(order, cross=Attention(8, 2, cross=True), dropout=1.0)).train()
    rest = one.ff_norm(one.cross_norm(one.attn_norm(x))) if order == "post" else x
    torch.testing.assert_close(one(x, attn_context, cross_context), rest)


def test_stack_runs_its_order_and_is_looked_at():
    attn_context, x = AttentionContext(layout(3, 2)), torch.randn(5, 8)
    blocks = [randomise(block()) for _ in range(2)]
    capture = Capture(with_hidden=True, with_attention=True)
    seen = AttentionContext(layout(3, 2), capture=capture, stack_name="decoder")
    expected = blocks[1](blocks[0](blocks[0](x, attn_context), attn_context), attn_context)
    torch.testing.assert_close(BlockStack(blocks, layer_order=[0, 0, 1])(x, seen), expected)
    assert len(capture.hidden_states["decoder"]) == 3
    assert torch.equal(capture.hidden_states["decoder"][0], x)
    assert [w.shape for w in capture.attention_weights["decoder"]] == [(2, 2, 3, 3)] * 3
    assert len(BlockStack(blocks).layer_order) == 2
    silent = Capture()
    BlockStack(blocks)(x, AttentionContext(layout(3, 2), capture=silent))
    assert not silent.hidden_states
    assert not silent.attention_weights


# ------------------------------------------------------------------ attention


def test_attention_from_the_formula():
    one = randomise(Attention(8, 2, head_dim=3, bias=True))
    x, here = torch.randn(5, 8), layout(3, 2)
    q, k, v = (part.unflatten(1, (2, 3)) for part in one.qkv(x).chunk(3, 1))
    expected, _ = reference.attention(q, k, v, [0, 3, 5], [0, 3, 5], 3**-0.5)
    torch.testing.assert_close(one(x, AttentionContext(here)), one.o(expected.flatten(1)))
    assert Attention(8, 2).head_dim == 4
    assert Attention(8, 2, scale=1.0).scale == 1.0
    assert Attention(8, 2, bias=False).qkv.bias is None
    assert Attention(8, 2, bias=False).o.bias is None
    assert Attention(8, 2, bias=False, cross=True).kv.bias is None


def test_cross_attention_reads_the_memory():
    one = randomise(Attention(8, 2, cross=True))
    x, memory = torch.randn(5, 8), torch.randn(6, 8)
    q = one.q(x).unflatten(1, (2, 4))
    k, v = (part.unflatten(1, (2, 4)) for part in one.kv(memory).chunk(2, 1))
    expected, _ = reference.attention(q, k, v, [0, 3, 5], [0, 2, 6], 0.5)
    got = one(x, AttentionContext(layout(3, 2), layout(2, 4), encoder_output=memory))
    torch.testing.assert_close(got, one.o(expected.flatten(1)))


def test_head_mask_switches_a_head_off_layer_by_layer():
    one = randomise(Attention(8, 2, bias=False))
    x, here = torch.randn(5, 8), layout(3, 2)
    mask = torch.tensor([[1, 1], [1, 0], [0.5, 0]])
    full = one(x, AttentionContext(here, head_mask=mask), 0)
    torch.testing.assert_close(full, one(x, AttentionContext(here)))
    first = one(x, AttentionContext(here, head_mask=mask), 1)
    torch.testing.assert_close(one(x, AttentionContext(here, head_mask=mask), 2), first / 2)
    second = one(x, AttentionContext(here, head_mask=torch.tensor([[0, 1]])), 0)
    torch.testing.assert_close(first + second, full)


# ------------------------------------------------------------------ initialisation


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
