"""What a run trains on: a tokenizer, a token store and its validation part, made now or before."""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeVar

from ...config import JSONObject, ProgressCallback
from ...data.preparation.document_encoder import PhraseCounter
from ...data.preparation.pipeline import SourceChanged, stamp_file
from ...data.readers import COLUMN_HINT, extract_python_texts, find_files, is_path_source, read_documents
from ...data.store import Store
from ...data.text_files import COMPRESSION_SUFFIXES
from ...errors import Error
from ...interop.tokenizer_files import load_tokenizer, prepare, save_tokenizer
from ...registry import find_family
from ...tasks.examples import Examples
from ...text.normalise import CleaningReport, detect_language
from ...text.tokenizer import Tokenizer
from ...text.tokenizer_kinds import train_by_kind
from ..config_merge import PretrainDataConfig
from ..run_folder import RunFolder, has_run

TOKENIZER_TEXT_CHARS = 200_000_000  # characters from which a tokenizer is learned
EXCERPT_CHARS = 2_000_000  # characters that a dry run reads
T = TypeVar("T")
PAIR_CHECK_DOCUMENTS = 1000  # documents among which there must be a pair


@dataclass(frozen=True)
class PreparedData:
    """Tokenizer and stores; `valid_store` is None if there is no validation text."""

    tokenizer: Tokenizer
    store: Store
    valid_store: Store | None
    text_ratio: float = 1.0  # times as much text as the store holds: a dry run takes an excerpt
    tasks: dict[str, dict[str, Examples]] = field(default_factory=dict)  # of a mixture: task → split → examples

    @property
    def fingerprints(self) -> JSONObject:
        """Hashes that show whether a run resumes with the same text."""
        valid = None if self.valid_store is None else self.valid_store.content_hash
        return {"tokenizer": self.tokenizer.fingerprint, "store": self.store.content_hash, "valid": valid}


class Lookahead(Iterator[T]):
    """An iterator whose beginning can be looked at before it is read: items of a look are given again."""

    def __init__(self, items: Iterator[T]):
        self.items, self.seen = items, deque[T]()

    def __next__(self) -> T:
        return self.seen.popleft() if self.seen else next(self.items)

    def look(self) -> Iterator[T]:
        """Yield the items from the first on, and keep them."""
        yield from self.seen
        for item in self.items:
            self.seen.append(item)
            yield item


