"""Batch: packed documents without padding, which models, objectives and tasks share. N tokens in all, D documents one
after the other, M places where a loss is, B rows and T columns of a padded grid."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .errors import Error

Array = Any  # dynamic: a tensor in a model, a numpy array on a loader's workers: no checker can tell which
IGNORE_INDEX = -100  # the label of a place that has no loss


class Layout:
    """Where the documents of a packed sequence lie, and the way to a padded grid and back. `starts` (D+1,) are slots,
    `longest` a bound that no document exceeds and `num_tokens` = N; the last two are plain numbers, so that
    torch.compile sees one shape. A document may be empty."""

    def __init__(self, starts: Tensor, longest: int, num_tokens: int):
        self.starts, self.longest, self.num_tokens = starts, longest, num_tokens
        self.rows = starts.shape[0] - 1
        slots = torch.arange(num_tokens, device=starts.device)
        if longest == 1 and num_tokens == self.rows:  # a step of generation: nothing to look for
            self.document_ids, self.positions = slots, torch.zeros_like(slots)
            self.lengths = torch.ones_like(starts[1:])
            return
        # (N,); not over starts[1:]: for a GPU, torch < 2.13 compiles a search in a slice as one in the whole
        self.document_ids = torch.searchsorted(starts, slots, right=True) - 1
        self.positions = slots - starts[self.document_ids]  # (N,) counted from the document's first token
        self.lengths = starts[1:] - starts[:-1]  # (D,)

    @property
    def is_uniform(self) -> bool:
        """True if all documents have the same length (known from the sizes alone)."""
        return self.num_tokens == self.rows * self.longest

    def unpack(self, x: Tensor) -> Tensor:
        """(N, ...) → (D, longest, ...), zeros where there is no token."""
        if self.is_uniform:
            return x.unflatten(0, (self.rows, self.longest))
        grid = x.new_zeros(self.rows * self.longest, *x.shape[1:])
        grid = grid.index_copy(0, self.document_ids * self.longest + self.positions, x)
        return grid.unflatten(0, (self.rows, self.longest))

    def pack(self, grid: Tensor) -> Tensor:
        """(D, longest, ...) → (N, ...)"""
        flat = grid.flatten(0, 1)
        return flat if self.is_uniform else flat.index_select(0, self.document_ids * self.longest + self.positions)

    def prepend_slots(self, count: int) -> Layout:
        """Return the layout of documents of one length with so many more slots before each."""
        assert self.is_uniform
        longest = self.longest + count
        starts = torch.arange(self.rows + 1, dtype=self.starts.dtype, device=self.starts.device) * longest
        return Layout(starts, longest, self.rows * longest)

    def merge_documents(self, documents_each: int) -> Layout:
        """Merge every `documents_each` consecutive documents into one."""
        if documents_each == 1:
            return self
        return Layout(self.starts[::documents_each].contiguous(), documents_each * self.longest, self.num_tokens)

    def get_first_slots(self) -> Tensor:
        """(D,) the slot of each document's first token; of an empty one, some slot."""
        return self.starts[:-1].long().clamp(max=max(0, self.num_tokens - 1))

    def get_last_slots(self) -> Tensor:
        """(D,) the slot of each document's last token; of an empty one, some slot."""
        return (self.starts[1:].long() - 1).clamp(min=0)


