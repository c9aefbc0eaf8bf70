"""The kernels of nn/attention/kernels/decode.py, for steps of one token. Scores are in units of log₂ e."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def attend_chunk(
    Q, K, V, NEW_K, NEW_V, LENGTHS, HELD, BIAS, OUT, LOG, scale, heads, each, dim, width, size, slots, parts, q_n, q_h,
    k_r, k_t, k_h, v_r, v_t, v_h, new_k_n, new_k_h, new_v_n, new_v_h, held_r, bias_h,
    TABLE: tl.constexpr, BIASED: tl.constexpr, WINDOW: tl.constexpr, FRESH: tl.constexpr, D: tl.constexpr,
    BN: tl.constexpr,
):  # fmt: skip
    """Compute what one stretch of keys gives one query, and log₂ of its sum of weights. A fresh key and value stand in
    for what the last slot holds; the program of the stretch that has this slot writes them there."""
    n, h, part = tl.program_id(0) // heads, tl.program_id(0) % heads, tl.program_id(1)
    row = (n // each).to(tl.int64)
    length = tl.minimum(tl.load(LENGTHS + row).to(tl.int32), slots)  # a row that does not count may be full
    first = part * size
    last = length - 1
    stop = tl.minimum(first + size, length)
    d = tl.arange(0, D)
    real = d < dim
    q = tl.load(Q + n.to(tl.int64) * q_n + h * q_h + d, mask=real, other=0.0).to(tl.float32) * scale
    if FRESH:
        new_k = tl.load(NEW_K + n.to(tl.int64) * new_k_n + h * new_k_h + d, mask=real, other=0.0)
        new_v = tl.load(NEW_V + n.to(tl.int64) * new_v_n + h * new_v_h + d, mask=real, other=0.0)
    begin = first
    if WINDOW:
        begin = tl.maximum(first, (length - width) // BN * BN)
    top, sums = tl.full([], float("-inf"), tl.float32), tl.full([], 0.0, tl.float32)
    out = tl.zeros([D], tl.float32)
    for start in range(begin, stop, BN):
        j = start + tl.arange(0, BN)
        seen = j < stop
        if WINDOW:
            seen = seen & (j >= length - width)
        old = seen & (j != last) if FRESH else seen
        there = tl.load(HELD + row * held_r + j, mask=old, other=0).to(tl.int64) if TABLE else row + j * 0
        ok = old[:, None] & real[None, :]
        k = tl.load(K + there[:, None] * k_r + j[:, None] * k_t + h * k_h + d[None, :], mask=ok, other=0.0)
        v = tl.load(V + there[:, None] * v_r + j[:, None] * v_t + h * v_h + d[None, :], mask=ok, other=0.0)
        if FRESH:
            k = tl.where((j == last)[:, None], new_k[None, :], k)
            v = tl.where((j == last)[:, None], new_v[None, :], v)
        s = tl.sum(k.to(tl.float32) * q[None, :], 1)
        if BIASED:
            s += tl.load(BIAS + h * bias_h + (last - j), mask=seen, other=0.0) * LOG2E
        s = tl.where(seen, s, float("-inf"))
        new = tl.maximum(top, tl.max(s, 0))
        safe = tl.where(new == float("-inf"), 0.0, new)
        p, shrink = tl.exp2(s - safe), tl.exp2(top - safe)
        sums = sums * shrink + tl.sum(p, 0)
        out = out * shrink + tl.sum(p[:, None] * v.to(tl.float32), 0)
        top = new
    if FRESH:
        has_last = (last >= first) & (last < first + size)
        tl.store(K + row * k_r + last * k_t + h * k_h + d, new_k, mask=real & has_last)
        tl.store(V + row * v_r + last * v_t + h * v_h + d, new_v, mask=real & has_last)
        if TABLE:
            tl.store(HELD + row * held_r + last, row, mask=has_last & (h == 0))
    none = sums == 0.0
    at = (n.to(tl.int64) * heads + h) * parts + part
    tl.store(OUT + at * dim + d, (out / tl.where(none, 1.0, sums)).to(OUT.dtype.element_ty), mask=real)
    log = tl.where(none, float("-inf"), top + tl.log2(tl.where(none, 1.0, sums)))
    tl.store(LOG + at, log, mask=part < parts)


@triton.jit
def merge_chunks(OUT, LOG, JOINED, dim, parts, D: tl.constexpr, P: tl.constexpr):
    """Merge what the stretches gave, each by its share of the weights."""
    at = tl.program_id(0).to(tl.int64)
    part, d = tl.arange(0, P), tl.arange(0, D)
    log = tl.load(LOG + at * parts + part, mask=part < parts, other=float("-inf"))
    top = tl.max(log, 0)
    weight = tl.exp2(log - tl.where(top == float("-inf"), 0.0, top))
    sums = tl.sum(weight, 0)
    ok = (part < parts)[:, None] & (d < dim)[None, :]
    out = tl.load(OUT + (at * parts + part[:, None]) * dim + d[None, :], mask=ok, other=0.0)
    out = tl.sum(out * weight[:, None], 0) / tl.where(sums == 0.0, 1.0, sums)
    tl.store(JOINED + at * dim + d, out.to(JOINED.dtype.element_ty), mask=d < dim)


@triton.jit
def add_norm(X, Y, W, B, SUM, OUT, dim, eps, x_n, y_n, MEAN: tl.constexpr, BIASED: tl.constexpr, D: tl.constexpr):
    """Add x and y of one row, and compute the layer norm (MEAN) or the RMS norm of the sum."""
    n, d = tl.program_id(0).to(tl.int64), tl.arange(0, D)
    real = d < dim
    x = tl.load(X + n * x_n + d, mask=real, other=0.0).to(tl.float32)
    y = tl.load(Y + n * y_n + d, mask=real, other=0.0).to(tl.float32)
    total = (x + y).to(SUM.dtype.element_ty)  # the norm is of the sum as it is kept
    tl.store(SUM + n * dim + d, total, mask=real)
    x = total.to(tl.float32)
    if MEAN:
        x = tl.where(real, x - tl.sum(x, 0) / dim, 0.0)
    x = x * (1.0 / tl.sqrt(tl.sum(x * x, 0) / dim + eps))
    x = x * tl.load(W + d, mask=real, other=0.0).to(tl.float32)
    if BIASED:
        x += tl.load(B + d, mask=real, other=0.0).to(tl.float32)
    tl.store(OUT + n * dim + d, x.to(OUT.dtype.element_ty), mask=real)
