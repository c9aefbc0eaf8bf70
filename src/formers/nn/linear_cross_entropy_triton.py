"""The kernel of nn/linear_cross_entropy.py. A program takes one row of logits."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN_2: tl.constexpr = tl.constexpr(0.6931471805599453)


@triton.jit
def overwrite_logits(
    LOGITS, LABELS, LOSSES, stride, width, smoothing, inverse_width, ignored,
    SMOOTHED: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Write a row's loss, and over its logits their gradient; zeros where the label is ignored and beyond `width`.
    GROUP neighbours share a running maximum, which costs one more exponential for all of them, not one for each."""
    row = tl.program_id(0)
    label = tl.load(LABELS + row)
    at = LOGITS + row.to(tl.int64) * stride
    columns = tl.arange(0, COLUMNS)
    if label == ignored:
        tl.store(LOSSES + row, 0.0)
        for first in range(0, stride, COLUMNS):
            here = first + columns
            tl.store(at + here, tl.zeros((COLUMNS,), tl.float32).to(LOGITS.dtype.element_ty), mask=here < stride)
    else:
        picked = tl.load(at + label).to(tl.float32)  # first: between here and the writes all warps meet in the sums
        top = tl.full((COLUMNS // GROUP,), float("-inf"), tl.float32)
        total = tl.zeros((COLUMNS // GROUP,), tl.float32)
        everything = tl.zeros((COLUMNS // GROUP,), tl.float32)
        grouped = tl.arange(0, COLUMNS // GROUP)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        for first in range(0, width, COLUMNS):
            here = first + grouped
            x = tl.load(at + here, mask=here < width, other=float("-inf")).to(tl.float32)
            higher = tl.maximum(top, tl.max(x, 1))
            safe = tl.where(higher > float("-inf"), higher, 0.0) * LOG2_E
            total = total * tl.exp2(top * LOG2_E - safe) + tl.sum(tl.exp2(x * LOG2_E - safe[:, None]), 1)
            top = higher
            if SMOOTHED:
                everything += tl.sum(tl.where(here < width, x, 0.0), 1)
        best = tl.max(top, 0)
        log_total = best + LN_2 * tl.log2(tl.sum(total * tl.exp2((top - best) * LOG2_E), 0))
        loss = log_total - picked
        share = 0.0
        if SMOOTHED:
            share = smoothing * inverse_width
            loss = (1 - smoothing) * loss + smoothing * log_total - share * tl.sum(everything, 0)
        tl.store(LOSSES + row, loss)
        for first in range(0, stride, COLUMNS):
            here = first + columns
            x = tl.load(at + here, mask=here < width, other=float("-inf")).to(tl.float32)
            d = tl.exp2((x - log_total) * LOG2_E) - tl.where(here == label, 1 - smoothing, 0.0) - share
            d = tl.where(here < width, d, 0.0)
            tl.store(at + here, d.to(LOGITS.dtype.element_ty), mask=here < stride)
