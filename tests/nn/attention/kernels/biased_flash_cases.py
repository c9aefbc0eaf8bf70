"""Cases of attention with learned biases, and plain attention in torch to compare the fused kernel with."""

from __future__ import annotations

import math

import torch

from formers.nn.attention.kernels import biased_flash, relative_flash
from tests.nn.packing import accumulate_starts

H, D, SCALE = 2, 16, 0.3
CASES = {  # lengths, kind of bias, order of visibility, and whether only some tokens ask
    "nothing": ([5, 1, 11], None, None, False),
    "even": ([8, 8], None, None, False),
    "table": ([5, 1, 11], "table", None, False),
    "even table": ([16, 16, 16], "table", None, False),
    "table causal": ([9, 9], "table", "causal", False),
    "even table causal": ([16, 16, 16], "table", "causal", False),
    "scores": ([6, 3, 10], "scores", None, False),
    "even scores": ([16, 16, 16], "scores", None, False),
    "even scores ordered": ([16, 16, 16], "scores", "order", False),
    "scores ordered": ([6, 3, 10], "scores", "order", False),
    "some queries": ([6, 3, 10], "scores", "order", True),
    "segments": ([6, 3, 10], "scores", "order", False),
    "segments of some": ([6, 3, 10], "scores", "order", True),
    "even segments": ([16, 16], "scores", None, False),
    "encodings": ([6, 3, 10], "encodings", None, False),
    "even encodings": ([16, 16, 16], "encodings", None, False),
    "even encodings ordered": ([16, 16, 16], "encodings", "order", False),
    "encodings causal": ([9, 13, 1], "encodings", "causal", False),
    "encodings ordered": ([6, 3, 10], "encodings", "order", False),
    "encodings and segments": ([6, 3, 10, 5, 8], "encodings", "order", False),
}
LONG_CASES = {  # of more than one block of a GPU; documents too long for the test of dropout
    "long table": ([150, 64, 7], "table", None, False),
    "long scores": ([150, 64, 7], "scores", "order", False),
    "long encodings": ([150, 64, 7, 129], "encodings", "order", False),
    "long encodings and segments": ([150, 64, 7, 129], "encodings", "order", False),
    "long even encodings": ([192, 192, 192], "encodings", None, False),
    "long even encodings ordered": ([128, 128], "encodings", "order", False),
}


def attend_plainly(q, k, v, q_lengths, k_lengths, bias, places, ranks, last, kept, extra=None, segments=None):
    """Attend document by document; `kept` (N, H, most keys) are the factors of dropout."""
    outs, a, b = [], 0, 0
    for n, m in zip(q_lengths, k_lengths, strict=True):
        at = places[a : a + n] if places is not None else torch.arange(n)
        s = torch.einsum("nhd,mhd->hnm", q[a : a + n], k[b : b + m]) * SCALE
        columns = last - at[:, None] + torch.arange(m)  # (n, m)
        if bias is not None and bias.shape[1] == last + 1:
            s = s + bias[:, at, :m]
        elif bias is not None:
            s = s + bias[:, a : a + n].gather(2, columns.expand(H, -1, -1))
        if extra is not None:
            differs = segments[0][a : a + n, None] != segments[1][b : b + m]
            s = s + extra[:, a : a + n, None] * differs
        if ranks is not None:
            s = s.masked_fill(ranks[1][b : b + m] > ranks[0][a : a + n, None], -math.inf)
        p = s.softmax(-1).nan_to_num(0.0)
        p = p if kept is None else p * kept[a : a + n, :, :m].transpose(0, 1)
        outs.append(torch.einsum("hnm,mhd->nhd", p, v[b : b + m]))
        a, b = a + n, b + m
    return torch.cat(outs)


