"""On a GPU: texts in packed batches, pooled on the device, have the vectors that a CPU computes."""

from __future__ import annotations

import pytest
import torch

from tests.small_models import TEXTS, build_embedding_model

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "xlnet", "albert"])
@pytest.mark.parametrize("pool", ["mean", "first", "last", "max", "weighted"])
def test_vectors_as_on_a_cpu(name, pool):
    former = build_embedding_model(name)
    texts = [*TEXTS, " ".join(TEXTS * 4)] * 9
    want = former.embed(texts, pool=pool)
    found = former.to("cuda").embed(texts, pool=pool)
    assert found.device.type == "cpu"
    torch.testing.assert_close(found, want, rtol=1e-3, atol=1e-3)