class RunText:
    """Text of a run, which is read at most twice: a look (its first documents, what a tokenizer learns from, phrases,
    a fingerprint), then the work, which reads `source`. An iterator is read once: a look keeps what it takes of it."""

    def __init__(self, source: object, data: PretrainDataConfig):
        self.source: object = Lookahead(source) if isinstance(source, Iterator) else source
        self.data, self.changes, self.hash = data, CleaningReport(), hashlib.sha256()
        self.first: list[str] = []  # documents that were checked
        self.documents: Iterator[str] = iter(())  # those after them
        self.state: Literal["unread", "open", "kept", "finished"] = "unread"  # of the look; kept: see keep_beginning
        self.is_sized = isinstance(source, Sized) and not is_path_source(source)  # in memory, and can be read again

    @property
    def is_text(self) -> bool:
        """Whether there is anything to read: a token store has been read before."""
        return self.source is not None and not isinstance(self.source, Store)

    def open(self) -> Iterator[str]:
        """Begin the look."""
        self.hash, self.first, reading = hashlib.sha256(), [], dict(self.data.reader_options)
        self.phrase_counter, self.state = PhraseCounter(), "open"
        source = self.source.look() if isinstance(self.source, Lookahead) else self.source
        if self.is_sized:
            source = self.hash_texts(extract_python_texts(source, reading.pop("column"), self.changes, self.data.skip))
        self.documents = read_documents(source, changes=self.changes, **reading)
        if self.data.units in ("learn", "auto"):
            self.documents = self.phrase_counter.count_documents(self.documents)
        return self.documents

    def hash_texts(self, texts: Iterator[str]) -> Iterator[str]:
        """Yield texts and add them to the fingerprint."""
        for text in texts:
            self.hash.update(text.encode("utf-8", "surrogatepass") + b"\0")
            yield text

    def check(self) -> list[str]:
        """Read the first documents, so that errors are found before the work: a column that is not there, text without
        pairs where they are needed. Return what was chosen in reading them, such as the column."""
        if not self.is_text:
            return []
        pairs = self.data.splitter == "tabs"
        column = "DE,EN" if pairs else "NAME"
        try:
            self.first = list(itertools.islice(self.open(), PAIR_CHECK_DOCUMENTS if pairs else 1))
        except Error as e:
            if not (e.fix or "").startswith(COLUMN_HINT):
                raise
            fix = f"say --column {column}, or data={{'column': '{column}'}}" + str(e.fix).removeprefix(COLUMN_HINT)
            raise Error(e.what, where=e.where, fix=fix) from None
        if pairs and not any(sum(bool(side.strip()) for side in document.split("\t")) == 2 for document in self.first):
            fix = f"write source TAB target in each line, or name two columns of a table: --column {column}"
            where = next(iter(find_files(self.source))) if is_path_source(self.source) else None
            raise Error("no document is a pair of two sentences", where=where, fix=fix)
        return self.changes.notes

    def look(self) -> Iterator[str]:
        """Return the documents from the first on, in the pass in which they were checked."""
        if self.state in ("unread", "finished"):
            self.open()
        return itertools.chain(self.first, self.documents)

    @cached_property
    def fingerprint(self) -> list[JSONObject] | str | None:
        """What identifies the text: size and time of files, a hash of text in memory, None for a stream."""
        if is_path_source(self.source):
            return [{**stamp_file(path), "time": path.stat().st_mtime_ns} for path in find_files(self.source)]
        if not self.is_sized:
            return None
        self.finish_look()
        return self.hash.hexdigest()

    def finish_look(self) -> None:
        """Read the rest of the look."""
        deque(self.open() if self.state == "unread" else self.documents, maxlen=0)
        self.state = "kept" if self.state == "kept" else "finished"

    def keep_beginning(self, characters: int) -> None:
        """Keep the first documents, up to a number of characters, so that a look gives them again at the end."""
        self.first, self.state = list(limit_characters(self.look(), characters)), "kept"

    def learn_phrases(self) -> list[str]:
        """Return the phrases of the text, which are counted in the look."""
        self.finish_look()
        return self.phrase_counter.choose_phrases()


def check_texts(text: RunText, valid: RunText) -> list[str]:
    """Check the first documents of text and validation text; return notes on what was chosen without a setting."""
    notes = {"text": text.check(), "validation text": valid.check()}
    return [f"{name}: {', '.join(remarks)}" for name, remarks in notes.items() if remarks]


def prepare_data(
    family: str, data: PretrainDataConfig, folder: Path, text: object = None, tokenizer: Tokenizer | None = None,
    valid: object = None, tell: ProgressCallback = lambda *_: None,
    inspect: Callable[[RunText, RunText], object] = check_texts,
) -> PreparedData:  # fmt: skip
    """Open a finished store, or make tokenizer and store in the run's folder; what an earlier attempt made is kept.
    `text` is text in memory (a list, DataFrame or dataset) or a Store, used instead of files, and so is `valid`;
    `tokenizer` is one that is loaded. `inspect` may see both texts before the work."""
    valid_source = get_valid_source(data, valid)
    valid_store = valid_source if isinstance(valid_source, Store) else None
    valid_text = RunText(None if valid_store is not None else valid_source, data)
    run = folder.parent if has_run(folder.parent) else None

    def prepare_valid(tokenizer: Tokenizer) -> Store | None:
        if valid_store is None:
            return prepare_valid_store(data, folder / "valid", valid_text, tokenizer, tell, run)
        valid_store.check_tokenizer(tokenizer)
        return valid_store

    kept = folder / "store"
    if text is None and not data.source and (kept / "store.json").is_file():  # it was in memory when the run began
        store, beside = Store.open(kept), folder / "valid"
        other = Store.open(beside) if (beside / "store.json").is_file() else open_valid_part(kept)
        return PreparedData(store.tokenizer, store, other)
    if isinstance(text, Store):
        inspect(RunText(None, data), valid_text)
        tokenizer = tokenizer or text.tokenizer
        text.check_tokenizer(tokenizer)
        return PreparedData(tokenizer, text, prepare_valid(tokenizer))
    if text is None and not data.source:
        raise Error("there is no text to learn from", fix="give --data FILES (formers/corpus-en to try it), or a store")
    first = Path(data.source[0]) if data.source else folder
    if text is None and (first / "store.json").is_file():
        if len(data.source) > 1:
            raise Error("only one store can be trained on", where=data.source[1], fix="prepare the texts together")
        inspect(RunText(None, data), valid_text)
        store = Store.open(first)
        if tokenizer is not None or data.tokenizer is not None:
            store.check_tokenizer(tokenizer or load_tokenizer(str(data.tokenizer)))
        return PreparedData(store.tokenizer, store, prepare_valid(store.tokenizer) or open_valid_part(first))
    source = RunText(text if text is not None else find_files(list(data.source)), data)
    inspect(source, valid_text)
    if data.units == "auto":
        data = replace(data, units=choose_units(source.first))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer or load_or_train_tokenizer(family, data, folder, source, tell, run)
    aside = prepare_valid(tokenizer)
    share = 0.0 if aside is not None else data.valid_fraction
    store = prepare_store(data, kept, source, tokenizer, share, tell, run)
    return PreparedData(tokenizer, store, aside or open_valid_part(kept))


