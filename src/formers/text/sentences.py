"""Sentences by rules, for English and Korean: one regular expression finds the places where a sentence may end, a few
rules say where it does. Nothing is lost but white space between sentences.

Korean often has no end mark: 습니다, 어요, 네요 … and a space end a sentence too, and so does a new line.

Names and numbers in English text, found by rule as well: what ERNIE hides as entities where there is no analyser."""

from __future__ import annotations

import itertools
import re
from typing import Literal

from ..errors import Error

END_MARKS = ".!?…‼⁇⁈⁉‥"
CLOSERS = "\"'”’»)\\]}」』》〉】〕）］｝"
WIDE_END_MARKS = "。！？｡"
EMOTICON_CHARACTERS = "ㅋㅎㅠㅜㄷㅉ~^;♥♡★☆♪"  # ㅋㅋ, ㅠㅠ, ^^, ~ belong to the sentence before them
EMOTICON_TAIL = rf"[{EMOTICON_CHARACTERS}]*+(?:[^\S\n]++[{EMOTICON_CHARACTERS}]++(?=\s|$|[가-힣]))*+"
# Syllables that a Korean sentence ends with, in front of a mark without a space after it; and syllables that it goes
# on after, in front of dots (particles and endings such as 는데.., 하고.., 지만..).
FINAL_SYLLABLES = frozenset("다요죠까네군음임함됨")
NON_FINAL_SYLLABLES = frozenset("은는을를이가에의로도만고서며면던한할된될와과랑데게니까아어또")
# One set of first characters, which a search skips to. A run is never given back: time is linear whatever the text.
CANDIDATE_END = re.compile(
    rf"""[{END_MARKS}{WIDE_END_MARKS}\n다요까죠음](?:
    (?<=[{END_MARKS}])(?P<mark>[{END_MARKS}]*+)(?P<close>[{CLOSERS}]*+)(?P<tail>{EMOTICON_TAIL}\s*+)
    |(?<=\n)(?P<line>\s*+)
    |(?<=[{WIDE_END_MARKS}])(?P<wide>[{WIDE_END_MARKS}]*+[{CLOSERS}]*+\s*+)
    |(?=[\s{EMOTICON_CHARACTERS}])(?P<polite>{EMOTICON_TAIL}\s*+)(?=[^\s{CLOSERS}{END_MARKS},]))""",
    re.VERBOSE,
)


def find_syllables(*jamo: int) -> str:
    """Return all syllables that end with a consonant, by its number in Unicode's order."""
    return "".join(chr(c) for c in range(0xAC00, 0xD7A4) if (c - 0xAC00) % 28 in jamo)


def parse_words(words: str) -> frozenset[str]:
    """Return words with spaces between them as a set."""
    return frozenset(words.split())


