"""Tokenizers whose pieces are learned by merging the best pair again and again, deterministically.

BPE (Sennrich et al. 2015) takes the most frequent pair: on bytes as in GPT-2 and BLOOM (Radford et al. 2019), or on
characters with a mark at the end of a word as in GPT-1 (Radford et al. 2018). WordPiece (Schuster & Nakajima 2012;
BERT, Devlin et al. 2018) is trained as it is meant, by likelihood: the pair that is merged next raises the unigram
likelihood of the training data most, gain(ab) = count(ab) · log(count(ab) · N / (count(a) · count(b))), with N tokens.

Both share the corpus as one flat array of pieces and the queue of pairs. They are exact: a test holds them against
trainers that count everything anew after each merge."""

from __future__ import annotations

import heapq
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import numpy as np
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Rust

from ...config import ProgressCallback
from ...errors import Error
from ..korean import MORPHEME_MARK
from ..tokenizer import BYTE_ALPHABET, Tokenizer
from ..tokenizer_kinds import TokenizerStyle
from .word_counts import WordCutter, choose_alphabet, count_words

# The symbol between two words, and what is left behind when a piece is merged into its neighbour.
WORD_BOUNDARY, MERGED = 0, -1
PAIR_SHIFT = 24  # a pair as one number: left << SHIFT | right
HEAP_REFILL = 20_000  # pairs that the heap is given at a time
BOUND_SLACK = 0.05  # how far above a rising score its bound is set, as a share of it


