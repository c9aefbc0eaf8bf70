"""Names and numbers in English text, found by rule: what ERNIE hides as entities where there is no analyser."""

from __future__ import annotations

import itertools
import re

from .sentences import parse_words

WORD_PATTERN = re.compile(r"[^\W_]+(?:[&.,](?=[^\W_])[^\W_]+|['’-][^\W_]+)*%?")
POSSESSIVE = re.compile(r"['’](?:s|S|ll|re|ve|d|m)$")


NAME_LINKS = parse_words("of the de der den di da del la le van von bin al")  # inside a name: Bank of England
TITLES = parse_words("mr mrs ms dr prof st gen sen rep lt col capt sgt rev hon jr sr mt no vs")
NUMBER_UNITS = parse_words("percent hundred thousand million billion trillion km kg cm mm am pm bc ad")
COMMON_OPENERS = parse_words(  # words that begin a sentence far more often than a name
    """a about after again all also although an and another any are as at because before both but by can could did do
    does each either even every few finally first for from had has have he her here his how however i if in indeed is it
    its just last later like many may maybe me meanwhile more most much my neither never next no nor not nothing now
    of often oh on once one only or other our over perhaps please rather rt second several she should since so some
    soon still such suddenly than thanks that the their them then there therefore these they this those though three
    through thus to today together tomorrow tonight too two under unless until upon very was we well were what when
    whenever where whether which while who whose why will with within without would yes yesterday yet you your"""
)
MAX_NAME_WORDS = 6  # words; a longer run is a headline


def find_names(text: str) -> list[tuple[int, int]]:
    """Where names and numbers begin and end: runs of capitalised words and numbers, with of, van … inside.

    The first word of a sentence counts if a name follows it or if it is capitalised elsewhere in the text, and never if
    it is a common word. Runs of more than six words, or of more than three in capitals, are headlines.
    """
    words = list(WORD_PATTERN.finditer(text))
    opens = [is_sentence_start(text, a, b) for a, b in itertools.pairwise([None, *words])]
    # As words look inside a sentence.
    inside = {strip_possessive(w.group()) for w, first in zip(words, opens, strict=True) if not first}
    kinds = [classify_word(w.group()) for w in words]
    found: list[tuple[int, int]] = []
    run: list[int] = []
    for i, word in enumerate(words):
        if run and not can_join(text, words[run[-1]], word):
            found += trim_name(words, run, kinds, opens, inside)
            run = []
        counts = kinds[i] == "count" and run and kinds[run[-1]] == "number"  # what a number counts may follow it
        if kinds[i] in ("name", "number") or (kinds[i] == "link" and run) or counts:
            run.append(i)
        elif run:
            found += trim_name(words, run, kinds, opens, inside)
            run = []
    return found + (trim_name(words, run, kinds, opens, inside) if run else [])


def classify_word(word: str) -> str:
    """name, number, link (of), count (million), or nothing."""
    if word[0].isdigit():
        return "number"
    if word[0].isupper() and strip_possessive(word) != "I":
        return "name"
    return "link" if word in NAME_LINKS else "count" if word in NUMBER_UNITS else ""


def strip_possessive(word: str) -> str:
    """A word without the 's or 'll at its end."""
    return POSSESSIVE.sub("", word)


def is_sentence_start(text: str, before: re.Match[str] | None, word: re.Match[str] | None) -> bool:
    """Whether a sentence or a quotation begins with a word; the full stop of an initial or a title ends none."""
    if before is None or word is None:
        return True
    gap = text[before.end() : word.start()]
    if gap.startswith(".") and is_abbreviation(before.group()):
        gap = gap[1:]
    return any(mark in gap for mark in '.!?…:\n"“‘(') or " '" in gap


def is_abbreviation(word: str) -> bool:
    """An initial, a title, or letters with full stops between them (U.S)."""
    return len(word) == 1 or word.lower() in TITLES or bool(re.fullmatch(r"\w(?:\.\w)+", word))


def can_join(text: str, before: re.Match[str], word: re.Match[str]) -> bool:
    """Whether two words may be of one name: a blank between them, or the full stop of an initial or a title."""
    gap = text[before.end() : word.start()]
    return not POSSESSIVE.search(before.group()) and (
        gap == " " or (gap in (".", ". ") and is_abbreviation(before.group()))
    )


def trim_name(
    words: list[re.Match[str]], run: list[int], kinds: list[str], opens: list[bool], inside: set[str]
) -> list[tuple[int, int]]:
    """The name that a run of words is, if it is one: without links at its end and without a common first word."""
    run = list(run)
    while run and kinds[run[-1]] == "link":
        run.pop()
    while run and kinds[run[0]] == "name" and opens[run[0]]:
        first = strip_possessive(words[run[0]].group())
        if first.lower() in COMMON_OPENERS or (first.lower() in inside and first not in inside):
            run = run[1:]  # The United Nations
        elif len(run) == 1 and first not in inside and not (len(first) > 1 and first.isupper()):
            return []  # it may be any word; NASA is a name
        else:
            break
    while run and kinds[run[0]] == "link":
        run = run[1:]
    if not run or len(run) > MAX_NAME_WORDS or (len(run) > 3 and all(words[i].group().isupper() for i in run)):
        return []
    last = words[run[-1]]
    owned = POSSESSIVE.search(last.group())
    return [(words[run[0]].start(), last.start() + owned.start() if owned else last.end())]
