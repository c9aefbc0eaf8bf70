"""The loss that most objectives share: a token of the vocabulary at each chosen place."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..batch import Batch
from ..tasks.heads import Model

IGNORED = -100


def places(batch: Batch, chosen: np.ndarray, usual: int) -> Batch:
    """The batch with its chosen places and the tokens there as labels, filled up with ignored ones to the usual number
    (or, if there are more, to a multiple of 64), so that shapes stay the same."""
    rest = (usual if len(chosen) <= usual else -(-len(chosen) // 64) * 64) - len(chosen)
    return batch.replace(
        chosen=np.pad(chosen, (0, rest)), labels=np.pad(batch.ids[chosen], (0, rest), constant_values=IGNORED)
    )


def token_logits(model: Model, batch: Batch, part: str) -> Tensor:
    """Logits (M, vocab) at the chosen places only."""
    return model.logits(model(batch).index_select(0, batch.chosen), part=part)


def token_loss(model: Model, batch: Batch, part: str) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy at the chosen places, and their number; labels of -100 do not count."""
    loss = F.cross_entropy(
        token_logits(model, batch, part).float(), batch.labels, reduction="sum", ignore_index=IGNORED
    )
    return loss, (batch.labels != IGNORED).sum()


def token_hits(model: Model, batch: Batch, part: str) -> tuple[float, int, int]:
    """Summed cross-entropy, the number of right guesses, and the number of places."""
    logits = token_logits(model, batch, part).float()
    loss = F.cross_entropy(logits, batch.labels, reduction="sum", ignore_index=IGNORED)
    return (
        float(loss),
        int((logits.argmax(-1) == batch.labels).sum()),
        int(torch.count_nonzero(batch.labels != IGNORED)),
    )
