"""Korean by its morphemes: sentences, morphemes, phrases and names, with the analyser kiwipiepy (extra `ko`). Words are
cut into morphemes before a tokenizer sees them. The Rust library knows no morphemes, so a mark stands between them: a
tokenizer whose file knows the mark wants its text cut, and that survives saving and loading."""

from __future__ import annotations

import functools
import itertools
import os
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..errors import Error
from .normalise import normalise

if TYPE_CHECKING:
    from kiwipiepy import Kiwi, Token

NOUN_TAGS = frozenset(("NNG", "NNP", "NNB", "NR", "SN", "SL", "SH", "XPN", "XSN", "XR", "MM"))
NAME_TAGS = frozenset(("NNP", "SL", "SH"))
COUNTER_TAGS = frozenset(("NNB", "NR", "SW"))  # 2020년, 3명, 5%
LINK_TAGS = frozenset(("SO", "SP", "SW"))
PUNCTUATION_TAGS = frozenset(("SF", "SP", "SS", "SSO", "SSC", "SE", "SO"))
MAX_PHRASE_WORDS = 4  # words of a noun phrase
STRETCH_CHARACTERS = 20_000  # characters that are analysed at once
WORD_PATTERN = re.compile(r"\S+")
UNANALYSABLE = re.compile("[\0\ud800-\udfff]")  # the analyser stops at these


@functools.cache
def get_analyser() -> Kiwi:
    """Return the analyser, made once: it takes two seconds and 500 MB."""
    return make_analyser(num_workers=1)


@functools.cache
def get_word_analyser(process: int) -> Kiwi:
    """Return the analyser of single words, made once a process (its threads do not survive a fork): without the
    dictionary of names of several words it is there in a third of the time, and smaller by 140 MB."""
    alone = os.environ.get("TOKENIZERS_PARALLELISM") == "false"  # this process shall have one thread
    return make_analyser(num_workers=1 if alone else os.cpu_count() or 1, load_multi_dict=False)


def make_analyser(**options: int | bool) -> Kiwi:
    """Make an analyser of kiwipiepy; without the package, an Error."""
    try:
        from kiwipiepy import Kiwi
    except ImportError as e:
        raise Error("Korean morphemes need the package kiwipiepy", fix='pip install "formers[ko]"') from e
    return Kiwi(**options)


def split_stretches(text: str) -> list[tuple[int, str]]:
    """Cut a text at line ends or spaces into parts that are analysed in turn; return them and where they begin."""
    stretches, start = [], 0
    while start < len(text):
        end = start + STRETCH_CHARACTERS
        if end < len(text):
            cut = max(text.rfind("\n", start, end), text.rfind(" ", start, end)) + 1
            end = cut if cut > start else end
        stretches.append((start, UNANALYSABLE.sub(" ", text[start:end])))
        start = end
    return stretches


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text; what the analyser passes over stays with the sentence before it."""
    sentences = [text[begin:end].strip() for begin, end in itertools.pairwise([*find_sentence_starts(text), len(text)])]
    return [sentence for sentence in sentences if sentence]


def find_sentence_starts(text: str) -> list[int]:
    """Find where the sentences of a text begin."""
    stretches = ((at, get_analyser().split_into_sents(part)[1:]) for at, part in split_stretches(text))
    return [start for at, others in stretches for start in (at, *(at + sentence.start for sentence in others))]


def tag_morphemes(text: str) -> list[tuple[int, int, str]]:
    """(begin, end, tag) of each morpheme that has characters of its own in the text, in their order."""
    morphemes: list[tuple[int, int, str]] = []
    for at, part in split_stretches(text):
        add_morphemes(morphemes, get_analyser().tokenize(part), text, at)
    return morphemes


def add_morphemes(morphemes: list[tuple[int, int, str]], analysed: Iterable[Token], text: str, at: int = 0) -> None:
    """Add (begin, end, tag) of the analyser's tokens of a part of a text that begins `at` a place.
    Morphemes that share a syllable (갔 = 가 + 았) are one, with the first one's tag; no morpheme goes over a
    space."""
    last = morphemes[-1][1] if morphemes else 0
    for token in analysed:
        begin, end = max(last, at + token.start), at + token.start + token.len
        for word in WORD_PATTERN.finditer(text, begin, max(begin, end)):
            morphemes.append((word.start(), word.end(), token.tag))
            last = word.end()


def tag_text(text: str) -> list[tuple[int, int, str]]:
    """Return the morphemes, and between them what the analyser passed over: all characters but white space."""
    return fill_gaps(tag_morphemes(text), text)


def fill_gaps(morphemes: list[tuple[int, int, str]], text: str) -> list[tuple[int, int, str]]:
    """Return the morphemes of a text, and between them what the analyser passed over."""
    pieces, last = [], 0
    for begin, end, tag in [*morphemes, (len(text), len(text), "")]:
        if last < begin:
            pieces += [(m.start(), m.end(), "SW") for m in WORD_PATTERN.finditer(text, last, begin)]
        if begin < end:
            pieces.append((begin, end, tag))
        last = end
    return pieces


def split_words(words: list[str]) -> Iterator[list[str]]:
    """Yield the morphemes of each of many words, as they are written; each word is analysed alone."""
    for word, analysed in zip(words, get_word_analyser(os.getpid()).tokenize(words), strict=True):
        parts: list[tuple[int, int, str]] = []
        add_morphemes(parts, analysed, word)
        yield [word[begin:end] for begin, end, _ in fill_gaps(parts, word)]


def split_morphemes(text: str) -> list[str]:
    """Return the morphemes as they are written; put together, they are the text without white space."""
    return [text[begin:end] for begin, end, _ in tag_text(text)]


def find_units(text: str) -> list[tuple[int, int, str]]:
    """Find whole units: "entity" for names and numbers with what they count, "phrase" for the words
    between them. A name may have several words (안나 카레니나), and so may a number (2020년 3월). A phrase is a
    word with its particles, together with the bare nouns in front of it (국립 중앙 박물관에서). Punctuation
    belongs to no unit."""
    units: list[tuple[int, int, str]] = []
    nouns = 0  # bare nouns at the end of the phrase so far
    for word in group_words(tag_text(text)):
        bare = all(tag in NOUN_TAGS for _, _, tag in word)
        for begin, end, kind in split_word_units(word):
            beside = units and begin == word[0][0] and units[-1][2] == kind and text[units[-1][1] : begin] == " "
            if beside and (kind != "phrase" or 0 < nouns < MAX_PHRASE_WORDS):
                begin = units.pop()[0]
            units.append((begin, end, kind))
        nouns = nouns + 1 if bare and units and units[-1][2] == "phrase" else 0
    return [(begin, end, "phrase" if kind == "phrase" else "entity") for begin, end, kind in units]


def group_words(morphemes: list[tuple[int, int, str]]) -> list[list[tuple[int, int, str]]]:
    """Group morphemes that no white space divides."""
    groups: list[list[tuple[int, int, str]]] = []
    for item in morphemes:
        if groups and groups[-1][-1][1] == item[0]:
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def split_word_units(word: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Split one word into names, numbers and the rest, without its punctuation."""
    units: list[tuple[int, int, str]] = []
    last = ""  # kind of the morpheme before
    for (begin, end, tag), (_, _, following) in itertools.pairwise([*word, (0, 0, "")]):
        counted = last == "number" and (tag in COUNTER_TAGS or (tag == "NNG" and end - begin == 1))
        link = tag in LINK_TAGS and last in ("name", "number") and following in (*NAME_TAGS, "SN")  # GPT-2
        kind = "name" if tag in NAME_TAGS else "number" if tag == "SN" or counted else last if link else "phrase"
        last = "" if tag in PUNCTUATION_TAGS and not link else kind
        if last and units and units[-1][1] == begin and (units[-1][2] == kind or "phrase" not in (units[-1][2], kind)):
            begin, kind = units[-1][0], units.pop()[2]
        if last:
            units.append((begin, end, kind))
    return units


