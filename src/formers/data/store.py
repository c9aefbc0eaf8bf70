"""The token store: all documents' ids in one array, and where each document begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import Error
from ..text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Store:
    """Tokens of many documents, one after the other; document d is tokens[starts[d]:starts[d+1]]."""

    tokens: np.ndarray  # (total,)
    starts: np.ndarray  # (documents + 1,) int64
    vocab: int
    fingerprint: str  # of the tokenizer

    @staticmethod
    def of(documents: Sequence[str], tokenizer: Tokenizer) -> Store:
        """Encode documents; special tokens are the objective's business, except an end mark, if there is one."""
        end = tokenizer.id("eos")
        ids = [row if end is None else [*row, end] for row in tokenizer.encode_batch(documents, special=False)]
        if not any(ids):
            raise Error("there is no text to learn from", fix="give documents that are not empty")
        dtype = np.uint16 if len(tokenizer) <= 2**16 else np.uint32
        starts = np.cumsum([0, *map(len, ids)], dtype=np.int64)
        return Store(
            np.fromiter((i for row in ids for i in row), dtype, int(starts[-1])),
            starts,
            len(tokenizer),
            tokenizer.fingerprint,
        )