class MergeCorpus:
    """Distinct words with their counts, cut into pieces; the counts of pieces and of pairs stay exact under merging.

    Pieces are numbers, `piece_names` their strings. All words stand in one array, `symbols`, a WORD_BOUNDARY between
    two; `next_positions` and `previous_positions` point to the next piece that is still there. Every pair that ever
    occurs has a slot: `pair_counts`, `left_pieces` and `right_pieces` hold its count and its pieces, and a stretch of
    `position_pool` (`span_begins`, `span_lengths`) the places where it stood when it came up."""

    def __init__(self, counts: Mapping[str, int], split_word: Callable[[str], list[str]]):
        items = sorted(counts.items())
        # "" is an edge inside of a word
        self.piece_names = ["", *sorted({piece for word, _ in items for piece in split_word(word)} - {""})]
        self.piece_ids = {name: i for i, name in enumerate(self.piece_names)}
        flat, weights = array("i", [WORD_BOUNDARY]), array("q", [0])
        for word, count in items:
            pieces = split_word(word)
            flat.extend(map(self.piece_ids.__getitem__, pieces))
            flat.append(WORD_BOUNDARY)
            weights.extend([count] * (len(pieces) + 1))
        self.symbols = np.frombuffer(flat, np.int32).copy()
        self.weights = np.frombuffer(weights, np.int64).copy()
        places = len(self.symbols)
        self.next_positions = np.arange(1, places + 1, dtype=np.int32)
        self.previous_positions = np.arange(-1, places - 1, dtype=np.int32)
        inner = self.symbols != WORD_BOUNDARY
        counted = np.bincount(self.symbols[inner], self.weights[inner], len(self.piece_names))
        self.piece_counts = counted.astype(np.int64)
        self.num_tokens = int(self.piece_counts.sum())  # tokens that the corpus has now
        self.piece_slots = [array("i") for _ in self.piece_names]  # the slots that a piece is part of
        self.index_pairs()

    def index_pairs(self) -> None:
        """Give each pair of the beginning its slot."""
        inner = self.symbols != WORD_BOUNDARY
        here = np.flatnonzero(inner[:-1] & inner[1:]).astype(np.int32)
        keys = self.symbols[here].astype(np.int64) << PAIR_SHIFT | self.symbols[here + 1]
        order = np.argsort(keys, kind="stable")
        self.position_pool, keys = here[order], keys[order]
        self.pool_used = len(self.position_pool)
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        unique = keys[first]
        self.pair_slots = dict(zip(unique.tolist(), range(len(unique)), strict=True))
        self.extra_spans: dict[int, list[tuple[int, int]]] = {}  # further places of a pair that came up more than once
        self.span_begins = first.astype(np.int64)
        self.span_lengths = np.diff(first, append=self.pool_used).astype(np.int64)
        self.left_pieces, self.right_pieces = unique >> PAIR_SHIFT, unique & (1 << PAIR_SHIFT) - 1
        weights = self.weights[self.position_pool]
        self.pair_counts = np.add.reduceat(weights, first) if len(first) else np.zeros(0, np.int64)
        self.num_slots = len(unique)
        for slot, (a, b) in enumerate(zip(self.left_pieces.tolist(), self.right_pieces.tolist(), strict=True)):
            self.piece_slots[a].append(slot)
            self.piece_slots[b].append(slot)

    def merge_pair(self, slot: int, name: str) -> np.ndarray:
        """Replace a pair by one piece wherever it stands; the slots whose counts changed."""
        a, b = int(self.left_pieces[slot]), int(self.right_pieces[slot])
        piece = self.piece_ids.setdefault(name, len(self.piece_names))
        if piece == len(self.piece_names):
            self.piece_names.append(name)
            self.piece_slots.append(array("i"))
            self.piece_counts = grow_array(self.piece_counts, piece + 1)
        left = self.find_positions(slot, a, b)
        right = self.next_positions[left]
        beyond, ahead, weights = self.next_positions[right], self.previous_positions[left], self.weights[left]
        old_right, merged = self.symbols[beyond], int(weights.sum())
        self.symbols[left], self.symbols[right] = piece, MERGED
        self.next_positions[left], self.previous_positions[beyond] = beyond, left
        self.piece_counts[a] -= merged
        self.piece_counts[b] -= merged
        self.piece_counts[piece] += merged
        self.num_tokens -= merged
        # What stands before: a piece of its own, or (MERGED) the right half of another pair that was merged just now.
        own = (self.symbols[ahead] != WORD_BOUNDARY) & (self.symbols[ahead] != MERGED)
        lone, follows = old_right != WORD_BOUNDARY, self.symbols[beyond] != WORD_BOUNDARY
        before, lead = self.symbols[ahead[own]].astype(np.int64), ahead[own]
        lost = np.concatenate([before << PAIR_SHIFT | a, np.int64(b) << PAIR_SHIFT | old_right[lone].astype(np.int64)])
        lost_weights = np.concatenate([weights[own], weights[lone]])
        after = np.int64(piece) << PAIR_SHIFT | self.symbols[beyond[follows]].astype(np.int64)
        new, where = np.concatenate([before << PAIR_SHIFT | piece, after]), np.concatenate([lead, left[follows]])
        changed = np.concatenate([self.remove_pairs(lost, lost_weights), self.add_pairs(new, where)])
        self.pair_counts[slot] = self.span_lengths[slot] = 0  # at last: in aaa the merged pair is one of the lost
        self.extra_spans.pop(slot, None)
        return changed

    def find_positions(self, slot: int, a: int, b: int) -> np.ndarray:
        """Return where a pair stands now, from left to right and without overlap."""
        spans = [(int(self.span_begins[slot]), int(self.span_lengths[slot])), *self.extra_spans.get(slot, ())]
        positions = [self.position_pool[begin : begin + length] for begin, length in spans]
        left = positions[0] if len(positions) == 1 else np.unique(np.concatenate(positions))
        left = left[self.symbols[left] == a]
        left = left[self.symbols[self.next_positions[left]] == b]
        if a == b and len(left):  # in a run of the same piece every second pair
            starts = np.flatnonzero(np.append(True, self.next_positions[left[:-1]] != left[1:]))
            left = left[(np.arange(len(left)) - np.repeat(starts, np.diff(starts, append=len(left)))) % 2 == 0]
        return left

    def remove_pairs(self, keys: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Count pairs that are no more."""
        unique, first = np.unique(keys, return_inverse=True)
        slots = np.fromiter(map(self.pair_slots.__getitem__, unique.tolist()), np.int64, len(unique))
        sums = np.zeros(len(unique), np.int64)
        np.add.at(sums, first, weights)
        self.pair_counts[slots] -= sums
        return slots

    def add_pairs(self, keys: np.ndarray, where: np.ndarray) -> np.ndarray:
        """Count pairs that are new, and note where they stand."""
        order = np.lexsort((where, keys))
        keys, where = keys[order], where[order]
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        begin, self.pool_used = self.pool_used, self.pool_used + len(where)
        self.position_pool = grow_array(self.position_pool, self.pool_used)
        self.position_pool[begin : self.pool_used] = where
        unique, sizes = keys[first], np.diff(first, append=len(keys))
        sums = np.add.reduceat(self.weights[where], first) if len(first) else np.zeros(0, np.int64)
        slots = np.zeros(len(unique), np.int64)
        fresh = []
        for i, key in enumerate(unique.tolist()):
            slot = self.pair_slots.setdefault(key, self.num_slots)
            slots[i] = slot
            if slot == self.num_slots:
                self.num_slots += 1
                fresh.append(i)
                a, b = key >> PAIR_SHIFT, key & (1 << PAIR_SHIFT) - 1
                self.piece_slots[a].append(slot)
                self.piece_slots[b].append(slot)
            else:
                self.extra_spans.setdefault(slot, []).append((begin + int(first[i]), int(sizes[i])))
        arrays = (self.pair_counts, self.left_pieces, self.right_pieces, self.span_begins, self.span_lengths)
        self.pair_counts, self.left_pieces, self.right_pieces, self.span_begins, self.span_lengths = (
            grow_array(array, self.num_slots) for array in arrays
        )
        at, kept = slots[fresh], np.array(fresh, np.int64)
        self.span_begins[at], self.span_lengths[at] = begin + first[kept], sizes[kept]
        self.left_pieces[at], self.right_pieces[at] = unique[kept] >> PAIR_SHIFT, unique[kept] & (1 << PAIR_SHIFT) - 1
        self.pair_counts[slots] += sums
        return slots

    def find_slots(self, *pieces: int) -> np.ndarray:
        """Return the living slots that these pieces are part of."""
        slot_arrays = []
        for piece in dict.fromkeys(pieces):
            slots = np.array(self.piece_slots[piece], np.int64)
            alive = slots[self.pair_counts[slots] > 0]
            if 2 * len(alive) < len(slots):
                self.piece_slots[piece] = array("i", alive.astype(np.int32).tobytes())
            slot_arrays.append(alive)
        return np.concatenate(slot_arrays)


PairScore = Callable[[np.ndarray, np.ndarray, np.ndarray, int], np.ndarray]  # of count(ab), count(a), count(b), tokens


class PairQueue:
    """The pairs of a corpus, best first: by score, then the more frequent, then the smaller strings.

    A lazy heap. `score_bounds` are never below a pair's true score, for a score may rise only when one of its pieces
    changes, and those pairs are looked at after each merge (`is_falling`: no need to, a score only falls). The rest of
    a score, the number of tokens, only falls. Pairs whose bound is below `heap_floor` wait outside of the heap."""

    def __init__(self, words: MergeCorpus, score: PairScore, min_count: int, is_falling: bool):
        self.corpus, self.score_pairs, self.min_count, self.is_falling = words, score, min_count, is_falling
        self.score_bounds = np.zeros(0, np.float64)
        self.noted_counts = np.zeros(0, np.int64)
        self.heap: list[tuple[float, int, str, str, int]] = []
        self.heap_floor = -np.inf
        self.refill_heap()

    def score_slots(self, slots: np.ndarray) -> np.ndarray:
        """Return the scores of merging these pairs now."""
        w = self.corpus
        left, right = w.piece_counts[w.left_pieces[slots]], w.piece_counts[w.right_pieces[slots]]
        return self.score_pairs(w.pair_counts[slots], left, right, w.num_tokens)

    def refill_heap(self) -> bool:
        """Lower the floor until the heap has something to give; False when there is nothing left."""
        w = self.corpus
        self.grow_arrays()
        alive = np.flatnonzero(w.pair_counts[: w.num_slots] >= self.min_count)
        if not len(alive):
            return False
        scores = self.score_slots(alive)
        self.score_bounds[alive], self.noted_counts[alive] = scores, w.pair_counts[alive]
        spare = len(alive) - HEAP_REFILL
        self.heap_floor = np.partition(scores, spare)[spare] if spare > 0 else -np.inf
        self.heap = []
        self.push_slots(alive[scores >= self.heap_floor])
        return True

    def grow_arrays(self) -> None:
        """Let the arrays grow with the slots; a new pair is bound by nothing yet."""
        old, size = len(self.score_bounds), self.corpus.num_slots
        if size > old:
            self.score_bounds = np.append(self.score_bounds, np.full(max(size, 2 * old) - old, -np.inf))
            self.noted_counts = np.append(self.noted_counts, np.zeros(len(self.score_bounds) - old, np.int64))

    def push_slots(self, slots: np.ndarray) -> None:
        """Push entries for these pairs, by their bounds."""
        w = self.corpus
        columns = (w.left_pieces, w.right_pieces, self.score_bounds, self.noted_counts)
        rows = zip(slots.tolist(), *(column[slots].tolist() for column in columns), strict=True)
        for slot, a, b, bound, count in rows:
            heapq.heappush(self.heap, (-bound, -count, w.piece_names[a], w.piece_names[b], slot))

    def find_best(self) -> int | None:
        """Return the slot of the best pair."""
        w = self.corpus
        while True:
            if not self.heap and not self.refill_heap():
                return None
            top, count, *_, slot = self.heap[0]
            here = int(w.pair_counts[slot])
            if -top != self.score_bounds[slot] or -count != self.noted_counts[slot]:
                heapq.heappop(self.heap)  # an old entry: there is a newer one
                continue
            true = float(self.score_slots(np.array([slot]))[0]) if here >= self.min_count else -np.inf
            if true == -top and here == -count:
                return int(slot)
            self.score_bounds[slot], self.noted_counts[slot] = true, here
            if true >= self.heap_floor and here >= self.min_count:
                heapq.heapreplace(self.heap, (-true, -here, *self.heap[0][2:4], slot))
            else:
                heapq.heappop(self.heap)

    def merge_pair(self, slot: int, name: str) -> None:
        """Merge a pair, and look again at all pairs whose score may have risen."""
        w = self.corpus
        a, b = int(w.left_pieces[slot]), int(w.right_pieces[slot])
        slots = w.merge_pair(slot, name)
        self.grow_arrays()
        if not self.is_falling:
            slots = w.find_slots(a, b, w.piece_ids[name])
        slots = slots[w.pair_counts[slots] >= self.min_count]
        scores, counts = self.score_slots(slots), w.pair_counts[slots]
        old, noted = self.score_bounds[slots], self.noted_counts[slots]
        risen = (scores > old) | ((scores == old) & (counts > noted))
        slots, scores, counts, old = slots[risen], scores[risen], counts[risen], old[risen]
        # A new pair's bound is its score; one that keeps rising gets a little more, or it would come back each time.
        self.score_bounds[slots] = np.where(np.isneginf(old), scores, scores + BOUND_SLACK * np.abs(scores))
        self.noted_counts[slots] = counts
        self.push_slots(slots[self.score_bounds[slots] >= self.heap_floor])


def grow_array(old: np.ndarray, size: int) -> np.ndarray:
    """Return the array with room for `size` numbers, and for as many again."""
    return old if len(old) >= size else np.concatenate([old, np.zeros(max(size, 2 * len(old)) - len(old), old.dtype)])


def learn_pieces(
    queue: PairQueue, marks: TokenizerStyle, first: Iterable[str], vocab_size: int, continuation_prefix: str = "",
    tell: ProgressCallback | None = None,
) -> tuple[dict[str, int], list[tuple[str, str]]]:  # fmt: skip
    """Merge the best pair again and again until the vocabulary, which begins with the pieces `first`, has its size.
    Returns the ids of all pieces, the style's special tokens among them, and the merges in their order."""
    merges, names, words = [], queue.corpus.piece_names, queue.corpus
    vocab, size = marks.begin_vocab(first, vocab_size), vocab_size - len(marks.last_tokens)
    while len(vocab) < size and (slot := queue.find_best()) is not None:
        left, right = names[words.left_pieces[slot]], names[words.right_pieces[slot]]
        piece = left + right.removeprefix(continuation_prefix)
        queue.merge_pair(slot, piece)
        merges.append((left, right))
        vocab[piece] = None
        if tell is not None and len(merges) % 500 == 0:
            tell("merging", len(vocab), size, f"{left} + {right}")
    if tell is not None:
        tell("merging", len(vocab), len(vocab), f"{len(merges):,} merges")
    return {piece: i for i, piece in enumerate([*vocab, *marks.last_tokens])}, merges


# Punctuation that keeps the spaces around it, so that decoding gives the text back. BERT's way of cutting forgets
# whether "." stood alone or at the end of a word. Here a mark is a word of its own as well, but takes along one space
# on either side where there is one: " (", ", ", "." are different words. All is said in the tokenizer.json, with parts
# that every reader of such files knows.

# What BERT cuts off: ASCII's marks, Unicode's punctuation, and the characters of Chinese.
HAN_RANGES = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f"
PUNCTUATION_CLASS = rf"[!-/:-@\[-`{{-~\p{{P}}{HAN_RANGES}]"
WORD_CLASS = rf"[^ !-/:-@\[-`{{-~\p{{P}}{HAN_RANGES}]"
# A space between two marks belongs to the second.
SPACED_WORD_REGEX = rf" ?{PUNCTUATION_CLASS}(?: (?! *+{PUNCTUATION_CLASS}))?|{WORD_CLASS}+"


def build_spaced_normalizer(lower: bool) -> normalizers.Normalizer:
    """Build NFC with white space of any kind as spaces. Accents stay: stripping them would take Hangul apart."""
    bert = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=lower)
    return normalizers.Sequence([normalizers.NFC(), bert])


