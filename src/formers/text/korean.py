"""Korean by its morphemes: sentences, morphemes, phrases and names, with the analyser kiwipiepy (extra `ko`)."""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from ..errors import Error

NOUNS = frozenset(("NNG", "NNP", "NNB", "NR", "SN", "SL", "SH", "XPN", "XSN", "XR", "MM"))
NAMES = frozenset(("NNP", "SL", "SH"))
COUNTED = frozenset(("NNB", "NR", "SW"))  # 2020년, 3명, 5%
LINKS = frozenset(("SO", "SP", "SW"))
MARKS = frozenset(("SF", "SP", "SS", "SSO", "SSC", "SE", "SO"))
LONGEST = 4  # words of a noun phrase
STRETCH = 20_000  # characters that are analysed at once
WORD = re.compile(r"\S+")
LONE = re.compile("[\0\ud800-\udfff]")  # the analyser stops at these


@functools.cache
def kiwi() -> Any:
    """The analyser, made once: it takes two seconds and 500 MB."""
    return make_analyser(num_workers=1)


@functools.cache
def word_analyser(process: int) -> Any:
    """The analyser of single words, made once for each process (its threads do not survive a fork): without the
    dictionary of names of several words it is there in a third of the time, and smaller by 140 MB."""
    alone = os.environ.get("TOKENIZERS_PARALLELISM") == "false"  # this process shall have one thread
    return make_analyser(num_workers=1 if alone else os.cpu_count() or 1, load_multi_dict=False)


def make_analyser(**options: Any) -> Any:
    """Make an analyser of kiwipiepy; without the package, an Error."""
    try:
        from kiwipiepy import Kiwi
    except ImportError as e:
        raise Error("Korean morphemes need the package kiwipiepy", fix='pip install "formers[ko]"') from e
    return Kiwi(**options)


def stretches(text: str) -> list[tuple[int, str]]:
    """Parts that are analysed one after the other, cut at line ends or spaces, and where they begin."""
    found, start = [], 0
    while start < len(text):
        end = start + STRETCH
        if end < len(text):
            cut = max(text.rfind("\n", start, end), text.rfind(" ", start, end)) + 1
            end = cut if cut > start else end
        found.append((start, LONE.sub(" ", text[start:end])))
        start = end
    return found


def sentences(text: str) -> list[str]:
    """The sentences of a text; what the analyser passes over stays with the sentence before it."""
    found = [text[begin:end].strip() for begin, end in itertools.pairwise([*begins(text), len(text)])]
    return [sentence for sentence in found if sentence]


def begins(text: str) -> list[int]:
    """Where the sentences of a text begin."""
    found = []
    for at, part in stretches(text):
        found += [at, *(at + s.start for s in kiwi().split_into_sents(part)[1:])]
    return found


def tokens(text: str) -> list[tuple[int, int, str]]:
    """(begin, end, tag) of each morpheme that has characters of its own in the text, in their order."""
    found: list[tuple[int, int, str]] = []
    for at, part in stretches(text):
        add_tokens(found, kiwi().tokenize(part), text, at)
    return found


def add_tokens(found: list[tuple[int, int, str]], analysed: Iterable[Any], text: str, at: int = 0) -> None:
    """Add (begin, end, tag) of the analyser's tokens of a part of a text that begins `at` a place.

    Morphemes that share a syllable (갔 = 가 + 았) are one, with the first one's tag; no morpheme goes over a space.
    """
    last = found[-1][1] if found else 0
    for token in analysed:
        begin, end = max(last, at + token.start), at + token.start + token.len
        for word in WORD.finditer(text, begin, max(begin, end)):
            found.append((word.start(), word.end(), token.tag))
            last = word.end()


def whole(text: str) -> list[tuple[int, int, str]]:
    """The morphemes, and between them what the analyser passed over: all characters but white space."""
    return fill_gaps(tokens(text), text)


def fill_gaps(morphemes: list[tuple[int, int, str]], text: str) -> list[tuple[int, int, str]]:
    """The morphemes of a text, and between them what the analyser passed over."""
    found, last = [], 0
    for begin, end, tag in [*morphemes, (len(text), len(text), "")]:
        if last < begin:
            found += [(m.start(), m.end(), "SW") for m in WORD.finditer(text, last, begin)]
        if begin < end:
            found.append((begin, end, tag))
        last = end
    return found


def split_words(words: list[str]) -> Iterator[list[str]]:
    """Yield the morphemes of each of many words, as they are written; each word is analysed by itself."""
    for word, analysed in zip(words, word_analyser(os.getpid()).tokenize(words), strict=True):
        found: list[tuple[int, int, str]] = []
        add_tokens(found, analysed, word)
        yield [word[begin:end] for begin, end, _ in fill_gaps(found, word)]


def morphemes(text: str) -> list[str]:
    """The morphemes as they are written; put together, they are the text without white space."""
    return [text[begin:end] for begin, end, _ in whole(text)]


def units(text: str) -> list[tuple[int, int, str]]:
    """Spans of whole units: "entity" for names and numbers with what they count, "phrase" for the words between them.

    A name may have several words (안나 카레니나), and so may a number (2020년 3월). A phrase is a word with its
    particles, together with the bare nouns in front of it (국립 중앙 박물관에서). Punctuation belongs to no unit.
    """
    found: list[tuple[int, int, str]] = []
    nouns = 0  # bare nouns at the end of the phrase so far
    for word in words(whole(text)):
        bare = all(tag in NOUNS for _, _, tag in word)
        for begin, end, kind in parts(word):
            beside = found and begin == word[0][0] and found[-1][2] == kind and text[found[-1][1] : begin] == " "
            if beside and (kind != "phrase" or 0 < nouns < LONGEST):
                begin = found.pop()[0]
            found.append((begin, end, kind))
        nouns = nouns + 1 if bare and found and found[-1][2] == "phrase" else 0
    return [(begin, end, "phrase" if kind == "phrase" else "entity") for begin, end, kind in found]


def words(morphemes: list[tuple[int, int, str]]) -> list[list[tuple[int, int, str]]]:
    """Morphemes that no white space divides."""
    found: list[list[tuple[int, int, str]]] = []
    for item in morphemes:
        if found and found[-1][-1][1] == item[0]:
            found[-1].append(item)
        else:
            found.append([item])
    return found


def parts(word: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """One word cut into names, numbers and the rest, without its punctuation."""
    found: list[tuple[int, int, str]] = []
    last = ""  # kind of the morpheme before
    for (begin, end, tag), (_, _, following) in itertools.pairwise([*word, (0, 0, "")]):
        counted = last == "number" and (tag in COUNTED or (tag == "NNG" and end - begin == 1))
        link = tag in LINKS and last in ("name", "number") and following in (*NAMES, "SN")  # GPT-2
        kind = "name" if tag in NAMES else "number" if tag == "SN" or counted else last if link else "phrase"
        last = "" if tag in MARKS and not link else kind
        if last and found and found[-1][1] == begin and (found[-1][2] == kind or "phrase" not in (found[-1][2], kind)):
            begin, kind = found[-1][0], found.pop()[2]
        if last:
            found.append((begin, end, kind))
    return found