@dataclass(frozen=True)
class Batch:
    """Packed documents, with the model's other inputs and the objective's labels. Fields hold torch tensors on their
    way through a model and numpy arrays on a loader's workers."""

    ids: Array  # (N,) tokens, or (N, 50) characters
    starts: Array  # (D+1,) int32; document d is ids[starts[d]:starts[d+1]]
    longest: int  # no document is longer
    positions: Array = None  # (N,); None counts from each document's first token
    segments: Array = None  # (N,)
    tasks: Array = None  # (N,)
    order: Array = None  # (N,) of a permutation language model: a token is predicted from those of a lower order
    source: Batch | None = None  # the encoder's side; this batch is then the decoder's
    chosen: Array = None  # (M,) slots at which there is a loss; None: at all of them
    labels: Array = None  # (M,)
    document_labels: Array = None  # (D,) of a whole document: its class, its next sentence; -100 where there is none
    sample: Array = None  # (D,) the global number of each example
    predicted_inputs: Array = None  # (N,) bool: a recurrent decoder reads its own prediction in place of the token
    keep: Array = None  # (B, T) bool: the padded grid this batch was packed from
    has_reversed_half: bool = False  # the second half of the documents is text back to front (XLNet's bi_data)

    @staticmethod
    def from_padded(
        ids: Tensor, keep: Tensor | None = None, segments: Tensor | None = None, source: Batch | None = None
    ) -> Batch:
        """Pack a padded (B, T) grid; `keep` is True at real tokens, which must be one run in each row."""
        if ids.dim() < 2:
            raise Error(f"ids must be (rows, tokens), got shape {tuple(ids.shape)}", fix="add a row axis: ids[None]")
        if segments is not None and segments.shape != ids.shape[:2]:
            what = f"segments {tuple(segments.shape)} do not fit ids {tuple(ids.shape)}"
            raise Error(what, fix="give one segment per token")
        rows, columns = ids.shape[:2]
        if keep is None:
            starts = torch.arange(rows + 1, device=ids.device, dtype=torch.int32) * columns
            flat = None if segments is None else segments.flatten()
            return Batch(ids.flatten(0, 1), starts, columns, segments=flat, source=source)
        if keep.shape != ids.shape[:2] or keep.dtype != torch.bool:
            what = f"keep must be bool of shape {tuple(ids.shape[:2])}, got {str(keep.dtype)[6:]} {tuple(keep.shape)}"
            raise Error(what, fix="use for example keep = ids != pad")
        gaps = ((keep[:, 1:] & ~keep[:, :-1]).sum(1) + keep[:, 0]) > 1
        if gaps.any():
            what = f"keep has a gap in row {int(gaps.nonzero()[0])}"
            raise Error(what, fix="real tokens must be one run: pad on the left or on the right only")
        lengths = keep.sum(1)
        starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
        flat = None if segments is None else segments[keep]
        return Batch(ids[keep], starts, int(lengths.max()) if rows else 0, segments=flat, source=source, keep=keep)

    def count_tokens(self) -> int:
        """Count the tokens of this side and the encoder's, without those of dummy documents, which come last and have
        the sample -1."""
        documents = len(self.starts) - 1 if self.sample is None else int((self.sample >= 0).sum())
        source = 0 if self.source is None else int(self.source.starts[documents])
        return int(self.starts[documents]) + source

    @staticmethod
    def from_rows(rows: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> Batch:
        """Pack rows of ids of different lengths, one document each."""
        starts = torch.tensor([0, *itertools.accumulate(map(len, rows))], dtype=torch.int32, device=device)
        ids = torch.tensor([i for row in rows for i in row], dtype=torch.long, device=device)
        return Batch(ids, starts, max(map(len, rows)))

    @property
    def layout(self) -> Layout:
        """Where this batch's documents lie."""
        return Layout(self.starts, self.longest, self.ids.shape[0])

    def unpack(self, x: Tensor) -> Tensor:
        """(N, ...) → (B, T, ...): back to the grid of `Batch.from_padded`, zeros where keep is False."""
        if self.keep is None:
            return self.layout.unpack(x)
        grid = x.new_zeros(*self.keep.shape, *x.shape[1:])
        return grid.masked_scatter(self.keep.view(*self.keep.shape, *[1] * (x.dim() - 1)), x)

    def to(self, device: torch.device | str) -> Batch:
        """Move all fields to torch tensors on a device; numpy arrays are taken over without a copy."""

        def move(value: Array) -> Array:
            if isinstance(value, Batch):
                return value.to(device)
            if value is None or isinstance(value, int):
                return value
            return torch.as_tensor(value).to(device, non_blocking=True)

        return Batch(**{name: move(value) for name, value in self.to_dict().items()})

    def to_dict(self) -> dict[str, Array]:
        """Return the fields by name, as they are: nothing is copied."""
        return {field.name: vars(self)[field.name] for field in dataclasses.fields(self)}  # dynamic: all its fields

    def replace(self, **changes: Array) -> Batch:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True)
class BatchShape:
    """What every batch is padded to, so that torch.compile sees one shape; `source_tokens` are the encoder's side."""

    documents: int
    tokens: int
    labels: int  # where a loss is; 0: at every token
    longest: int  # no document is longer
    source_tokens: int = 0
    source_longest: int = 0
