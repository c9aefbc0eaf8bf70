"""The kernels of nn/attention/kernels/biased_flash.py. A program takes one block of one document and head. Indices: i
queries and j keys of the document; n and m slots of the packed batch. Scores are in units of log₂ e."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def hash_uint32(x):
    """Hash 32 bits."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def draw_keep_mask(a, b, drop):
    """Draw which weights stay: the hashes of query and key, mixed once more, against the rate."""
    x = (a ^ b) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x >= drop


@triton.jit
def load_block(p, ok, EVEN: tl.constexpr):
    """Load a block, with zeros outside of the document."""
    return tl.load(p) if EVEN else tl.load(p, mask=ok, other=0.0)


@triton.jit
def add_bias_and_mask(
    s, bias, extra, j, ok, rank_q, rank_k, seg_q, seg_k,
    BIASED: tl.constexpr, RANKED: tl.constexpr, SEGMENTED: tl.constexpr, SURE: tl.constexpr,
):  # fmt: skip
    """Add to scores what keys of another segment get and the bias; -inf where a query does not see a key. Queries and
    keys have an axis each, in the order of the scores."""
    if SEGMENTED:
        s += tl.where(seg_q != seg_k, extra.to(tl.float32) * LOG2E, 0.0)
    seen = ok & (rank_k <= rank_q) if RANKED else ok
    if BIASED:
        s += load_block(bias + j, seen, SURE).to(tl.float32) * LOG2E
    return s if SURE else tl.where(seen, s, float("-inf"))


@triton.jit
def find_document(Q_STARTS, K_STARTS, heads):
    """Return this program's document and head, its first query and key, and how many of both there are."""
    b, h = tl.program_id(1) // heads, tl.program_id(1) % heads
    first, here = tl.load(Q_STARTS + b), tl.load(K_STARTS + b)
    return b, h, first, here, tl.load(Q_STARTS + b + 1) - first, tl.load(K_STARTS + b + 1) - here


@triton.jit
def load_query_inputs(
    BIAS, EXTRA, SEG_Q, PLACES, RANK_Q, i, n, h, real, last, total, bias_h, bias_n,
    SHIFTED: tl.constexpr, PLACED: tl.constexpr, RANKED: tl.constexpr, SEGMENTED: tl.constexpr,
):  # fmt: skip
    """Load place, rank, segment and extra score of each query, and where its bias begins. Callers name every result:
    within a loop, triton refuses a name such as `_` that had another type before."""
    place = tl.load(PLACES + n, mask=real, other=0) if PLACED else i
    rank_q = tl.load(RANK_Q + n, mask=real, other=0) if RANKED else i
    seg_q = tl.load(SEG_Q + n, mask=real, other=0) if SEGMENTED else i
    extra = tl.load(EXTRA + h.to(tl.int64) * total + n, mask=real, other=0.0) if SEGMENTED else i
    bias = BIAS + h.to(tl.int64) * bias_h + (n * bias_n + (last - place) if SHIFTED else place * bias_n)
    return place, rank_q, seg_q, extra, bias


@triton.jit
def load_key_inputs(SEG_K, RANK_K, j, m, there, RANKED: tl.constexpr, SEGMENTED: tl.constexpr):
    """Load rank and segment of each key."""
    rank_k = tl.load(RANK_K + m, mask=there, other=0) if RANKED else j
    seg_k = tl.load(SEG_K + m, mask=there, other=0) if SEGMENTED else j
    return rank_k, seg_k


@triton.jit
def hash_queries(n, h, heads, seed):
    """Hash the query and head of each row, for dropout."""
    return hash_uint32(hash_uint32((n * heads + h).to(tl.uint32)) + seed)


@triton.jit
def weigh_scores(s, top, sums):
    """Return the weights of a block of scores relative to the largest seen so far, the factor by which that makes
    earlier ones smaller, their sums, and the largest score."""
    new = tl.maximum(top, tl.max(s, 1))
    safe = tl.where(new == float("-inf"), 0.0, new)
    p, shrink = tl.exp2(s - safe[:, None]), tl.exp2(top - safe)
    return p, shrink, sums * shrink + tl.sum(p, 1), new


