"""On a GPU: every kernel path gives the same output and gradient as the dense path in double precision."""

from __future__ import annotations

import warnings

import pytest
import torch

import formers
from formers.batch import Batch
from formers.nn.attention import dispatch
from formers.nn.attention.context import AttentionContext
from formers.nn.attention.dispatch import AttentionCall, attend, choose_kernel, force_kernel
from formers.nn.attention.masks import WindowMask, build_alibi, causal, combine_masks
from formers.nn.attention.positions import BucketBias
from tests.nn.packing import make_layout

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
H, D = 4, 64
SHAPES = {"ragged": [100, 1, 257, 40, 0, 130], "uniform": [128, 128, 128], "short": [3, 5, 2]}
KINDS = ["nothing", "causal", "window", "alibi", "buckets", "buckets causal"]


def kind_of(name, dtype):
    mask = {
        "causal": causal,
        "window": combine_masks(causal, WindowMask(17)),
        "alibi": causal,
        "buckets causal": causal,
    }.get(name)
    if "buckets" not in name:
        return mask, build_alibi(H) if name == "alibi" else None
    bias = BucketBias(H, bidirectional="causal" not in name).cuda()
    torch.manual_seed(3)
    torch.nn.init.normal_(bias.weight)
    return mask, bias.to(dtype)


def run_kernel(path, shape, kind, dtype, tensors, pull):
    here = make_layout(SHAPES[shape], device="cuda")
    mask, bias = kind_of(kind, dtype)
    q, k, v = (t.to(dtype).detach().requires_grad_() for t in tensors)
    with force_kernel(path):
        out = attend(q, k, v, AttentionContext(here, mask=mask, bias=bias), 0.125)
    leaves = [q, k, v, *([bias.weight] if isinstance(bias, BucketBias) else [])]
    return [out.detach(), *torch.autograd.grad(out, leaves, pull.to(dtype))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_path_agrees(kind, shape, dtype):
    n = sum(SHAPES[shape])
    tensors = [torch.randn(n, H, D, device="cuda") for _ in range(3)]
    pull = torch.randn(n, H, D, device="cuda")
    want = run_kernel("dense", shape, kind, torch.float64, tensors, pull)
    paths = ["dense", "by_length", *(["flex"] if shape == "ragged" else [])]  # compiling it takes a while
    if kind in ("nothing", "causal", "window") and dtype == torch.bfloat16:
        paths.append("varlen")
    if kind != "window" and dtype == torch.bfloat16:
        paths.append("biased_flash")
    if kind in ("nothing", "causal") and shape == "uniform":
        paths += ["sdpa", *(["cudnn"] if dtype == torch.bfloat16 and dispatch.is_hopper() else [])]
    limit = 2e-2 if dtype == torch.bfloat16 else 2e-3
    for path in paths:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = run_kernel(path, shape, kind, dtype, tensors, pull)
        for part, (a, b) in enumerate(zip(got, want, strict=True)):
            assert a.isfinite().all(), (path, part)
            error = (a.double() - b).norm() / b.norm()
            assert error < limit, (path, part, float(error))


def test_packed_kernels_are_chosen():
    q = torch.zeros(sum(SHAPES["ragged"]), H, D, device="cuda", dtype=torch.bfloat16)
    assert (
        choose_kernel(AttentionCall(q, q, q, AttentionContext(make_layout(SHAPES["ragged"], device="cuda")), 1.0))
        == "varlen"
    )
    sloped = AttentionContext(make_layout(SHAPES["ragged"], device="cuda"), bias=build_alibi(H))
    assert choose_kernel(AttentionCall(q, q, q, sloped, 1.0)) == "flex"
    assert dispatch.list_available_kernels(q) >= {"sdpa", "dense", "varlen", "flex", "biased_flash"}


SIZES = {
    "gpt2": {"vocab": 128, "context": 64, "dim": 64, "layers": 2, "heads": 4, "embed_dropout": 0.0},
    "bert": {"vocab": 128, "context": 64, "dim": 64, "layers": 2, "heads": 4, "ff": 96, "head": "mlm"},
    "t5": {"vocab": 128, "dim": 64, "layers": 2, "heads": 4, "head_dim": 16, "ff": 96},
}


@pytest.mark.parametrize("shape", ["ragged", "uniform"])
@pytest.mark.parametrize("family", SIZES)
def test_compiled_training_step_equals_eager(family, shape):
    """inductor, bf16 autocast, forward and backward; against eager fp32 on the CPU."""
    torch._dynamo.reset()
    quiet = {"dropout": 0.0} | ({} if family == "t5" else {"attention_dropout": 0.0})
    f = formers.build(family, seed=1, **SIZES[family], **quiet)
    lengths = torch.tensor([50, 9, 31] if shape == "ragged" else [32, 32, 32])
    columns = int(lengths.max())
    ids = torch.randint(2, 128, (3, columns))
    keep = torch.arange(columns) < lengths[:, None]
    batch = Batch.from_padded(ids, keep) if shape == "ragged" else Batch.from_padded(ids)
    if family == "t5":
        batch = batch.replace(source=batch)

    def loss(model, batch):
        return (model.logits(model(batch)).float() ** 2).mean()

    f.model.train()
    want = loss(f.model, batch)
    want.backward()
    gradients = [p.grad.clone() for p in f.model.parameters()]
    f.model.zero_grad()
    f.to("cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        got = torch.compile(loss, fullgraph=True)(f.model, batch.to("cuda"))
    got.backward()
    assert float((got.cpu() - want).abs() / want) < 2e-2
    for p, gradient in zip(f.model.parameters(), gradients, strict=True):
        assert float((p.grad.cpu() - gradient).norm() / gradient.norm().clamp(min=1e-8)) < 8e-2


def test_cache_on_the_gpu():
    from formers.nn.attention.kv_cache import KVCache

    f = formers.build("gpt2", seed=1, **SIZES["gpt2"]).to("cuda")
    ids = torch.randint(2, 128, (3, 12))
    with torch.inference_mode():
        whole, cache = f.logits(ids), KVCache(3, 12)
        parts = [f.logits(piece, memory=cache) for piece in ids.split(4, 1)]
    assert (torch.cat(parts, 1) - whole).abs().max() < 1e-4


@pytest.mark.parametrize("mask", [None, causal], ids=["nothing", "causal"])
def test_flash_with_dropout_draws_the_mask_again_in_the_backward_pass(mask):
    n, rate = sum(SHAPES["ragged"]), 0.4
    q, k, v, pull = (torch.randn(n, H, D, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    here = AttentionContext(make_layout(SHAPES["ragged"], device="cuda"), mask=mask)
    assert choose_kernel(AttentionCall(q, k, v, here, 0.125, rate)) == "varlen"
    whole = attend(q, k, v, here, 0.125).float()
    v.requires_grad_()
    draws = []
    for _ in range(400):
        out = attend(q, k, v, here, 0.125, rate)
        draws.append(out.detach().float())
    assert not torch.equal(draws[0], draws[1])
    mean = torch.stack(draws).mean(0)
    assert float((mean - whole).norm() / whole.norm()) < 0.1  # dropout leaves the mean where it was
    (grad,) = torch.autograd.grad(out, v, pull)
    # The output is linear in v, so its product with any direction is that of v with the gradient along it.
    want, got = (out.detach().double() * pull.double()).sum(), (grad.double() * v.detach().double()).sum()
    assert float((got - want).abs()) < 2e-2 * float((out.detach().double() * pull.double()).abs().sum())
