"""Protection from the Rust library (tokenizers), which believes its files: where memory ends, it ends the process.

Panics: the library prints them itself before Python hears of them. Limits: what a tokenizer.json may ask for. Regular
expressions: the engine backtracks, so that a pattern of thirty characters can keep it busy for hours over a page of
prose, and nothing can stop it there. A pattern is used only if it is one of those that published tokenizers have, if
its form leaves nothing to try twice, or if it was quick in a process of its own.

Imported by the command line before anything that takes time: only the standard library is needed here."""

from __future__ import annotations

import atexit
import base64
import binascii
import functools
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO

from ..config import JSONObject
from ..errors import Error
from .worker_processes import exit_with_parent

HIDE_PANICS = False  # the command line says True: there, an error is one line


@contextmanager
def hide_panic() -> Iterator[None]:
    """Keep what the Rust library itself prints of a panic off the standard error, where the command line asks for it.
    Only while no other thread of Python may print there; what else was printed meanwhile follows at the end."""
    if not HIDE_PANICS or sys.platform == "win32" or threading.active_count() > 1:
        yield
        return
    try:
        kept, file = os.dup(2), open_scratch_file(os.getpid())
    except OSError:  # it is closed, or there is no room for a file
        yield
        return
    os.dup2(file.fileno(), 2)
    is_known = True
    try:
        yield
    except BaseException as error:
        is_known = type(error).__name__ != "PanicException"
        raise
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        if size := os.fstat(file.fileno()).st_size:
            if is_known:
                os.write(2, os.pread(file.fileno(), size, 0))
            os.ftruncate(file.fileno(), 0)


@functools.cache
def open_scratch_file(process: int) -> IO[bytes]:
    """Open a file without a name for what a process prints while its output is hidden."""
    file = tempfile.TemporaryFile("ab", buffering=0)  # noqa: SIM115
    atexit.register(file.close)  # left to Python, it may be complained of when all filters of warnings are gone
    return file


MAX_PIECE_CHARACTERS = 1000  # characters of a piece,
MAX_GROWTH = 1000  # times that a text may grow on its way through normalizers, or back through decoders,
MAX_PARTS = 20  # of a normalizer, of a decoder, …; and
MAX_TEMPLATE_LENGTH = 100  # pieces of a template, and ids of each
DOUBLING_TYPES = {"ByteLevel", "BPEDecoder", "CTC"}  # may make two characters out of one


def check_tokenizer_json(about: Mapping[str, object], where: object) -> None:
    """Refuse a file that would use up the memory or the stack, when it is read or later on some text."""
    check_pieces(about, where)
    for stage in ("normalizer", "pre_tokenizer", "decoder"):
        check_growth(stage, about.get(stage), where)
        for part in iterate_tables(about.get(stage)):
            if isinstance(pattern := part.get("Regex"), str):
                check_pattern(pattern, where)
    for part in iterate_tables(about.get("post_processor")):  # a template may repeat the text, a token be many ids
        if any(isinstance(inner, list) and len(inner) > MAX_TEMPLATE_LENGTH for inner in part.values()):
            raise make_limit_error(f"the post_processor has a list of more than {MAX_TEMPLATE_LENGTH}", where)


def check_pieces(about: Mapping[str, object], where: object) -> None:
    """Refuse long pieces: the Rust library keeps them in a tree that deep, and overflows the stack when freeing it."""
    model, added = about.get("model"), about.get("added_tokens")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    pieces = [t.get("content") for t in added if isinstance(t, dict)] if isinstance(added, list) else []
    if isinstance(vocab, dict | list):
        pieces += (p[0] if isinstance(p, list) and p else p for p in vocab)
    if any(len(p) > MAX_PIECE_CHARACTERS for p in pieces if isinstance(p, str)):
        raise make_limit_error(f"a piece has more than {MAX_PIECE_CHARACTERS:,} characters", where)