def build_spaced_splitter() -> pre_tokenizers.PreTokenizer:
    """Build what cuts text into words, and marks with the spaces around them."""
    return pre_tokenizers.Split(Regex(SPACED_WORD_REGEX), "removed", invert=True)


def build_spaced_decoder(first: Iterable[decoders.Decoder], special: Iterable[str]) -> decoders.Decoder:
    """Words with a space between any two, as the `first` decoders make them, less the space beside each mark: it has
    its own. Special tokens look like marks and are words."""
    names = "|".join(map(re.escape, special))
    before = Regex(rf" (?!{names})(?={PUNCTUATION_CLASS})")
    after = Regex(rf"(?<={PUNCTUATION_CLASS})(?<!{names}) (?! *+(?!{names}){PUNCTUATION_CLASS})")
    removed = [decoders.Replace(pattern, "") for pattern in (before, after)]
    clean = [decoders.Replace(Regex(" ++"), " "), decoders.Replace(Regex(r"\A | \z"), "")]
    return decoders.Sequence([*first, decoders.Fuse(), *removed, *clean])


def add_spaced_variants(counts: Counter[str]) -> None:
    """Add the words that a mark may be, alone and between spaces, so that each has its letters in the alphabet."""
    cut = build_spaced_splitter()
    for mark in {word.strip() for word in counts}:
        if len(mark) == 1 and len(cut.pre_tokenize_str(mark * 2)) == 2:
            counts.setdefault(mark, 0)
            counts.setdefault(f" {mark} ", 0)


