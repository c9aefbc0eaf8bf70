"""Weights of 8 bits: near to the model's own answers, the same in any batch, and said where they do not fit."""

from __future__ import annotations

import pytest
import torch

import formers
from formers import Error
from formers.generation.decoding import Options, continue_ids
from formers.nn import cpu_inference
from formers.nn.cpu_inference import (
    FBGEMMKernel,
    OneDNNKernel,
    PlainKernel,
    PrepackedLinear,
    QuantisedLinear,
    SplitKernel,
    build_kernel,
    can_use_fbgemm,
    can_use_onednn,
    compute_gelu_tanh,
)

SIZES = {"vocab": 200, "context": 64, "dim": 64, "layers": 3, "heads": 4, "init": 0.1, "eos": None}


def build_decoder(kind=None):
    f = formers.build("gpt2", seed=1, **SIZES)
    return f if kind is None else f.freeze(kind)


def test_a_product_of_whole_numbers():
    torch.manual_seed(0)
    weight, bias, x = torch.randn(12, 32), torch.randn(12), torch.randn(5, 32)
    x[2] = 0
    layer = QuantisedLinear(weight, bias)
    scale = weight.abs().amax(1) / 127
    small = (weight / scale[:, None]).round() * scale[:, None]
    row = (x.abs().amax(1) / 127).clamp(min=1e-30)[:, None]
    torch.testing.assert_close(layer(x), (x / row).round() * row @ small.T + bias, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(layer(x[:, None]), layer(x)[:, None])


@pytest.mark.parametrize("rows", [1, 2, 3, 9, 300])
def test_all_kernels_give_the_same(rows):
    layer, x = QuantisedLinear(torch.randn(16, 32), torch.randn(16)), torch.randn(rows, 32)
    x[0] *= 1e4
    x[0, :8] = 0.5 * x[0].abs().max()  # between two whole numbers
    scale = x.abs().amax(1, keepdim=True) * (1 / 127)
    small = torch.randint(-127, 128, (16, 32), dtype=torch.int8)
    want = build_kernel(PlainKernel, small, layer.scale)((x / scale).round())
    for kernel in list_kernels()[1:]:
        assert torch.equal(build_kernel(kernel, small, layer.scale)((x / scale).round()), want)


def list_kernels():
    return [PlainKernel, *([OneDNNKernel] if can_use_onednn() else []), *([FBGEMMKernel] if can_use_fbgemm() else [])]


class PairsIn16Bits:
    """What a processor without VNNI does: inputs from 0 to 255, and pairs of products added in 16 bits."""

    def __init__(self, weight, scale):
        self.weight, self.scale = weight, scale

    def __call__(self, x):
        products = (x[:, None].long() + 128) * self.weight.long()  # (rows, out, in)
        pairs = products.unflatten(-1, (-1, 2)).sum(-1).clamp(-(2**15), 2**15 - 1).sum(-1)
        return (pairs - 128 * self.weight.long().sum(1)) * self.scale


def test_no_kernel_overflows():
    ends = torch.tensor([-127, 127], dtype=torch.int8)
    small, x = ends.repeat_interleave(3072).view(2, 3072), torch.full((4, 3072), 127.0)
    want = torch.tensor([-1.0, 1.0]).expand(4, 2) * 3072 * 127**2
    for kernel in (*list_kernels(), PairsIn16Bits):
        for sign in (1, -1):
            found = build_kernel(kernel, small, torch.ones(2))(sign * x)
            torch.testing.assert_close(found, sign * want, atol=0, rtol=1e-6)
    assert type(build_kernel(PairsIn16Bits, small, torch.ones(2))) is SplitKernel


@pytest.mark.parametrize("kind", ["fp32", "bf16"])
def test_a_processor_without_prepacked_weights_takes_plain_ones(kind, monkeypatch):
    ids = torch.arange(12)[None]
    with torch.inference_mode():
        want = build_decoder().to(dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[kind]).logits(ids)

        def refuse(weight):
            raise RuntimeError("mkldnn_reorder_linear_weight: bf16 path needs the cpu support")

        monkeypatch.setattr(cpu_inference, "prepack_weight", refuse)
        cpu_inference.can_prepack.cache_clear()
        try:
            got = build_decoder(kind).logits(ids)
        finally:
            cpu_inference.can_prepack.cache_clear()
    assert got.dtype == want.dtype
    torch.testing.assert_close(got.float(), want.float(), atol=1e-5 if kind == "fp32" else 0.05, rtol=0)


def test_no_row_depends_on_its_neighbours():
    layer = QuantisedLinear(torch.randn(16, 32), None)
    x = torch.randn(4, 32)
    loud = torch.cat((x, 1000 * torch.randn(60, 32)))
    for rows in (1, 2, 3, 4):
        assert torch.equal(layer(loud)[:rows], layer(x[:rows]))


@pytest.mark.parametrize(("kind", "near"), [("fp32", 1e-5), ("bf16", 0.05), ("int8", 0.05)])
def test_near_to_the_model_itself(kind, near, capsys):
    ids = torch.randint(0, 200, (3, 40), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        plain, got = build_decoder().logits(ids), build_decoder(kind).logits(ids).float()
    far = float((got - plain).abs().max() / plain.std())
    with capsys.disabled():
        print(f"\n{kind}: logits differ by {far:.5f} of their spread")
    assert ((got - plain).std() / plain.std()) < near
    assert type(build_decoder(kind).model.body.blocks[0].ff.up) is (
        QuantisedLinear if kind == "int8" else PrepackedLinear
    )


@pytest.mark.parametrize("kind", ["fp32", "bf16", "int8"])
def test_the_same_in_any_batch(kind, capsys):
    f, how = build_decoder(kind), Options(temperature=0)
    prompts = [[1, 2, 3], [7], [9, 8, 7, 6, 5], [100] * 20]
    together, alone = continue_ids(f, prompts, 12, how), [continue_ids(f, [p], 12, how)[0] for p in prompts]
    same = sum(a == b for x, y in zip(together, alone, strict=True) for a, b in zip(x, y, strict=True))
    with capsys.disabled():
        print(f"\n{kind}: {same} of {sum(map(len, alone))} tokens as one by one")
    assert together == alone or kind == "bf16"


@pytest.mark.parametrize(
    ("family", "more"),
    [("t5", {"ff": 24, "head_dim": 8}), ("bart", {"ff": 24, "context": 40}), ("xlnet", {"ff": 24}),
     ("switch", {"ff": 24, "head_dim": 8, "sparse": 1, "decoder_sparse": 1}), ("seq2seq", {}),
     ("bert", {"ff": 24, "context": 40})],
)  # fmt: skip
def test_every_kind_of_model(family, more):
    sizes = {"vocab": 50, "dim": 16, "layers": 2} | ({} if family == "seq2seq" else {"heads": 2}) | more
    f = formers.build(family, seed=1, **sizes)
    ids, target = torch.randint(5, 50, (2, 7)), torch.randint(5, 50, (2, 4))
    given = {"ids": ids, "target": target} if f.is_encoder_decoder else {"ids": ids}
    with torch.inference_mode():
        plain = f.logits(**given)
        got = f.freeze("int8").logits(**given)
    for name in plain if isinstance(plain, dict) else [None]:
        a, b = (plain, got) if name is None else (plain[name], got[name])
        assert (b - a).std() < 0.1 * a.std()


def test_nothing_is_left_to_train():
    f = build_decoder("int8")
    assert not any(p.requires_grad for p in f.model.parameters())
    assert not f.logits(torch.ones(1, 3, dtype=torch.long)).requires_grad  # and it works outside inference_mode


def test_what_cannot_be_frozen():
    with pytest.raises(Error, match="unknown kind of weights 'int4'"):
        build_decoder("int4")


def test_gelu_as_a_sigmoid():
    x = torch.cat((torch.linspace(-20, 20, 4001), torch.tensor([-1e6, 1e6, 0.0])))
    torch.testing.assert_close(
        compute_gelu_tanh(x), torch.nn.functional.gelu(x, approximate="tanh"), atol=2e-6, rtol=1e-6
    )


def test_under_autocast():
    """A caller's half precision may not round a whole number up to 128, nor meet weights of another type."""
    layer = torch.nn.Linear(64, 32)
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    eight = QuantisedLinear(layer.weight, layer.bias)
    with torch.autocast("cpu", torch.bfloat16):
        found = eight(x.bfloat16())
    assert (found.float() - layer(x)).abs().max() < 0.1
