"""The kernels of nn/attention/kernels/relative_flash.py. A program takes one block of B queries or keys of one document
and head. Indices: i queries and j keys of the document; n and m slots of the packed batch; a and c rows and columns of
a block. Scores are in units of log₂ e.

Query i and key j meet at column last - i + j of the encodings. A block of B queries and B keys needs the 2B - 1 columns
from `column` on, those of two strips of B. Row a reads them from number B - 1 - a on: of the older strip what lies in
its columns c ≥ B - 1 - a, of the newer one the columns before. So both fit into one block, whose rows are then turned
by another number of columns each (tl.gather). The newer strip is the older one of the next block of keys."""

from __future__ import annotations

import triton
import triton.language as tl

from .biased_flash_triton import (
    add_bias_and_mask,
    draw_keep_mask,
    find_document,
    hash_queries,
    hash_uint32,
    load_block,
    load_key_inputs,
    load_query_inputs,
    store_output,
    weigh_scores,
)


@triton.jit
def load_strip(R, column, r_w, width, d, B: tl.constexpr, WIDE: tl.constexpr):
    """Load the encodings (B, D) of the columns from `column` on, zeros where there are none."""
    c = column + tl.arange(0, B)
    return load_block(R + c[:, None] * r_w + d[None, :], ((c >= 0) & (c < width))[:, None], WIDE)


@triton.jit
def turn_rows(x, SHIFT: tl.constexpr, SIGN: tl.constexpr, B: tl.constexpr):
    """Turn row a of (B, B): its column c becomes that of column SHIFT + SIGN·a + c, counted from 0 again after B."""
    return tl.gather(x, (SHIFT + SIGN * tl.arange(0, B)[:, None] + tl.arange(0, B)[None, :]) % B, 1)


@triton.jit
def turn_columns(x, SHIFT: tl.constexpr, SIGN: tl.constexpr, B: tl.constexpr):
    """Turn the columns of (B, B) as `turn_rows` turns rows."""
    return tl.gather(x, (SHIFT + SIGN * tl.arange(0, B)[None, :] + tl.arange(0, B)[:, None]) % B, 0)