@triton.jit
def store_output(OUT, LOG, out, top, sums, n, h, d, real, heads, total, D: tl.constexpr):
    """Store the outputs, zeros for queries that see no key, and log₂ of the sums of weights, inf for those."""
    none = sums == 0.0
    out = out / tl.where(none, 1.0, sums)[:, None]
    log = tl.where(none, float("inf"), tl.where(none, 0.0, top) + tl.log2(tl.where(none, 1.0, sums)))
    tl.store(OUT + (n[:, None] * heads + h) * D + d[None, :], out.to(OUT.dtype.element_ty), mask=real[:, None])
    tl.store(LOG + h.to(tl.int64) * total + n, log, mask=real)


@triton.jit
def forward(
    Q, K, V, BIAS, EXTRA, SEG_Q, SEG_K, PLACES, RANK_Q, RANK_K, SEED, Q_STARTS, K_STARTS, scale, drop, grow, last,
    heads, q_n, q_h, k_n, k_h, v_n, v_h, bias_h, bias_n, OUT, LOG, total,
    BIASED: tl.constexpr, SHIFTED: tl.constexpr, PLACED: tl.constexpr, RANKED: tl.constexpr, DROP: tl.constexpr,
    SEGMENTED: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, EVEN: tl.constexpr,
    SURE: tl.constexpr,
):  # fmt: skip
    """Compute outputs, and log₂ of the sums of weights."""
    _document, h, first, here, queries, keys = find_document(Q_STARTS, K_STARTS, heads)
    if tl.program_id(0) * BM >= queries:
        return
    i, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    real, n = i < queries, (first + i).to(tl.int64)
    q = load_block(Q + h * q_h + n[:, None] * q_n + d[None, :], real[:, None], EVEN)
    _place, rank_q, seg_q, extra, bias = load_query_inputs(
        BIAS, EXTRA, SEG_Q, PLACES, RANK_Q, i, n, h, real, last, total, bias_h, bias_n, SHIFTED, PLACED, RANKED,
        SEGMENTED,
    )  # fmt: skip
    seed = tl.load(SEED).to(tl.uint32) if DROP else 0
    hash_q = hash_queries(n, h, heads, seed) if DROP else i
    top, sums = tl.full([BM], float("-inf"), tl.float32), tl.zeros([BM], tl.float32)
    out = tl.zeros([BM, D], tl.float32)
    for start in range(0, keys, BN):
        j = start + tl.arange(0, BN)
        there, m = j < keys, (here + j).to(tl.int64)
        k = load_block(K + h * k_h + m[None, :] * k_n + d[:, None], there[None, :], EVEN)
        v = load_block(V + h * v_h + m[:, None] * v_n + d[None, :], there[:, None], EVEN)
        rank_k, seg_k = load_key_inputs(SEG_K, RANK_K, j, m, there, RANKED, SEGMENTED)
        ok = real[:, None] & there[None, :]
        s = tl.dot(q, k) * scale
        s = add_bias_and_mask(
            s, bias[:, None], extra[:, None], j[None, :], ok, rank_q[:, None], rank_k[None, :], seg_q[:, None],
            seg_k[None, :], BIASED, RANKED, SEGMENTED, SURE,
        )  # fmt: skip
        p, shrink, sums, new = weigh_scores(s, top, sums)
        if DROP:
            p = tl.where(
                draw_keep_mask(hash_q[:, None], hash_uint32((here + j).to(tl.uint32))[None, :], drop), p * grow, 0.0
            )
        out = tl.dot(p.to(v.dtype), v, out * shrink[:, None])
        top = new
    store_output(OUT, LOG, out, top, sums, n, h, d, real, heads, total, D)