CODA_N, CODA_B, CODA_SS, CODA_BS = 4, 17, 20, 18  # ㄴ ㅂ ㅆ ㅄ
POLITE_ENDING = re.compile(
    rf"(?:[{find_syllables(CODA_B)}]니[다까]|[가-힣][가-힣]요|[가-힣]죠"
    rf"|[{find_syllables(CODA_N, CODA_B, CODA_SS, CODA_BS)}같많좋이]다"
    rf"|[{find_syllables(CODA_SS, CODA_BS)}]음)$"
)
NON_ENDING = re.compile("(?:[필주중수개소동가민강긴고]|[는은도]|근데)요$")  # 필요, 주요, 저는요: no ends
# 좋아요 라고, 봤다 하면, 갔다 왔다
QUOTING_WORD = re.compile(r"(?:이?라|하|고|는|며|면|해|치|싶|보|만|가|왔|갔|말|생각)")
PARTICLE = re.compile(r"(?:이?라[고는며]|하[고는며]|[고는며란를을이가은의도])")
# Quoted or bracketed text, and what follows it when the sentence continues: “간다. 온다.”라고, "Go. Now," he said.
QUOTATION = re.compile(
    r"“[^“”\n]{0,300}”|‘[^‘’\n]{0,300}’|「[^「」\n]{0,300}」|『[^『』\n]{0,300}』|\([^()\n]{0,300}\)"
    r"|\"(?<![^\s(\[]\")(?=\S)[^\"\n]{0,300}(?<=\S)\""
)
CONTINUATION = re.compile(r"[^\W\d_]|[,;:]|\s++[a-z]")
TITLE_ABBREVIATIONS = parse_words(
    """mr mrs ms mx dr prof st gen sen rep gov capt cpt lt col sgt maj adm cmdr rev hon pres supt mt messrs mme mlle
    vs viz cf e.g i.e eg ie approx ca resp incl excl eds trans"""
)
NUMBER_ABBREVIATIONS = parse_words("ft no nos p pp vol vols fig figs ch chap sec sect art eq eqs tab ver op nr par")
FINAL_ABBREVIATIONS = parse_words(  # months and days are capitals: he sat.
    """inc ltd co corp llc plc bros jr sr etc al ave blvd rd sq dept univ assn esq oz lb lbs misc tel ext
    ph.d ed.d m.d u.s.a a.m p.m b.c a.d b.sc m.sc hr hrs
    Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec Mon Tue Tues Wed Thu Thur Thurs Fri Sat Sun Est"""
)
SENTENCE_STARTERS = parse_words(
    """the a an this that these those he she it they we you i his her its their our my your there here in on at as if
    when while after before since but and so yet however although though because what who how why where which
    no not one some many most all both each by for from with then now later soon today also even still"""
)
PLAIN_WORD_TAIL = re.compile("(?![ivx]{4})[a-z]{4}")
ABBREVIATION_TAILS = frozenset(
    word.lower()[-4:] for word in TITLE_ABBREVIATIONS | NUMBER_ABBREVIATIONS | FINAL_ABBREVIATIONS
)
LIST_SYLLABLES = frozenset("가나다라마바사아자차카타파하")  # as 1. 2. 3. in Korean lists
LAST_WORD = re.compile(r"[^\s\"“‘(\[]*$")
NEXT_WORD = re.compile(r"[\"'“‘(\[«「『]*([\w'’]*)")
DATE = re.compile(r"(?:^|\D)(?:\d{4}|['’]?\d{2})\.\s*(?:\d{1,2}\.\s*)?\d{1,2}$")
DAY = re.compile(r"\d{1,2}\.")
BULLET = re.compile(r"[-*•·◦▪○●□■▶※→–—]|\(?\d{1,3}[.)]\s")
MAX_COLUMNS = 120  # columns of text that is broken into lines by hand
CONTEXT_CHARACTERS = 32  # characters in front of a mark that say what it is


def split_sentences(text: str, language: Literal["auto", "en", "ko"] = "auto", *, splitter: str = "rules") -> list[str]:
    """Return the sentences of a text, without the white space around them; "kiwi" asks the analyser (extra `ko`)."""
    if splitter == "kiwi":
        from . import korean

        return korean.split_sentences(text)
    if splitter != "rules":
        raise Error(f"there is no splitter {splitter!r}", fix="choose rules or kiwi")
    return [text[start:end] for start, end in find_sentence_spans(text, language)]


def find_sentence_spans(text: str, language: Literal["auto", "en", "ko"] = "auto") -> list[tuple[int, int]]:
    """Find where each sentence begins and ends."""
    if language not in ("auto", "en", "ko"):
        raise Error(f"there are no rules for the language {language!r}", fix="choose auto, en or ko")
    rules = SentenceEndRules(text, language)
    spans, start = [], len(text) - len(text.lstrip())
    for place in CANDIDATE_END.finditer(text):
        end = place.end()
        if place.start() >= start and rules.is_end(place, start) and (sentence := text[start:end].rstrip()):
            spans.append((start, start + len(sentence)))
            start = end
    if rest := text[start:].strip():
        spans.append((start, start + len(rest)))
    return spans


