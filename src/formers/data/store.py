"""The token store: all documents' ids in one array, and where each document and sentence begins.

In memory (`Store.of`), or on disk (`formers prepare`, `Store.open`): a directory with store.json, the tokenizer, and
shards of tokens (data/shards.py). The files are memory-mapped, and each block is checked when it is first read.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..errors import Error
from ..text.tokenizer import Tokenizer
from .encode import ENTITY, PHRASE, encode, splitter, width
from .shards import BLOCK, Pieces, Reader, unseal

FORMAT = 1
PARTS = ("train", "held")
UNKNOWN = 0.02  # share of unknown tokens from which on they are spoken of
Array = np.ndarray | Pieces
Lazy = np.ndarray | Callable[[], np.ndarray]


class Store:
    """Tokens of many documents, one after the other; document d is tokens[starts[d]:starts[d+1]]."""

    def __init__(
        self,
        tokens: Array,  # (total,)
        starts: Lazy,  # (documents + 1,) int64, or a function that gives it when it is first asked for
        vocab: int,
        fingerprint: str,  # of the tokenizer
        sentences: Lazy | None = None,  # (sentences + 1,) int64; every document begins one. None: it is one
        units: Array | None = None,  # (total,) uint8: PHRASE and ENTITY bits
    ):
        self.tokens, self.vocab, self.fingerprint, self.units = tokens, vocab, fingerprint, units
        self._starts, self._sentences = starts, sentences
        self.home: Home | None = None  # where it lies on disk
        self.skipped = 0  # documents that were left out because they are damaged

    @cached_property
    def starts(self) -> np.ndarray:
        """(documents + 1,) where documents begin, and the end of all."""
        return self._starts() if callable(self._starts) else self._starts

    @cached_property
    def sentences(self) -> np.ndarray | None:
        """(sentences + 1,) where sentences begin; None if they were not looked for."""
        return self._sentences() if callable(self._sentences) else self._sentences

    @property
    def sentence_starts(self) -> np.ndarray:
        """(sentences + 1,) where sentences begin, and the end of all."""
        return self.starts if self.sentences is None else self.sentences

    def take(self, begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """The tokens of spans one after the other, where a sentence begins among them, and the units."""
        begin, end = np.asarray(begin, np.int64), np.asarray(end, np.int64)
        sizes = end - begin
        reach = np.cumsum(sizes)
        total = int(reach[-1]) if len(reach) else 0
        ids, first = np.empty(total, np.int64), np.zeros(total, bool)
        fill(self.tokens, ids, begin, end)
        edges = self.sentence_starts
        low, high = np.searchsorted(edges, begin), np.searchsorted(edges, end)  # sentences that begin in a span
        count = high - low
        which = np.arange(count.sum()) + np.repeat(low - (np.cumsum(count) - count), count)
        first[edges[which] - np.repeat(begin - (reach - sizes), count)] = True
        units = None
        if self.units is not None:
            units = np.empty(total, np.uint8)
            fill(self.units, units, begin, end)
        return ids, first, units

    @cached_property
    def identity(self) -> str:
        """What tells two stores apart: a hash over their content."""
        if self.home is not None:
            return self.home.identity(self.skipped)
        whole = hashlib.sha256(f"{self.vocab} {self.fingerprint}".encode())
        for array in (self.tokens, self.starts, self.sentences, self.units):
            whole.update(b"-" if array is None else np.ascontiguousarray(array).view(np.uint8).data)
        return whole.hexdigest()

    def fits(self, tokenizer: Tokenizer) -> None:
        """Refuse a tokenizer that did not make this store, even one of the same size."""
        if tokenizer.fingerprint != self.fingerprint:
            raise Error(
                f"was made with another tokenizer ({self.fingerprint[:12]}…, not {tokenizer.fingerprint[:12]}…)",
                where="the store" if self.home is None else self.home.path,
                fix="use the tokenizer that lies in the store, or prepare the text with this one",
            )

    @staticmethod
    def of(documents: Sequence[str], tokenizer: Tokenizer, *, sentences: str | None = None, units: Any = None) -> Store:
        """Encode documents; special tokens are the objective's business, except an end mark, if there is one.

        `sentences` = "rules" or "kiwi" marks where they begin; `units` is a function text → (begin, end, kind).
        """
        made = encode(documents, tokenizer, splitter(sentences), units)
        if not len(made.ids):
            raise Error("there is no text to learn from", fix="give documents that are not empty")
        starts = np.concatenate(([0], np.cumsum(made.lengths)))
        marks = None if made.sentences is None else np.append(made.sentences, len(made.ids))
        return Store(made.ids, starts, len(tokenizer), tokenizer.fingerprint, marks, made.units)

    @staticmethod
    def open(
        path: str | Path,
        part: Literal["train", "held"] = "train",
        *,
        tokenizer: Tokenizer | None = None,
        verify: bool = True,
        damaged: Literal["stop", "skip"] = "stop",
    ) -> Store:
        """Memory-map a store. `verify` checks each block when it is first read; `damaged="skip"` reads everything now
        and leaves out the documents that are damaged, with a warning that says how many."""
        store = Home(Path(path), part, verify, damaged).store()
        if tokenizer is not None:
            store.fits(tokenizer)
        return store

    def check(self) -> None:
        """Read everything and compare it with the sums; the first damaged shard is an error that names the offset."""
        for reader in self.home.readers() if self.home is not None else ():
            for block in reader.check():
                what = f"the block at offset {block * BLOCK:,} is not as it was written"
                raise Error(
                    what,
                    where=reader.path,
                    fix="make the store again, or leave the damage out: Store.open(path, damaged='skip')",
                )

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made a store on disk."""
        if self.home is None:
            raise Error("a store in memory has no tokenizer of its own", fix="keep the one that you gave to Store.of")
        return self.home.tokenizer()

    def __reduce__(self) -> Any:
        if self.home is not None:  # another process maps the same files
            home = self.home
            return Home.reopen, (home.path, home.part, home.verify, home.damaged, self.identity)
        return Store, (self.tokens, self.starts, self.vocab, self.fingerprint, self.sentences, self.units)


