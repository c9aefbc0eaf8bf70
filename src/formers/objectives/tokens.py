"""The loss that most objectives share: a token of the vocabulary at each chosen place."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..batch import Batch
from ..data.loader import IGNORED
from ..tasks.heads import Model


def token_hidden(model: Model, batch: Batch) -> Tensor:
    """Hidden states (M, dim) at the chosen places only (None: at all)."""
    hidden = model(batch)
    return hidden if batch.chosen is None else hidden.index_select(0, batch.chosen)


def token_logits(model: Model, batch: Batch, part: str) -> Tensor:
    """Logits (M, vocab) at the chosen places, in at least single precision."""
    logits = model.logits(token_hidden(model, batch), part=part)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def token_loss(model: Model, batch: Batch, part: str) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy at the chosen places, and their number; labels of -100 do not count."""
    count, own = (batch.labels != IGNORED).sum(), getattr(model.parts[part].out, "losses", None)
    if own is not None:  # an output layer that needs not compute all logits
        return own(token_hidden(model, batch), batch.labels, model.body.table).sum(), count
    logits = token_logits(model, batch, part)
    return F.cross_entropy(logits, batch.labels, reduction="sum", ignore_index=IGNORED), count


@torch.no_grad()
def token_hits(model: Model, batch: Batch, part: str) -> tuple[float, int, int]:
    """Summed cross-entropy, the number of right guesses, and the number of places."""
    logits = token_logits(model, batch, part)
    loss = F.cross_entropy(logits, batch.labels, reduction="sum", ignore_index=IGNORED)
    hits = (logits.argmax(-1) == batch.labels).sum()
    return float(loss), int(hits), int((batch.labels != IGNORED).sum())