class SentenceEndRules:
    """What speaks for and against an end at a place of one text."""

    def __init__(self, text: str, language: str):
        self.text, self.language = text, language
        self.has_capitals = not text.islower()  # else a small letter says nothing
        self.quote_spans = (q.span() for q in QUOTATION.finditer(text) if CONTINUATION.match(text, q.end()))
        self.quote_begin, self.quote_end = 0, 0  # the quotation that the last place lay in, or the next one
        self.line_width = 0

    def is_end(self, place: re.Match[str], start: int) -> bool:
        """Return whether a sentence that began at `start` ends at this place."""
        kind = place.lastgroup
        if kind == "line":
            return self.is_line_end(place)
        if self.is_inside_quote(place.start()):
            return False
        if kind == "polite":
            return self.is_polite_end(place)
        return kind == "wide" or self.is_mark_end(place, start)

    def is_inside_quote(self, start: int) -> bool:
        """Return whether a place lies in a quotation after which the sentence continues."""
        while self.quote_end <= start:
            self.quote_begin, self.quote_end = next(self.quote_spans, (len(self.text), len(self.text) + 1))
        return self.quote_begin < start

    def is_line_end(self, place: re.Match[str]) -> bool:
        """Return whether a new line ends a sentence: it does unless somebody broke the text at a column."""
        text, at, after = self.text, place.start(), place.end()
        if after == len(text) or "\n" in place["line"] or self.language == "ko":
            return True
        before = text[max(0, at - 1)]
        if BULLET.match(text, after) or "가" <= before <= "힣" or before in END_MARKS:
            return self.language == "auto" or not text[after].islower()
        if self.has_capitals and text[after].islower():
            return False
        if not self.line_width:
            self.line_width = max(map(len, text.split("\n")))
        length, word = at - text.rfind("\n", 0, at) - 1, NEXT_WORD.match(text, after)
        return not 60 <= self.line_width <= MAX_COLUMNS or length + 1 + len(word[0] if word else "") <= self.line_width

    def is_polite_end(self, place: re.Match[str]) -> bool:
        """Return whether a Korean ending without a mark stands here."""
        head = self.text[max(0, place.start() - 4) : place.start() + 1]
        if self.language == "en" or not POLITE_ENDING.search(head) or NON_ENDING.search(head):
            return False
        return not QUOTING_WORD.match(self.text, place.end())

    def is_mark_end(self, place: re.Match[str], start: int) -> bool:
        """Return whether a mark ends a sentence: not after an abbreviation, in a name, or in mid-thought."""
        text, at, after = self.text, place.start(), place.end()
        tail = place["tail"]
        if after == len(text) or tail.count("\n") > 1:
            return True
        mark, before, following = text[at : place.end("mark")], text[at - 1] if at > start else " ", text[after]
        korean = "가" <= before <= "힣" and self.language != "en"
        if tail != " " and (not tail or tail.split() == [tail]):  # no space: 봤다.너무, 영화..너무
            ends = before in FINAL_SYLLABLES or (len(mark) > 1 and before not in NON_FINAL_SYLLABLES)
            follows = "가" <= following <= "힣" and not PARTICLE.match(text, after)
            return korean and ends and not place["close"] and follows
        if before in "([" or following in ",;:)]":
            return False
        if self.has_capitals and following.islower() and not korean and self.language != "ko":
            return False
        if mark.strip(".…‥"):  # ! or ? is in it
            return True
        if mark != ".":
            return self.is_ellipsis_end(place, korean)
        return self.is_period_end(place, start, before, following)

    def is_ellipsis_end(self, place: re.Match[str], korean: bool) -> bool:
        """Return whether … ends a sentence: a Korean one after an ending, English unless a word recurs (I… I)."""
        at = place.start()
        if korean:
            return self.text[at - 1] not in NON_FINAL_SYLLABLES
        word = LAST_WORD.search(self.text[max(0, at - CONTEXT_CHARACTERS) : at])
        again = NEXT_WORD.match(self.text, place.end())
        return not (word and again and word[0] and word[0] == again[1])

    def is_period_end(self, place: re.Match[str], start: int, before: str, following: str) -> bool:
        """Return whether a single full stop ends the sentence."""
        if before.isspace():  # no word: the full stops of text whose tokens have spaces between them
            return True
        text, at, after = self.text, place.start(), place.end()
        close = text[at - 4 : at] if at - start >= 4 else ""
        if PLAIN_WORD_TAIL.fullmatch(close) and close not in ABBREVIATION_TAILS and not place["close"]:
            return True  # after a word like most
        head = text[max(start, at - CONTEXT_CHARACTERS) : at]
        match = LAST_WORD.search(head)
        word = match[0] if match else ""
        first = not text[start : at - len(word)].strip("([") if at - len(word) - start < 3 else False
        if "가" <= before <= "힣":
            return not (first and word in LIST_SYLLABLES)
        if before.isdigit():
            listed = first and len(word) < 9 and not place["close"]
            return not (listed or DAY.match(text, after) or (DATE.search(head) and not following.isupper()))
        if place["close"]:
            return True
        word = word.lstrip("'")
        name = word if word.isupper() and len(word) > 1 and "." not in word else word.lower()  # CA. is not ca.
        next_word = (NEXT_WORD.match(text, after) or [""])[0].strip("\"'“‘([«「『")
        starter = following.isupper() and next_word.lower() in SENTENCE_STARTERS
        if first and (len(word) == 1 or re.fullmatch("[IVXivx]+", word)):  # A. IV.
            return False
        if name in TITLE_ABBREVIATIONS or (name in NUMBER_ABBREVIATIONS and following.isdigit()):
            return False
        initials = (len(word) == 1 and word.isalpha()) or re.fullmatch(r"(?:[a-z]\.)+[a-z]", name)
        if initials or {word, name} & FINAL_ABBREVIATIONS:
            return starter or "가" <= following <= "힣"
        return True


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
    """Find where names and numbers begin and end: runs of capitalised words and numbers, with of, van … inside. The
    first word of a sentence counts if a name follows it or if it is capitalised elsewhere in the text, and never if it
    is a common word. Runs of more than six words, or of more than three in capitals, are headlines."""
    words = list(WORD_PATTERN.finditer(text))
    opens = [is_sentence_start(text, a, b) for a, b in itertools.pairwise([None, *words])]
    # As words look inside a sentence.
    inside = {POSSESSIVE.sub("", w.group()) for w, first in zip(words, opens, strict=True) if not first}
    kinds = [classify_word(w.group()) for w in words]
    run: list[int] = []
    runs = [run]
    for i, word in enumerate(words):
        if run and not can_join(text, words[run[-1]], word):
            runs.append(run := [])
        counts = kinds[i] == "count" and run and kinds[run[-1]] == "number"  # what a number counts may follow it
        if kinds[i] in ("name", "number") or (kinds[i] == "link" and run) or counts:
            run.append(i)
        elif run:
            runs.append(run := [])
    return [name for run in runs for name in trim_name(words, run, kinds, opens, inside)]