def count_spaced_words(
    lines: Iterable[str], cutter: WordCutter, alphabet: int, more: str, split_word: Callable[[str], list[str]],
    workers: int | None, tell: ProgressCallback | None,
) -> MergeCorpus:  # fmt: skip
    """Count words and spaced marks; cut those whose characters are the `alphabet` most frequent or in `more`."""
    counts = count_words(lines, cutter, workers, tell)
    kept = choose_alphabet(counts, alphabet) | set(more)
    add_spaced_variants(counts)
    return MergeCorpus({word: count for word, count in counts.items() if kept.issuperset(word)}, split_word)


# Hangul syllables may be taken apart into jamo first: 한 is ᄒ + ᅡ + ᆫ, so that pieces may share a stem whose last
# syllable changes (하다, 한다, 했다). The jamo are Unicode's conjoining ones, which NFD makes and NFC puts together
# again: they say whether a consonant begins or ends its syllable, so that nothing is ambiguous, and ㅋㅋ (compatibility
# jamo) stays what it is. A file can say NFD (every reader of tokenizer.json takes syllables apart alike), but no
# decoder of the tokenizers library composes: `Tokenizer.decode` does, other readers get NFD and have to compose it.
MODERN_JAMO = [chr(c) for c in (*range(0x1100, 0x1113), *range(0x1161, 0x1176), *range(0x11A8, 0x11C3))]
BYTE_CHARACTERS = {byte: character for character, byte in BYTE_ALPHABET.items()}
JAMO_SPELLINGS = ["".join(BYTE_CHARACTERS[byte] for byte in jamo.encode()) for jamo in MODERN_JAMO]  # three bytes each
JAMO_PREFIXES = sorted({jamo[:2] for jamo in JAMO_SPELLINGS})
JAMO_PIECES = [*JAMO_PREFIXES, *JAMO_SPELLINGS]
# These merges come before all others.
JAMO_MERGES = [*((p[0], p[1]) for p in JAMO_PREFIXES), *((jamo[:2], jamo[2]) for jamo in JAMO_SPELLINGS)]
# Cuts the byte-level spelling of a word into jamo, and into single bytes where it has other characters.
JAMO_PATTERN = re.compile("|".join(map(re.escape, [*JAMO_SPELLINGS, *JAMO_PREFIXES])) + "|.", re.DOTALL)
# GPT-2's, but for accents: taken apart, they stay with their letter.
JAMO_WORD_REGEX = r"'(?:[sdmt]|ll|ve|re)| ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"
END_OF_WORD = "</w>"  # GPT-1's mark