@triton.jit
def backward_queries(
    Q, K, V, BIAS, EXTRA, SEG_Q, SEG_K, PLACES, RANK_Q, RANK_K, SEED, Q_STARTS, K_STARTS, scale, drop, grow, last,
    heads, q_n, q_h, k_n, k_h, v_n, v_h, bias_h, bias_n,
    D_OUT, OUT, LOG, DELTA, D_Q, D_K, D_V, D_BIAS, D_EXTRA, o_n, o_h, d_b, d_h, d_n, d_i, total, plain,
    BIASED: tl.constexpr, SHIFTED: tl.constexpr, PLACED: tl.constexpr, RANKED: tl.constexpr, DROP: tl.constexpr,
    SEGMENTED: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, EVEN: tl.constexpr,
    SURE: tl.constexpr,
):  # fmt: skip
    """Compute gradients of queries and bias; also the sums of output times gradient, which backward_keys needs."""
    b, h, first, here, queries, keys = find_document(Q_STARTS, K_STARTS, heads)
    if tl.program_id(0) * BM >= queries:
        return
    i, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    real, n = i < queries, (first + i).to(tl.int64)
    q = load_block(Q + h * q_h + n[:, None] * q_n + d[None, :], real[:, None], EVEN)
    d_out = load_block(D_OUT + h * o_h + n[:, None] * o_n + d[None, :], real[:, None], EVEN)
    out = load_block(OUT + (n[:, None] * heads + h) * D + d[None, :], real[:, None], EVEN)
    delta = tl.sum(out.to(tl.float32) * d_out.to(tl.float32), 1)
    tl.store(DELTA + h.to(tl.int64) * total + n, delta, mask=real)
    log = tl.load(LOG + h.to(tl.int64) * total + n, mask=real, other=float("inf"))
    place, rank_q, seg_q, extra, bias = load_query_inputs(
        BIAS, EXTRA, SEG_Q, PLACES, RANK_Q, i, n, h, real, last, total, bias_h, bias_n, SHIFTED, PLACED, RANKED,
        SEGMENTED,
    )  # fmt: skip
    d_bias = D_BIAS + b.to(tl.int64) * d_b + h.to(tl.int64) * d_h + n * d_n + i.to(tl.int64) * d_i
    if SHIFTED:
        d_bias += last - place
    seed = tl.load(SEED).to(tl.uint32) if DROP else 0
    hash_q = hash_queries(n, h, heads, seed) if DROP else i
    d_q, d_extra = tl.zeros([BM, D], tl.float32), tl.zeros([BM], tl.float32)
    for start in range(0, keys, BN):
        j = start + tl.arange(0, BN)
        there, m = j < keys, (here + j).to(tl.int64)
        k = load_block(K + h * k_h + m[:, None] * k_n + d[None, :], there[:, None], EVEN)
        v = load_block(V + h * v_h + m[None, :] * v_n + d[:, None], there[None, :], EVEN)
        rank_k, seg_k = load_key_inputs(SEG_K, RANK_K, j, m, there, RANKED, SEGMENTED)
        ok = real[:, None] & there[None, :]
        s = tl.dot(q, tl.trans(k)) * scale
        s = add_bias_and_mask(
            s, bias[:, None], extra[:, None], j[None, :], ok, rank_q[:, None], rank_k[None, :], seg_q[:, None],
            seg_k[None, :], BIASED, RANKED, SEGMENTED, SURE,
        )  # fmt: skip
        p, d_p = tl.exp2(s - log[:, None]), tl.dot(d_out, v)
        if DROP:
            d_p = tl.where(
                draw_keep_mask(hash_q[:, None], hash_uint32((here + j).to(tl.uint32))[None, :], drop), d_p * grow, 0.0
            )
        d_s = p * (d_p - delta[:, None])
        if SEGMENTED:
            d_extra += tl.sum(tl.where(seg_q[:, None] != seg_k[None, :], d_s, 0.0), 1)
        d_s = d_s.to(q.dtype)
        if BIASED:
            if RANKED:
                ok = ok & (rank_k[None, :] <= rank_q[:, None])
            tl.store(d_bias[:, None] + j[None, :], d_s, mask=ok)
        d_q = tl.dot(d_s, k, d_q)
    if SEGMENTED:
        tl.store(D_EXTRA + h.to(tl.int64) * total + n, d_extra, mask=real)
    tl.store(D_Q + (n[:, None] * heads + h) * D + d[None, :], (d_q * plain).to(q.dtype), mask=real[:, None])


