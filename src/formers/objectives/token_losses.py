"""The losses that most objectives share: a token of the vocabulary at each chosen place, a class of each document."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..batch import IGNORE_INDEX, Batch
from ..errors import Error
from ..nn.adaptive_softmax import AdaptiveSoftmax
from ..nn.attention.context import Capture
from ..nn.experts import Experts, compute_balance_loss
from ..protocols import Losses, Model


class BaseObjective:
    """The defaults of protocols.Objective: cross-entropy at the labels, and what each named loss is divided by. The
    counts are known from a batch alone, before any model runs; a trainer adds them up over the batches and processes of
    a step."""

    unused_options: ClassVar[tuple[str, ...]] = ()  # fields of a parent that a class has no use for
    part: str
    pair_part: str | None = None
    num_streams: int = 0
    streams_per_batch: int = 0
    label_smoothing: float = 0.0
    balance_weight: float = 0.0  # of the loss that keeps experts evenly used (Switch)

    @property
    def head_parts(self) -> frozenset[str]:
        """The parts of the head that it trains."""
        return frozenset(part for part in (self.part, self.pair_part) if part is not None)

    def keep_own_labels(self, batch: Batch) -> Batch:
        """Return a batch whose labels are all of its own part."""
        return batch

    @property
    def decoder_start(self) -> int | None:
        """The token that the decoder starts with; None without a decoder."""
        return None

    @property
    def reuse_length(self) -> int | None:
        """How many tokens of a segment are remembered; None: all."""
        return None

    def count_labels(self, batch: Batch) -> dict[str, int]:
        """Return the counts that `loss` gives beside its sums."""
        counts = {self.part: count_real_labels(batch.labels)}
        if self.pair_part is not None:
            counts[self.pair_part] = count_real_labels(batch.document_labels)
        if self.balance_weight:
            counts["balance"] = int((batch.sample >= 0).any())
        return counts

    def prepare_step_batch(self, batch: Batch, step: int) -> Batch:
        """Return the batch as it is: most objectives ask for the same at every step."""
        return batch

    def select_labels(self, batch: Batch) -> np.ndarray:
        """Return the labels that its own part is asked for, of a batch that is still in numpy."""
        return batch.labels[batch.labels != IGNORE_INDEX]

    def loss(self, model: Model, batch: Batch) -> Losses:
        """Compute the summed cross-entropy of tokens and of documents' answers, and of experts the balance."""
        if self.balance_weight:
            return compute_balanced_losses(model, batch, self.part, self.balance_weight)
        hidden = model(batch)
        losses = {self.part: compute_token_loss(model, batch, self.part, hidden, self.label_smoothing)}
        if self.pair_part is not None:
            losses[self.pair_part] = compute_answer_loss(model, batch, self.pair_part, hidden)
        return losses


def count_real_labels(labels: np.ndarray | Tensor) -> int:
    """Return how many labels count."""
    return int((labels != IGNORE_INDEX).sum())


def select_chosen(hidden: Tensor, batch: Batch) -> Tensor:
    """Return hidden states (M, dim) at the chosen places only (None: at all)."""
    return hidden if batch.chosen is None else hidden.index_select(0, batch.chosen)


def upcast_logits(logits: Tensor) -> Tensor:
    """Cast logits to at least single precision."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def compute_token_loss(
    model: Model, batch: Batch, part: str, hidden: Tensor | None = None, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Compute the summed cross-entropy at the chosen places, and their number; labels of -100 do not count. `smoothing`
    gives that share of the probability to all tokens alike (Vaswani et al. 2017, §5.4)."""
    require_part(model, part)
    hidden = select_chosen(model(batch) if hidden is None else hidden, batch)
    count, out = (batch.labels != IGNORE_INDEX).sum(), model.parts[part].out
    if isinstance(out, AdaptiveSoftmax) and not smoothing:  # it need not compute all logits
        embedding = model.body.embedding_table  # adaptive too
        return out.compute_losses(hidden, batch.labels, embedding).sum(), count  # type: ignore[arg-type]
    table = model.body.embedding_table
    if (fused := model.parts[part].compute_fused_loss(hidden, table, batch.labels, smoothing)) is not None:
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
    """Compute the summed cross-entropy of what is asked of whole documents, and their number."""
    require_part(model, part)
    logits = upcast_logits(model.logits(hidden, batch, part=part))
    total = F.cross_entropy(logits, batch.document_labels, reduction="sum", ignore_index=IGNORE_INDEX)
    return total, (batch.document_labels != IGNORE_INDEX).sum()


def compute_balanced_losses(model: Model, batch: Batch, part: str, alpha: float) -> Losses:
    """Compute the loss, and α · E · Σ fᵢ·Pᵢ of every sparse layer (Fedus et al. 2021, eq. 4) over real tokens, once a
    batch that has any. Without experts it is 0."""
    capture = Capture(routing=[])
    total, count = compute_token_loss(model, batch, part, model(batch, capture=capture))
    routing, real = capture.routing or [], batch.sample >= 0
    near = sum(isinstance(m, Experts) for m in model.body.encoder.modules())
    sides = [batch.source or batch] * near + [batch] * (len(routing) - near)  # both have the same documents
    pairs = zip(routing, sides, strict=True)
    terms = [compute_balance_loss(*seen, real[side.layout.document_ids]) for seen, side in pairs]
    uneven = alpha * torch.stack(terms).sum() if terms else total.new_zeros(())
    return {part: (total, count), "balance": (uneven, real.any().long())}
