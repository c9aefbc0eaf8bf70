"""What a run trains on: a tokenizer, a token store and its held-out part, made or found."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from collections.abc import Iterator, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import Tell
from ..data.readers import by_path, find, read
from ..data.sources import Changed, stamp
from ..data.store import Store
from ..data.tables import WHICH, of_python
from ..errors import Error
from ..interop.prepare import prepare
from ..interop.tokenizers import load_tokenizer, save_tokenizer
from ..registry import member
from ..text.normalise import Changes
from ..text.templates import FAMILY
from ..text.tokenizer import Tokenizer
from ..text.trainers import train as train_tokenizer
from .configure import Data

ENOUGH = 200_000_000  # characters from which a tokenizer is learned
FIRST = 1000  # documents among which there must be a pair


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
    run = folder.parent if (folder.parent / "run.json").is_file() else None
    kept = folder / "store"
    if text is None and not data.source and (kept / "store.json").is_file():  # it was in memory when the run began
        store, beside = Store.open(kept), folder / "held"
        other = Store.open(beside) if (beside / "store.json").is_file() else part(kept)
        return Material(store.tokenizer, store, other)
    if isinstance(text, Store):
        if tokenizer is None:
            tokenizer = text.tokenizer
        text.fits(tokenizer)
        aside = held if isinstance(held, Store) else apart(data, folder / "held", held, tokenizer, tell, run)
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
        aside = apart(data, folder / "held", held, store.tokenizer, tell, run)
        return Material(store.tokenizer, store, aside or part(first))
    check_text(data, text, held)
    source = text if text is not None else find(list(data.source))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer or chosen(family, data, folder, source, tell, run)
    aside = apart(data, folder / "held", held, tokenizer, tell, run)
    share = 0.0 if aside is not None else data.held_out
    store = stored(data, kept, source, tokenizer, share, tell, run)
    return Material(tokenizer, store, aside or part(kept))


def check_text(data: Data, text: Any = None, held: Any = None) -> list[str]:
    """Read the first documents of text and held-out text, so that what is wrong with them is said before the work.
    Return what was chosen where nothing was said, one line for each of the two: the column that is the text."""
    source = text
    if text is None and data.source and not (Path(data.source[0]) / "store.json").is_file():
        source = find(list(data.source))
    notes = {"text": look(data, source), "held-out text": look(data, aside_of(data, held))}
    return [f"{name}: {', '.join(found)}" for name, found in notes.items() if found]


def aside_of(data: Data, held: Any) -> Any:
    """Held-out text of its own, in memory or by its files; None if none was given."""
    return find(list(data.held)) if held is None and data.held else held


def look(data: Data, source: Any) -> list[str]:
    """Read the first documents and return what was chosen in reading them. A column that cannot be found and text
    without pairs where they are wanted are errors."""
    if source is None or isinstance(source, Iterator | Store):
        return []
    changes = Changes()
    pairs = data.splitter == "tabs"
    column = "DE,EN" if pairs else "NAME"
    try:
        first = list(itertools.islice(read(source, changes=changes, **data.reading), FIRST if pairs else 1))
    except Error as e:
        if not (e.fix or "").startswith(WHICH):
            raise
        fix = f"say --column {column}, or data={{'column': '{column}'}}" + str(e.fix).removeprefix(WHICH)
        raise Error(e.what, where=e.where, fix=fix) from None
    if pairs and not any(sum(bool(side.strip()) for side in document.split("\t")) == 2 for document in first):
        fix = f"write source TAB target in each line, or name two columns of a table: --column {column}"
        raise Error("no document is a pair of two sentences", where=source[0] if by_path(source) else None, fix=fix)
    return changes.notes


def changed(what: str, run: Path | None) -> Error:
    """What a run that goes on says of other data."""
    fix = "give it as it was, or begin a new run: choose another --out"
    return Error(f"{what} has changed since the run began", where=run, fix=fix)


def mark(source: Any, data: Data) -> Any:
    """What tells text from other text: of files what is seen at once, of text in memory a hash; of a stream nothing."""
    if by_path(source):
        return [{**stamp(path), "time": path.stat().st_mtime_ns} for path in find(source)]
    if not isinstance(source, Sized):
        return None
    whole = hashlib.sha256()
    for document in of_python(source, data.column, Changes(), data.skip):
        whole.update(document.encode("utf-8", "surrogatepass") + b"\0")
    return whole.hexdigest()


def apart(data: Data, where: Path, held: Any, tokenizer: Tokenizer, tell: Tell, run: Path | None) -> Store | None:
    """A store of held-out text of its own, if any was given, now or when the run began."""
    if (source := aside_of(data, held)) is not None:
        return stored(data, where, source, tokenizer, 0.0, tell, run)
    if run is None:
        forget(where)
    return Store.open(where) if beside(where).is_file() and (where / "store.json").is_file() else None


def stored(
    data: Data, where: Path, source: Any, tokenizer: Tokenizer, share: float, tell: Tell, run: Path | None
) -> Store:
    """A store of some text, made now or before. One that a try without a run made of something else is made anew."""
    how: dict[str, Any] = {
        **data.reading, "units": data.units, "held_out": share,
        "splitter": None if data.splitter == "none" else data.splitter,
        "deduplicate": None if data.deduplicate == "no" else data.deduplicate,
    }  # fmt: skip
    text, words = mark(source, data), {"store": "the text", "held": "the held-out text"}[where.name]
    asked, known = json.dumps({"tokenizer": tokenizer.fingerprint, "text": text, **how}), noted(where)
    if run is None and (known != asked or text is None):
        forget(where)
        if not where.exists():
            where.parent.mkdir(parents=True, exist_ok=True)
            beside(where).write_text(asked, encoding="utf-8")
    if (where / "store.json").is_file():
        if run is not None and Store.open(where).fingerprint != tokenizer.fingerprint:
            raise changed("the tokenizer", run)
        if not by_path(source) and (run is not None or known == asked):
            if None not in (known, text) and json.loads(str(known))["text"] != text:
                raise changed(words, run)
            return Store.open(where)
    try:
        made = prepare(source, tokenizer, where, **how, rank=0, ranks=1, tell=tell)
    except Changed:
        if run is None:
            raise
        raise changed(words, run) from None
    assert made is not None
    return made


def beside(where: Path) -> Path:
    """The note that says what a tokenizer or a store of a run's folder was made for."""
    return where.with_name(f"{where.name}.note")