@triton.jit
def backward_keys(
    Q, K, V, BIAS, EXTRA, SEG_Q, SEG_K, PLACES, RANK_Q, RANK_K, SEED, Q_STARTS, K_STARTS, scale, drop, grow, last,
    heads, q_n, q_h, k_n, k_h, v_n, v_h, bias_h, bias_n,
    D_OUT, OUT, LOG, DELTA, D_Q, D_K, D_V, D_BIAS, D_EXTRA, o_n, o_h, d_b, d_h, d_n, d_i, total, plain,
    BIASED: tl.constexpr, SHIFTED: tl.constexpr, PLACED: tl.constexpr, RANKED: tl.constexpr, DROP: tl.constexpr,
    SEGMENTED: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, EVEN: tl.constexpr,
    SURE: tl.constexpr,
):  # fmt: skip
    """Compute gradients of keys and values. Scores are (keys, queries): a product takes them as they are."""
    _document, h, first, here, queries, keys = find_document(Q_STARTS, K_STARTS, heads)
    if tl.program_id(0) * BN >= keys:
        return
    j, d = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, D)
    there, m = j < keys, (here + j).to(tl.int64)
    k = load_block(K + h * k_h + m[:, None] * k_n + d[None, :], there[:, None], EVEN)
    v = load_block(V + h * v_h + m[:, None] * v_n + d[None, :], there[:, None], EVEN)
    rank_k, seg_k = load_key_inputs(SEG_K, RANK_K, j, m, there, RANKED, SEGMENTED)
    seed = tl.load(SEED).to(tl.uint32) if DROP else 0
    hash_k = hash_uint32((here + j).to(tl.uint32)) if DROP else j
    d_k, d_v = tl.zeros([BN, D], tl.float32), tl.zeros([BN, D], tl.float32)
    for start in range(0, queries, BM):
        i = start + tl.arange(0, BM)
        real, n = i < queries, (first + i).to(tl.int64)
        q = load_block(Q + h * q_h + n[:, None] * q_n + d[None, :], real[:, None], EVEN)
        d_out = load_block(D_OUT + h * o_h + n[:, None] * o_n + d[None, :], real[:, None], EVEN)
        log = tl.load(LOG + h.to(tl.int64) * total + n, mask=real, other=float("inf"))
        delta = tl.load(DELTA + h.to(tl.int64) * total + n, mask=real, other=0.0)
        _place, rank_q, seg_q, extra, bias = load_query_inputs(
            BIAS, EXTRA, SEG_Q, PLACES, RANK_Q, i, n, h, real, last, total, bias_h, bias_n, SHIFTED, PLACED, RANKED,
            SEGMENTED,
        )  # fmt: skip
        ok = there[:, None] & real[None, :]
        s = tl.dot(k, tl.trans(q)) * scale
        s = add_bias_and_mask(
            s, bias[None, :], extra[None, :], j[:, None], ok, rank_q[None, :], rank_k[:, None], seg_q[None, :],
            seg_k[:, None], BIASED, RANKED, SEGMENTED, SURE,
        )  # fmt: skip
        p, d_p = tl.exp2(s - log[None, :]), tl.dot(v, tl.trans(d_out))
        weight = p
        if DROP:
            hash_q = hash_queries(n, h, heads, seed)
            stays = draw_keep_mask(hash_q[None, :], hash_k[:, None], drop)
            weight, d_p = tl.where(stays, p * grow, 0.0), tl.where(stays, d_p * grow, 0.0)
        d_v = tl.dot(weight.to(q.dtype), d_out, d_v)
        d_k = tl.dot((p * (d_p - delta[None, :])).to(q.dtype), q, d_k)
    at = (m[:, None] * heads + h) * D + d[None, :]
    tl.store(D_K + at, (d_k * plain).to(k.dtype), mask=there[:, None])
    tl.store(D_V + at, d_v.to(v.dtype), mask=there[:, None])