def describe_unknown(store: Store, tokenizer: Tokenizer) -> str | None:
    """Say what share of a store's tokens is unknown and what to do about it; None where there are few."""
    if (unknown := tokenizer.id("unk")) is None:
        return None
    if store.home is None:
        count, total = int(np.count_nonzero(store.tokens[:] == unknown)), len(store.tokens)
    else:
        about = store.home.about
        count, total = about["counts"].get("unknown", 0), sum(part["tokens"] for part in about["parts"].values())
    if count <= UNKNOWN * total:
        return None
    lack, fix = "it was made for other text", "train one on this (formers tokenizer train) and name it with --tokenizer"
    if tokenizer.model.get("type") == "WordLevel":
        lack = f"{len(tokenizer):,} words are too few for this text"
        fix = (
            "train a tokenizer of parts of words (formers tokenizer train unigram, or bpe) and name it with --tokenizer"
        )
        fix += ", or take more words (pretrain --data.pieces)"
    return f"{count / total:.0%} of the tokens are unknown to the tokenizer: {lack}; {fix}"


def fill(array: Array, out: np.ndarray, begin: np.ndarray, end: np.ndarray) -> None:
    """Spans of an array, one after the other, into `out`."""
    if isinstance(array, Pieces):
        return array.fill(out, begin, end)
    at = 0
    for low, high in zip(begin.tolist(), end.tolist(), strict=True):
        stop = at + high - low
        out[at:stop] = array[low:high]
        at = stop


