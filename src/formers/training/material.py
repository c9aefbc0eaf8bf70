"""What a run trains on: a tokenizer, a token store and its held-out part, made or found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import Tell
from ..data.readers import by_path, find, read
from ..data.store import Store
from ..errors import Error
from ..interop.prepare import prepare
from ..interop.tokenizers import load_tokenizer, save_tokenizer
from ..registry import member
from ..text.templates import FAMILY
from ..text.tokenizer import Tokenizer
from ..text.trainers import train as train_tokenizer
from .configure import Data

ENOUGH = 200_000_000  # characters from which a tokenizer is learned


@dataclass(frozen=True)
class Material:
    """Tokenizer and stores; `held` is None if there is no held-out text."""

    tokenizer: Tokenizer
    store: Store
    held: Store | None

    @property
    def fingerprints(self) -> dict[str, Any]:
        """What tells whether a run goes on with the same text."""
        held = None if self.held is None else self.held.identity
        return {"tokenizer": self.tokenizer.fingerprint, "store": self.store.identity, "held": held}


def material(
    family: str, data: Data, folder: Path, text: Any = None, tokenizer: Tokenizer | None = None,
    held: Any = None, tell: Tell = lambda *_: None,
) -> Material:  # fmt: skip
    """Open a finished store, or make tokenizer and store in the run's folder; what an earlier try made is kept.

    `text` is text in memory (a list, DataFrame or dataset), used instead of files, and so is `held`; `tokenizer` is one
    that is loaded.
    """
    kept = folder / "store"
    if text is None and not data.source and (kept / "store.json").is_file():  # it was in memory when the run began
        store, beside = Store.open(kept), folder / "held"
        other = Store.open(beside) if (beside / "store.json").is_file() else part(kept)
        return Material(store.tokenizer, store, other)
    if isinstance(text, Store):
        if tokenizer is None:
            tokenizer = text.tokenizer
        text.fits(tokenizer)
        aside = held if isinstance(held, Store) else apart(data, folder / "held", held, tokenizer, tell)
        return Material(tokenizer, text, aside)
    if text is None and not data.source:
        raise Error("there is no text to learn from", fix="give --data FILES, or a store made by formers prepare")
    first = Path(data.source[0]) if data.source else folder
    if text is None and (first / "store.json").is_file():
        if len(data.source) > 1:
            raise Error("only one store can be trained on", where=data.source[1], fix="prepare the texts together")
        store = Store.open(first)
        if tokenizer is not None:
            store.fits(tokenizer)
        elif data.tokenizer is not None:
            store.fits(load_tokenizer(data.tokenizer))
        aside = apart(data, folder / "held", held, store.tokenizer, tell)
        return Material(store.tokenizer, store, aside or part(first))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer or chosen(family, data, folder, text, tell)
    aside = apart(data, folder / "held", held, tokenizer, tell)
    share = 0.0 if aside is not None else data.held_out
    store = stored(
        data, folder / "store", text if text is not None else find(list(data.source)), tokenizer, share, tell
    )
    return Material(tokenizer, store, aside or part(folder / "store"))


def apart(data: Data, where: Path, held: Any, tokenizer: Tokenizer, tell: Tell) -> Store | None:
    """A store of held-out text of its own, if any was given."""
    if held is None and not data.held:
        return None
    return stored(data, where, held if held is not None else find(list(data.held)), tokenizer, 0.0, tell)


def stored(data: Data, where: Path, source: Any, tokenizer: Tokenizer, share: float, tell: Tell) -> Store:
    """A store of some text, made now or before."""
    if not by_path(source) and (where / "store.json").is_file():  # text in memory was seen when the run began
        return Store.open(where, tokenizer=tokenizer)
    made = prepare(
        source, tokenizer, where, **data.reading, units=data.units, held_out=share,
        splitter=None if data.splitter == "none" else data.splitter,
        deduplicate=None if data.deduplicate == "no" else data.deduplicate, rank=0, ranks=1, tell=tell,
    )  # fmt: skip
    assert made is not None
    return made


def part(where: Path) -> Store | None:
    """The held-out part of a store, if there is one with something in it."""
    try:
        held = Store.open(where, "held")
    except Error:
        return None
    return held if len(held.tokens) else None


def chosen(family: str, data: Data, folder: Path, text: Any, tell: Tell) -> Tokenizer:
    """The tokenizer that was asked for, the one that an earlier try trained, or one trained now."""
    if data.tokenizer is not None:
        return load_tokenizer(data.tokenizer)
    kept, note = folder / "tokenizer", folder / "tokenizer.pieces"  # how many it was to have
    if kept.is_dir():
        if note.is_file() and note.read_text() != str(data.pieces):
            what = f"holds a tokenizer that was to have {note.read_text()[:20]} pieces, not {data.pieces}"
            raise Error(what, where=kept, fix="choose another --out, or remove this one")
        return load_tokenizer(kept)
    kind, style = FAMILY[member(family).name]
    source = text if text is not None else find(list(data.source))
    tell("tokenizer", 0, 1, f"{kind}, {data.pieces:,} pieces")
    letters = 0
    if kind in ("wordpiece", "unigram"):  # pieces made of characters must hold the script as well: two for each
        letters = len(set().union(*some(read(source, **data.reading), ENOUGH // 20)))
    lines = (line for d in some(read(source, **data.reading), ENOUGH) for line in d.split("\n"))
    made = train_tokenizer(kind, lines, max(data.pieces, 2 * letters), style=style)
    note.write_text(str(data.pieces))
    save_tokenizer(made, kept)
    tell("tokenizer", 1, 1, f"{kind}, {len(made):,} pieces")
    return made


def some(documents: Iterator[str], most: int) -> Iterator[str]:
    """Documents until there are so many characters."""
    size = 0
    for document in documents:
        yield document
        size += len(document)
        if size >= most:
            return
