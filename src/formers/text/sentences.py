"""Sentences by rules, for English and Korean: one regular expression finds the places where a sentence may end, a few
rules say where it does. Nothing is lost but white space between sentences.

Korean often has no end mark: 습니다, 어요, 네요 … and a space end a sentence too, and so does a new line.
"""

from __future__ import annotations

import re
from typing import Literal

from ..errors import Error

MARKS = ".!?…‼⁇⁈⁉‥"
CLOSERS = "\"'”’»)\\]}」』》〉】〕）］｝"
WIDE = "。！？｡"
LAUGH = "ㅋㅎㅠㅜㄷㅉ~^;♥♡★☆♪"  # ㅋㅋ, ㅠㅠ, ^^, ~ belong to the sentence before them
TAIL = rf"[{LAUGH}]*+(?:[^\S\n]++[{LAUGH}]++(?=\s|$|[가-힣]))*+"
# Syllables that a Korean sentence ends with, in front of a mark without a space behind it; and syllables that it goes
# on after, in front of dots (particles and endings such as 는데.., 하고.., 지만..).
FINAL = frozenset("다요죠까네군음임함됨")
GOES = frozenset("은는을를이가에의로도만고서며면던한할된될와과랑데게니까아어또")
# One set of first characters, which a search skips to. A run is never given back: time is linear whatever the text.
PLACE = re.compile(
    rf"""[{MARKS}{WIDE}\n다요까죠음](?:
    (?<=[{MARKS}])(?P<mark>[{MARKS}]*+)(?P<close>[{CLOSERS}]*+)(?P<tail>{TAIL}\s*+)
    |(?<=\n)(?P<line>\s*+)
    |(?<=[{WIDE}])(?P<wide>[{WIDE}]*+[{CLOSERS}]*+\s*+)
    |(?=[\s{LAUGH}])(?P<polite>{TAIL}\s*+)(?=[^\s{CLOSERS}{MARKS},]))""",
    re.VERBOSE,
)


def closed_by(*jamo: int) -> str:
    """All syllables that end with a consonant, by its number in Unicode's order."""
    return "".join(chr(c) for c in range(0xAC00, 0xD7A4) if (c - 0xAC00) % 28 in jamo)


def listed(*lines: str) -> frozenset[str]:
    """Words as a set."""
    return frozenset(" ".join(lines).split())


