"""The kernel of nn/linear_cross_entropy.py. A program takes one row of logits."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def overwrite_logits(
    LOGITS, LABELS, LOSSES, stride, width, smoothing, inverse_width, ignored,
    SMOOTHED: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write a row's loss, and over its logits their gradient; zeros where the label is ignored and beyond `width`."""
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
        top = tl.full((COLUMNS,), float("-inf"), tl.float32)
        total = tl.zeros((COLUMNS,), tl.float32)
        everything = tl.zeros((COLUMNS,), tl.float32)
        for first in range(0, width, COLUMNS):
            here = first + columns
            x = tl.load(at + here, mask=here < width, other=float("-inf")).to(tl.float32)
            higher = tl.maximum(top, x)
            known = higher > float("-inf")
            total = tl.where(known, total * tl.exp(top - higher) + tl.exp(x - higher), 0.0)
            top = higher
            if SMOOTHED:
                everything += tl.where(here < width, x, 0.0)
        best = tl.max(top, 0)
        log_total = best + tl.log(tl.sum(tl.where(top > float("-inf"), total * tl.exp(top - best), 0.0), 0))
        loss = log_total - picked
        share = 0.0
        if SMOOTHED:
            share = smoothing * inverse_width
            loss = (1 - smoothing) * loss + smoothing * log_total - share * tl.sum(everything, 0)
        tl.store(LOSSES + row, loss)
        for first in range(0, stride, COLUMNS):
            here = first + columns
            x = tl.load(at + here, mask=here < width, other=float("-inf")).to(tl.float32)
            d = tl.exp(x - log_total) - tl.where(here == label, 1 - smoothing, 0.0) - share
            d = tl.where(here < width, d, 0.0)
            tl.store(at + here, d.to(LOGITS.dtype.element_ty), mask=here < stride)
