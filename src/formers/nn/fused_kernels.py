"""The kernels of nn/fused.py. A program takes one block of one document and head.

Indices: i queries and j keys of the document; n and m slots of the packed batch. Scores are in units of log₂ e.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def mixed(x):
    """A hash of 32 bits."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def kept(a, b, drop):
    """Which weights stay: the hashes of query and key, mixed once more, against the rate in 24 bits."""
    x = (a ^ b) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return (x >> 8).to(tl.int32) >= drop


@triton.jit
def scored(s, bias, j, seen, BIASED: tl.constexpr):
    """Scores with the bias; -inf where a query does not see a key."""
    if BIASED:
        s += tl.load(bias + j, mask=seen, other=0.0).to(tl.float32) * LOG2E
    return tl.where(seen, s, float("-inf"))


@triton.jit
def forward(
    Q, K, V, BIAS, PLACES, RANK_Q, RANK_K, SEED, Q_STARTS, K_STARTS, scale, drop, grow, last, heads,
    q_n, q_h, k_n, k_h, v_n, v_h, bias_h, bias_n, OUT, LOG, total,
    BIASED: tl.constexpr, PLACED: tl.constexpr, RANKED: tl.constexpr, DROP: tl.constexpr, D: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Outputs, and log₂ of the sums of weights."""
    b, h = tl.program_id(1) // heads, tl.program_id(1) % heads
    first, here = tl.load(Q_STARTS + b), tl.load(K_STARTS + b)
    queries, keys = tl.load(Q_STARTS + b + 1) - first, tl.load(K_STARTS + b + 1) - here
    if tl.program_id(0) * BM >= queries:
        return
    i, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    real, n = i < queries, (first + i).to(tl.int64)
    q = tl.load(Q + h * q_h + n[:, None] * q_n + d[None, :], mask=real[:, None], other=0.0)
    place = tl.load(PLACES + n, mask=real, other=0) if PLACED else i
    rank_q = tl.load(RANK_Q + n, mask=real, other=0) if RANKED else i
    bias = BIAS + h.to(tl.int64) * bias_h + n * bias_n + (last - place)
    seed = tl.load(SEED).to(tl.uint32) if DROP else 0
    hash_q = mixed(mixed((n * heads + h).to(tl.uint32)) + seed) if DROP else i
    top, sums = tl.full([BM], float("-inf"), tl.float32), tl.zeros([BM], tl.float32)
    out = tl.zeros([BM, D], tl.float32)
    for start in range(0, keys, BN):
        j = start + tl.arange(0, BN)
        there, m = j < keys, (here + j).to(tl.int64)
        k = tl.load(K + h * k_h + m[None, :] * k_n + d[:, None], mask=there[None, :], other=0.0)
        v = tl.load(V + h * v_h + m[:, None] * v_n + d[None, :], mask=there[:, None], other=0.0)
        rank_k = tl.load(RANK_K + m, mask=there, other=0) if RANKED else j
        seen = real[:, None] & there[None, :]
        if RANKED:
            seen = seen & (rank_k[None, :] <= rank_q[:, None])
        s = scored(tl.dot(q, k) * scale, bias[:, None], j[None, :], seen, BIASED)
        new = tl.maximum(top, tl.max(s, 1))
        safe = tl.where(new == float("-inf"), 0.0, new)
        p, shrink = tl.exp2(s - safe[:, None]), tl.exp2(top - safe)
        sums = sums * shrink + tl.sum(p, 1)
        if DROP:
            p = tl.where(kept(hash_q[:, None], mixed((here + j).to(tl.uint32))[None, :], drop), p * grow, 0.0)
        out = tl.dot(p.to(v.dtype), v, out * shrink[:, None])
        top = new
    none = sums == 0.0
    out = out / tl.where(none, 1.0, sums)[:, None]
    log = tl.where(none, float("inf"), tl.where(none, 0.0, top) + tl.log2(tl.where(none, 1.0, sums)))
    tl.store(OUT + (n[:, None] * heads + h) * D + d[None, :], out.to(OUT.dtype.element_ty), mask=real[:, None])
    tl.store(LOG + h.to(tl.int64) * total + n, log, mask=real)


@triton.jit
def back_queries(
    Q, K, V, BIAS, PLACES, RANK_Q, RANK_K, SEED, Q_STARTS, K_STARTS, scale, drop, grow, last, heads,
    q_n, q_h, k_n, k_h, v_n, v_h, bias_h, bias_n,
    D_OUT, OUT, LOG, DELTA, D_Q, D_K, D_V, D_BIAS, o_n, o_h, d_b, d_h, d_n, d_i, total,
    BIASED: tl.constexpr, PLACED: tl.constexpr, RANKED: tl.constexpr, DROP: tl.constexpr, D: tl.constexpr,
    SCALE: tl.constexpr, SHIFTED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Gradients of the queries and of the bias; also the sums of output times gradient, which back_keys needs."""
    b, h = tl.program_id(1) // heads, tl.program_id(1) % heads
    first, here = tl.load(Q_STARTS + b), tl.load(K_STARTS + b)
    queries, keys = tl.load(Q_STARTS + b + 1) - first, tl.load(K_STARTS + b + 1) - here
    if tl.program_id(0) * BM >= queries:
        return
    i, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    real, n = i < queries, (first + i).to(tl.int64)
    q = tl.load(Q + h * q_h + n[:, None] * q_n + d[None, :], mask=real[:, None], other=0.0)
    d_out = tl.load(D_OUT + h * o_h + n[:, None] * o_n + d[None, :], mask=real[:, None], other=0.0)
    out = tl.load(OUT + (n[:, None] * heads + h) * D + d[None, :], mask=real[:, None], other=0.0)
    delta = tl.sum(out.to(tl.float32) * d_out.to(tl.float32), 1)
    tl.store(DELTA + h.to(tl.int64) * total + n, delta, mask=real)
    log = tl.load(LOG + h.to(tl.int64) * total + n, mask=real, other=float("inf"))
    place = tl.load(PLACES + n, mask=real, other=0) if PLACED else i
    rank_q = tl.load(RANK_Q + n, mask=real, other=0) if RANKED else i
    bias = BIAS + h.to(tl.int64) * bias_h + n * bias_n + (last - place)
    d_bias = D_BIAS + b.to(tl.int64) * d_b + h.to(tl.int64) * d_h + n * d_n + i.to(tl.int64) * d_i
    if SHIFTED:
        d_bias += last - place
    seed = tl.load(SEED).to(tl.uint32) if DROP else 0
    hash_q = mixed(mixed((n * heads + h).to(tl.uint32)) + seed) if DROP else i
    d_q = tl.zeros([BM, D], tl.float32)
    for start in range(0, keys, BN):
        j = start + tl.arange(0, BN)
        there, m = j < keys, (here + j).to(tl.int64)
        k = tl.load(K + h * k_h + m[:, None] * k_n + d[None, :], mask=there[:, None], other=0.0)
        v = tl.load(V + h * v_h + m[None, :] * v_n + d[:, None], mask=there[None, :], other=0.0)
        rank_k = tl.load(RANK_K + m, mask=there, other=0) if RANKED else j
        seen = real[:, None] & there[None, :]
        if RANKED:
            seen = seen & (rank_k[None, :] <= rank_q[:, None])
        s = scored(tl.dot(q, tl.trans(k)) * scale, bias[:, None], j[None, :], seen, BIASED)
        p, d_p = tl.exp2(s - log[:, None]), tl.dot(d_out, v)
        if DROP:
            d_p = tl.where(kept(hash_q[:, None], mixed((here + j).to(tl.uint32))[None, :], drop), d_p * grow, 0.0)
        d_s = (p * (d_p - delta[:, None])).to(q.dtype)
        if BIASED:
            tl.store(d_bias[:, None] + j[None, :], d_s, mask=seen)
        d_q = tl.dot(d_s, k, d_q)
    tl.store(D_Q + (n[:, None] * heads + h) * D + d[None, :], (d_q * SCALE).to(q.dtype), mask=real[:, None])


@triton.jit
def back_keys(
    Q, K, V, BIAS, PLACES, RANK_Q, RANK_K, SEED, Q_STARTS, K_STARTS, scale, drop, grow, last, heads,
    q_n, q_h, k_n, k_h, v_n, v_h, bias_h, bias_n,
    D_OUT, OUT, LOG, DELTA, D_Q, D_K, D_V, D_BIAS, o_n, o_h, d_b, d_h, d_n, d_i, total,
    BIASED: tl.constexpr, PLACED: tl.constexpr, RANKED: tl.constexpr, DROP: tl.constexpr, D: tl.constexpr,
    SCALE: tl.constexpr, SHIFTED: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Gradients of keys and values. Scores lie on their side, (keys, queries): a product takes them as they are."""
    b, h = tl.program_id(1) // heads, tl.program_id(1) % heads
    first, here = tl.load(Q_STARTS + b), tl.load(K_STARTS + b)
    queries, keys = tl.load(Q_STARTS + b + 1) - first, tl.load(K_STARTS + b + 1) - here
    if tl.program_id(0) * BN >= keys:
        return
    j, d = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, D)
    there, m = j < keys, (here + j).to(tl.int64)
    k = tl.load(K + h * k_h + m[:, None] * k_n + d[None, :], mask=there[:, None], other=0.0)
    v = tl.load(V + h * v_h + m[:, None] * v_n + d[None, :], mask=there[:, None], other=0.0)
    rank_k = tl.load(RANK_K + m, mask=there, other=0) if RANKED else j
    seed = tl.load(SEED).to(tl.uint32) if DROP else 0
    hash_k = mixed((here + j).to(tl.uint32)) if DROP else j
    d_k, d_v = tl.zeros([BN, D], tl.float32), tl.zeros([BN, D], tl.float32)
    for start in range(0, queries, BM):
        i = start + tl.arange(0, BM)
        real, n = i < queries, (first + i).to(tl.int64)
        q = tl.load(Q + h * q_h + n[:, None] * q_n + d[None, :], mask=real[:, None], other=0.0)
        d_out = tl.load(D_OUT + h * o_h + n[:, None] * o_n + d[None, :], mask=real[:, None], other=0.0)
        log = tl.load(LOG + h.to(tl.int64) * total + n, mask=real, other=float("inf"))
        delta = tl.load(DELTA + h.to(tl.int64) * total + n, mask=real, other=0.0)
        place = tl.load(PLACES + n, mask=real, other=0) if PLACED else i
        rank_q = tl.load(RANK_Q + n, mask=real, other=0) if RANKED else i
        bias = BIAS + h.to(tl.int64) * bias_h + n * bias_n + (last - place)
        seen = there[:, None] & real[None, :]
        if RANKED:
            seen = seen & (rank_k[:, None] <= rank_q[None, :])
        s = scored(tl.dot(k, tl.trans(q)) * scale, bias[None, :], j[:, None], seen, BIASED)
        p, d_p = tl.exp2(s - log[None, :]), tl.dot(v, tl.trans(d_out))
        weight = p
        if DROP:
            hash_q = mixed(mixed((n * heads + h).to(tl.uint32)) + seed)
            stays = kept(hash_q[None, :], hash_k[:, None], drop)
            weight, d_p = tl.where(stays, p * grow, 0.0), tl.where(stays, d_p * grow, 0.0)
        d_v = tl.dot(weight.to(q.dtype), d_out, d_v)
        d_k = tl.dot((p * (d_p - delta[None, :])).to(q.dtype), q, d_k)
    at = (m[:, None] * heads + h) * D + d[None, :]
    tl.store(D_K + at, (d_k * SCALE).to(k.dtype), mask=there[:, None])
    tl.store(D_V + at, d_v.to(v.dtype), mask=there[:, None])
