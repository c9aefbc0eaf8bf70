"""Attention written straight from the formula, one query at a time; imports nothing of formers.nn."""

from __future__ import annotations

import math

import torch


def attend(q, k, v, q_starts, k_starts, scale, see=lambda h, i, j: True, bias=lambda h, i, j: 0.0, past=None):
    """softmax over the visible keys of the query's own document; i and j count inside the document."""
    rows, weights = [], []
    for d in range(len(q_starts) - 1):
        keys, values = k[k_starts[d] : k_starts[d + 1]], v[k_starts[d] : k_starts[d + 1]]
        for i in range(q_starts[d + 1] - q_starts[d]):
            heads, shares = [], []
            for h in range(q.shape[1]):
                at = i + (0 if past is None else past[d])
                seen = [j for j in range(len(keys)) if see(h, at, j)]
                query = q[q_starts[d] + i, h]
                scores = torch.stack([(query * keys[j, h]).sum() * scale + bias(h, at, j) for j in seen])
                share = torch.exp(scores - scores.max())
                share = share / share.sum()
                heads.append(sum(s * values[j, h] for s, j in zip(share, seen, strict=True)))
                full = torch.zeros(len(keys), dtype=q.dtype)
                full[seen] = share.detach()
                shares.append(full)
            rows.append(torch.stack(heads))
            weights.append(torch.stack(shares))
    return torch.stack(rows), weights


def compute_bucket(distance, count, far, bidirectional):
    """T5's bucket of a distance key - query (Raffel et al. 2019, and its released code)."""
    base = 0
    if bidirectional:
        count //= 2
        base = count if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(0, -distance)
    exact = count // 2
    if distance < exact:
        return base + distance
    step = math.log(distance / exact) / math.log(far / exact) * (count - exact)
    return base + min(count - 1, exact + int(torch.tensor(step, dtype=torch.float32)))


def alibi_slopes(heads):
    """Press et al. 2021, with the rule for counts that are no power of two."""
    lower = 1
    while lower * 2 <= heads:
        lower *= 2
    first = [2.0 ** (-8.0 * (i + 1) / lower) for i in range(lower)]
    double = [2.0 ** (-8.0 * (i + 1) / (2 * lower)) for i in range(2 * lower)]
    return (first + double[::2])[:heads]


def attend_to_cache(q, k, v, lengths, scale, table, bias, width):
    """Attend with one query for each row over the row's own slots of a cache, the last `width` of them if not 0."""
    each, out = q.shape[0] // k.shape[0], torch.zeros_like(q)
    for n in range(q.shape[0]):
        row, length = n // each, int(lengths[n // each])
        first = max(0, length - width) if width else 0
        held = [row if table is None else int(table[row, j]) for j in range(first, length)]
        if not held:
            continue
        slots = list(range(first, length))
        for h in range(q.shape[1]):
            s = k[held, slots, h] @ q[n, h] * scale
            if bias is not None:
                s = s + bias[h, [length - 1 - j for j in slots]]
            out[n, h] = s.softmax(0) @ v[held, slots, h]
    return out