class Home:
    """A store's directory."""

    def __init__(self, path: Path, part: str, verify: bool, damaged: str):
        self.path, self.part, self.verify, self.damaged = path, part, verify, damaged
        file = path / "store.json"
        if not file.is_file():
            begun = (path / "begun.json").is_file()
            fix = "it is not finished: run the same formers prepare again" if begun else "make one with formers prepare"
            raise Error("is not a token store", where=path, fix=fix)
        self.about = unseal(file)
        version = self.about.get("format")
        if version != FORMAT:
            older = isinstance(version, int) and version < FORMAT
            fix = "prepare the text again" if older else "it was made by a newer formers: pip install --upgrade formers"
            raise Error(f"is a store of format {version!r}; this formers reads {FORMAT}", where=path, fix=fix)
        if part not in self.about["parts"]:
            known = " and ".join(self.about["parts"])
            raise Error(f"has no part {part!r}, only {known}", where=path, fix="prepare it with --held-out 1%")
        self.mine: Mapping[str, Any] = self.about["parts"][part]

    def store(self) -> Store:
        """The store, with nothing read yet but store.json."""
        skip = self.damaged == "skip"
        tables = Reader(self.file(self.mine["tables"]["name"]), self.mine["tables"], verify=True)
        shards = [Reader(self.file(s["name"]), s, verify=self.verify, short=skip) for s in self.mine["shards"]]

        def whole(name: str) -> np.ndarray:
            tables.ready(name, 0, tables.about["arrays"][name]["count"])
            return tables.array(name)

        dtype = np.dtype(self.about["dtype"])
        has = tables.about["arrays"]
        spans = [(reader, 0, reader.about["arrays"]["tokens"]["count"]) for reader in shards]
        starts: Lazy = lambda: whole("starts")  # noqa: E731
        sentences: Lazy | None = (lambda: whole("sentences")) if "sentences" in has else None
        left = 0
        if skip:
            spans, starts, sentences, left = sound(
                shards, whole("starts"), whole("sentences") if sentences is not None else None
            )
        tokens = Pieces([(reader, "tokens", begin, end) for reader, begin, end in spans], dtype)
        units = None
        if self.about["options"].get("units"):
            units = Pieces([(reader, "units", begin, end) for reader, begin, end in spans], np.uint8)
        made = Store(tokens, starts, self.about["vocab"], self.about["fingerprint"], sentences, units)
        made.home, made.skipped = self, left
        if left:
            warnings.warn(f"{self.path}: {left:,} damaged documents are left out", stacklevel=3)
        return made

    def file(self, name: str) -> Path:
        """A file of this directory, and of no other."""
        if Path(name).name != name:
            raise Error(f"{name!r} is not the name of a file here", where=self.path / "store.json")
        return self.path / name

    def readers(self) -> list[Reader]:
        """All files of this part."""
        return [Reader(self.file(s["name"]), s) for s in (self.mine["tables"], *self.mine["shards"])]

    def identity(self, skipped: int) -> str:
        """A hash over the content of this part."""
        sums = [self.about["fingerprint"], self.mine["tables"]["sha256"], *(s["sha256"] for s in self.mine["shards"])]
        return hashlib.sha256(" ".join([*sums, str(skipped)]).encode()).hexdigest()

    def tokenizer(self) -> Tokenizer:
        """The tokenizer beside the shards, if it is still the one that made them."""
        file = self.path / "tokenizer.json"
        try:
            made = Tokenizer(file.read_bytes().decode("utf-8"), self.about["special"], where=file)
        except (OSError, UnicodeDecodeError):
            raise Error("cannot be read", where=file, fix="make the store again: formers prepare") from None
        if made.fingerprint != self.about["fingerprint"]:
            raise Error("is not the tokenizer that made this store", where=file, fix="prepare the text again")
        return made

    @staticmethod
    def reopen(path: Path, part: str, verify: bool, damaged: str, identity: str) -> Store:
        """The same store in another process."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = Home(path, part, verify, damaged).store()
        if made.identity != identity:
            raise Error("has changed while it was in use", where=path, fix="start again from the store as it is now")
        return made


def sound(
    shards: list[Reader], starts: np.ndarray, sentences: np.ndarray | None
) -> tuple[list[tuple[Reader, int, int]], np.ndarray, np.ndarray | None, int]:
    """What is left of shards without the documents that touch a damaged block: spans, starts, sentences, and how many
    documents were left out."""
    keep, spans, base = np.ones(len(starts) - 1, bool), [], 0
    for reader in shards:
        total = reader.about["arrays"]["tokens"]["count"]
        low, high = np.searchsorted(starts, (base, base + total))
        begin, end = starts[low:high] - base, starts[low + 1 : high + 1] - base
        bad = np.zeros(len(reader.good) + 1, np.int64)
        bad[[b + 1 for b in reader.check()]] = 1
        bad = np.cumsum(bad)  # damaged blocks before each
        for name in ("tokens", "units"):
            if name in reader.about["arrays"] and len(begin):
                first, last = reader.blocks(name, begin, end)
                keep[low:high] &= bad[last + 1] == bad[first]
        good = np.flatnonzero(keep[low:high])
        for run in np.split(good, np.flatnonzero(np.diff(good) > 1) + 1) if len(good) else []:
            spans.append((reader, int(begin[run[0]]), int(end[run[-1]])))
        base += total
    lengths = np.diff(starts)
    left = int((~keep).sum())
    if sentences is not None:
        owner = np.searchsorted(starts, sentences[:-1], side="right") - 1
        moved = np.cumsum(np.where(keep, 0, lengths))
        sentences = (sentences[:-1] - moved[owner])[keep[owner]]
    starts = np.concatenate(([0], np.cumsum(lengths[keep])))
    if not len(starts) - 1:
        raise Error("nothing of this store is left undamaged", where=shards[0].path.parent, fix="prepare it again")
    return spans, starts, None if sentences is None else np.append(sentences, starts[-1]), left


__all__ = ["ENTITY", "FORMAT", "PHRASE", "Store", "width"]