def score_frequency(both: np.ndarray, left: np.ndarray, right: np.ndarray, total: int) -> np.ndarray:
    """Return BPE's score of a pair: how often it occurs."""
    return both.astype(np.float64)


def train_bpe(
    lines: Iterable[str], vocab_size: int = 8192, *, style: TokenizerStyle, min_count: int = 2,
    nfc: bool = True, lower: bool | None = None, alphabet: int | None = None, morphemes: bool = False,
    jamo: bool = False, workers: int | None = None, tell: ProgressCallback | None = None,
) -> Tokenizer:  # fmt: skip
    """Learn `vocab_size` pieces: the 256 bytes, then the most frequent pair again and again (ties: the smaller
    strings).

    A style with word ends (GPT-1's) has characters in lower case instead of bytes (`lower`, `alphabet`). `nfc=False`
    leaves text as it is, so that decoding gives back every byte; otherwise it gives back the composed text. With
    `morphemes` Korean words are cut into morphemes first, and no piece reaches across. With `jamo` Hangul syllables are
    taken apart first (the kind "jamo"): pieces are made of jamo, and decoding composes them again."""
    if jamo and (style.has_word_ends or not nfc):
        what, fix = ("GPT-1", "the style gpt") if style.has_word_ends else ("nfc=False", "nfc")
        raise Error(f"jamo go with bytes, and are composed again: not with {what}", fix=f"leave out {fix}")
    if style.has_word_ends:
        if morphemes:
            raise Error("GPT-1's pieces cannot be cut into morphemes", fix="take the style gpt2, or another of bytes")
        return train_end_of_word(lines, vocab_size, style, min_count, lower is not False, alphabet, workers, tell)
    if lower is not None or alphabet is not None:
        raise Error("bytes have no case and no alphabet", fix="lower and alphabet go with the style gpt")
    first = [*sorted(BYTE_ALPHABET), *(JAMO_PIECES if jamo else ())]
    if vocab_size < (least_size := len(first) + len(style.special_tokens)):
        raise Error(f"a byte-level vocabulary of {vocab_size} is too small", fix=f"take at least {least_size}")
    rust = build_byte_level(nfc, morphemes, jamo)
    cutter = WordCutter(rust.to_str(), is_byte_level=True, has_morphemes=morphemes)
    words = MergeCorpus(count_words(lines, cutter, workers, tell), JAMO_PATTERN.findall if jamo else list)
    queue = PairQueue(words, score_frequency, min_count, is_falling=True)
    ids, merges = learn_pieces(queue, style, first, vocab_size, tell=tell)
    rust.model = models.BPE(vocab=ids, merges=[*JAMO_MERGES, *merges] if jamo else merges)
    rust.decoder = decoders.ByteLevel()
    return style.finish_tokenizer(rust, ids)