N, B, SS, BS = 4, 17, 20, 18  # ㄴ ㅂ ㅆ ㅄ
POLITE = re.compile(
    rf"(?:[{closed_by(B)}]니[다까]|[가-힣][가-힣]요|[가-힣]죠|[{closed_by(N, B, SS, BS)}같많좋이]다"
    rf"|[{closed_by(SS, BS)}]음)$"
)
NOUNS = re.compile("(?:[필주중수개소동가민강긴고]|[는은도]|근데)요$")  # 필요, 주요, 저는요: no ends
SAID = re.compile(r"(?:이?라|하|고|는|며|면|해|치|싶|보|만|가|왔|갔|말|생각)")  # 좋아요 라고, 봤다 하면, 갔다 왔다
PARTICLE = re.compile(r"(?:이?라[고는며]|하[고는며]|[고는며란를을이가은의도])")
# Quoted or bracketed text, and what follows it when the sentence goes on: “간다. 온다.”라고, "Go. Now," he said.
QUOTED = re.compile(
    r"“[^“”\n]{0,300}”|‘[^‘’\n]{0,300}’|「[^「」\n]{0,300}」|『[^『』\n]{0,300}』|\([^()\n]{0,300}\)"
    r"|\"(?<![^\s(\[]\")(?=\S)[^\"\n]{0,300}(?<=\S)\""
)
GOES_ON = re.compile(r"[^\W\d_]|[,;:]|\s++[a-z]")
TITLES = listed(
    "mr mrs ms mx dr prof st gen sen rep gov capt cpt lt col sgt maj adm cmdr rev hon pres supt mt messrs mme mlle",
    "vs viz cf e.g i.e eg ie approx ca resp incl excl eds trans",
)
NUMBERED = listed("ft no nos p pp vol vols fig figs ch chap sec sect art eq eqs tab ver op nr par")
MAY_END = listed(
    "inc ltd co corp llc plc bros jr sr etc al ave blvd rd sq dept univ assn esq oz lb lbs misc tel ext",
    "ph.d ed.d m.d u.s.a a.m p.m b.c a.d b.sc m.sc hr hrs",
    "Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec Mon Tue Tues Wed Thu Thur Thurs Fri Sat Sun Est",  # he sat.
)
STARTERS = listed(
    "the a an this that these those he she it they we you i his her its their our my your there here in on at as if",
    "when while after before since but and so yet however although though because what who how why where which",
    "no not one some many most all both each by for from with then now later soon today also even still",
)
PLAIN = re.compile("(?![ivx]{4})[a-z]{4}")
SHORTENED = frozenset(word.lower()[-4:] for word in TITLES | NUMBERED | MAY_END)
ORDER = frozenset("가나다라마바사아자차카타파하")  # as 1. 2. 3. in Korean lists
WORD = re.compile(r"[^\s\"“‘(\[]*$")
NEXT = re.compile(r"[\"'“‘(\[«「『]*([\w'’]*)")
DATE = re.compile(r"(?:^|\D)(?:\d{4}|['’]?\d{2})\.\s*(?:\d{1,2}\.\s*)?\d{1,2}$")
DAY = re.compile(r"\d{1,2}\.")
BULLET = re.compile(r"[-*•·◦▪○●□■▶※→–—]|\(?\d{1,3}[.)]\s")
WIDEST = 120  # columns of text that is broken into lines by hand
REACH = 32  # characters in front of a mark that say what it is


def split(text: str, language: Literal["auto", "en", "ko"] = "auto", *, splitter: str = "rules") -> list[str]:
    """The sentences of a text, without the white space around them; "kiwi" asks the analyser (extra `ko`)."""
    if splitter == "kiwi":
        from . import korean

        return korean.sentences(text)
    if splitter != "rules":
        raise Error(f"there is no splitter {splitter!r}", fix="choose rules or kiwi")
    return [text[start:end] for start, end in spans(text, language)]


def spans(text: str, language: Literal["auto", "en", "ko"] = "auto") -> list[tuple[int, int]]:
    """Where each sentence begins and ends."""
    if language not in ("auto", "en", "ko"):
        raise Error(f"there are no rules for the language {language!r}", fix="choose auto, en or ko")
    rules = Rules(text, language)
    found, start = [], len(text) - len(text.lstrip())
    for place in PLACE.finditer(text):
        end = place.end()
        if place.start() >= start and rules.ends(place, start) and (sentence := text[start:end].rstrip()):
            found.append((start, start + len(sentence)))
            start = end
    if rest := text[start:].strip():
        found.append((start, start + len(rest)))
    return found