def classify_word(word: str) -> str:
    """Classify a word: name, number, link (of), count (million), or nothing."""
    if word[0].isdigit():
        return "number"
    if word[0].isupper() and POSSESSIVE.sub("", word) != "I":
        return "name"
    return "link" if word in NAME_LINKS else "count" if word in NUMBER_UNITS else ""


def is_sentence_start(text: str, before: re.Match[str] | None, word: re.Match[str] | None) -> bool:
    """Return whether a sentence or a quotation begins with a word; the full stop of an initial or title ends none."""
    if before is None or word is None:
        return True
    gap = text[before.end() : word.start()]
    if gap.startswith(".") and is_abbreviation(before.group()):
        gap = gap[1:]
    return any(mark in gap for mark in '.!?…:\n"“‘(') or " '" in gap


def is_abbreviation(word: str) -> bool:
    """Return whether a word is an initial, a title, or letters with full stops between them (U.S)."""
    return len(word) == 1 or word.lower() in TITLES or bool(re.fullmatch(r"\w(?:\.\w)+", word))


def can_join(text: str, before: re.Match[str], word: re.Match[str]) -> bool:
    """Return whether two words may be of one name: a blank between them, or the full stop of an initial or title."""
    gap = text[before.end() : word.start()]
    near = gap == " " or (gap in (".", ". ") and is_abbreviation(before.group()))
    return near and not POSSESSIVE.search(before.group())


def trim_name(
    words: list[re.Match[str]], run: list[int], kinds: list[str], opens: list[bool], inside: set[str]
) -> list[tuple[int, int]]:
    """Return the name in a run of words, if it is one: without links at its end and without a common first word."""
    run = list(run)
    while run and kinds[run[-1]] == "link":
        run.pop()
    while run and kinds[run[0]] == "name" and opens[run[0]]:
        first = POSSESSIVE.sub("", words[run[0]].group())
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
