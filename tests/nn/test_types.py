"""Types and defaults: what is computed in which precision, and what a part does when nothing is asked of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from formers.batch import Batch
from formers.nn.attention.attention import Attention
from formers.nn.attention.context import AttentionContext, Capture
from formers.nn.attention.dispatch import attend, compute_attention_weights, force_kernel
from formers.nn.attention.kv_cache import KVCache
from formers.nn.attention.masks import build_alibi, causal
from formers.nn.attention.positions import BucketBias
from formers.nn.block import Block
from formers.nn.layers import Embeddings, FeedForward, LayerNorm, RMSNorm, to_autocast_dtype
from tests.nn import reference
from tests.nn.packing import make_layout

HALF = 2**-8  # half a step of bf16, at most, relative


# ------------------------------------------------------------------ types


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
def test_a_norm_of_bf16_by_fp32_weights_is_rounded_once(kind):
    norm = kind(64, eps=1e-5)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(50, 64).bfloat16()
    got = norm(x)
    assert got.dtype == torch.bfloat16
    wide = x.double() - (x.double().mean(-1, keepdim=True) if kind is LayerNorm else 0)
    want = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight.double()
    if kind is LayerNorm:
        want = want + norm.bias.double()
    off = (got.double() - want).abs()
    assert (off <= want.abs() * HALF * 1.01 + 1e-6).all()


def test_activations_work_in_bf16_under_its_autocast_only():
    x = torch.randn(3, 4)
    assert to_autocast_dtype(x) is x
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(to_autocast_dtype(x), x.bfloat16())
        assert to_autocast_dtype(x).dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.float16):
        assert to_autocast_dtype(x) is x


@pytest.mark.parametrize("path", ["dense", "by_length"])
def test_a_bias_in_fp32_goes_with_queries_in_bf16(path):
    here = make_layout([4, 2, 3])
    q, k, v = (torch.randn(9, 2, 8) for _ in range(3))
    with force_kernel(path):
        want = attend(q, k, v, AttentionContext(here, mask=causal, bias=build_alibi(2)), 0.3)
        got = attend(*(t.bfloat16() for t in (q, k, v)), AttentionContext(here, mask=causal, bias=build_alibi(2)), 0.3)
    assert got.dtype == torch.bfloat16
    assert (got - want).norm() / want.norm() < 0.02


def test_weights_of_bf16_are_a_distribution_in_fp32():
    q, k = (torch.randn(7, 2, 8).bfloat16() for _ in range(2))
    table = compute_attention_weights(q, k, AttentionContext(make_layout([7]), mask=causal), 0.3)
    assert table.dtype == torch.float32
    torch.testing.assert_close(table.sum(-1), torch.ones(1, 2, 7), atol=1e-6, rtol=0)


def test_a_mask_of_heads_goes_with_a_model_in_bf16():
    one, x, here = Attention(8, 2).bfloat16(), torch.randn(5, 8).bfloat16(), make_layout([3, 2])
    assert torch.equal(one(x, AttentionContext(here, head_mask=torch.ones(1, 2))), one(x, AttentionContext(here)))


def test_a_cache_keeps_no_graph():
    one, cache, here = Attention(8, 2), KVCache(2, 4), make_layout([3, 2])
    one(torch.randn(5, 8), AttentionContext.start_pass(here, mask=causal, cache=cache)).sum().backward()
    assert not cache[0].keys.requires_grad
    assert not cache[0].values.requires_grad


# ------------------------------------------------------------------ defaults


def test_nothing_is_dropped_unless_asked():
    x, attn_context, ids = torch.randn(5, 8), AttentionContext(make_layout([3, 2])), torch.arange(5)
    block = Block(Attention(8, 2), FeedForward(8, 12), norm=lambda: nn.LayerNorm(8))
    cross = Attention(8, 2, cross=True)
    embed = Embeddings(8, 5)
    batch = Batch(ids, attn_context.query_layout.starts, 3)
    for run in (
        lambda: block(x, attn_context),
        lambda: cross(x, AttentionContext(attn_context.query_layout, make_layout([1, 4]), encoder_output=x)),
        lambda: embed(batch, batch.layout),
    ):
        block.train(), cross.train(), embed.train()
        trained = run()
        block.eval(), cross.eval(), embed.eval()
        assert torch.equal(trained, run())
    assert torch.equal(embed(batch, batch.layout), embed.token.weight[ids])


def test_without_a_number_it_is_the_first_layer_of_the_encoder():
    one = Block(Attention(8, 2), FeedForward(8, 12), norm=lambda: nn.LayerNorm(8))
    x, heads, capture = torch.randn(5, 8), torch.tensor([[0.3, 2.0], [1.0, 1.0]]), Capture(with_attention=True)
    given = one(x, AttentionContext(make_layout([3, 2]), head_mask=heads), None, 0)
    assert torch.equal(one(x, AttentionContext(make_layout([3, 2]), head_mask=heads, capture=capture)), given)
    assert torch.equal(
        one.attn(x, AttentionContext(make_layout([3, 2]), head_mask=heads)),
        one.attn(x, AttentionContext(make_layout([3, 2]), head_mask=heads), 0),
    )
    assert not torch.equal(one(x, AttentionContext(make_layout([3, 2]), head_mask=heads), None, 1), given)
    assert list(capture.attention_weights) == ["encoder"]


def test_tables_exist_only_where_they_are_asked_for():
    assert [name for name, _ in Embeddings(4, 10).named_parameters()] == ["token.weight"]
    assert Embeddings(4, 10, positions=6).position.weight.shape == (6, 4)
    assert Embeddings(4, 10, segments=3).segment.weight.shape == (3, 4)
    names = {name for name, _ in FeedForward(4, 6, gated=True).named_parameters()}
    assert names == {f"{layer}.{kind}" for layer in ("up", "gate", "down") for kind in ("weight", "bias")}
    names = {name for name, _ in Attention(8, 2, cross=True).named_parameters()}
    assert names == {f"{layer}.{kind}" for layer in ("q", "kv", "o") for kind in ("weight", "bias")}


def test_buckets_are_t5s_unless_asked():
    """Raffel et al. 2019, §2.1: 32 buckets up to a distance of 128, for an encoder."""
    bias = BucketBias(2)
    assert bias.weight.shape == (32, 2)
    distances = torch.arange(-300, 301)
    want = [reference.compute_bucket(d, 32, 128, True) for d in distances.tolist()]
    assert bias.compute_bucket(distances).tolist() == want


def test_the_memory_is_projected_once():
    one, cache, memory, calls = Attention(8, 2, cross=True), KVCache(2, 4), torch.randn(6, 8), []
    one.kv.register_forward_hook(lambda *a: calls.append(1))
    theirs, x = make_layout([2, 4]), torch.randn(5, 8)
    first = one(x, AttentionContext(make_layout([3, 2]), theirs, encoder_output=memory, cache=cache))
    again = one(x, AttentionContext(make_layout([3, 2]), theirs, encoder_output=memory, cache=cache))
    assert len(calls) == 1
    assert [t.shape for t in cache[0].cross_kv] == [(2, 4, 2, 4)] * 2
    plain = one(x, AttentionContext(make_layout([3, 2]), theirs, encoder_output=memory))
    torch.testing.assert_close(first, plain)
    torch.testing.assert_close(again, plain)
