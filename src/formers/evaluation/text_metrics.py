"""Measures of texts by what they share with the right ones: SQuAD's and KorQuAD's, BLEU and chrF, ROUGE."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import Error
from ..text.normalise import compose_nfc

ARTICLE = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
KORQUAD_BRACKETS = str.maketrans(
    dict.fromkeys("'\"《》<>〈〉()‘’", " ")
)  # the signs that KorQuAD's script takes for spaces
HANGUL = re.compile("[가-힣ㄱ-ㅣᄀ-ᇿ]")
ROUGE_UNITS = ("words", "characters", "morphemes")


def score_answers(
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
    plain, parts = (
        (normalise_english, str.split)
        if language == "en"
        else (normalise_korean, lambda text: list("".join(text.split())))
    )
    version = version or (2 if any(not row for row in rows) else 1)
    if version == 2:  # the script leaves out right answers of which nothing is left
        rows = [[t for t in row if plain(t)] or [""] for row in rows]
    elif empty := [i for i, row in enumerate(rows, 1) if not row]:
        raise Error(f"question {empty[0]} has no right answer", fix="version=2 knows such questions")
    scores = [score_best_match(row, guess, plain, parts, version) for row, guess in zip(rows, guesses, strict=True)]
    found = dict(zip(("f1", "exact"), average_scores(scores), strict=True))
    if version == 2:
        for name, has in (("has", True), ("no", False)):
            part = [s for s, row in zip(scores, rows, strict=True) if (row != [""]) == has]
            if part:
                found |= dict(zip((f"f1_{name}_answer", f"exact_{name}_answer"), average_scores(part), strict=True))
    return found


def average_scores(scores: list[tuple[float, float]]) -> tuple[float, float]:
    """The mean of both measures."""
    return sum(a for a, _ in scores) / len(scores), sum(b for _, b in scores) / len(scores)


def score_best_match(
    row: list[str], guess: str, plain: Callable[[str], str], parts: Callable[[str], list[str]], version: int
) -> tuple[float, float]:
    """F1 and exact match with the right answer that is nearest."""
    said = plain(guess)
    f1 = [compute_bag_f1(parts(plain(t)), parts(said), version) for t in row]
    return max(f1), float(max(plain(t) == said for t in row))


def compute_bag_f1(true: list[str], said: list[str], version: int) -> float:
    """F1 of two bags of parts; two empty ones are equal since SQuAD 2.0."""
    if version == 2 and not (true and said):
        return float(true == said)
    same = (Counter(true) & Counter(said)).total()
    return 2 * same / (len(true) + len(said)) if same else 0.0


def normalise_english(text: str) -> str:
    """SQuAD's plain form: lower case, no punctuation, no articles."""
    return " ".join(ARTICLE.sub(" ", text.lower().translate(PUNCTUATION)).split())


def normalise_korean(text: str) -> str:
    """KorQuAD's plain form: brackets and quotes are spaces, other punctuation goes."""
    return " ".join(compose_nfc(text).translate(KORQUAD_BRACKETS).lower().translate(PUNCTUATION).split())


def bleu(
    truths: list[Any], guesses: list[str], tokenize: str | None = None, lowercase: bool = False
) -> dict[str, float]:
    """BLEU and chrF by sacrebleu; a truth is one right translation or a list of them."""
    scorers, references = make_bleu_scorers(tokenize, lowercase), to_reference_streams(truths)
    return {name: scorer.corpus_score(guesses, references).score for name, scorer in scorers.items()}


def get_signatures(
    truths: list[Any], guesses: list[str], tokenize: str | None = None, lowercase: bool = False
) -> dict[str, str]:
    """What sacrebleu says about how BLEU and chrF were computed; to be quoted with the numbers."""
    found = {}
    for name, scorer in make_bleu_scorers(tokenize, lowercase).items():
        scorer.corpus_score(guesses, to_reference_streams(truths))
        found[name] = str(scorer.get_signature())
    return found


def to_reference_streams(truths: list[Any]) -> list[list[Any]]:
    """Right translations as sacrebleu takes them: the first of every text, the second of every text and so on."""
    rows = [[t] if isinstance(t, str) else list(t) for t in truths]
    if empty := [i for i, row in enumerate(rows, 1) if not row]:
        raise Error(f"text {empty[0]} has no right translation", fix="leave it out")
    return [[row[i] if i < len(row) else None for row in rows] for i in range(max(map(len, rows)))]


def make_bleu_scorers(tokenize: str | None, lowercase: bool) -> dict[str, Any]:
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
    if units not in ROUGE_UNITS:
        raise Error(f"ROUGE has no units {units!r}", fix="choose " + ", ".join(ROUGE_UNITS))
    scores: list[Sequence[float]] = []
    for right, guess in zip(truths, guesses, strict=True):
        said = split_units(guess, units)
        rows = [split_units(t, units) for t in ([right] if isinstance(right, str) else right)]
        scores.append([max(values) for values in zip(*(score_rouge_pair(row, said) for row in rows), strict=True)])
    return {f"rouge{n}": sum(s[i] for s in scores) / len(scores) for i, n in enumerate(("L", "1", "2"))}


def score_rouge_pair(true: list[str], said: list[str]) -> tuple[float, float, float]:
    """ROUGE-L, -1 and -2 of one text."""
    length = len(true) + len(said)
    longest = 2 * compute_lcs_length(true, said) / length if length else 0.0
    return longest, compute_ngram_f1(true, said, 1), compute_ngram_f1(true, said, 2)


def compute_ngram_f1(true: list[str], said: list[str], n: int) -> float:
    """F1 of the n-grams that two texts share."""
    a, b = (list(zip(*(row[i:] for i in range(n)), strict=False)) for row in (true, said))
    return compute_bag_f1(a, b, 1)  # type: ignore[arg-type]


def compute_lcs_length(a: list[str], b: list[str]) -> int:
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


def split_units(text: str, units: str) -> list[str]:
    """A text in units: runs of letters, numbers and their marks, single characters, or morphemes."""
    text = compose_nfc(text).lower()
    if units == "morphemes":
        from ..text.korean import tag_morphemes

        return [text[begin:end] for begin, end, _ in tag_morphemes(text)]
    kept = "".join(c if unicodedata.category(c)[0] in "LNM" else " " for c in text).split()
    words = [word for word in kept if any(unicodedata.category(c)[0] != "M" for c in word)]  # not ️ of an emoji
    return words if units == "words" else list("".join(words))
