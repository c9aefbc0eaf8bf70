"""Test sets made by rule, in English and Korean: the arithmetic, word scrambling and correction of GPT-3 (Brown et al.
2020, §3.9.1, §3.9.2 and §3.9.6), as tables of a text and its target for few_shot.py.

A set depends on its name, language, size, seed and, for words and sentences, on the text they come from. `sets.json`
beside the tables says how each is put as a prompt.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ..atomic_files import create_file
from ..config import JSONObject
from ..data.readers import load_bundled_corpus, read_documents
from ..errors import Error
from ..text.normalise import compose_nfc
from ..text.sentences import split_sentences

SetRow = tuple[str, ...]  # text, target, and for corrections the rule that made the error
Draw = Callable[[random.Random], SetRow | None]  # a row, or None where this draw makes none
LANGUAGES = ("en", "ko")
MANIFEST = "sets.json"
INSERTED = " .,!?;:'/-+*=#"  # what random insertion puts between letters
SYMBOLS = {"add": "+", "sub": "-", "mul": "*"}
WORD = re.compile(r"[^\W\d_]+")
# How many letters a word has at least (and at most) by set; Korean words are short, and counted in syllables.
WORD_LENGTHS = {
    "en": dict.fromkeys(("cycle", "anagram1", "anagram2", "insertion", "reversal"), (5, 14)),
    "ko": {"cycle": (3, 14), "anagram1": (4, 14), "anagram2": (6, 14), "insertion": (3, 14), "reversal": (3, 14)},
}
MAX_WORDS = 10_000  # the most frequent words of a text are scrambled
SENTENCE_WORDS = (5, 25)  # of a sentence to be spoiled


@dataclass(frozen=True)
class SetPrompt:
    """How a set is put as a prompt."""

    template: str
    instruction: str = ""
    task: str = "complete"


# Set → what it is called in GPT-3's tables, and what it asks for.
SETS: dict[str, tuple[str, str]] = {
    "add2": ("2D+", "the sum of two numbers below 100"), "sub2": ("2D-", "the difference of two numbers below 100"),
    "add3": ("3D+", "the sum of two numbers below 1,000"), "sub3": ("3D-", "the difference of two below 1,000"),
    "add4": ("4D+", "the sum of two numbers below 10,000"), "sub4": ("4D-", "the difference of two below 10,000"),
    "add5": ("5D+", "the sum of two numbers below 100,000"), "sub5": ("5D-", "the difference of two below 100,000"),
    "mul2": ("2Dx", "the product of two numbers below 100"),
    "composite1": ("1DC", "one-digit numbers with two operations, the last in brackets"),
    "cycle": ("CL", "the word whose letters were cycled"),
    "anagram1": ("A1", "the word of which all letters but the first and last were mixed"),
    "anagram2": ("A2", "the word of which all letters but the first and last two were mixed"),
    "insertion": ("RI", "the word into which marks and spaces were inserted"),
    "reversal": ("RW", "the word that was written backwards"),
    "correction": ("§3.9.6", "the sentence into which one error was put"),
}  # fmt: skip
ARITHMETIC = tuple(name for name in SETS if name[-1].isdigit() and not name.startswith("anagram"))
SCRAMBLES = tuple(WORD_LENGTHS["en"])
SCRAMBLE_PROMPTS = {
    "en": SetPrompt("{text} = {answer}", "Please unscramble the letters into a word, and write that word:"),
    "ko": SetPrompt("{text} = {answer}", "글자를 바로잡아 원래 단어를 쓰세요:"),
}
CORRECTION_PROMPTS = {
    "en": SetPrompt("Poor English input: {text}\nGood English output: {answer}"),
    "ko": SetPrompt("틀린 문장: {text}\n바른 문장: {answer}"),
}
ARITHMETIC_PROMPTS = {"en": SetPrompt("Q: {text}\nA: {answer}"), "ko": SetPrompt("질문: {text}\n답: {answer}")}
OPERATION_WORDS = {
    "en": {"add": "plus", "sub": "minus", "mul": "times"}, "ko": {"add": "더하기", "sub": "빼기", "mul": "곱하기"},
}  # fmt: skip
OPEN_DIGITS = "2459"  # whose Korean names (이, 사, 오, 구) end with a vowel


def write_synthetic_sets(
    out: str | Path, names: Sequence[str] = (), *, languages: Sequence[str] = LANGUAGES, count: int = 2000,
    seed: int = 0, text: object = None, overwrite: bool = False,
) -> list[Path]:  # fmt: skip
    """Write sets as tables OUT/NAME.LANGUAGE.tsv (all of them by default), and sets.json beside them.

    Words and sentences come from `text` (a file, a folder or strings, in one language), else from the bundled corpus.
    A set may have fewer rows than `count` where the text has no more."""
    folder = Path(out).expanduser()
    if unknown := [name for name in names if name not in SETS]:
        raise Error(f"there is no set {unknown[0]!r}", fix="choose " + ", ".join(SETS))
    if odd := [one for one in languages if one not in LANGUAGES]:
        raise Error(f"there are no sets in {odd[0]!r}", fix="choose " + " or ".join(LANGUAGES))
    if count < 1:
        raise Error(f"a set of {count} rows makes no sense", fix="ask for at least 1")
    if text is not None and len(languages) > 1:
        raise Error("a text of your own has one language", fix="name it: languages=['en']")
    folder.mkdir(parents=True, exist_ok=True)
    manifest = read_manifest(folder)
    paths: list[Path] = []
    for language in languages:
        corpus = load_bundled_corpus("ko" if language == "ko" else "en")[0] if text is None else []
        documents = corpus if text is None else list(read_documents(text))
        for name in names or SETS:
            rows = make_set(name, language, documents, count, seed)
            if not rows:
                continue  # Korean has few words of six syllables
            titles = ("text", "target", "rule")[: len(rows[0])]
            path = folder / f"{name}.{language}.tsv"
            with create_file(path, overwrite) as file:
                file.write("".join("\t".join(row) + "\n" for row in [titles, *rows]).encode())
            prompt = get_set_prompt(name, language)
            manifest[path.name] = {**asdict(prompt), "rows": len(rows), "seed": seed, "gpt3": SETS[name][0]}
            paths.append(path)
    with create_file(folder / MANIFEST, overwrite=True) as file:
        file.write(json.dumps({"format": 1, "sets": manifest}, ensure_ascii=False, indent=1).encode() + b"\n")
    return paths


def read_manifest(folder: Path) -> dict[str, JSONObject]:
    """Read what sets.json says of the tables of a folder; nothing where there is none."""
    try:
        value = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    sets = value.get("sets") if isinstance(value, dict) else None
    return {str(k): v for k, v in sets.items() if isinstance(v, dict)} if isinstance(sets, dict) else {}


def find_set_prompt(data: object) -> SetPrompt | None:
    """Find how a table is put as a prompt, by the sets.json beside it; None if it is no such set."""
    if not isinstance(data, str | Path) or not Path(data).is_file():
        return None
    entry = read_manifest(Path(data).parent).get(Path(data).name, {})
    fields = {name: entry[name] for name in ("template", "instruction", "task") if isinstance(entry.get(name), str)}
    return SetPrompt(**fields) if len(fields) == 3 else None


def get_set_prompt(name: str, language: str) -> SetPrompt:
    """Return how a set is put as a prompt: GPT-3's templates, and their like in Korean."""
    kinds = ARITHMETIC_PROMPTS if name in ARITHMETIC else SCRAMBLE_PROMPTS if name in SCRAMBLES else CORRECTION_PROMPTS
    return kinds[language]


