"""What a run trains on: a tokenizer, a token store and its held-out part, made or found."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...config import ProgressCallback
from ...data.preparation.pipeline import SourceChanged, stamp_file
from ...data.readers import COLUMN_HINT, extract_python_texts, find_files, is_path_source, read_documents
from ...data.store import Store
from ...data.text_files import COMPRESSION_RATIOS
from ...errors import Error
from ...interop.tokenizer_files import load_tokenizer, prepare, save_tokenizer
from ...registry import find_family
from ...text.normalise import CleaningReport
from ...text.tokenizer import Tokenizer
from ...text.tokenizer_kinds import train_by_kind
from ..config_merge import PretrainDataConfig
from ..run_folder import RunFolder

TOKENIZER_TEXT_CHARS = 200_000_000  # characters from which a tokenizer is learned
EXCERPT_CHARS = 2_000_000  # characters that a dry run reads
PAIR_CHECK_DOCUMENTS = 1000  # documents among which there must be a pair


@dataclass(frozen=True)
class PreparedData:
    """Tokenizer and stores; `valid_store` is None if there is no held-out text."""

    tokenizer: Tokenizer
    store: Store
    valid_store: Store | None
    text_ratio: float = 1.0  # times as much text as the store holds: a dry run takes an excerpt

    @property
    def fingerprints(self) -> dict[str, Any]:
        """What tells whether a run goes on with the same text."""
        held = None if self.valid_store is None else self.valid_store.content_hash
        return {"tokenizer": self.tokenizer.fingerprint, "store": self.store.content_hash, "held": held}


def prepare_data(
    family: str, data: PretrainDataConfig, folder: Path, text: Any = None, tokenizer: Tokenizer | None = None,
    held: Any = None, tell: ProgressCallback = lambda *_: None,
) -> PreparedData:  # fmt: skip
    """Open a finished store, or make tokenizer and store in the run's folder; what an earlier try made is kept.

    `text` is text in memory (a list, DataFrame or dataset), used instead of files, and so is `held`; `tokenizer` is one
    that is loaded.
    """
    run = folder.parent if (folder.parent / "run.json").is_file() else None
    kept = folder / "store"
    if text is None and not data.source and (kept / "store.json").is_file():  # it was in memory when the run began
        store, beside = Store.open(kept), folder / "held"
        other = Store.open(beside) if (beside / "store.json").is_file() else open_held_out_part(kept)
        return PreparedData(store.tokenizer, store, other)
    if isinstance(text, Store):
        if tokenizer is None:
            tokenizer = text.tokenizer
        text.check_tokenizer(tokenizer)
        aside = (
            held if isinstance(held, Store) else prepare_valid_store(data, folder / "held", held, tokenizer, tell, run)
        )
        return PreparedData(tokenizer, text, aside)
    if text is None and not data.source:
        raise Error("there is no text to learn from", fix="give --data FILES, or a store made by formers prepare")
    first = Path(data.source[0]) if data.source else folder
    if text is None and (first / "store.json").is_file():
        if len(data.source) > 1:
            raise Error("only one store can be trained on", where=data.source[1], fix="prepare the texts together")
        store = Store.open(first)
        if tokenizer is not None:
            store.check_tokenizer(tokenizer)
        elif data.tokenizer is not None:
            store.check_tokenizer(load_tokenizer(data.tokenizer))
        aside = prepare_valid_store(data, folder / "held", held, store.tokenizer, tell, run)
        return PreparedData(store.tokenizer, store, aside or open_held_out_part(first))
    check_readable(data, text, held)
    source = text if text is not None else find_files(list(data.source))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer or load_or_train_tokenizer(family, data, folder, source, tell, run)
    aside = prepare_valid_store(data, folder / "held", held, tokenizer, tell, run)
    share = 0.0 if aside is not None else data.valid_fraction
    store = prepare_store(data, kept, source, tokenizer, share, tell, run)
    return PreparedData(tokenizer, store, aside or open_held_out_part(kept))


def check_readable(data: PretrainDataConfig, text: Any = None, held: Any = None) -> list[str]:
    """Read the first documents of text and held-out text, so that what is wrong with them is said before the work.
    Return what was chosen where nothing was said, one line for each of the two: the column that is the text."""
    source = text
    if text is None and data.source and not (Path(data.source[0]) / "store.json").is_file():
        source = find_files(list(data.source))
    notes = {
        "text": check_first_documents(data, source),
        "held-out text": check_first_documents(data, get_valid_source(data, held)),
    }
    return [f"{name}: {', '.join(found)}" for name, found in notes.items() if found]


def get_valid_source(data: PretrainDataConfig, held: Any) -> Any:
    """Held-out text of its own, in memory or by its files; None if none was given."""
    return find_files(list(data.valid)) if held is None and data.valid else held


def check_first_documents(data: PretrainDataConfig, source: Any) -> list[str]:
    """Read the first documents and return what was chosen in reading them. A column that cannot be found and text
    without pairs where they are wanted are errors."""
    if source is None or isinstance(source, Iterator | Store):
        return []
    changes = CleaningReport()
    pairs = data.splitter == "tabs"
    column = "DE,EN" if pairs else "NAME"
    try:
        first = list(
            itertools.islice(
                read_documents(source, changes=changes, **data.reader_options), PAIR_CHECK_DOCUMENTS if pairs else 1
            )
        )
    except Error as e:
        if not (e.fix or "").startswith(COLUMN_HINT):
            raise
        fix = f"say --column {column}, or data={{'column': '{column}'}}" + str(e.fix).removeprefix(COLUMN_HINT)
        raise Error(e.what, where=e.where, fix=fix) from None
    if pairs and not any(sum(bool(side.strip()) for side in document.split("\t")) == 2 for document in first):
        fix = f"write source TAB target in each line, or name two columns of a table: --column {column}"
        raise Error(
            "no document is a pair of two sentences", where=source[0] if is_path_source(source) else None, fix=fix
        )
    return changes.notes


def check_data_unchanged(folder: RunFolder, found: PreparedData, same: Mapping[str, Any] | None = None) -> None:
    """Compare the data of a run that goes on with what run.json says, or of one that is repeated with the `same`."""
    before = folder.read_info()["data"] if (folder.path / "run.json").is_file() else same or found.fingerprints
    for key, value in found.fingerprints.items():
        if before.get(key) != value:
            what = {"tokenizer": "the tokenizer", "store": "the text", "held": "the held-out text"}[key]
            raise make_changed_error(what, folder.path)


def make_changed_error(what: str, run: Path | None) -> Error:
    """What a run that goes on says of other data."""
    fix = "give it as it was, or begin a new run: choose another --out"
    return Error(f"{what} has changed since the run began", where=run, fix=fix)


def fingerprint_text(source: Any, data: PretrainDataConfig) -> Any:
    """What tells text from other text: of files what is seen at once, of text in memory a hash; of a stream nothing."""
    if is_path_source(source):
        return [{**stamp_file(path), "time": path.stat().st_mtime_ns} for path in find_files(source)]
    if not isinstance(source, Sized):
        return None
    whole = hashlib.sha256()
    for document in extract_python_texts(source, data.column, CleaningReport(), data.skip):
        whole.update(document.encode("utf-8", "surrogatepass") + b"\0")
    return whole.hexdigest()


def prepare_valid_store(
    data: PretrainDataConfig, where: Path, held: Any, tokenizer: Tokenizer, tell: ProgressCallback, run: Path | None
) -> Store | None:
    """A store of held-out text of its own, if any was given, now or when the run began."""
    if (source := get_valid_source(data, held)) is not None:
        return prepare_store(data, where, source, tokenizer, 0.0, tell, run)
    if run is None:
        discard_prepared(where)
    return Store.open(where) if get_note_path(where).is_file() and (where / "store.json").is_file() else None


def prepare_store(
    data: PretrainDataConfig,
    where: Path,
    source: Any,
    tokenizer: Tokenizer,
    share: float,
    tell: ProgressCallback,
    run: Path | None,
) -> Store:
    """A store of some text, made now or before. One that a try without a run made of something else is made anew."""
    how: dict[str, Any] = {
        **data.reader_options, "units": data.units, "held_out": share,
        "splitter": None if data.splitter == "none" else data.splitter,
        "deduplicate": None if data.deduplicate == "no" else data.deduplicate,
    }  # fmt: skip
    text, words = fingerprint_text(source, data), {"store": "the text", "held": "the held-out text"}[where.name]
    asked, known = json.dumps({"tokenizer": tokenizer.fingerprint, "text": text, **how}), read_note(where)
    if run is None and (known != asked or text is None):
        discard_prepared(where)
        if not where.exists():
            where.parent.mkdir(parents=True, exist_ok=True)
            get_note_path(where).write_text(asked, encoding="utf-8")
    if (where / "store.json").is_file():
        if run is not None and Store.open(where).fingerprint != tokenizer.fingerprint:
            raise make_changed_error("the tokenizer", run)
        if not is_path_source(source) and (run is not None or known == asked):
            if None not in (known, text) and json.loads(str(known))["text"] != text:
                raise make_changed_error(words, run)
            return Store.open(where)
    try:
        made = prepare(source, tokenizer, where, **how, rank=0, ranks=1, tell=tell)
    except SourceChanged:
        if run is None:
            raise
        raise make_changed_error(words, run) from None
    assert made is not None
    return made


def get_note_path(where: Path) -> Path:
    """The note that says what a tokenizer or a store of a run's folder was made for."""
    return where.with_name(f"{where.name}.note")


