"""Measures of texts by what they share with the right ones: SQuAD's and KorQuAD's, BLEU and chrF, ROUGE."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import Error
from ..text.normalise import composed

ARTICLE = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
KORQUAD = str.maketrans(dict.fromkeys("'\"《》<>〈〉()‘’", " "))  # the signs that KorQuAD's script takes for spaces
HANGUL = re.compile("[가-힣ㄱ-ㅣᄀ-ᇿ]")
UNITS = ("words", "characters", "morphemes")


def questions(
    truths: list[Any], guesses: list[str], language: str | None = None, version: int | None = None
) -> dict[str, float]:
    """F1 and exact match as SQuAD's scripts count them; `language` ko is KorQuAD's, by characters.

    `version` 2 has questions without an answer (an empty list, the guess ""), and their shares beside the whole.
    """
    rows = [[t] if isinstance(t, str) else list(t) for t in truths]
    if language is None:
        some = [t for row in rows for t in row[:1]]
        language = "ko" if 2 * sum(bool(HANGUL.search(t)) for t in some) > len(some) else "en"
    if language not in ("en", "ko"):
        raise Error(f"there is no way to compare answers in {language!r}", fix="choose en or ko")
    plain, parts = (english, str.split) if language == "en" else (korean, lambda text: list("".join(text.split())))
    version = version or (2 if any(not row for row in rows) else 1)
    if version == 2:  # the script leaves out right answers of which nothing is left
        rows = [[t for t in row if plain(t)] or [""] for row in rows]
    elif empty := [i for i, row in enumerate(rows, 1) if not row]:
        raise Error(f"question {empty[0]} has no right answer", fix="version=2 knows such questions")
    scores = [best(row, guess, plain, parts, version) for row, guess in zip(rows, guesses, strict=True)]
    found = dict(zip(("f1", "exact"), means(scores), strict=True))
    if version == 2:
        for name, has in (("has", True), ("no", False)):
            part = [s for s, row in zip(scores, rows, strict=True) if (row != [""]) == has]
            if part:
                found |= dict(zip((f"f1_{name}_answer", f"exact_{name}_answer"), means(part), strict=True))
    return found


def means(scores: list[tuple[float, float]]) -> tuple[float, float]:
    """The mean of both measures."""
    return sum(a for a, _ in scores) / len(scores), sum(b for _, b in scores) / len(scores)


def best(
    row: list[str], guess: str, plain: Callable[[str], str], parts: Callable[[str], list[str]], version: int
) -> tuple[float, float]:
    """F1 and exact match with the right answer that is nearest."""
    said = plain(guess)
    f1 = [shared(parts(plain(t)), parts(said), version) for t in row]
    return max(f1), float(max(plain(t) == said for t in row))


def shared(true: list[str], said: list[str], version: int) -> float:
    """F1 of two bags of parts; two empty ones are equal since SQuAD 2.0."""
    if version == 2 and not (true and said):
        return float(true == said)
    same = (Counter(true) & Counter(said)).total()
    return 2 * same / (len(true) + len(said)) if same else 0.0


def english(text: str) -> str:
    """SQuAD's plain form: lower case, no punctuation, no articles."""
    return " ".join(ARTICLE.sub(" ", text.lower().translate(PUNCTUATION)).split())


def korean(text: str) -> str:
    """KorQuAD's plain form: brackets and quotes are spaces, other punctuation goes."""
    return " ".join(composed(text).translate(KORQUAD).lower().translate(PUNCTUATION).split())


def bleu(
    truths: list[Any], guesses: list[str], tokenize: str | None = None, lowercase: bool = False
) -> dict[str, float]:
    """BLEU and chrF by sacrebleu; a truth is one right translation or a list of them."""
    scorers, references = sacrebleu(tokenize, lowercase), streams(truths)
    return {name: scorer.corpus_score(guesses, references).score for name, scorer in scorers.items()}