def make_set(name: str, language: str, documents: Iterable[str], count: int, seed: int) -> list[SetRow]:
    """Make the rows of a set, no two of them with the same text."""
    rng = random.Random(f"{seed}/{name}/{language}")
    if name in ARITHMETIC:
        return draw_rows(lambda rng: draw_problem(name, language, rng), rng, count)
    if name in SCRAMBLES:
        low, high = WORD_LENGTHS[language][name]
        words = count_words(documents, language, low, high)
        rng.shuffle(words)
        rows = ((scramble_word(word, name, rng), word) for word in words)
        return list(itertools.islice((row for row in rows if row[0] != row[1]), count))
    sentences = list(find_plain_sentences(documents, language))
    rng.shuffle(sentences)
    spoiled = (spoil_sentence(sentence, language, rng) for sentence in sentences)
    return list(itertools.islice((row for row in spoiled if row is not None), count))


def draw_rows(draw: Draw, rng: random.Random, count: int) -> list[SetRow]:
    """Draw rows until there are enough with different texts, or no new ones are found."""
    rows: dict[str, SetRow] = {}
    failures = 0
    while len(rows) < count and failures < 1000:
        row = draw(rng)
        if row is None or row[0] in rows:
            failures += 1
            continue
        rows[row[0]], failures = row, 0
    return list(rows.values())


def draw_problem(name: str, language: str, rng: random.Random) -> SetRow:
    """Draw an arithmetic problem and its answer; numbers are uniform in [0, 10^digits), as in GPT-3."""
    kind, limit = name[:-1], 10 ** int(name[-1])
    a, b, c = (rng.randrange(limit) for _ in range(3))
    if kind == "composite":
        first, second = rng.choice("+-*"), rng.choice("+-*")
        problem, answer = f"{a}{first}({b}{second}{c})", compute(a, first, compute(b, second, c))
        return (f"What is {problem}?" if language == "en" else f"{problem}의 값은 얼마입니까?"), str(answer)
    words, answer = OPERATION_WORDS[language][kind], compute(a, SYMBOLS[kind], b)
    if language == "en":
        return f"What is {a} {words} {b}?", str(answer)
    return f"{a} {words} {b}{'는' if str(b)[-1] in OPEN_DIGITS else '은'} 얼마입니까?", str(answer)


def compute(a: int, sign: str, b: int) -> int:
    """Compute a sum, a difference or a product."""
    return a + b if sign == "+" else a - b if sign == "-" else a * b


