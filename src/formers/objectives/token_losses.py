"""The losses that most objectives share: a token of the vocabulary at each chosen place, a class of each document. And
batches with an encoder's side and a decoder's: the decoder reads its target shifted by one behind a start token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..batch import IGNORE_INDEX, Batch, BatchShape
from ..data.plans import estimate_documents
from ..errors import Error
from ..nn.attention.context import Capture
from ..nn.experts import Experts, compute_balance_loss
from ..protocols import Losses, Model
from ..ragged_arrays import compute_row_ids, compute_starts
from ..text.tokenizer import Tokenizer


def choose_two_sided_shape(total: int, sizes: np.ndarray, longest: tuple[int, int]) -> BatchShape:
    """Room for `total` tokens on the larger side, and for as many as belong to them on the other."""
    source, target = sizes[:, 2].mean(), sizes[:, 0].mean()
    larger = max(source, target)
    sides = (int(np.ceil(total * part / larger)) for part in (source, target))
    near, far = (max(side, most) for side, most in zip(sides, longest, strict=True))
    # A source may turn out far shorter than it might be; dummy documents fill up what is left.
    dummies = int(np.ceil(max(near / longest[0], far / longest[1])))
    return BatchShape(estimate_documents(total, np.array([larger])) + dummies, far, 0, longest[1], near, longest[0])


def append_eos(ids: np.ndarray, starts: np.ndarray, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Examples with an end mark behind each."""
    return np.insert(ids, starts[1:], end), starts + np.arange(len(starts))


def select_tokens(ids: np.ndarray, keep: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The entries of packed examples that are kept, and where the examples begin now."""
    return ids[keep], compute_starts(np.bincount(compute_row_ids(starts)[keep], minlength=len(starts) - 1))


@dataclass(frozen=True)
class DecoderEnds:
    """The token that a decoder starts with, and the end mark."""

    start: int
    eos: int

    @staticmethod
    def from_tokenizer(tokenizer: Tokenizer, roles: tuple[str, ...], start: int | None = None) -> DecoderEnds:
        """The first of these roles that the tokenizer knows is the start, unless an id is given."""
        end = next((i for role in ("eos", "sep") if (i := tokenizer.id(role)) is not None), None)
        begin = start if start is not None else next((i for r in roles if (i := tokenizer.id(r)) is not None), None)
        if end is None or begin is None:
            raise Error("this tokenizer has no end mark or no token to start with", fix="train one with pad and eos")
        if begin >= len(tokenizer):
            what = f"start={begin} is no token of this tokenizer, which has {len(tokenizer):,}"
            raise Error(what, fix="give the id of one of them, or leave start out")
        return DecoderEnds(begin, end)


class LabelCounting:
    """Base of objectives: the defaults of protocols.Objective, and what each named loss is divided by.

    The counts are known from a batch alone, before any model runs; a trainer adds them up over the batches and
    processes of a step.
    """

    part: str
    pair_part: str | None = None
    num_streams: int = 0
    streams_per_batch: int = 0
    balance_weight: float = 0.0  # of the loss that keeps experts evenly used (Switch)

    @property
    def reuse_length(self) -> int | None:
        """How many tokens of a segment are remembered; None: all."""
        return None

    def count_labels(self, batch: Batch) -> dict[str, int]:
        """The counts that `loss` gives beside its sums."""
        found = {self.part: count_real_labels(batch.labels)}
        if self.pair_part is not None:
            found[self.pair_part] = count_real_labels(batch.document_labels)
        if self.balance_weight:
            found["balance"] = int((batch.sample >= 0).any())
        return found

    def select_labels(self, batch: Batch) -> Any:
        """The labels that its own part is asked for, of a batch that is still in numpy."""
        return batch.labels[batch.labels != IGNORE_INDEX]


def count_real_labels(labels: Any) -> int:
    """How many labels count."""
    return int((labels != IGNORE_INDEX).sum())


def select_chosen(hidden: Tensor, batch: Batch) -> Tensor:
    """Hidden states (M, dim) at the chosen places only (None: at all)."""
    return hidden if batch.chosen is None else hidden.index_select(0, batch.chosen)


def upcast_logits(logits: Tensor) -> Tensor:
    """In at least single precision."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def compute_token_loss(
    model: Model, batch: Batch, part: str, hidden: Tensor | None = None, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy at the chosen places, and their number; labels of -100 do not count.

    `smoothing` gives that share of the probability to all tokens alike (Vaswani et al. 2017, §5.4).
    """
    require_part(model, part)
    hidden = select_chosen(model(batch) if hidden is None else hidden, batch)
    count, own = (batch.labels != IGNORE_INDEX).sum(), getattr(model.parts[part].out, "compute_losses", None)
    if own is not None and not smoothing:  # an output layer that needs not compute all logits
        return own(hidden, batch.labels, model.body.embedding_table).sum(), count
    table = getattr(model.body, "embedding_table", None)
    fused = model.parts[part].compute_fused_loss(hidden, table, batch.labels, smoothing)
    if fused is not None:
        return fused, count
    logits = upcast_logits(model.logits(hidden, part=part))
    total = F.cross_entropy(logits, batch.labels, reduction="sum", ignore_index=IGNORE_INDEX, label_smoothing=smoothing)
    return total, count


def require_part(model: Model, part: str) -> None:
    """Refuse a model whose head lacks what an objective trains."""
    if part not in model.parts:
        what = f"the head has no part {part!r}, which this objective trains (it has {', '.join(model.parts)})"
        raise Error(what, fix="build the model with its family's pretraining head, or take another objective")


def compute_answer_loss(model: Model, batch: Batch, part: str, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy of what is asked of whole documents, and their number."""
    require_part(model, part)
    logits = upcast_logits(model.logits(hidden, batch, part=part))
    total = F.cross_entropy(logits, batch.document_labels, reduction="sum", ignore_index=IGNORE_INDEX)
    return total, (batch.document_labels != IGNORE_INDEX).sum()


def compute_losses(model: Model, batch: Batch, part: str, answer: str | None = None, smoothing: float = 0.0) -> Losses:
    """The loss of the tokens and, if `answer` names a part for it, that of the documents, from one pass."""
    hidden = model(batch)
    losses = {part: compute_token_loss(model, batch, part, hidden, smoothing)}
    if answer is not None:
        losses[answer] = compute_answer_loss(model, batch, answer, hidden)
    return losses


def compute_balanced_losses(model: Model, batch: Batch, part: str, alpha: float) -> Losses:
    """Also α · E · Σ fᵢ·Pᵢ of every sparse layer (Fedus et al. 2021, eq. 4), over real tokens only, once a batch that
    has any. Without experts it is 0."""
    capture = Capture(routing=[])
    total, count = compute_token_loss(model, batch, part, model(batch, capture=capture))
    routing, real = capture.routing or [], batch.sample >= 0
    near = sum(isinstance(m, Experts) for m in model.body.encoder.modules())
    sides = [batch.source or batch] * near + [batch] * (len(routing) - near)  # both have the same documents
    terms = [
        compute_balance_loss(*seen, real[side.layout.document_ids]) for seen, side in zip(routing, sides, strict=True)
    ]
    uneven = alpha * torch.stack(terms).sum() if terms else total.new_zeros(())
    return {part: (total, count), "balance": (uneven, real.any().long())}