@triton.jit
def forward(
    Q, DISTANCE_Q, K, V, R, EXTRA, SEG_Q, SEG_K, RANK_Q, RANK_K, SEED, Q_STARTS, K_STARTS, scale, drop, grow, last,
    heads, total, width, q_n, q_h, e_n, e_h, k_n, k_h, v_n, v_h, r_w, r_h, OUT, LOG,
    RANKED: tl.constexpr, DROP: tl.constexpr, SEGMENTED: tl.constexpr, D: tl.constexpr, B: tl.constexpr,
    EVEN: tl.constexpr, SURE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Compute outputs, and log₂ of the sums of weights."""
    _document, h, first, here, queries, keys = find_document(Q_STARTS, K_STARTS, heads)
    if tl.program_id(0) * B >= queries:
        return
    a, d = tl.arange(0, B), tl.arange(0, D)
    i = tl.program_id(0) * B + a
    real, n = i < queries, (first + i).to(tl.int64)
    q = load_block(Q + h * q_h + n[:, None] * q_n + d[None, :], real[:, None], EVEN)
    e = load_block(DISTANCE_Q + h * e_h + n[:, None] * e_n + d[None, :], real[:, None], EVEN)
    _place, rank_q, seg_q, extra, _bias = load_query_inputs(
        Q, EXTRA, SEG_Q, Q, RANK_Q, i, n, h, real, last, total, 0, 0, False, False, RANKED, SEGMENTED
    )
    seed = tl.load(SEED).to(tl.uint32) if DROP else 0
    hash_q = hash_queries(n, h, heads, seed) if DROP else i
    column = last + 1 - (tl.program_id(0) + 1) * B
    from_older = a[None, :] >= B - 1 - a[:, None]
    older = tl.dot(e, tl.trans(load_strip(R + h * r_h, column, r_w, width, d, B, WIDE))).to(q.dtype)
    top, sums = tl.full([B], float("-inf"), tl.float32), tl.zeros([B], tl.float32)
    out = tl.zeros([B, D], tl.float32)
    for start in range(0, keys, B):
        j = start + tl.arange(0, B)
        there, m = j < keys, (here + j).to(tl.int64)
        k = load_block(K + h * k_h + m[:, None] * k_n + d[None, :], there[:, None], EVEN)
        v = load_block(V + h * v_h + m[:, None] * v_n + d[None, :], there[:, None], EVEN)
        r = load_strip(R + h * r_h, column + start + B, r_w, width, d, B, WIDE)
        rank_k, seg_k = load_key_inputs(SEG_K, RANK_K, j, m, there, RANKED, SEGMENTED)
        ok = real[:, None] & there[None, :]
        newer = tl.dot(e, tl.trans(r)).to(q.dtype)
        by_distance = turn_rows(tl.where(from_older, older, newer), B - 1, -1, B)
        s = (tl.dot(q, tl.trans(k)) + by_distance.to(tl.float32)) * scale
        older = newer
        s = add_bias_and_mask(
            s, i, extra[:, None], i, ok, rank_q[:, None], rank_k[None, :], seg_q[:, None], seg_k[None, :], False,
            RANKED, SEGMENTED, SURE,
        )  # fmt: skip
        p, shrink, sums, new = weigh_scores(s, top, sums)
        if DROP:
            stays = draw_keep_mask(hash_q[:, None], hash_uint32((here + j).to(tl.uint32))[None, :], drop)
            p = tl.where(stays, p * grow, 0.0)
        out = tl.dot(p.to(v.dtype), v, out * shrink[:, None])
        top = new
    store_output(OUT, LOG, out, top, sums, n, h, d, real, heads, total, D)


@triton.jit
def sum_products(D_OUT, OUT, DELTA, heads, o_n, o_h, total, D: tl.constexpr, ROWS: tl.constexpr):
    """Compute the sum of output times gradient of each query, which the gradients of scores need."""
    h, n, d = tl.program_id(1), (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64), tl.arange(0, D)
    real = n < total
    d_out = load_block(D_OUT + h * o_h + n[:, None] * o_n + d[None, :], real[:, None], False)
    out = load_block(OUT + (n[:, None] * heads + h) * D + d[None, :], real[:, None], False)
    tl.store(DELTA + h.to(tl.int64) * total + n, tl.sum(out.to(tl.float32) * d_out.to(tl.float32), 1), mask=real)


@triton.jit
def backward_keys(
    Q, DISTANCE_Q, K, V, R, EXTRA, SEG_Q, SEG_K, RANK_Q, RANK_K, SEED, Q_STARTS, K_STARTS, scale, drop, grow, last,
    heads, total, width, q_n, q_h, e_n, e_h, k_n, k_h, v_n, v_h, r_w, r_h,
    D_OUT, LOG, DELTA, D_K, D_V, D_SCORES, o_n, o_h, d_h, d_m, plain,
    RANKED: tl.constexpr, DROP: tl.constexpr, SEGMENTED: tl.constexpr, D: tl.constexpr, B: tl.constexpr,
    EVEN: tl.constexpr, SURE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Compute gradients of keys, values and scores. Scores are (keys, queries): a product takes them as they are."""
    _document, h, first, here, queries, keys = find_document(Q_STARTS, K_STARTS, heads)
    if tl.program_id(0) * B >= keys:
        return
    a, d = tl.arange(0, B), tl.arange(0, D)
    j = tl.program_id(0) * B + a
    there, m = j < keys, (here + j).to(tl.int64)
    k = load_block(K + h * k_h + m[:, None] * k_n + d[None, :], there[:, None], EVEN)
    v = load_block(V + h * v_h + m[:, None] * v_n + d[None, :], there[:, None], EVEN)
    rank_k, seg_k = load_key_inputs(SEG_K, RANK_K, j, m, there, RANKED, SEGMENTED)
    seed = tl.load(SEED).to(tl.uint32) if DROP else 0
    hash_k = hash_uint32((here + j).to(tl.uint32)) if DROP else j
    from_older = a[:, None] >= B - 1 - a[None, :]
    d_k, d_v = tl.zeros([B, D], tl.float32), tl.zeros([B, D], tl.float32)
    for start in range(0, queries, B):
        i = start + tl.arange(0, B)
        real, n = i < queries, (first + i).to(tl.int64)
        q = load_block(Q + h * q_h + n[:, None] * q_n + d[None, :], real[:, None], EVEN)
        e = load_block(DISTANCE_Q + h * e_h + n[:, None] * e_n + d[None, :], real[:, None], EVEN)
        d_out = load_block(D_OUT + h * o_h + n[:, None] * o_n + d[None, :], real[:, None], EVEN)
        log = tl.load(LOG + h.to(tl.int64) * total + n, mask=real, other=float("inf"))
        delta = tl.load(DELTA + h.to(tl.int64) * total + n, mask=real, other=0.0)
        column = last + 1 - (start + B) + tl.program_id(0) * B
        r_older = load_strip(R + h * r_h, column, r_w, width, d, B, WIDE)
        r_newer = load_strip(R + h * r_h, column + B, r_w, width, d, B, WIDE)
        _place, rank_q, seg_q, extra, _bias = load_query_inputs(
            Q, EXTRA, SEG_Q, Q, RANK_Q, i, n, h, real, last, total, 0, 0, False, False, RANKED, SEGMENTED
        )
        ok = there[:, None] & real[None, :]
        older, newer = tl.dot(r_older, tl.trans(e)).to(q.dtype), tl.dot(r_newer, tl.trans(e)).to(q.dtype)
        by_distance = turn_columns(tl.where(from_older, older, newer), B - 1, -1, B)
        s = (tl.dot(k, tl.trans(q)) + by_distance.to(tl.float32)) * scale
        s = add_bias_and_mask(
            s, i, extra[None, :], i, ok, rank_q[None, :], rank_k[:, None], seg_q[None, :], seg_k[:, None], False,
            RANKED, SEGMENTED, SURE,
        )  # fmt: skip
        p, d_p = tl.exp2(s - log[None, :]), tl.dot(v, tl.trans(d_out))
        weight = p
        if DROP:
            hash_q = hash_queries(n, h, heads, seed)
            stays = draw_keep_mask(hash_q[None, :], hash_k[:, None], drop)
            weight, d_p = tl.where(stays, p * grow, 0.0), tl.where(stays, d_p * grow, 0.0)
        d_v = tl.dot(weight.to(q.dtype), d_out, d_v)
        d_s = (p * (d_p - delta[None, :])).to(q.dtype)
        tl.store(D_SCORES + h.to(tl.int64) * d_h + m[:, None] * d_m + i[None, :], d_s, mask=ok)
        d_k = tl.dot(d_s, q, d_k)
    at = (m[:, None] * heads + h) * D + d[None, :]
    tl.store(D_K + at, (d_k * plain).to(k.dtype), mask=there[:, None])
    tl.store(D_V + at, d_v.to(v.dtype), mask=there[:, None])


@triton.jit
def backward_queries(
    DISTANCE_Q, K, R, SEG_Q, SEG_K, Q_STARTS, K_STARTS, last, heads, total, width, e_n, e_h, k_n, k_h, r_w, r_h,
    D_SCORES, D_Q, D_DISTANCE_Q, STRIPS, D_EXTRA, d_h, d_m, s_h, s_n, plain,
    SEGMENTED: tl.constexpr, D: tl.constexpr, B: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Compute gradients of both kinds of queries from those of the scores, and the latter by column, in strips as the
    encodings were read."""
    _document, h, first, here, queries, keys = find_document(Q_STARTS, K_STARTS, heads)
    if tl.program_id(0) * B >= queries:
        return
    a, d = tl.arange(0, B), tl.arange(0, D)
    i = tl.program_id(0) * B + a
    real, n = i < queries, (first + i).to(tl.int64)
    seg_q = tl.load(SEG_Q + n, mask=real, other=0) if SEGMENTED else i
    column = last + 1 - (tl.program_id(0) + 1) * B
    from_older = a[None, :] >= B - 1 - a[:, None]
    scores = D_SCORES + h.to(tl.int64) * d_h + i[None, :]  # (keys, queries), as backward_keys has them
    strips = STRIPS + h.to(tl.int64) * s_h + n[:, None] * s_n + a[None, :]
    rest = tl.zeros([B, B], STRIPS.dtype.element_ty)  # gradients of the older strip by the block of keys before
    d_q, d_e = tl.zeros([B, D], tl.float32), tl.zeros([B, D], tl.float32)
    d_extra = tl.zeros([B], tl.float32)
    for start in range(0, keys, B):
        j = start + a
        there, m = j < keys, (here + j).to(tl.int64)
        k = load_block(K + h * k_h + m[:, None] * k_n + d[None, :], there[:, None], EVEN)
        r = load_strip(R + h * r_h, column + start, r_w, width, d, B, WIDE)
        d_s = tl.trans(load_block(scores + m[:, None] * d_m, there[:, None] & real[None, :], EVEN))
        if SEGMENTED:
            seg_k = tl.load(SEG_K + m, mask=there, other=0)
            d_extra += tl.sum(tl.where(seg_q[:, None] != seg_k[None, :], d_s.to(tl.float32), 0.0), 1)
        turned = turn_rows(d_s, 1, 1, B)  # back to columns
        strip = tl.where(from_older, turned, rest)
        rest = turned
        tl.store(strips + start, strip, mask=real[:, None])
        d_e = tl.dot(strip, r, d_e)
        d_q = tl.dot(d_s, k, d_q)
    end = (keys + B - 1) // B * B
    strip = tl.where(from_older, 0.0, rest.to(tl.float32)).to(rest.dtype)
    tl.store(strips + end, strip, mask=real[:, None])
    d_e = tl.dot(strip, load_strip(R + h * r_h, column + end, r_w, width, d, B, WIDE), d_e)
    if SEGMENTED:
        tl.store(D_EXTRA + h.to(tl.int64) * total + n, d_extra, mask=real)
    at = (n[:, None] * heads + h) * D + d[None, :]
    tl.store(D_Q + at, (d_q * plain).to(D_Q.dtype.element_ty), mask=real[:, None])
    tl.store(D_DISTANCE_Q + at, (d_e * plain).to(D_Q.dtype.element_ty), mask=real[:, None])


@triton.jit
def backward_encodings(
    DISTANCE_Q, STRIPS, D_R, Q_STARTS, K_STARTS, documents, parts, q_blocks, e_n, e_h, s_h, s_n, d_part, d_h, plain,
    D: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of one strip of encodings, over every `parts`-th document. Strip t of block b of the queries
    has the columns of strip t - b of the first block."""
    strip_id, h, part = tl.program_id(0) - (q_blocks - 1), tl.program_id(1), tl.program_id(2)
    a, d = tl.arange(0, B), tl.arange(0, D)
    d_r = tl.zeros([B, D], tl.float32)
    for document in range(part, documents, parts):
        first = tl.load(Q_STARTS + document)
        queries = tl.load(Q_STARTS + document + 1) - first
        keys = tl.load(K_STARTS + document + 1) - tl.load(K_STARTS + document)
        low = tl.maximum(-strip_id, 0)
        high = tl.minimum((queries + B - 1) // B, (keys + B - 1) // B + 1 - strip_id)
        for block in range(low, high):
            i = block * B + a
            real, n = i < queries, (first + i).to(tl.int64)
            e = tl.load(DISTANCE_Q + h * e_h + n[:, None] * e_n + d[None, :], mask=real[:, None], other=0.0)
            strip = tl.load(
                STRIPS + h.to(tl.int64) * s_h + n[:, None] * s_n + (block + strip_id) * B + a[None, :],
                mask=real[:, None], other=0.0,
            )  # fmt: skip
            d_r = tl.dot(tl.trans(strip), e, d_r)
    at = part * d_part + h * d_h + ((tl.program_id(0) * B + a)[:, None] * D + d[None, :])
    tl.store(D_R + at, d_r * plain)
