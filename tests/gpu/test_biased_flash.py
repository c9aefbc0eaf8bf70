"""On a GPU: the kernels biased_flash and relative_flash compiled by triton, and models that use them."""

from __future__ import annotations

import pytest
import torch

import formers
from formers.batch import Batch
from formers.nn.attention import dispatch
from formers.nn.attention.dispatch import force_kernel
from tests.nn.attention.kernels.biased_flash_cases import CASES, LONG_CASES, compare_with_plain

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("name", CASES)
def test_as_plain_attention(name, dropout):
    compare_with_plain(name, dropout, "cuda", torch.bfloat16, 2e-2)


@pytest.mark.parametrize("name", LONG_CASES)
def test_long_documents_as_by_plain_attention(name):
    compare_with_plain(name, 0.0, "cuda", torch.bfloat16, 2e-2)


def compute_gradients(model, batch, path):
    """Of one step in bf16, by one kernel (None: the best)."""
    with force_kernel(path), torch.autocast("cuda", dtype=torch.bfloat16):
        loss = (model.logits(model(batch)).float() ** 2).mean()
    leaves = list(model.parameters())
    found = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    return torch.cat([g.flatten().float() for g in found])


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize(("family", "has_table"), [("t5", True), ("xlnet", True), ("xlnet", False)])
def test_models_as_by_the_dense_path(family, has_table, few, monkeypatch):
    if has_table:  # scores by distance are no longer made inside the kernel
        monkeypatch.setattr(dispatch, "_supports_relative_flash", lambda q: False)
    sizes = {"vocab": 128, "dim": 64, "layers": 2, "heads": 4, "ff": 96, "dropout": 0.0}
    f = formers.build(family, seed=1, **sizes, **({"head_dim": 16} if family == "t5" else {})).to("cuda")
    torch.manual_seed(0)
    lengths = torch.tensor([40, 9, 31] if few else [32, 32, 32])
    keep = torch.arange(int(lengths.max())) < lengths[:, None]
    batch = Batch.from_padded(torch.randint(2, 128, keep.shape), keep).replace(keep=None)
    if family == "t5":
        batch = batch.replace(source=batch)
    else:
        order = torch.cat([torch.randperm(int(n)) for n in lengths])
        segments = torch.randint(0, 3, order.shape) if few else None
        batch = batch.replace(
            order=order, segments=segments, chosen=(order % 3 == 1).nonzero().flatten() if few else None
        )
    batch = batch.to("cuda")
    got, want = (compute_gradients(f.model.train(), batch, path) for path in (None, "dense"))
    assert float((got - want).norm() / want.norm()) < 5e-2