def read_note(where: Path) -> str | None:
    """What was noted; None if nothing was."""
    return get_note_path(where).read_text(encoding="utf-8") if get_note_path(where).is_file() else None


def discard_prepared(where: Path) -> None:
    """Remove what an earlier try made here; what has no note is somebody else's, and stays."""
    if get_note_path(where).is_file():
        shutil.rmtree(where, ignore_errors=True)
        get_note_path(where).unlink()


def open_held_out_part(where: Path) -> Store | None:
    """The held-out part of a store, if there is one with something in it."""
    try:
        held = Store.open(where, "held")
    except Error:
        return None
    return held if len(held.tokens) else None


def load_or_train_tokenizer(
    family: str, data: PretrainDataConfig, folder: Path, source: Any, tell: ProgressCallback, run: Path | None
) -> Tokenizer:
    """The tokenizer that was asked for, the run's, the one that an earlier try trained for the same, or one trained
    now."""
    if data.tokenizer is not None:
        return load_tokenizer(data.tokenizer)
    kept, store = folder / "tokenizer", folder / "store"
    declared = find_family(family).definition
    kind, style = declared.tokenizer, declared.tokenizer_style
    if run is not None and (kept.is_dir() or (store / "store.json").is_file()):
        return load_tokenizer(kept) if kept.is_dir() else Store.open(store).tokenizer
    text = fingerprint_text(source, data)
    asked = json.dumps({"kind": kind, "style": style, "pieces": data.vocab_size, **data.reader_options, "text": text})
    if kept.is_dir() and read_note(kept) == asked and text is not None:
        return load_tokenizer(kept)
    discard_prepared(kept)
    if kept.exists():
        fix = f"take it with --tokenizer {kept}, or choose another --out"
        raise Error("is where a tokenizer is to go, and something else is there", where=kept, fix=fix)
    tell("tokenizer", 0, 1, f"{kind}, {data.vocab_size:,} pieces")
    letters = 0
    if kind in ("wordpiece", "unigram"):  # pieces made of characters must hold the script as well: two for each
        letters = len(
            set().union(*limit_characters(read_documents(source, **data.reader_options), TOKENIZER_TEXT_CHARS // 20))
        )
    lines = (
        line
        for d in limit_characters(read_documents(source, **data.reader_options), TOKENIZER_TEXT_CHARS)
        for line in d.split("\n")
    )
    made = train_by_kind(kind, lines, max(data.vocab_size, 2 * letters), style=style)
    get_note_path(kept).write_text(asked, encoding="utf-8")
    save_tokenizer(made, kept)
    tell("tokenizer", 1, 1, f"{kind}, {len(made):,} pieces")
    return made


def limit_characters(documents: Iterator[str], most: int) -> Iterator[str]:
    """Documents until there are so many characters."""
    size = 0
    for document in documents:
        yield document
        size += len(document)
        if size >= most:
            return


def read_excerpt(data: PretrainDataConfig) -> tuple[Any, float]:
    """Return some documents of the text, and how many times as much there is; a prepared store is taken as it is."""
    if not data.source or (Path(data.source[0]) / "store.json").is_file():
        return None, 1.0
    files = find_files(list(data.source))
    text = list(limit_characters(read_documents(files, **data.reader_options), EXCERPT_CHARS))
    if sum(map(len, text)) < EXCERPT_CHARS:
        return text, 1.0
    size = sum(path.stat().st_size * COMPRESSION_RATIOS.get(path.suffix.lower(), 1.0) for path in files)
    return text, max(1.0, size / sum(len(t.encode("utf-8", "surrogatepass")) for t in text))
