"""The Transformer of 2017 against torch.nn.Transformer's layers, and its sinusoids against the paper's formula."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import formers
from formers.nn.attention.positions import SinusoidalPositions

SIZES = {"vocab": 31, "dim": 24, "layers": 2, "heads": 3, "ff": 40, "dropout": 0.0}


def copy_weights(ours, theirs, decoder):
    """Our weights in one of torch's layers, which are post-norm with relu by default."""
    pairs = [
        (theirs.self_attn.in_proj_weight, ours.attn.qkv.weight),
        (theirs.self_attn.in_proj_bias, ours.attn.qkv.bias),
        (theirs.self_attn.out_proj.weight, ours.attn.o.weight),
        (theirs.self_attn.out_proj.bias, ours.attn.o.bias),
        (theirs.linear1.weight, ours.ff.up.weight),
        (theirs.linear1.bias, ours.ff.up.bias),
        (theirs.linear2.weight, ours.ff.down.weight),
        (theirs.linear2.bias, ours.ff.down.bias),
    ]
    norms = [(theirs.norm1, ours.attn_norm), (theirs.norm3 if decoder else theirs.norm2, ours.ff_norm)]
    if decoder:
        norms.append((theirs.norm2, ours.cross_norm))
        pairs += [
            (theirs.multihead_attn.in_proj_weight, torch.cat((ours.cross.q.weight, ours.cross.kv.weight))),
            (theirs.multihead_attn.in_proj_bias, torch.cat((ours.cross.q.bias, ours.cross.kv.bias))),
            (theirs.multihead_attn.out_proj.weight, ours.cross.o.weight),
            (theirs.multihead_attn.out_proj.bias, ours.cross.o.bias),
        ]
    for a, b in [*pairs, *((t.weight, o.weight) for t, o in norms), *((t.bias, o.bias) for t, o in norms)]:
        a.data.copy_(b)
    return theirs


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("halves", [True, False])
def test_layers_of_torch_without_the_final_norms(halves):
    f = formers.build("transformer", seed=4, halves=halves, **SIZES)
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in f.model.parameters():
            p.add_(torch.randn(p.shape, generator=g) * 0.1)
    body, c = f.model.body, f.config
    source, target = torch.randint(31, (2, 7), generator=g), torch.randint(31, (2, 5), generator=g)
    keep = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])

    def embed_ids(ids):
        return body.embed.token(ids) * math.sqrt(24) + SinusoidalPositions(24, halves)(torch.arange(ids.shape[1]))

    x, y = embed_ids(source), embed_ids(target)
    for block in body.encoder.blocks:
        layer = nn.TransformerEncoderLayer(24, 3, 40, 0.0, batch_first=True, layer_norm_eps=c.eps)
        x = copy_weights(block, layer, False)(x, src_key_padding_mask=~keep)
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    for block in body.decoder.blocks:
        layer = nn.TransformerDecoderLayer(24, 3, 40, 0.0, batch_first=True, layer_norm_eps=c.eps)
        y = copy_weights(block, layer, True)(y, x, tgt_mask=causal, memory_key_padding_mask=~keep)
    torch.testing.assert_close(f.hidden(source, keep) * keep[..., None], x * keep[..., None], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(f.hidden(source, keep, target=target), y, atol=1e-5, rtol=1e-5)
    want = y @ body.embed.token.weight.T + f.model.heads["lm"].out.bias
    torch.testing.assert_close(f.logits(source, keep, target=target), want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dim", [6, 7])
def test_sinusoids_of_the_paper(dim):
    """§3.5: PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos of the same."""
    got, halves = (
        SinusoidalPositions(dim)(torch.tensor([0, 3, 511])),
        SinusoidalPositions(dim, halves=True)(torch.tensor([0, 3, 511])),
    )
    for row, place in enumerate((0, 3, 511)):
        for j in range(dim):
            angle = place / 10000 ** (2 * (j // 2) / dim)
            want = math.cos(angle) if j % 2 else math.sin(angle)
            assert got[row, j] == pytest.approx(want, abs=1e-6)
            where = (dim + 1) // 2 + j // 2 if j % 2 else j // 2
            assert halves[row, where] == pytest.approx(want, abs=1e-6)


def test_no_alternating_sinusoids_in_marians_format(tmp_path):
    with pytest.raises(formers.Error, match=r"alternating .* --model.halves true"):
        formers.export(formers.build("transformer", halves=False, **SIZES), tmp_path / "hf")
    assert not (tmp_path / "hf").exists()
    formers.export(formers.build("transformer", **SIZES), tmp_path / "hf")