def count_words(documents: Iterable[str], language: str, low: int, high: int) -> list[str]:
    """List the most frequent words of texts that have so many letters: small letters, or Hangul alone."""
    counts: Counter[str] = Counter()
    for text in documents:
        counts.update(word for word in WORD.findall(compose_nfc(text)) if low <= len(word) <= high)
    fits: Callable[[str], bool] = (
        (lambda word: word.isascii() and word.islower())
        if language == "en"
        else (lambda word: all("가" <= c <= "힣" for c in word))
    )
    ranked = sorted((word for word in counts if fits(word)), key=lambda word: (-counts[word], word))
    return ranked[:MAX_WORDS]


def scramble_word(word: str, name: str, rng: random.Random) -> str:
    """Scramble a word by the rule of a set; the word itself where the rule cannot change it."""
    if name == "cycle":
        at = rng.randrange(1, len(word))
        return word[at:] + word[:at]
    if name == "reversal":
        return word[::-1]
    if name == "insertion":
        return word[0] + "".join(rng.choice(INSERTED) + letter for letter in word[1:])
    edge = 1 if name == "anagram1" else 2
    inner = list(word[edge:-edge])
    if len(set(inner)) > 1:
        before = list(inner)
        while inner == before:
            rng.shuffle(inner)
    return word[:edge] + "".join(inner) + word[-edge:]


def find_plain_sentences(documents: Iterable[str], language: str) -> Iterator[str]:
    """Find different sentences of plain words that end with a mark, neither short nor long."""
    seen: set[str] = set()
    low, high = SENTENCE_WORDS
    for text in documents:
        for sentence in split_sentences(compose_nfc(text), "ko" if language == "ko" else "en"):
            plain = " ".join(sentence.split())
            is_plain = low <= len(plain.split()) <= high and plain[-1] in ".!?" and "\t" not in plain
            if is_plain and plain not in seen and (language == "ko" or plain[0].isupper()):
                seen.add(plain)
                yield plain


# Rules that put an error into the words of a sentence: (name, word → what it may become).
ENGLISH_RULES: dict[str, dict[str, str]] = {
    "agreement": {"is": "are", "are": "is", "was": "were", "were": "was", "has": "have", "have": "has", "does": "do"},
    "article": {"a": "an", "an": "a"},
    "preposition": {"in": "on", "on": "at", "at": "on", "for": "to", "by": "of", "from": "since", "with": "by"},
    "confusion": {"their": "there", "its": "it's", "than": "then", "then": "than", "to": "too", "who": "which"},
    "pronoun": {"he": "him", "they": "them", "we": "us", "I": "me", "him": "he", "them": "they", "us": "we"},
}
# Particle after a syllable with a final consonant ↔ after one without.
KOREAN_PARTICLES = {"은": "는", "이": "가", "을": "를", "과": "와"}
KOREAN_SPELLINGS = (
    ("않", "안"), ("돼", "되"), ("됐", "됬"), ("로서", "로써"), ("로써", "로서"), ("든지", "던지"), ("며칠", "몇일"),
    ("계", "게"), ("율", "률"), ("률", "율"),
)  # fmt: skip


def spoil_sentence(sentence: str, language: str, rng: random.Random) -> SetRow | None:
    """Put one error into a sentence, by a rule that can be applied to it; None where there is none."""
    words = sentence.split()
    spoiled = list(list_errors(words, language, rng))
    if not spoiled:
        return None
    rule = rng.choice(sorted({name for name, _ in spoiled}))  # rules are equally frequent, however often each applies
    text = rng.choice([text for name, text in spoiled if name == rule])
    return (text, sentence, rule) if text != sentence else None


def list_errors(words: list[str], language: str, rng: random.Random) -> Iterator[tuple[str, str]]:
    """List errors that can be put into a sentence: the rule, and the sentence with it."""
    for at, word in enumerate(words):
        for rule, new in list_word_errors(word, language):
            yield rule, " ".join([*words[:at], *([new] if new else []), *words[at + 1 :]])
    at = rng.randrange(len(words) - 1)
    yield "repetition", " ".join([*words[: at + 1], *words[at:]])
    if at + 2 < len(words) and words[at] != words[at + 1] and (language == "ko" or at):  # capitals would tell
        yield "order", " ".join([*words[:at], words[at + 1], words[at], *words[at + 2 :]])
    if language == "ko":
        yield "spacing", " ".join([*words[:at], words[at] + words[at + 1], *words[at + 2 :]])


def list_word_errors(word: str, language: str) -> Iterator[tuple[str, str]]:
    """List errors that one word can become: the rule, and the word with it; an empty one is left out."""
    if language == "en":
        for rule, pairs in ENGLISH_RULES.items():
            if word in pairs:
                yield rule, pairs[word]
        if word in ("the", "a", "an"):
            yield "dropped article", ""
        return
    stem, last = word[:-1], word[-1]
    for closed, open_ in KOREAN_PARTICLES.items():
        if stem and "가" <= stem[-1] <= "힣":
            has_final = (ord(stem[-1]) - ord("가")) % 28 > 0
            if last == (closed if has_final else open_):
                yield "particle", stem + (open_ if has_final else closed)
    for right, wrong in KOREAN_SPELLINGS:
        if right in word:
            yield "spelling", word.replace(right, wrong, 1)