def noted(where: Path) -> str | None:
    """What was noted; None if nothing was."""
    return beside(where).read_text(encoding="utf-8") if beside(where).is_file() else None


def forget(where: Path) -> None:
    """Remove what an earlier try made here; what has no note is somebody else's, and stays."""
    if beside(where).is_file():
        shutil.rmtree(where, ignore_errors=True)
        beside(where).unlink()


def part(where: Path) -> Store | None:
    """The held-out part of a store, if there is one with something in it."""
    try:
        held = Store.open(where, "held")
    except Error:
        return None
    return held if len(held.tokens) else None


def chosen(family: str, data: Data, folder: Path, source: Any, tell: Tell, run: Path | None) -> Tokenizer:
    """The tokenizer that was asked for, the run's, the one that an earlier try trained for the same, or one trained
    now."""
    if data.tokenizer is not None:
        return load_tokenizer(data.tokenizer)
    kept, store = folder / "tokenizer", folder / "store"
    kind, style = FAMILY[member(family).name]
    if run is not None and (kept.is_dir() or (store / "store.json").is_file()):
        return load_tokenizer(kept) if kept.is_dir() else Store.open(store).tokenizer
    text = mark(source, data)
    asked = json.dumps({"kind": kind, "style": style, "pieces": data.pieces, **data.reading, "text": text})
    if kept.is_dir() and noted(kept) == asked and text is not None:
        return load_tokenizer(kept)
    forget(kept)
    if kept.exists():
        fix = f"take it with --tokenizer {kept}, or choose another --out"
        raise Error("is where a tokenizer is to go, and something else is there", where=kept, fix=fix)
    tell("tokenizer", 0, 1, f"{kind}, {data.pieces:,} pieces")
    letters = 0
    if kind in ("wordpiece", "unigram"):  # pieces made of characters must hold the script as well: two for each
        letters = len(set().union(*some(read(source, **data.reading), ENOUGH // 20)))
    lines = (line for d in some(read(source, **data.reading), ENOUGH) for line in d.split("\n"))
    made = train_tokenizer(kind, lines, max(data.pieces, 2 * letters), style=style)
    beside(kept).write_text(asked, encoding="utf-8")
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
