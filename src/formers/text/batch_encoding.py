"""Padded batches of ids with the keys of transformers, for notebooks: tokenizer(texts, padding=True, …)."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import Error

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

Texts = str | Iterable[str | tuple[str, str]]  # a text, or many of which each may be a pair
TRUNCATION_STRATEGIES = ("longest_first", "only_first", "only_second")


class BatchEncoding(dict[str, Any]):  # dynamic: tensors, or lists of ids
    """input_ids and attention_mask, and token_type_ids where the tokenizer marks the texts of a pair; the keys are
    attributes as well, and `to(device)` moves tensors."""

    def __getattr__(self, name: str) -> Any:  # dynamic: tensors, or lists of ids
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"there is no {name!r} here, only {', '.join(self)}") from None

    def to(self, device: object) -> BatchEncoding:
        """Move the tensors to a device; returns a new batch."""
        return BatchEncoding({key: value.to(device) for key, value in self.items()})


def encode_texts(
    tokenizer: Tokenizer, texts: Texts, pairs: Texts | None, padding: bool | str, truncation: bool | str,
    max_length: int | None, return_tensors: str | None, special: bool,
) -> BatchEncoding:  # fmt: skip
    """Encode a text, a pair of texts, or a list of either (Tokenizer.__call__ says how)."""
    max_length = tokenizer.context if max_length is None else max_length
    check_options(padding, truncation, max_length, return_tensors)
    alone, firsts, seconds = split_pairs(texts, pairs)
    rows = tokenizer.encode_batch(firsts, special=False)
    others = None if seconds is None else tokenizer.encode_batch(seconds, special=False)
    frame, types = tokenizer.get_template(seconds is not None), has_segments(tokenizer)
    before, between, after = (frame.before, frame.between, frame.after) if special else ((), (), ())
    kinds = frame.segments if special else ((), frame.segments[1], (), frame.segments[3], ())
    marks = len(before) + len(after) + (0 if others is None else len(between))
    encoded_rows: list[tuple[list[int], list[int]]] = []
    for at, first in enumerate(rows):
        second = None if others is None else others[at]
        if truncation and max_length is not None:
            first, second = truncate_pair(first, second, max_length - marks, truncation)
        ids, segments = [*before, *first], [*kinds[0], *[kinds[1]] * len(first)]
        if second is not None:
            ids += [*between, *second]
            segments += [*kinds[2], *[kinds[3]] * len(second)]
        encoded_rows.append(([*ids, *after], [*segments, *kinds[4]]))
    return pad_rows(tokenizer, encoded_rows, types, padding, max_length, return_tensors, alone)


def check_options(
    padding: bool | str, truncation: bool | str, max_length: int | None, return_tensors: str | None
) -> None:
    """Refuse options that mean nothing."""
    if padding not in (True, False, "longest", "max_length", "do_not_pad"):
        raise Error(f"padding cannot be {padding!r}", fix="give True, 'longest', 'max_length' or False")
    if truncation not in (True, False, "do_not_truncate", *TRUNCATION_STRATEGIES):
        fix = "give True, False or " + ", ".join(TRUNCATION_STRATEGIES)
        raise Error(f"truncation cannot be {truncation!r}", fix=fix)
    if max_length is not None and (type(max_length) is not int or max_length < 1):
        raise Error(f"max_length must be at least 1, got {max_length!r}", fix="give a number of tokens")
    if max_length is None and padding == "max_length":
        raise Error("there is no max_length to fill up to", fix="give max_length=512, say")
    if return_tensors not in (None, "pt", "np"):
        raise Error(f"there are no tensors {return_tensors!r}", fix="give return_tensors='pt' or 'np'")


def split_pairs(texts: Texts, pairs: Texts | None) -> tuple[bool, list[str], list[str] | None]:
    """Return whether it is one text, and the first and second texts; a row may be a pair itself, as a tuple."""
    alone = isinstance(texts, str)
    firsts: list[Any] = [texts] if isinstance(texts, str) else list(texts)  # dynamic: callers give what they have
    if pairs is None and firsts and all(isinstance(row, tuple) and len(row) == 2 for row in firsts):
        firsts, pairs = [row[0] for row in firsts], [row[1] for row in firsts]
    seconds: list[Any] | None = None  # dynamic: callers give what they have
    if pairs is not None:
        seconds = [pairs] if isinstance(pairs, str) else list(pairs)
    if odd := [row for row in (*firsts, *(seconds or ())) if not isinstance(row, str)]:
        raise Error(f"a text must be a string, not {type(odd[0]).__name__}", fix="give strings, or tuples of two")
    if seconds is not None and len(seconds) != len(firsts):
        raise Error(f"{len(firsts)} texts and {len(seconds)} second texts", fix="give as many")
    return alone, firsts, seconds


def has_segments(tokenizer: Tokenizer) -> bool:
    """Return whether the template gives the texts of a pair different segments, as BERT's does and GPT-2's does not."""
    frame = tokenizer.get_template(pair=True)
    before, first, between, second, after = frame.segments
    marked = frame.before or frame.between or frame.after  # without a template, the library numbers texts all the same
    return bool(marked) and any((*before, first, *between, second, *after))


def truncate_pair(
    first: list[int], second: list[int] | None, max_tokens: int, how: bool | str
) -> tuple[list[int], list[int] | None]:
    """Cut one or two rows of ids so that they fit, from their ends; True and longest_first shorten the longer one."""
    if max_tokens < 0:
        raise Error("max_length leaves no room beside the special tokens", fix="give a larger one")
    if how == "do_not_truncate" or len(first) + len(second or ()) <= max_tokens:
        return first, second
    if second is None:
        return first[:max_tokens], None
    sizes = [len(first), len(second)]
    if how in ("only_first", "only_second"):
        side = 0 if how == "only_first" else 1
        sizes[side] = max_tokens - sizes[1 - side]
        if sizes[side] < 0:
            raise Error(f"{how} cannot shorten this pair to max_length", fix="take truncation=True")
        return first[: sizes[0]], second[: sizes[1]]
    short, long = sorted(sizes)
    long = short if short > max_tokens else max(short, max_tokens - short)
    if short + long > max_tokens:
        short, long = max_tokens // 2, max_tokens - max_tokens // 2
    low, high = (short, long) if sizes[0] <= sizes[1] else (long, short)
    return first[:low], second[:high]


def pad_rows(
    tokenizer: Tokenizer, encoded_rows: Sequence[tuple[list[int], list[int]]], with_segments: bool, padding: bool | str,
    max_length: int | None, return_tensors: str | None, is_single: bool,
) -> BatchEncoding:  # fmt: skip
    """Fill rows up and give them their keys."""
    longest = max((len(ids) for ids, _ in encoded_rows), default=0)
    fills = padding not in (False, "do_not_pad")
    size = (max_length or longest) if padding == "max_length" else longest
    # Where there is no padding token, any token will do: attention_mask says that it is none.
    pad = next((i for role in ("pad", "eos") if (i := tokenizer.id(role)) is not None), 0)
    spare = 3 if tokenizer.is_left_padded else 0  # XLNet's padding has a segment of its own
    columns: dict[str, list[list[int]]] = {"input_ids": [], "token_type_ids": [], "attention_mask": []}
    for ids, segments in encoded_rows:
        lack = max(0, size - len(ids)) if fills else 0
        for column, row, fill in zip(columns.values(), (ids, segments, [1] * len(ids)), (pad, spare, 0), strict=True):
            column.append([fill] * lack + row if tokenizer.is_left_padded else row + [fill] * lack)
    if not with_segments:
        del columns["token_type_ids"]
    if return_tensors is None:
        return BatchEncoding({name: rows[0] if is_single else rows for name, rows in columns.items()})
    if len({len(ids) for ids in columns["input_ids"]}) > 1:
        raise Error("rows of different lengths make no tensor", fix="add padding=True, or truncation with max_length")
    shape = len(encoded_rows), len(columns["input_ids"][0]) if encoded_rows else 0
    arrays = {name: np.array(rows, np.int64).reshape(shape) for name, rows in columns.items()}
    if return_tensors == "np":
        return BatchEncoding(arrays)
    torch = importlib.import_module("torch")  # only here: this room works without it
    return BatchEncoding({name: torch.from_numpy(array) for name, array in arrays.items()})
