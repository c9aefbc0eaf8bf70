"""Answers by beam search: the likeliest beginnings, and for each the likeliest ends (XLNet on SQuAD 2.0)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..batch import Batch
from .heads import Model


def spans(model: Model, hidden: Tensor, batch: Batch, config: Any) -> dict[str, Tensor]:
    """The likeliest S = start_top beginnings and E = end_top ends for each, as probabilities and columns of the grid.

    `start` and `start_index` are (D, S), `end` and `end_index` (D, E · S) with entry e · S + s; `cls` (D,) is the
    larger, the less there is an answer. A text of fewer tokens has probability 0 and column -1 in the rest.
    """
    layout, begins, ends = batch.layout, config.start_top, config.end_top
    states = layout.unpack(hidden)  # (D, T, dim)
    states = F.pad(states, (0, 0, 0, max(0, max(begins, ends) - layout.longest)))
    real = torch.arange(states.shape[1], device=hidden.device) < layout.lengths[:, None]  # (D, T)
    scores = model.logits(states, part="start").squeeze(-1)
    starts = scores.masked_fill(~real, -torch.inf).softmax(-1)
    start, at = starts.topk(begins, -1)  # (D, S)
    begin = states.gather(1, at[..., None].expand(-1, -1, states.shape[-1]))  # (D, S, dim)
    pairs = torch.cat(torch.broadcast_tensors(states[:, :, None], begin[:, None]), -1)  # (D, T, S, 2 · dim)
    scores = model.logits(pairs, part="end").squeeze(-1)
    end, to = scores.masked_fill(~real[..., None], -torch.inf).softmax(1).topk(ends, 1)  # (D, E, S)
    there = real.gather(1, at)  # (D, S)
    mean = torch.einsum("dth,dt->dh", states, starts)
    cls = model.logits(torch.cat((mean, hidden[layout.last()]), -1), part="cls").squeeze(-1)
    return {
        "start": start,
        "start_index": columns(batch, at, there),
        "end": (end * there[:, None]).flatten(1),
        "end_index": columns(batch, to, real[:, :, None].expand_as(scores).gather(1, to) & there[:, None]).flatten(1),
        "cls": cls,
    }


def columns(batch: Batch, at: Tensor, there: Tensor) -> Tensor:
    """Positions in each document as columns of the padded grid, -1 where there is none."""
    first = 0 if batch.keep is None else batch.keep.long().argmax(1).view(-1, *[1] * (at.dim() - 1))
    return torch.where(there, at + first, -1)
