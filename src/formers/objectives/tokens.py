"""The losses that most objectives share: a token of the vocabulary at each chosen place, a class of each document."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..batch import Batch
from ..data.loader import IGNORED
from ..errors import Error
from ..nn.experts import balance
from ..nn.probe import Probe
from ..tasks.heads import Model

Losses = dict[str, tuple[Tensor, Tensor]]


class Counted:
    """What each named loss of an objective is divided by, known from a batch alone, before any model runs.

    A trainer adds these up over the batches and processes of a step.
    """

    part: str

    def counts(self, batch: Batch) -> dict[str, int]:
        """The counts that `loss` gives beside its sums."""
        found = {self.part: asked(batch.labels)}
        if (answer := getattr(self, "answer", None)) is not None:
            found[answer] = asked(batch.answers)
        if getattr(self, "balance", 0):
            found["balance"] = int((batch.sample >= 0).any())
        return found

    def foretold(self, batch: Batch) -> Any:
        """The labels that its own part is asked for, of a batch that is still in numpy."""
        return batch.labels[batch.labels != IGNORED]


def asked(labels: Any) -> int:
    """How many labels count."""
    return int((labels != IGNORED).sum())


def at_chosen(hidden: Tensor, batch: Batch) -> Tensor:
    """Hidden states (M, dim) at the chosen places only (None: at all)."""
    return hidden if batch.chosen is None else hidden.index_select(0, batch.chosen)


def wide(logits: Tensor) -> Tensor:
    """In at least single precision."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def token_loss(
    model: Model, batch: Batch, part: str, hidden: Tensor | None = None, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy at the chosen places, and their number; labels of -100 do not count.

    `smoothing` gives that share of the probability to all tokens alike (Vaswani et al. 2017, §5.4).
    """
    known(model, part)
    hidden = at_chosen(model(batch) if hidden is None else hidden, batch)
    count, own = (batch.labels != IGNORED).sum(), getattr(model.parts[part].out, "losses", None)
    if own is not None and not smoothing:  # an output layer that needs not compute all logits
        return own(hidden, batch.labels, model.body.table).sum(), count
    logits = wide(model.logits(hidden, part=part))
    total = F.cross_entropy(logits, batch.labels, reduction="sum", ignore_index=IGNORED, label_smoothing=smoothing)
    return total, count


def known(model: Model, part: str) -> None:
    """Refuse a model whose head lacks what an objective trains."""
    if part not in model.parts:
        what = f"the head has no part {part!r}, which this objective trains (it has {', '.join(model.parts)})"
        raise Error(what, fix="build the model with its family's pretraining head, or take another objective")


def answer_loss(model: Model, batch: Batch, part: str, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy of what is asked of whole documents, and their number."""
    known(model, part)
    logits = wide(model.logits(hidden, batch, part=part))
    total = F.cross_entropy(logits, batch.answers, reduction="sum", ignore_index=IGNORED)
    return total, (batch.answers != IGNORED).sum()


def named_losses(model: Model, batch: Batch, part: str, answer: str | None = None, smoothing: float = 0.0) -> Losses:
    """The loss of the tokens and, if `answer` names a part for it, that of the documents, from one pass."""
    hidden = model(batch)
    losses = {part: token_loss(model, batch, part, hidden, smoothing)}
    if answer is not None:
        losses[answer] = answer_loss(model, batch, answer, hidden)
    return losses


def balanced_losses(model: Model, batch: Batch, part: str, alpha: float) -> Losses:
    """Also α · E · Σ fᵢ·Pᵢ of every sparse layer (Fedus et al. 2021, eq. 4), over real tokens only, once a batch that
    has any. Without experts it is 0."""
    probe = Probe(routing=[])
    total, count = token_loss(model, batch, part, model(batch, probe=probe))
    routing, real = probe.routing or [], batch.sample >= 0
    near = sum(getattr(m, "routed", False) for m in model.body.encoder.modules())
    sides = [batch.source or batch] * near + [batch] * (len(routing) - near)  # both have the same documents
    terms = [balance(*seen, real[side.layout.document]) for seen, side in zip(routing, sides, strict=True)]
    uneven = alpha * torch.stack(terms).sum() if terms else total.new_zeros(())
    return {part: (total, count), "balance": (uneven, real.any().long())}
