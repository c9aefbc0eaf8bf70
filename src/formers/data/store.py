"""The token store: all documents' ids in one array, and where each document and sentence begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import Error
from ..text.tokenizer import Tokenizer

PHRASE, ENTITY = 1, 2  # bits of `units`: a phrase begins at this token, an entity begins


@dataclass(frozen=True)
class Store:
    """Tokens of many documents, one after the other; document d is tokens[starts[d]:starts[d+1]]."""

    tokens: np.ndarray  # (total,)
    starts: np.ndarray  # (documents + 1,) int64
    vocab: int
    fingerprint: str  # of the tokenizer
    sentences: np.ndarray | None = None  # (sentences + 1,) int64; every document begins one. None: it is one
    units: np.ndarray | None = None  # (total,) uint8

    @property
    def sentence_starts(self) -> np.ndarray:
        """(sentences + 1,) where sentences begin, and the end of all."""
        return self.starts if self.sentences is None else self.sentences

    def take(self, begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """The tokens of spans one after the other, where a sentence begins among them, and the units."""
        sizes = end - begin
        slots = np.arange(sizes.sum()) + np.repeat(begin - (np.cumsum(sizes) - sizes), sizes)
        edges = self.sentence_starts
        first = edges[np.minimum(np.searchsorted(edges, slots), len(edges) - 1)] == slots
        return self.tokens[slots].astype(np.int64), first, None if self.units is None else self.units[slots]

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