def choose_units(texts: list[str]) -> str:
    """Choose how phrases and entities are found in text like this: by a morphological analyser in Korean, if there is
    one, else phrases are learned from the text, and names and numbers are the entities."""
    has_kiwi = importlib.util.find_spec("kiwipiepy") is not None
    return "kiwi" if has_kiwi and detect_language(texts) == "ko" else "learn"


def get_valid_source(data: PretrainDataConfig, valid: object) -> object:
    """Return validation text of its own: in memory, its files, or a prepared store; None if none was given."""
    if valid is not None or not data.valid:
        return valid
    if len(data.valid) == 1 and (Path(data.valid[0]) / "store.json").is_file():
        return Store.open(data.valid[0])
    return find_files(list(data.valid))


def check_data_unchanged(
    folder: Path, fingerprints: Mapping[str, object], same: Mapping[str, object] | None = None
) -> None:
    """Compare the fingerprints of a resumed run's data with run.json, or of a repeated run's with the `same`."""
    before = RunFolder(folder).read_info()["data"] if has_run(folder) else same or fingerprints
    for key, value in fingerprints.items():
        if before.get(key) != value:
            what = {"tokenizer": "the tokenizer", "store": "the text", "valid": "the validation text"}[key]
            raise make_changed_error(what, folder)


def make_changed_error(what: str, run: Path | None) -> Error:
    """Make the error of a resumed run whose data has changed."""
    fix = "give it as it was, or begin a new run: choose another --out"
    return Error(f"{what} has changed since the run began", where=run, fix=fix)


def prepare_valid_store(
    data: PretrainDataConfig, where: Path, valid: RunText, tokenizer: Tokenizer, tell: ProgressCallback,
    run: Path | None,
) -> Store | None:  # fmt: skip
    """Return a store of validation text of its own, if any was given, now or when the run began."""
    if valid.source is not None:
        return prepare_store(data, where, valid, tokenizer, 0.0, tell, run)
    if run is None:
        discard_prepared(where)
    return Store.open(where) if get_note_path(where).is_file() and (where / "store.json").is_file() else None


def prepare_store(
    data: PretrainDataConfig, where: Path, text: RunText, tokenizer: Tokenizer, share: float, tell: ProgressCallback,
    run: Path | None,
) -> Store:  # fmt: skip
    """Return a store of some text, made now or before; one that an earlier attempt made of other text is replaced."""
    options: JSONObject = {
        **data.reader_options, "units": data.units, "validation": share,
        "splitter": None if data.splitter == "none" else data.splitter,
        "deduplicate": None if data.deduplicate == "no" else data.deduplicate,
    }  # fmt: skip
    mark, words = text.fingerprint, {"store": "the text", "valid": "the validation text"}[where.name]
    request, known = json.dumps({"tokenizer": tokenizer.fingerprint, "text": mark, **options}), read_note(where)
    if run is None and (known != request or mark is None):
        discard_prepared(where)
        if not where.exists():
            where.parent.mkdir(parents=True, exist_ok=True)
            get_note_path(where).write_text(request, encoding="utf-8")
    if (where / "store.json").is_file():
        if run is not None and Store.open(where).fingerprint != tokenizer.fingerprint:
            raise make_changed_error("the tokenizer", run)
        if not is_path_source(text.source) and (run is not None or known == request):
            if None not in (known, mark) and json.loads(str(known))["text"] != mark:
                raise make_changed_error(words, run)
            return Store.open(where)
    try:
        store = prepare(
            text.source, tokenizer, where, **options, rank=0, ranks=1, tell=tell, phrases=text.learn_phrases
        )
    except SourceChanged:
        if run is None:
            raise
        raise make_changed_error(words, run) from None
    assert store is not None
    return store