def signatures(
    truths: list[Any], guesses: list[str], tokenize: str | None = None, lowercase: bool = False
) -> dict[str, str]:
    """What sacrebleu says about how BLEU and chrF were computed; to be quoted with the numbers."""
    found = {}
    for name, scorer in sacrebleu(tokenize, lowercase).items():
        scorer.corpus_score(guesses, streams(truths))
        found[name] = str(scorer.get_signature())
    return found


def streams(truths: list[Any]) -> list[list[Any]]:
    """Right translations as sacrebleu takes them: the first of every text, the second of every text and so on."""
    rows = [[t] if isinstance(t, str) else list(t) for t in truths]
    if empty := [i for i, row in enumerate(rows, 1) if not row]:
        raise Error(f"text {empty[0]} has no right translation", fix="leave it out")
    return [[row[i] if i < len(row) else None for row in rows] for i in range(max(map(len, rows)))]


def sacrebleu(tokenize: str | None, lowercase: bool) -> dict[str, Any]:
    """The two scorers."""
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError as e:
        raise Error("BLEU needs the package sacrebleu", fix='pip install "formers[eval]"') from e
    try:
        return {"bleu": BLEU(tokenize=tokenize, lowercase=lowercase), "chrf": CHRF(lowercase=lowercase)}
    except (ValueError, KeyError, RuntimeError, AssertionError) as e:
        raise Error(f"sacrebleu does not cut texts by {tokenize!r} ({e})", fix="take 13a, char or intl") from None


def rouge(truths: list[Any], guesses: list[str], units: str = "words") -> dict[str, float]:
    """ROUGE-L, -1 and -2 (F1, mean over texts) by words of any script, by characters or by Korean morphemes."""
    if units not in UNITS:
        raise Error(f"ROUGE has no units {units!r}", fix="choose " + ", ".join(UNITS))
    scores: list[Sequence[float]] = []
    for right, guess in zip(truths, guesses, strict=True):
        said = parts_of(guess, units)
        rows = [parts_of(t, units) for t in ([right] if isinstance(right, str) else right)]
        scores.append([max(values) for values in zip(*(rouge_of(row, said) for row in rows), strict=True)])
    return {f"rouge{n}": sum(s[i] for s in scores) / len(scores) for i, n in enumerate(("L", "1", "2"))}


def rouge_of(true: list[str], said: list[str]) -> tuple[float, float, float]:
    """ROUGE-L, -1 and -2 of one text."""
    length = len(true) + len(said)
    longest = 2 * common(true, said) / length if length else 0.0
    return longest, grams_shared(true, said, 1), grams_shared(true, said, 2)


def grams_shared(true: list[str], said: list[str], n: int) -> float:
    """F1 of the n-grams that two texts share."""
    a, b = (list(zip(*(row[i:] for i in range(n)), strict=False)) for row in (true, said))
    return shared(a, b, 1)  # type: ignore[arg-type]


def common(a: list[str], b: list[str]) -> int:
    """The length of the longest common subsequence: a whole row of the table at once, as bits (Hyyrö 2004)."""
    places: dict[str, int] = {}
    for i, part in enumerate(a):
        places[part] = places.get(part, 0) | 1 << i
    everything = (1 << len(a)) - 1
    row = everything
    for part in b:
        hit = row & places.get(part, 0)
        row = ((row + hit) | (row - hit)) & everything
    return len(a) - row.bit_count()


def parts_of(text: str, units: str) -> list[str]:
    """A text in units: runs of letters, numbers and their marks, single characters, or morphemes."""
    text = composed(text).lower()
    if units == "morphemes":
        from ..text.korean import tokens

        return [text[begin:end] for begin, end, _ in tokens(text)]
    kept = "".join(c if unicodedata.category(c)[0] in "LNM" else " " for c in text).split()
    words = [word for word in kept if any(unicodedata.category(c)[0] != "M" for c in word)]  # not ️ of an emoji
    return words if units == "words" else list("".join(words))