def check_growth(stage: str, value: object, where: object) -> None:
    """Refuse what grows too much: replacing a by aa thirty times makes a gigabyte out of a letter."""
    growth, count = 1, 0
    for part in iterate_tables(value):
        kind = part.get("type")
        count += isinstance(kind, str)
        if "precompiled_charsmap" in part:
            growth *= measure_charsmap(part["precompiled_charsmap"], where)
        elif isinstance(text := part.get("content", part.get("prepend")), str):
            growth *= 1 + len(text)
        elif isinstance(kind, str) and kind in DOUBLING_TYPES:
            growth *= 2
        if count > MAX_PARTS:
            raise make_limit_error(f"the {stage} has more than {MAX_PARTS} parts", where)
        if growth > MAX_GROWTH:
            raise make_limit_error(f"the {stage} lets a text grow more than {MAX_GROWTH:,} times", where)


def iterate_tables(value: object) -> Iterator[JSONObject]:
    """Yield all tables at any depth, the sequences and what is in them."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from iterate_tables(inner)


def measure_charsmap(text: str, where: object) -> int:
    """Measure the longest replacement of SentencePiece's table of characters. It says how large its first part is, and
    the Rust library reserves that much."""
    try:
        data = base64.b64decode(text)
    except (binascii.Error, TypeError, ValueError):
        data = b""
    size = int.from_bytes(data[:4], "little")
    if not 4 <= size + 4 <= len(data):
        raise Error("precompiled_charsmap is broken", where=where, fix="the file is damaged: fetch it again")
    return max(map(len, data[4 + size :].split(b"\0")), default=0) or 1


def make_limit_error(what: str, where: object) -> Error:
    """Return the error for what no real tokenizer has."""
    return Error(what, where=where, fix="this is not a real tokenizer")


# Words and punctuation marks, written out, so that Python and the Rust library mean the same by it.
SPACE_RANGES = "\t-\r\x1c- \x85\xa0\u1680\u2000-\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"
PUNCTUATION_RANGES = (
    "!-/:-@\\[-`{-~\xa1-\xbf\u2010-\u2027\u2030-\u205e\u3001-\u3003\u3008-\u3020\u30fb"
    "\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"
)
LETTER_RUN = f"[^{SPACE_RANGES}{PUNCTUATION_RANGES}]+"
WORD_REGEX = f"{LETTER_RUN}(?:['\u2019-]{LETTER_RUN})*|[{PUNCTUATION_RANGES}]"  # don't and long-term are one word
# The words of WikiText-103 (Transformer-XL), close to Moses' rules for English: marks stand alone, 's is a word, and a
# period ends a sentence unless it belongs to an abbreviation or a small letter follows. A hyphen between letters and a
# comma or period between digits become the symbols @-@, @,@ and @.@ first.
JOINT_REGEXES = {
    "@-@": r"(?<=[\p{L}\p{N}])-(?=[\p{L}\p{N}])", "@,@": r"(?<=[0-9]),(?=[0-9])", "@.@": r"(?<=[0-9])\.(?=[0-9])",
}  # fmt: skip
ABBREVIATIONS = "Mr Mrs Ms Dr Prof St Gen Gov Sen Rep Lt Col Capt Sgt Maj Rev Hon Sr Messrs vs"
KEPT_PERIODS = "|".join([
    *(rf"\b{word}" for word in ABBREVIATIONS.split()), r"\b\p{Lu}", *(r"\." + r"\p{L}" * n for n in range(1, 5)),
])  # fmt: skip
LONE_MARK = r"[^\p{L}\p{N}\s.'`,\-]"
MOSES_REGEX = (
    rf"@[-,.]@|\.{{2,}}|(?<!{KEPT_PERIODS})(?<=[^\s.])\.(?=\s*$|\s+[^\p{{Ll}}\s]|,|{LONE_MARK})"
    rf"|,|(?<=\p{{L}})'\p{{L}}+|(?<=[0-9])'s|'|{LONE_MARK}"
)
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER_LETTERS, LOWER_LETTERS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TRAILING_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
PUBLISHED_PATTERNS = frozenset({
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",  # GPT-2
    # Llama 3, GPT-4
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{TRAILING_SPACE}",
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{TRAILING_SPACE}",  # Qwen 2
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER_LETTERS}*{LOWER_LETTERS}+{CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER_LETTERS}+{LOWER_LETTERS}*{CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{TRAILING_SPACE}",  # GPT-4o
    r" ?[^(\s|[.,!?…。，、।۔،])]+",  # BLOOM
    r"\d{1,3}(?=(?:\d{3})*\b)",  # digits in groups of three, from the right: Command A, OLMo 3
    "[ \u2581]+$",  # SentencePiece's, as published_files.py writes it
    WORD_REGEX, MOSES_REGEX, *JOINT_REGEXES.values(),
})  # fmt: skip
MAX_CHOICES, MAX_ITEMS = 1000, 10_000  # ways to continue, and items of a pattern written out, that are harmless
# Of a trial on common text, and on text made for the pattern: the characters, and the seconds of a processor. A usual
# pattern takes a hundredth.
PROSE_CHARACTERS, PROBE_CHARACTERS = 16_000, 2_000
MAX_SECONDS = 0.25, 0.5
TOTAL_SECONDS = 60  # seconds of a processor for all trials of a pattern
MAX_REPETITIONS = 40  # repetitions in a text made from a pattern
NUM_PROSE_TEXTS = 4  # of the texts below
PROBE_TEXTS = (
    "The people of the United States have elected 435 members; they don't agree, and that's fine. ",
    "국회는 2024년 5월 30일에 개원하였으며, 이 법은 공포한 날부터 시행한다. ",
    'def f(x_1: int = 3) -> None:\n    return {"a": [x ** 2 for x in range(10)]}\n\n',
    "人人生而自由,在尊严和权利上一律平等。すべての人間は、生まれながらにして自由である。",
    "a", "A", " ", "\n", "\t", "1", "é", "가", "一", ".", "-", "a ", "a1", "Aa", "\r\n", "\x00", "'s", "👍🏽", "́",
)  # fmt: skip
OTHER_LETTERS = "éßÉǅʰ가힣ㄱ一あア٣½\u0301\u3000\u200d👍€\x00"
PROBE_LETTERS = "".join(map(chr, range(9, 14))) + "".join(map(chr, range(32, 127))) + OTHER_LETTERS


@dataclass
class PatternNode:
    """A part of a pattern: a character, an anchor, a look around, a group of branches, or a repetition of a part."""

    kind: str
    text: str = ""  # of a character or a class, as it is written
    branches: list[list[PatternNode]] = field(default_factory=list)
    min_repeats: int = 1
    max_repeats: int | None = 1  # None: without end
    is_atomic: bool = False  # what it has matched is never tried otherwise


def check_pattern(pattern: str, where: object) -> None:
    """Refuse a pattern that may keep the Rust library busy without end."""
    if pattern in PUBLISHED_PATTERNS:
        return
    branches = parse_pattern(pattern)
    is_short = len(pattern) <= MAX_ITEMS and count_items(branches) <= MAX_ITEMS
    if not is_short or not (is_simple(branches) or is_quick(pattern)):
        what = f"the regular expression {pattern[:80]!r} is too slow: it may take for ever over a page of text"
        raise Error(what, where=where, fix="fetch the original file, or write the pattern without repeats in repeats")


def parse_pattern(pattern: str) -> list[list[PatternNode]]:
    """Return the branches of a pattern; none of one whose form is not known here."""
    parser = PatternParser(pattern)
    try:
        branches = parser.parse_branches()
    except (ValueError, IndexError, RecursionError):
        return []
    return branches if parser.position == len(pattern) else []  # a parenthesis closes nothing


def is_simple(branches: list[list[PatternNode]]) -> bool:
    """Return whether the form of a pattern bounds its work for each character of a text."""
    return bool(branches) and sum(count_choices(branch, last=True) for branch in branches) <= MAX_CHOICES


def count_choices(branch: list[PatternNode], last: bool = False) -> float:
    """Count the ways through a branch tried before it fails. Where it is `last`, its end cannot fail: a repeated
    character there is taken as often as it comes, and that is the match."""
    total = 1.0
    for at in range(len(branch) - 1, -1, -1):
        node = branch[at]
        ends = last and node.kind == "group" and node.max_repeats == 1
        inner = sum(count_choices(b, ends) for b in node.branches) or 1.0
        single = node.kind == "char"
        if (last and single) or (node.max_repeats == node.min_repeats == 1) or (node.is_atomic and single):
            ways = inner
        elif node.max_repeats is None:
            ways = float("inf")
        else:
            ways = min(1e9, inner ** min(node.max_repeats, 100)) * (node.max_repeats - node.min_repeats + 1)
        total *= ways
        last = last and single and node.min_repeats == 0  # what stands before what may be missing is an end too
    return total


def count_items(branches: list[list[PatternNode]]) -> int:
    """Count a pattern's items once its repetitions are written out, as the engine does."""
    nodes = (node for branch in branches for node in branch)
    return sum(
        (count_items(n.branches) if n.branches else 1) * max(1, n.min_repeats, n.max_repeats or 1) for n in nodes
    )


