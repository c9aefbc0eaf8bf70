"""Looking inside on one thread while another uses the same model, as in a server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

import formers
from formers.inspection.attribution import zero_projected_values
from formers.inspection.recording import record_blocks


def test_hooks_act_on_their_own_thread_alone():
    f = formers.build("bert", head="mlm", vocab=50, dim=16, layers=2, heads=2, ff=32, context=32)
    ids = torch.arange(4, 12)[None]
    plain = f.logits(ids)
    with ThreadPoolExecutor(1) as other:
        with zero_projected_values(f, "text", torch.zeros(8)):
            assert not torch.equal(f.logits(ids), plain)
            assert torch.equal(other.submit(f.logits, ids).result(), plain)
            assert other.submit(f.logits, ids[:, :5]).result().shape[1] == 5, "of another length as well"
        with record_blocks(f.model.body) as states:
            other.submit(f.logits, ids).result()
            assert not states
            f.logits(ids)
            assert len(states["encoder"]) == 3