def get_note_path(where: Path) -> Path:
    """Return the path of the note that says what a tokenizer or a store of a run's folder was made for."""
    return where.with_name(f"{where.name}.note")


def read_note(where: Path) -> str | None:
    """Read the note; None if there is none."""
    return get_note_path(where).read_text(encoding="utf-8") if get_note_path(where).is_file() else None


def discard_prepared(where: Path) -> None:
    """Remove what an earlier attempt made here; anything without a note is not ours, and stays."""
    if get_note_path(where).is_file():
        shutil.rmtree(where, ignore_errors=True)
        get_note_path(where).unlink()


def open_valid_part(where: Path) -> Store | None:
    """Return the validation part of a store, if there is one with something in it."""
    try:
        valid = Store.open(where, "validation")
    except Error:
        return None
    return valid if len(valid.tokens) else None


def load_or_train_tokenizer(
    family: str, data: PretrainDataConfig, folder: Path, text: RunText, tell: ProgressCallback, run: Path | None
) -> Tokenizer:
    """Return the tokenizer that was asked for, the run's, or what an earlier attempt trained; else train one."""
    if data.tokenizer is not None:
        return load_tokenizer(data.tokenizer)
    kept, store = folder / "tokenizer", folder / "store"
    declared = find_family(family).definition
    kind, style = declared.tokenizer, declared.tokenizer_style
    if run is not None and (kept.is_dir() or (store / "store.json").is_file()):
        return load_tokenizer(kept) if kept.is_dir() else Store.open(store).tokenizer

    def describe() -> str:
        request = {"kind": kind, "style": style.name, "pieces": data.vocab_size, **data.reader_options}
        return json.dumps({**request, "text": text.fingerprint})

    if kept.is_dir() and text.is_sized:  # the fingerprint takes the whole look, and may tell that this is other text
        text.keep_beginning(TOKENIZER_TEXT_CHARS)
    if kept.is_dir() and text.fingerprint is not None and read_note(kept) == describe():
        return load_tokenizer(kept)
    discard_prepared(kept)
    if kept.exists():
        fix = f"take it with --tokenizer {kept}, or choose another --out"
        raise Error("is needed for the tokenizer, and holds something else", where=kept, fix=fix)
    tell("tokenizer", 0, 1, f"{kind}, {data.vocab_size:,} pieces")
    documents, head, letters = text.look(), list[str](), 0
    if kind in ("wordpiece", "unigram"):  # pieces made of characters must hold the script as well: two for each
        head = list(limit_characters(documents, TOKENIZER_TEXT_CHARS // 20))
        letters = len(set().union(*head))
    documents = limit_characters(itertools.chain(head, documents), TOKENIZER_TEXT_CHARS)
    lines = (line for document in documents for line in document.split("\n"))
    tokenizer = train_by_kind(kind, lines, max(data.vocab_size, 2 * letters), style=style)
    get_note_path(kept).write_text(describe(), encoding="utf-8")
    save_tokenizer(tokenizer, kept)
    tell("tokenizer", 1, 1, f"{kind}, {len(tokenizer):,} pieces")
    return tokenizer


def limit_characters(documents: Iterator[str], most: int) -> Iterator[str]:
    """Yield documents until they have `most` characters."""
    size = 0
    for document in documents:
        yield document
        size += len(document)
        if size >= most:
            return


def read_excerpt(data: PretrainDataConfig) -> tuple[list[str] | None, float]:
    """Return the first documents of the text, and the size of the text relative to them; None for a prepared store."""
    if not data.source or (Path(data.source[0]) / "store.json").is_file():
        return None, 1.0
    files = find_files(list(data.source))
    text = list(limit_characters(read_documents(files, **data.reader_options), EXCERPT_CHARS))
    if sum(map(len, text)) < EXCERPT_CHARS:
        return text, 1.0
    size = sum(path.stat().st_size * COMPRESSION_SUFFIXES.get(path.suffix.lower(), 1.0) for path in files)
    return text, max(1.0, size / sum(len(t.encode("utf-8", "surrogatepass")) for t in text))