def compare_with_plain(name, dropout, device="cpu", dtype=torch.float32, limit=1e-5):
    """Check that output and gradients are those of plain attention."""
    lengths, kind, order, few = (CASES | LONG_CASES)[name]
    torch.manual_seed(0)
    total, longest = sum(lengths), max(lengths)
    places = torch.cat([torch.arange(n) for n in lengths])
    q_lengths, ranks, at = lengths, None, None
    if order == "causal":
        ranks = places, places
    elif order == "order":
        rank = torch.cat([torch.randperm(n) for n in lengths])
        ranks = rank - int(few), rank  # the first in the order then sees nothing
    if few:
        q_lengths = [2, 0, 5]
        pick = torch.tensor([1, 4, 9, 11, 12, 15, 18])
        at, ranks = places[pick], (ranks[0][pick], ranks[1])
    mine = sum(q_lengths)
    qkv = torch.randn(total, 3, H, D)
    q, k, v = qkv.unbind(1)
    q = q[:mine]
    made = {
        "table": {"table": torch.randn(H, longest, longest)}, "scores": {"scores": torch.randn(H, mine, 2 * longest)},
        "encodings": {"distance_queries": torch.randn(mine, H, D), "encodings": torch.randn(2 * longest, H, D)},
        None: {},
    }  # fmt: skip
    extra = segments = moved_segments = None
    if "segments" in name:
        extra, segment = torch.randn(H, mine), torch.randint(0, 3, (total,))
        segments = segment[pick] if few else segment, segment
        moved_segments = tuple(s.to(device) for s in segments)
    parts = made[kind] | ({} if extra is None else {"extra": extra})
    leaves = [t.detach().requires_grad_() for t in (q, k, v, *parts.values())]
    ends, sizes = (accumulate_starts(q_lengths).to(device), accumulate_starts(lengths).to(device)), (longest, longest)
    moved = None if ranks is None else tuple(r.to(device) for r in ranks)
    attend = relative_flash.relative_flash_attention if kind == "encodings" else biased_flash.biased_flash_attention
    how = {"ranks": moved, "dropout": dropout} | ({} if at is None else {"places": at.to(device)})

    def run(*leaves):
        torch.manual_seed(7)  # the same dropout again
        q, k, v, *rest = (t.to(device, dtype) for t in leaves)
        given = dict(zip(parts, rest, strict=True)) | {"segments": moved_segments}
        return attend(q, k, v, ends, sizes, SCALE, **given, **how).cpu().float()

    def run_plainly(q, k, v, kept, *rest):
        given = dict(zip(parts, rest, strict=True))
        bias = given.get("table", given.get("scores"))
        if kind == "encodings":
            bias = torch.einsum("nhd,whd->hnw", given["distance_queries"], given["encodings"]) * SCALE
        return attend_plainly(
            q, k, v, q_lengths, lengths, bias, at, ranks, longest - 1, kept, given.get("extra"), segments
        )

    kept = None
    if dropout:  # the weights themselves, if the values are unit vectors; over those without dropout
        unit = torch.cat([torch.eye(D)[:n] for n in lengths])[:, None].expand(-1, H, -1).contiguous()
        whole = run_plainly(q, k, unit, None, *parts.values())
        seen = run(q, k, unit, *parts.values()).detach()
        if dtype == torch.float32:
            near = (seen / whole)[(seen != 0) & (whole > 0)]
            torch.testing.assert_close(near, torch.full_like(near, 1 / (1 - dropout)), atol=1e-3, rtol=1e-3)
        kept = (seen != 0) / (1 - dropout)
        assert 0.1 < float((kept == 0)[whole > 0].float().mean()) < 0.5
    got = run(*leaves)
    want = run_plainly(*leaves[:3], kept, *leaves[3:])
    pull = torch.randn_like(want)
    found, expected = (torch.autograd.grad(out, leaves, pull) for out in (got, want))
    for a, b in zip((got.detach(), *found), (want.detach(), *expected), strict=True):
        assert a.isfinite().all()
        assert float((a - b).norm()) <= limit * float(b.norm())