def build_byte_level(nfc: bool, morphemes: bool, jamo: bool = False) -> Rust:
    """Build an empty tokenizer that cuts text as GPT-2 does; words of jamo keep their accents on becoming bytes."""
    rust = Rust(models.BPE())
    if nfc:
        rust.normalizer = normalizers.NFD() if jamo else normalizers.NFC()
    split: pre_tokenizers.PreTokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not jamo)
    if jamo:
        split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(JAMO_WORD_REGEX), "isolated"), split])
    if morphemes:
        split = pre_tokenizers.Sequence([pre_tokenizers.Split(MORPHEME_MARK, "removed"), split])
    rust.pre_tokenizer = split
    return rust


def train_end_of_word(
    lines: Iterable[str], vocab_size: int, style: TokenizerStyle, min_count: int, lower: bool, alphabet: int | None,
    workers: int | None, tell: ProgressCallback | None,
) -> Tokenizer:  # fmt: skip
    """Train GPT-1's kind: the last piece of a word ends in </w>. A character that is not in the alphabet is unknown."""
    rust = Rust(models.BPE(unk_token=style.special["unk"]))
    rust.normalizer, rust.pre_tokenizer = build_spaced_normalizer(lower), build_spaced_splitter()
    cutter = WordCutter(rust.to_str(), has_spaced_punctuation=True)
    size, split_word = alphabet or vocab_size // 3, lambda word: [*word[:-1], word[-1] + END_OF_WORD]
    words = count_spaced_words(lines, cutter, size, " ", split_word, workers, tell)
    queue = PairQueue(words, score_frequency, min_count, is_falling=True)
    ids, merges = learn_pieces(queue, style, words.piece_names[1:], vocab_size, tell=tell)
    unknown = style.special["unk"]
    rust.model = models.BPE(ids, merges, unk_token=unknown, end_of_word_suffix=END_OF_WORD, fuse_unk=False)
    rust.decoder = build_spaced_decoder([decoders.BPEDecoder(suffix=END_OF_WORD)], style.special_tokens)
    return style.finish_tokenizer(rust, ids)


