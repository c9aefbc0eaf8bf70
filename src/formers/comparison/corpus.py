"""The corpus of a comparison: the same documents for every family, split once, and encoded for each form of the text
that a family reads."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

from ..atomic_files import stage_directory
from ..config import JSONObject, ProgressCallback
from ..data.preparation.corpus_filters import HoldOut
from ..data.readers import read_documents
from ..errors import Error
from ..interop.tokenizer_files import load_tokenizer, save_tokenizer
from ..registry import find_family
from ..text.sentences import split_sentences
from ..text.tokenizer import Tokenizer
from ..text.tokenizer_kinds import train_by_kind
from ..training.config_merge import configure_pretraining
from ..training.runs.prepare_data import prepare_data
from .settings import CompareConfig, TextForm

PARTS = ("train", "valid", "test")
HELD_OUT_RATIO = 0.02  # of the documents, for validation and for the test each
MIN_HELD_OUT = 8  # documents of each, however small the corpus is
MIN_DOCUMENTS = 20  # a text of fewer is cut into sections
SECTION_WORDS = 200  # of such a section, at least; fewer where the text is short
TOKENIZER_CHARACTERS = 20_000_000  # of the training text that the tokenizer is trained on


def write_corpus(text: object, folder: Path, words: int | None, tell: ProgressCallback = lambda *_: None) -> JSONObject:
    """Split documents into training text of at most `words` words, validation and test text, and write them as JSON
    lines; also as pairs of neighbouring sentences. Held-out documents are chosen by a hash of their text; a document
    that comes a second time is left out. Text of fewer than 20 documents is cut into sections, each a document. Returns
    the sizes, a fingerprint of all parts, and how many documents were cut (0: none)."""
    held_out = {"valid": HoldOut(ratio=HELD_OUT_RATIO, seed=1), "test": HoldOut(ratio=HELD_OUT_RATIO, seed=2)}
    counts = {part: {"documents": 0, "words": 0, "bytes": 0} for part in PARTS}
    seen: set[bytes] = set()
    documents, num_cut = cut_few_documents(read_documents(text))
    digest = hashlib.blake2b(digest_size=8)
    with stage_directory(folder) as temporary, ExitStack() as stack:
        files = {p: stack.enter_context(open(temporary / f"{p}.jsonl", "w", encoding="utf-8")) for p in PARTS}
        pairs = {p: stack.enter_context(open(temporary / f"{p}.pairs.txt", "w", encoding="utf-8")) for p in PARTS}
        for number, document in enumerate(documents):
            mark = hashlib.blake2b(document.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            if mark in seen:
                continue
            seen.add(mark)
            part = next((name for name, is_held in held_out.items() if is_held(document)), "train")
            few = min(held_out, key=lambda name: counts[name]["documents"])
            if part == "train" and counts[few]["documents"] < MIN_HELD_OUT and number % 5 == 4:
                part = few
            size = len(document.split())
            if part == "train" and words is not None and counts["train"]["words"] + size > words:
                if counts["valid"]["documents"] >= MIN_HELD_OUT <= counts["test"]["documents"]:
                    break
                continue
            counts[part]["documents"] += 1
            counts[part]["words"] += size
            counts[part]["bytes"] += len(document.encode("utf-8", "surrogatepass"))
            files[part].write(json.dumps({"text": document}, ensure_ascii=False) + "\n")
            digest.update(part.encode() + mark)
            sentences = [" ".join(sentence.split()) for sentence in split_sentences(document)]
            pairs[part].writelines(f"{one}\t{other}\n" for one, other in itertools.pairwise(sentences))
            if number % 500 == 0:
                tell("corpus", counts["train"]["words"], words or counts["train"]["words"], "words")
        if not all(count["documents"] for count in counts.values()):
            sizes = ", ".join(f"{name} {count['documents']}" for name, count in counts.items())
            raise Error(
                f"there is too little text to split into training, validation and test documents ({sizes})",
                fix=f"give at least {MIN_DOCUMENTS} documents (blank lines separate them in a text file), or more text",
            )
    return {**counts, "fingerprint": digest.hexdigest(), "cut_documents": num_cut}


def cut_few_documents(documents: Iterable[str]) -> tuple[Iterable[str], int]:
    """Return documents as they are, or cut into sections of whole sentences if there are too few of them to hold some
    out; and the number of documents that were cut."""
    rest = iter(documents)
    first = list(itertools.islice(rest, MIN_DOCUMENTS))
    if len(first) == MIN_DOCUMENTS:
        return itertools.chain(first, rest), 0
    total = sum(len(document.split()) for document in first)
    return cut_into_sections(first, min(SECTION_WORDS, max(1, total // (2 * MIN_DOCUMENTS)))), len(first)


def cut_into_sections(documents: Iterable[str], words: int) -> Iterator[str]:
    """Yield sections of at least `words` words, each of whole sentences; what is left at the end of a document joins
    its last section."""
    for document in documents:
        sections, size = list[list[str]](), words
        for sentence in split_sentences(document):
            if size >= words:
                sections.append([])
                size = 0
            sections[-1].append(sentence)
            size += len(sentence.split())
        if size < words and len(sections) > 1:
            short = sections.pop()
            sections[-1] += short
        yield from (" ".join(section) for section in sections)


def read_part(folder: Path, part: str, max_characters: int | None = None) -> list[str]:
    """Read the documents of a part of the corpus, of its first `max_characters` alone."""
    documents, size = list[str](), 0
    with open(folder / f"{part}.jsonl", encoding="utf-8") as file:
        for line in file:
            document = json.loads(line)["text"]
            if max_characters is not None and size + len(document) > max_characters:
                document = document[: max_characters - size]
            if document.strip():
                documents.append(document)
            size += len(document)
            if max_characters is not None and size >= max_characters:
                break
    return documents


def train_common_tokenizer(form: TextForm, family: str, corpus: Path, vocab_size: int) -> Tokenizer:
    """Train the tokenizer of a form. Those of the common kind have the same pieces in all styles, since the special
    tokens come on top of them."""
    # Pieces of characters with marks at the ends of words (GPT-1) would be another tokenizer.
    style = dataclasses.replace(find_family(family).definition.tokenizer_style, has_word_ends=False)
    documents = read_part(corpus, "train", TOKENIZER_CHARACTERS)
    lines = (line for document in documents for line in document.split("\n"))
    return train_by_kind(form.tokenizer, lines, vocab_size + len(style.special_tokens), style=style)


def prepare_form(
    form: TextForm, family: str, config: CompareConfig, folder: Path, tell: ProgressCallback = lambda *_: None
) -> JSONObject:
    """Make the tokenizer and the token stores of a form of the corpus, or open those that are there; returns their
    sizes. `family` is any that reads this form."""
    corpus, out = folder / "corpus", folder / "data" / form.name
    kept = out / "tokenizer"
    if not kept.is_dir():
        out.mkdir(parents=True, exist_ok=True)
        save_tokenizer(train_common_tokenizer(form, family, corpus, config.vocab_size), kept)
    tokenizer = load_tokenizer(kept)
    ending = "pairs.txt" if form.is_paired else "jsonl"
    sources = {"data.source": [str(corpus / f"train.{ending}")], "data.valid": [str(corpus / f"valid.{ending}")]}
    data = configure_pretraining(family, None, sources).data
    prepared = prepare_data(family, data, out, None, tokenizer, None, tell)
    return {
        "tokens": len(prepared.store.tokens), "vocab": len(tokenizer), "tokenizer": tokenizer.fingerprint,
        "valid_tokens": 0 if prepared.valid_store is None else len(prepared.valid_store.tokens),
    }  # fmt: skip
