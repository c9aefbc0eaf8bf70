"""Blocks and stacks: their order, cross attention, dropout, and masks of heads."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from formers.nn.attention.attention import Attention
from formers.nn.attention.context import AttentionContext, Capture
from formers.nn.attention.masks import (
    causal,
)
from formers.nn.block import Block, BlockStack
from formers.nn.layers import FeedForward
from tests.nn.packing import make_layout
from tests.small_models import randomise_weights


def build_block(order="pre", **more):
    return Block(Attention(8, 2), FeedForward(8, 12), norm=lambda: nn.LayerNorm(8), norm_order=order, **more)


def test_orders_of_a_block():
    attn_context, x = AttentionContext(make_layout([3, 2]), mask=causal), torch.randn(5, 8)
    pre = randomise_weights(build_block("pre"))
    y = x + pre.attn(pre.attn_norm(x), attn_context)
    torch.testing.assert_close(pre(x, attn_context), y + pre.ff(pre.ff_norm(y)))
    post = randomise_weights(build_block("post"))
    y = post.attn_norm(x + post.attn(x, attn_context))
    torch.testing.assert_close(post(x, attn_context), post.ff_norm(y + post.ff(y)))
    parallel = randomise_weights(build_block("parallel"))
    expected = x + parallel.attn(parallel.attn_norm(x), attn_context) + parallel.ff(parallel.ff_norm(x))
    torch.testing.assert_close(parallel(x, attn_context), expected)
    shared = randomise_weights(build_block("parallel", shared_norm=True))
    expected = x + shared.attn(shared.attn_norm(x), attn_context) + shared.ff(shared.attn_norm(x))
    torch.testing.assert_close(shared(x, attn_context), expected)
    assert len(list(shared.parameters())) == len(list(parallel.parameters())) - 2


def test_block_with_cross_attention():
    attn_context, x, memory = AttentionContext(make_layout([3, 2]), mask=causal), torch.randn(5, 8), torch.randn(7, 8)
    cross_context = AttentionContext(
        attn_context.query_layout, make_layout([4, 3]), encoder_output=memory, stack_name="cross"
    )
    one = randomise_weights(build_block("pre", cross=Attention(8, 2, cross=True)))
    y = x + one.attn(one.attn_norm(x), attn_context)
    y = y + one.cross(one.cross_norm(y), cross_context)
    torch.testing.assert_close(one(x, attn_context, cross_context), y + one.ff(one.ff_norm(y)))
    assert build_block().cross_norm is None


@pytest.mark.parametrize("order", ["pre", "post", "parallel"])
def test_block_drops_what_it_adds(order):
    attn_context, x = AttentionContext(make_layout([3, 2])), torch.randn(5, 8)
    one = randomise_weights(build_block(order, dropout=0.5))
    assert torch.equal(one.eval()(x, attn_context), one(x, attn_context))
    assert not torch.equal(one.train()(x, attn_context), one(x, attn_context))


@pytest.mark.parametrize("order", ["pre", "post", "parallel"])
def test_of_a_block_that_drops_everything_only_the_residual_is_left(order):
    x, memory = torch.randn(5, 8), torch.randn(7, 8)
    attn_context = AttentionContext(make_layout([3, 2]))
    cross_context = AttentionContext(attn_context.query_layout, make_layout([4, 3]), encoder_output=memory)
    one = randomise_weights(build_block(order, cross=Attention(8, 2, cross=True), dropout=1.0)).train()
    rest = one.ff_norm(one.cross_norm(one.attn_norm(x))) if order == "post" else x
    torch.testing.assert_close(one(x, attn_context, cross_context), rest)


def test_stack_runs_its_order_and_is_looked_at():
    attn_context, x = AttentionContext(make_layout([3, 2])), torch.randn(5, 8)
    blocks = [randomise_weights(build_block()) for _ in range(2)]
    capture = Capture(with_hidden=True, with_attention=True)
    seen = AttentionContext(make_layout([3, 2]), capture=capture, stack_name="decoder")
    expected = blocks[1](blocks[0](blocks[0](x, attn_context), attn_context), attn_context)
    torch.testing.assert_close(BlockStack(blocks, layer_order=[0, 0, 1])(x, seen), expected)
    assert len(capture.hidden_states["decoder"]) == 3
    assert torch.equal(capture.hidden_states["decoder"][0], x)
    assert [w.shape for w in capture.attention_weights["decoder"]] == [(2, 2, 3, 3)] * 3
    assert len(BlockStack(blocks).layer_order) == 2
    silent = Capture()
    BlockStack(blocks)(x, AttentionContext(make_layout([3, 2]), capture=silent))
    assert not silent.hidden_states
    assert not silent.attention_weights


def test_head_mask_switches_a_head_off_layer_by_layer():
    one = randomise_weights(Attention(8, 2, bias=False))
    x, here = torch.randn(5, 8), make_layout([3, 2])
    mask = torch.tensor([[1, 1], [1, 0], [0.5, 0]])
    full = one(x, AttentionContext(here, head_mask=mask), 0)
    torch.testing.assert_close(full, one(x, AttentionContext(here)))
    first = one(x, AttentionContext(here, head_mask=mask), 1)
    torch.testing.assert_close(one(x, AttentionContext(here, head_mask=mask), 2), first / 2)
    second = one(x, AttentionContext(here, head_mask=torch.tensor([[0, 1]])), 0)
    torch.testing.assert_close(first + second, full)