MORPHEME_MARK = "\u034f"  # Unicode's own grapheme joiner, which no font shows
HANGUL_WORD = re.compile("[가-힣]{1,500}")  # what is analysed: Hangul alone, so that 영화 and 영화. are the same word
# A mark with nothing before it, or nothing after.
LOOSE_MARK = re.compile(rf"(?<!\S){MORPHEME_MARK}|{MORPHEME_MARK}(?=\s|{MORPHEME_MARK}|$)")
MARKED_WORDS: dict[str, str] = {}  # words analysed before, with a MORPHEME_MARK between their morphemes
MAX_MARKED_WORDS = 1 << 19  # of them are remembered


def mark_morphemes(texts: Sequence[str]) -> list[str]:
    """Return composed texts with a MORPHEME_MARK between the morphemes of each Korean word, and between Hangul and
    whatever else is written together with it (3명, AI는, 영화ㅋㅋ).

    A word is analysed alone: it is cut alike wherever it stands, and only once. Words without Hangul stay whole.
    Words that are new go to the analyser together, which reads them on several threads."""
    words = dict.fromkeys(word for text in texts for word in HANGUL_WORD.findall(text))
    if new := [word for word in words if word not in MARKED_WORDS]:
        if len(MARKED_WORDS) + len(new) > MAX_MARKED_WORDS:
            MARKED_WORDS.clear()
            new = list(words)
        for word, parts in zip(new, split_words(new), strict=True):
            MARKED_WORDS[word] = MORPHEME_MARK.join(parts)
    marked = (HANGUL_WORD.sub(lambda w: f"{MORPHEME_MARK}{MARKED_WORDS[w[0]]}{MORPHEME_MARK}", text) for text in texts)
    return [LOOSE_MARK.sub("", text) for text in marked]


def strip_morpheme_marks(text: str) -> str:
    """Return a text in NFC without any MORPHEME_MARK of its own."""
    return normalise(text).replace(MORPHEME_MARK, "")


def mark_with_origins(text: str) -> tuple[str, list[int]]:
    """Mark a composed text with MORPHEME_MARK between each word's morphemes, and say where each character comes from; a
    mark belongs to the character after it."""
    ready = mark_morphemes([strip_morpheme_marks(text)])[0]
    # Decomposed, both texts are alike, so that what comes before a character has the same length in both.
    sizes = [[len(unicodedata.normalize("NFD", c)) * (c != MORPHEME_MARK) for c in part] for part in (text, ready)]
    ends, begins = list(itertools.accumulate(sizes[0])), itertools.accumulate(sizes[1], initial=0)
    return ready, [min(bisect_right(ends, begin), len(text) - 1) for begin, _ in zip(begins, ready, strict=False)]