CONTINUATION_PREFIX = "##"  # marks a piece that does not begin a word
# Characters of a word; longer ones are unknown, as their time grows with the square. BERT's 100 are too few for Korean
# that is written without spaces: a whole review of 140 characters would be a single unknown word.
MAX_WORD_CHARACTERS = 500


def score_gain(both: np.ndarray, left: np.ndarray, right: np.ndarray, total: int) -> np.ndarray:
    """Return how much the likelihood rises, the logarithm in whole millionths: gains that are equal on paper are equal
    here."""
    return both * np.rint(1e6 * np.log(score_ratio(both, left, right, total) * total))


def score_ratio(both: np.ndarray, left: np.ndarray, right: np.ndarray, total: int) -> np.ndarray:
    """Return the score that tutorials of WordPiece give."""
    return both / (left.astype(np.float64) * right)


def train_wordpiece(
    lines: Iterable[str], vocab_size: int = 8192, *, style: TokenizerStyle, min_count: int = 2,
    lower: bool = False, alphabet: int | None = None, score: Literal["gain", "ratio"] = "gain", morphemes: bool = False,
    workers: int | None = None, tell: ProgressCallback | None = None,
) -> Tokenizer:  # fmt: skip
    """Learn `vocab_size` pieces: the most frequent characters, then the best pair again and again.

    At most `alphabet` characters are kept, by default a third of the vocabulary: each is needed twice, at the beginning
    of a word and inside, and Korean alone has thousands of syllables. A word with any other character is unknown. With
    `morphemes` Korean words are cut into morphemes first, and no piece reaches across.

    `score="ratio"` is count(ab)/(count(a)·count(b)), found in tutorials: it prefers the rarest pairs. For teaching."""
    unknown = style.special["unk"]
    rust = build_bert_pipeline(lower, unknown, morphemes)
    cutter = WordCutter(rust.to_str(), has_morphemes=morphemes, has_spaced_punctuation=True)
    size = alphabet or vocab_size // 3
    words = count_spaced_words(lines, cutter, size, " " + MORPHEME_MARK, split_characters, workers, tell)
    queue = PairQueue(words, score_ratio if score == "ratio" else score_gain, min_count, is_falling=False)
    ids, _ = learn_pieces(queue, style, words.piece_names[1:], vocab_size, CONTINUATION_PREFIX, tell)
    rust.model = models.WordPiece(vocab=ids, unk_token=unknown, max_input_chars_per_word=MAX_WORD_CHARACTERS)
    first: list[decoders.Decoder] = [decoders.WordPiece(prefix=CONTINUATION_PREFIX, cleanup=False)]
    first += [decoders.Replace(MORPHEME_MARK, "")] if morphemes else []
    rust.decoder = build_spaced_decoder(first, style.special_tokens)
    return style.finish_tokenizer(rust, ids)


