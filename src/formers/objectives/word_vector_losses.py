"""What word vectors are asked for. Gradients are written out: at these sizes autograd's bookkeeping costs more than the
arithmetic.

B blocks of T places that follow each other in the text, S = T + 2·window places with those around a block, K drawn
words for each block, d the width. Pairs of a block are small matrix products: rows are fetched once for all pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_LISTED_WINDOW = 16  # a table of all windows grows with the cube of the window


@dataclass(frozen=True)
class RowGradients:
    """Gradients of the loss by the rows that went in, and the loss where it was asked for."""

    input_grad: Tensor  # (B, T, d) skip-gram: the words; (B, S, d) CBOW: the words around
    output_grad: Tensor  # (B, S, d) skip-gram: the words around; (B, T, d) CBOW: the words
    negative_grad: Tensor  # (B, K, d)
    loss: float | None = None


def build_window_mask(left: Tensor, right: Tensor, window: int) -> Tensor:
    """Turn (B, T) places to the left and right that count into (B, T, S): 1.0 where places around are neighbours."""
    places, widths = left.shape[1], window + 1
    if window > MAX_LISTED_WINDOW:
        offset = torch.arange(places + 2 * window) - window - torch.arange(places)[:, None]  # (T, S)
        return ((offset >= -left[..., None]) & (offset <= right[..., None]) & (offset != 0)).float()
    rows = (torch.arange(places) * widths + left) * widths + right
    return list_windows(places, window).index_select(0, rows.flatten()).view(*left.shape, -1)


@lru_cache(maxsize=4)
def list_windows(places: int, window: int) -> Tensor:
    """(T·(window + 1)², S): the neighbours of each place for every number of places to its left and right. Looking a
    row up takes a fifth of the time of comparing places."""
    offset = torch.arange(places + 2 * window) - window - torch.arange(places)[:, None, None, None]  # (T, 1, 1, S)
    width = torch.arange(window + 1)
    near = (offset >= -width[:, None, None]) & (offset <= width[:, None]) & (offset != 0)
    return near.float().view(-1, near.shape[-1])


def compute_skipgram(
    words: Tensor, around: Tensor, drawn: Tensor, near: Tensor, negative_weight: float, loss: bool = False
) -> RowGradients:
    """Mikolov et al. 2013b, eq. 4: -log σ(v′ᵀv) for each neighbour and, `negative_weight` times, -Σ log σ(-v′ᵀv) over
    all drawn words: negative_weight = negatives/K keeps the expectation of drawing anew for each pair."""
    true, false = torch.bmm(words, around.transpose(1, 2)), torch.bmm(words, drawn.transpose(1, 2))
    pairs = near.sum(-1, keepdim=True) * negative_weight  # (B, T, 1)
    value = None
    if loss:
        value = -float((F.logsigmoid(true) * near).sum() + (F.logsigmoid(-false) * pairs).sum())
    pull, push = true.sigmoid_().sub_(1).mul_(near), false.sigmoid_().mul_(pairs)
    inner = torch.bmm(pull, around).baddbmm_(push, drawn)
    return RowGradients(inner, torch.bmm(pull.transpose(1, 2), words), torch.bmm(push.transpose(1, 2), words), value)


def compute_cbow(
    words: Tensor, around: Tensor, drawn: Tensor, near: Tensor, negative_weight: float, loss: bool = False
) -> RowGradients:
    """CBOW: the mean of the context words is the input. Each of them gets the whole gradient of the mean,
    as in the released code: the exact one, divided by their number, learns too slowly at the same rate."""
    number = near.sum(-1, keepdim=True)  # (B, T, 1)
    mean = torch.bmm(near / number.clamp(min=1), around)  # (B, T, d)
    mask = number > 0
    true, false = (mean * words).sum(-1, keepdim=True), torch.bmm(mean, drawn.transpose(1, 2))
    value = None
    if loss:
        value = -float((F.logsigmoid(true) * mask).sum() + negative_weight * (F.logsigmoid(-false) * mask).sum())
    pull, push = true.sigmoid_().sub_(1).mul_(mask), false.sigmoid_().mul_(mask * negative_weight)
    back = torch.bmm(push, drawn).addcmul_(pull, words)  # (B, T, d) of the mean
    around_grad, drawn_grad = torch.bmm(near.transpose(1, 2), back), torch.bmm(push.transpose(1, 2), mean)
    return RowGradients(around_grad, pull * mean, drawn_grad, value)


def compute_glove(
    words: Tensor, others: Tensor, biases: Tensor, counts: Tensor, x_max: float, alpha: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pennington et al. 2014, eq. 8 and 9: ½ f(X)(wᵀw̃ + b + b̃ - log X)² for n counts X, f(X) = min(1, X/x_max)^α.
    words, others (n, d), biases (n,) their sum → gradients of words, others and either bias, and the losses (n,). (The
    paper has no ½; it is that of the released code.)"""
    off = torch.linalg.vecdot(words, others) + biases - counts.log()
    pull = (counts / x_max).clamp(max=1) ** alpha * off
    return pull[:, None] * others, pull[:, None] * words, pull, 0.5 * pull * off