class Rules:
    """What speaks for and against an end at a place of one text."""

    def __init__(self, text: str, language: str):
        self.text, self.language = text, language
        self.cased = not text.islower()  # else a small letter says nothing
        self.quotes = (q.span() for q in QUOTED.finditer(text) if GOES_ON.match(text, q.end()))
        self.opened, self.closed = 0, 0  # the quotation that the last place lay in, or the next one
        self.width = 0

    def ends(self, place: re.Match[str], start: int) -> bool:
        """Whether a sentence that began at `start` ends at this place."""
        if place["line"] is not None:
            return self.line(place)
        if self.quoted(place.start()):
            return False
        if place["polite"] is not None:
            return self.polite(place)
        return place["wide"] is not None or self.mark(place, start)

    def quoted(self, start: int) -> bool:
        """Whether a place lies in a quotation that the sentence goes on behind."""
        while self.closed <= start:
            self.opened, self.closed = next(self.quotes, (len(self.text), len(self.text) + 1))
        return self.opened < start

    def line(self, place: re.Match[str]) -> bool:
        """A new line ends a sentence, unless somebody broke the text at a column."""
        text, at, after = self.text, place.start(), place.end()
        if after == len(text) or "\n" in place["line"] or self.language == "ko":
            return True
        before = text[max(0, at - 1)]
        if BULLET.match(text, after) or "가" <= before <= "힣" or before in MARKS:
            return self.language == "auto" or not text[after].islower()
        if self.cased and text[after].islower():
            return False
        if not self.width:
            self.width = max(map(len, text.split("\n")))
        length, word = at - text.rfind("\n", 0, at) - 1, NEXT.match(text, after)
        return not 60 <= self.width <= WIDEST or length + 1 + len(word[0] if word else "") <= self.width

    def polite(self, place: re.Match[str]) -> bool:
        """A Korean ending without a mark."""
        head = self.text[max(0, place.start() - 4) : place.start() + 1]
        if self.language == "en" or not POLITE.search(head) or NOUNS.search(head):
            return False
        return not SAID.match(self.text, place.end())

    def mark(self, place: re.Match[str], start: int) -> bool:
        """An end mark, perhaps behind an abbreviation, inside a name, or of a thought that goes on."""
        text, at, after = self.text, place.start(), place.end()
        tail = place["tail"]
        if after == len(text) or tail.count("\n") > 1:
            return True
        mark, before, following = text[at : place.end("mark")], text[at - 1] if at > start else " ", text[after]
        korean = "가" <= before <= "힣" and self.language != "en"
        if not tail or tail.split() == [tail]:  # no space: 봤다.너무, 영화..너무
            ends = before in FINAL or (len(mark) > 1 and before not in GOES)
            return (
                korean and ends and not place["close"] and "가" <= following <= "힣" and not PARTICLE.match(text, after)
            )
        if before in "([" or following in ",;:)]":
            return False
        if self.cased and following.islower() and not korean and self.language != "ko":
            return False
        if mark.strip(".…‥"):  # ! or ? is in it
            return True
        if mark != ".":
            return self.dots(place, korean)
        return self.stop(place, start, before, following)

    def dots(self, place: re.Match[str], korean: bool) -> bool:
        """… ends a Korean sentence behind an ending only, an English one unless a word is said again (I… I)."""
        at = place.start()
        if korean:
            return self.text[at - 1] not in GOES
        word, again = WORD.search(self.text[max(0, at - REACH) : at]), NEXT.match(self.text, place.end())
        return not (word and again and word[0] and word[0] == again[1])

    def stop(self, place: re.Match[str], start: int, before: str, following: str) -> bool:
        """A single full stop."""
        text, at, after = self.text, place.start(), place.end()
        close = text[at - 4 : at] if at - start >= 4 else ""
        if PLAIN.fullmatch(close) and close not in SHORTENED and not place["close"]:
            return True  # behind a word like most
        head = text[max(start, at - REACH) : at]
        found = WORD.search(head)
        word = found[0] if found else ""
        first = not text[start : at - len(word)].strip("([") if at - len(word) - start < 3 else False
        if "가" <= before <= "힣":
            return not (first and word in ORDER)
        if before.isdigit():
            listed = first and len(word) < 9 and not place["close"]
            return not (listed or DAY.match(text, after) or (DATE.search(head) and not following.isupper()))
        if place["close"]:
            return True
        word = word.lstrip("'")
        name = word if word.isupper() and len(word) > 1 and "." not in word else word.lower()  # CA. is not ca.
        next_word = (NEXT.match(text, after) or [""])[0].strip("\"'“‘([«「『")
        starter = following.isupper() and next_word.lower() in STARTERS
        if first and (len(word) == 1 or re.fullmatch("[IVXivx]+", word)):  # A. IV.
            return False
        if name in TITLES or (name in NUMBERED and following.isdigit()):
            return False
        if (len(word) == 1 and word.isalpha()) or {word, name} & MAY_END or re.fullmatch(r"(?:[a-z]\.)+[a-z]", name):
            return starter or "가" <= following <= "힣"
        return True