GROUP_KINDS = {"?:": "group", "?i:": "group", "?=": "look", "?!": "look", "?<=": "look", "?<!": "look", "?>": "atomic"}


class PatternParser:
    """Reads Oniguruma's syntax as far as tokenizers use it; a ValueError for the rest."""

    def __init__(self, pattern: str):
        self.pattern, self.position = pattern, 0

    def parse_branches(self) -> list[list[PatternNode]]:
        """Parse branches up to a closing parenthesis or the end."""
        branches: list[list[PatternNode]] = [[]]
        while self.position < len(self.pattern) and self.pattern[self.position] != ")":
            if self.pattern[self.position] == "|":
                self.position += 1
                branches.append([])
            else:
                branches[-1].append(self.parse_repeats(self.parse_item()))
        return branches

    def parse_item(self) -> PatternNode:
        """Parse a character, a class, an anchor or a group."""
        begin, char = self.position, self.pattern[self.position]
        self.position += 1
        if char == "(":
            return self.parse_group()
        if char == "[":
            self.skip_character_class()
        elif char == "\\":
            return self.parse_escape(begin)
        elif char in "^$":
            return PatternNode("anchor")
        elif char in "*+?":
            raise ValueError("nothing is repeated")
        return PatternNode("char", self.pattern[begin : self.position])

    def parse_group(self) -> PatternNode:
        """Parse what stands in parentheses."""
        kind = "group"
        if self.pattern.startswith("?", self.position):
            mark = next((m for m in GROUP_KINDS if self.pattern.startswith(m, self.position)), None)
            if mark is None:
                raise ValueError("a group of another kind")
            kind, self.position = GROUP_KINDS[mark], self.position + len(mark)
        elif self.pattern.startswith("*", self.position):
            raise ValueError("a callout")
        branches = self.parse_branches()
        if self.pattern[self.position] != ")":
            raise ValueError("a group is not closed")
        self.position += 1
        return PatternNode(kind, branches=branches, is_atomic=kind == "atomic")

    def parse_escape(self, begin: int) -> PatternNode:
        """Parse what follows a backslash."""
        char = self.pattern[self.position]
        self.position += 1
        if char in "bBAzZG":
            return PatternNode("anchor")
        if char in "pPx" and self.pattern.startswith("{", self.position):
            self.position = self.pattern.index("}", self.position) + 1
        elif char == "x":
            self.position += 2
        elif char == "u":
            self.position += 4
        elif char.isdigit() or char in "gkRXKOyYNMCc":
            raise ValueError("a reference, or more than a character")
        return PatternNode("char", self.pattern[begin : self.position])

    def skip_character_class(self) -> None:
        """Skip past a class of characters; it may hold others."""
        if self.pattern.startswith("^", self.position):
            self.position += 1
        if self.pattern.startswith("]", self.position):
            self.position += 1
        while (char := self.pattern[self.position]) != "]":
            self.position += 2 if char == "\\" else 1
            if char == "[":
                self.skip_character_class()
        self.position += 1

    def parse_repeats(self, node: PatternNode) -> PatternNode:
        """Parse a part with the marks of repetition after it."""
        while self.position < len(self.pattern) and (bounds := self.parse_bounds()) is not None:
            wraps = node.branches or (node.min_repeats, node.max_repeats) != (1, 1)
            node = PatternNode("group", branches=[[node]]) if wraps else node
            (node.min_repeats, node.max_repeats), counted = bounds, self.pattern[self.position - 1] == "}"
            if not counted and self.pattern.startswith(("+", "?"), self.position):  # possessive, or the shortest first
                node.is_atomic = self.pattern[self.position] == "+"
                self.position += 1
        return node

    def parse_bounds(self) -> tuple[int, int | None] | None:
        """Parse how often, if a mark of repetition stands here."""
        char = self.pattern[self.position]
        if char in "*+?":
            self.position += 1
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
        if char == "{":
            low, comma, high = self.pattern[self.position + 1 : self.pattern.find("}", self.position)].partition(",")
            if (low or high).isdecimal() and (high or low).isdecimal():
                self.position = self.pattern.index("}", self.position) + 1
                return int(low or 0), int(high) if high else None if comma else int(low)
        return None