def split_characters(word: str) -> list[str]:
    """Split a word into characters; one that begins a morpheme keeps the mark before it, and an edge stands between."""
    first, *rest = word.split(MORPHEME_MARK)
    pieces = [*first[:1], *(CONTINUATION_PREFIX + c for c in first[1:])]
    for morpheme in rest:
        inner = (CONTINUATION_PREFIX + c for c in morpheme[1:])
        pieces += ["", CONTINUATION_PREFIX + MORPHEME_MARK + morpheme[0], *inner]
    return pieces


def build_bert_pipeline(lower: bool, unknown: str, morphemes: bool = False) -> Rust:
    """Build an empty tokenizer that cuts text as BERT does, but for the spaces around punctuation, which are kept.
    Punctuation is cut off after morphemes were marked, so that a mark may be left at a word's edge: it is removed."""
    rust = Rust(models.WordPiece(vocab={unknown: 0}, unk_token=unknown))
    rust.normalizer, words = build_spaced_normalizer(lower), build_spaced_splitter()
    edges = pre_tokenizers.Split(Regex(rf"\A{MORPHEME_MARK}+|{MORPHEME_MARK}+\z"), "removed")
    rust.pre_tokenizer = pre_tokenizers.Sequence([words, edges]) if morphemes else words
    return rust