@functools.lru_cache(256)
def is_quick(pattern: str) -> bool:
    """Return whether a pattern reads many kinds of text in time, tried in a process that is ended if it does not."""
    code = f"from formers.text.backend_safety import try_pattern; try_pattern({os.getpid()})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    try:
        return subprocess.run(
            [sys.executable, "-c", code],
            input=pattern.encode(), capture_output=True, timeout=3 * TOTAL_SECONDS, env=environment, check=False,
        ).returncode == 0  # fmt: skip
    except (subprocess.TimeoutExpired, OSError, ValueError):
        return False


def try_pattern(parent: int) -> None:
    """Cut texts with the pattern of the standard input; this process ends badly as soon as one takes too long."""
    from tokenizers import Regex, pre_tokenizers

    exit_with_parent(parent)
    pattern = sys.stdin.buffer.read().decode()
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (TOTAL_SECONDS, TOTAL_SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
    except Exception:  # it is no pattern, which the Rust library will say
        os._exit(0)
    for number, text in enumerate(generate_probes(pattern)):
        is_generated = number >= NUM_PROSE_TEXTS
        size = PROBE_CHARACTERS if is_generated else PROSE_CHARACTERS
        text = (text * (size // len(text) + 1))[:size]
        with limit_cpu_time(MAX_SECONDS[is_generated]):
            split.pre_tokenize_str(text)
    os._exit(0)


@contextmanager
def limit_cpu_time(seconds: float) -> Iterator[None]:
    """End this process, whatever it does, when it has computed for so long; on Windows, when it is done."""
    began = time.process_time()
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)  # the default of its signal ends the process
    yield
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    if time.process_time() - began > 2 * seconds:
        os._exit(1)


def generate_probes(pattern: str) -> Iterator[str]:
    """Yield texts of many kinds, and those that a pattern suggests: what it matches, cut off before the end."""
    yield from PROBE_TEXTS
    branches, dice = parse_pattern(pattern), random.Random(0)
    members: dict[str, str] = {}
    for text in sorted(set(iterate_classes(branches))):
        some = members[text] = find_members(text) or "?"
        yield dice.choice(some)
        yield "".join(dice.choice(some) for _ in range(50))
    for number in range(60 if branches else 0):
        match = generate_match(branches[number % len(branches)], members, dice, number < 30)
        if len(match) > 1:
            yield match[:-1]
            yield match[: dice.randint(1, len(match))] + "\x00"
            yield match[:-1] + "\x00" + match  # an engine that looks for the last character first finds it


def iterate_classes(branches: list[list[PatternNode]]) -> Iterator[str]:
    """Yield the characters and classes of a pattern, as they are written."""
    for node in (node for branch in branches for node in branch):
        if node.kind == "char":
            yield node.text
        yield from iterate_classes(node.branches)


def find_members(text: str) -> str:
    """Find those of some letters that a class holds."""
    from tokenizers import Regex, pre_tokenizers

    try:
        kept = pre_tokenizers.Split(Regex(text), "removed", invert=True)
        return "".join(piece for piece, _ in kept.pre_tokenize_str(PROBE_LETTERS))
    except Exception:
        return ""


def generate_match(branch: list[PatternNode], members: dict[str, str], dice: random.Random, longest: bool) -> str:
    """Make a text that a branch may match, with as many repetitions as it allows, or with some."""
    text = ""
    for node in branch:
        most = node.min_repeats + MAX_REPETITIONS
        most = most if node.max_repeats is None else min(node.max_repeats, most)
        for _ in range(most if longest else dice.randint(node.min_repeats, most)):
            if node.kind == "char":
                text += dice.choice(members[node.text])
            elif node.branches:
                text += generate_match(dice.choice(node.branches), members, dice, longest)
            if len(text) > PROBE_CHARACTERS:
                return text[:PROBE_CHARACTERS]
    return text
