"""Tokenizer: the Rust tokenizer with its special tokens, safe for untrusted files and for Korean."""

from __future__ import annotations

import base64
import bisect
import functools
import hashlib
import json
import operator
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from ..config import table
from ..errors import Error
from . import bounds
from .batch_encoding import BatchEncoding, encode_texts
from .bytelevel import ALPHABET, BYTE, from_spaces, to_bytes
from .charsmap import RISKY, Charsmap
from .joints import JOINT, mark_morphemes, marked, strip_joints
from .normalise import normalise
from .offsets import Offsets, offsets
from .panics import hide_panic
from .variants import variant

SPECIAL = ("pad", "unk", "bos", "eos", "cls", "sep", "mask")
SCAN = 1 << 20  # steps of a search that costs less than all offsets as Python's tuples
END = operator.itemgetter(1)
VOWELS = "".join(map(chr, range(0x1161, 0x1176)))  # every syllable of decomposed Hangul has one of them


@dataclass(frozen=True)
class Frame:
    """What a template puts around a text (or two): ids before, between and after, and the segment of each part."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    segments: tuple[tuple[int, ...], int, tuple[int, ...], int, tuple[int, ...]]  # before, A, between, B, after


class Tokenizer:
    """Text to ids and back. `special` names the special tokens by role: pad, unk, bos, eos, cls, sep, mask.

    `notes` says what one may not expect: what it does to Korean (also a warning, once), what was assumed. `target`
    is the tokenizer of the other side where a model has two (Marian). `parse`, where a method has it: text that spells
    a special token is that token, as in transformers; without it, such text is text like any other.
    """

    def __init__(self, text: str, special: Mapping[str, str] | None = None, *, where: object = None):
        self.text = text  # the file as it was, so that saving changes nothing
        about = table(text, where)
        bounds.check(about, where)
        self.rust = guarded(lambda: tokenizers.Tokenizer.from_str(text), where)
        self.rust.no_truncation()  # a published file may cut texts in silence
        self.rust.no_padding()
        known = self.rust.get_vocab(with_added_tokens=True)
        self.special = {role: token for role, token in (special or {}).items() if role in SPECIAL and token in known}
        self.target: Tokenizer | None = None
        self.machines = {(False, True): self.rust}
        self.notes: list[str] = []
        self.context: int | None = None  # what the model that it belongs to can read
        kinds = {part: list(bounds.parts(about.get(part))) for part in ("normalizer", "pre_tokenizer", "decoder")}
        names = {part: [p.get("type") for p in tables] for part, tables in kinds.items()}
        model = about.get("model")
        self.model: dict[str, Any] = (
            {k: v for k, v in model.items() if k not in ("vocab", "merges")} if isinstance(model, dict) else {}
        )
        self.bytes = "ByteLevel" in names["decoder"]
        self.fallback = "ByteFallback" in names["decoder"]
        self.spaces = "Metaspace" in (*names["decoder"], *names["pre_tokenizer"]) or self.fallback
        self.morphemes = JOINT in json.dumps([about.get("pre_tokenizer"), about.get("decoder")], ensure_ascii=False)
        normal = about.get("normalizer") or {}
        steps = normal.get("normalizers") or [normal]
        chars = steps[0].get("precompiled_charsmap")  # later, it would see what other steps have made of the text
        self.charsmap = None if chars is None else Charsmap(base64.b64decode(chars), where)
        self.jamo = self.bytes and "NFD" in names["normalizer"]  # what it takes apart, decoding composes again
        self.composes = any(name in ("NFC", "NFKC") for name in names["normalizer"]) or chars is not None or self.jamo

    def __len__(self) -> int:
        return self.rust.get_vocab_size(with_added_tokens=True)

    def __repr__(self) -> str:
        kinds = {"BPE": "byte-level BPE" if self.bytes else "BPE", "Unigram": "unigram", "WordLevel": "words"}
        name = str(self.model.get("type"))
        marks = ", ".join(f"{role} {token}" for role, token in self.special.items())
        return f"Tokenizer({kinds.get(name, name)}, {len(self):,} pieces; {marks or 'no special tokens'})"

    def __call__(
        self,
        texts: Any,
        text_pair: Any = None,
        *,
        padding: bool | str = False,
        truncation: bool | str = False,
        max_length: int | None = None,
        return_tensors: str | None = None,
        add_special_tokens: bool = True,
    ) -> BatchEncoding:
        """Encode a text or a list of texts as transformers does: input_ids, attention_mask, and token_type_ids where
        the template marks the texts of a pair.

        A pair is given by `text_pair`, or as a tuple in the list. `padding` is True (to the longest) or "max_length",
        `truncation` True, "only_first" or "only_second", `return_tensors` "pt" or "np"; `max_length` is what the
        tokenizer's model can read if it is not given, and where that has no limit, nothing is cut.
        """
        return encode_texts(self, texts, text_pair, padding, truncation, max_length, return_tensors, add_special_tokens)

    def id(self, role: str) -> int | None:
        """The id of a special token by its role."""
        return self.rust.token_to_id(self.special[role]) if role in self.special else None

    @property
    def fingerprint(self) -> str:
        """What tells two tokenizers apart: a hash of the file's meaning, whatever its spacing."""
        meaning = json.dumps(json.loads(self.text), sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        meaning += "" if self.target is None else self.target.fingerprint
        return hashlib.sha256(meaning.encode()).hexdigest()

    def encode(
        self, text: str, pair: str | None = None, *, special: bool = True, normalise: bool = False, parse: bool = True
    ) -> list[int]:
        """Ids of a text, or of a pair of them; with the family's special tokens unless told otherwise.

        `normalise` composes the text first (NFC), for published tokenizers that do not do it themselves.
        """
        both = [self.prepare(t, normalise) for t in (text, pair) if t is not None]
        mapped = any(done for _, done in both)
        if mapped:
            both = [(t if done else self.mapped(t)[0], True) for t, done in both]
        rust = self.machine(mapped, parse)
        return guarded(lambda: rust.encode(*(t for t, _ in both), add_special_tokens=special).ids)

    def encode_batch(
        self, texts: Sequence[str], *, special: bool = True, normalise: bool = False, parse: bool = True
    ) -> list[list[int]]:
        """Ids of many texts, on all cores."""
        if self.composes and not normalise and self.charsmap is None and not self.morphemes:
            rust = self.machine(False, parse)
            return [e.ids for e in guarded(lambda: rust.encode_batch_fast(list(texts), add_special_tokens=special))]
        if self.morphemes and self.charsmap is None:  # all new words go to the analyser together
            ready = [(text, False) for text in mark_morphemes([strip_joints(text) for text in texts])]
        else:
            ready = [self.prepare(text, normalise) for text in texts]
        return [made.ids for made in self.encoded(ready, special, parse, fast=True)]

    def encode_with_offsets(self, text: str, *, special: bool = True, parse: bool = True) -> tuple[list[int], Offsets]:
        """Ids of a text, and where in it each stands: text[begin:end]; special tokens have (0, 0)."""
        return self.encode_batch_with_offsets([text], special=special, parse=parse)[0]

    def encode_batch_with_offsets(
        self, texts: Sequence[str], *, special: bool = True, parse: bool = True
    ) -> list[tuple[list[int], Offsets]]:
        """Ids of many texts, and where in its text each stands."""
        traced = self.encode_traced(texts, special, parse)
        return [(made.ids, offsets(made, origins, text)) for text, (made, origins) in zip(texts, traced, strict=True)]

    def encode_with_places(
        self, texts: Sequence[str], places: Callable[[str], Sequence[int]]
    ) -> list[tuple[list[int], list[int]]]:
        """Ids of many documents, and which tokens hold the characters at the `places` of each: the one that a character
        is in, else the next, else the last. A document spells no special token."""
        rows = []
        for text, (made, origins) in zip(texts, self.encode_traced(texts, False, False), strict=True):
            wanted, found = places(text), None
            if origins is None and len(made) * len(wanted) < SCAN:  # the library looks through all tokens for each
                found = [made.char_to_token(at) for at in wanted]
            if found is None or None in found:
                spans = offsets(made, origins, text)
                found = [bisect.bisect_right(spans, at, 0, max(0, len(spans) - 1), key=END) for at in wanted]
            rows.append((made.ids, found))
        return rows

    def encode_traced(self, texts: Sequence[str], special: bool, parse: bool) -> list[tuple[Any, list[int] | None]]:
        """What the Rust library makes of texts, and where the characters that it was handed come from."""
        if self.morphemes:
            mark_morphemes([strip_joints(text) for text in texts])  # so that all new words go to the analyser together
        traced = [self.traced(text) for text in texts]
        ready = [(text, origins is not None and self.charsmap is not None) for text, origins in traced]
        made = self.encoded(ready, special, parse)
        return [(one, origins) for one, (_, origins) in zip(made, traced, strict=True)]

    def encoded(self, ready: Sequence[tuple[str, bool]], special: bool, parse: bool, fast: bool = False) -> list[Any]:
        """What the Rust library makes of texts, each by the one that suits it: with SentencePiece's table, or without
        (True: it has been applied). `fast` finds no offsets."""
        rows: list[Any] = [None] * len(ready)
        for which in {done for _, done in ready}:
            rust = self.machine(which, parse)
            call = rust.encode_batch_fast if fast else rust.encode_batch
            places = [i for i, (_, done) in enumerate(ready) if done == which]
            chosen = [ready[i][0] for i in places]
            made = guarded(lambda call=call, chosen=chosen: call(chosen, add_special_tokens=special))
            for i, encoding in zip(places, made, strict=True):
                rows[i] = encoding
        return rows

    def prepare(self, text: str, compose: bool = False) -> tuple[str, bool]:
        """What the Rust library is handed, and whether SentencePiece's table was applied; most text needs nothing."""
        if compose:
            text = normalise(text)
        if text.isascii() and (self.charsmap is None or "\r" not in text):
            return text, False
        if not self.composes:
            self.look(text)
        if self.charsmap is None:
            return (mark_morphemes([strip_joints(text)])[0] if self.morphemes else text), False
        ready, origins = self.traced(text)
        return ready, origins is not None and self.charsmap is not None

    def traced(self, text: str) -> tuple[str, list[int] | None]:
        """A text made ready, and for each character of it where it comes from; None: nothing was changed."""
        if self.charsmap is not None:
            return self.mapped(text) if RISKY.search(text) else (text, None)
        if not self.morphemes or text.isascii():
            return text, None
        return marked(text)

    def mapped(self, text: str) -> tuple[str, list[int]]:
        """A text with SentencePiece's table applied."""
        assert self.charsmap is not None
        return self.charsmap.apply(text)

    def machine(self, mapped: bool, parse: bool) -> Any:
        """The Rust tokenizer for text that SentencePiece's table has been applied to or not, and that may spell special
        tokens or not."""
        key = mapped and self.charsmap is not None, parse or not self.reserved
        if key not in self.machines:
            hide = () if key[1] else self.reserved
            rust = guarded(lambda: tokenizers.Tokenizer.from_str(variant(self.text, table=not key[0], hide=hide)))
            rust.no_truncation()
            rust.no_padding()
            rust.encode_special_tokens = not key[1]
            self.machines[key] = rust
        return self.machines[key]

    @functools.cached_property
    def reserved(self) -> frozenset[str]:
        """The special tokens: those that have a role, and those that the file calls special."""
        return (self.marks | set(self.special.values())) - {""}

    def spells(self, text: str) -> bool:
        """Whether a special token is written out in a text."""
        return bool(self.reserved) and self.spelling.search(text) is not None

    @functools.cached_property
    def spelling(self) -> re.Pattern[str]:
        """Any special token, written out."""
        return re.compile("|".join(map(re.escape, sorted(self.reserved))))

    def look(self, text: str) -> None:
        """Say once what happens to Korean here."""
        note = None
        if any(vowel in text for vowel in VOWELS):
            note = "decomposed Hangul (NFD) is many times longer in tokens here, or unknown: pass normalise=True"
        elif self.splits and any("가" <= c <= "힣" for c in text):
            note = "this tokenizer takes Hangul syllables apart into jamo, as it was published"
        if note is not None and note not in self.notes:
            self.notes.append(note)
            warnings.warn(note, stacklevel=4)

    @functools.cached_property
    def splits(self) -> bool:
        """Its normaliser takes Hangul syllables apart."""
        normal = self.rust.normalizer
        return normal is not None and any("\u1100" <= c <= "\u11ff" for c in normal.normalize_str("한"))

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """Text of ids; bytes that do not form a character are left out, so that nothing shows as �."""
        ids = [int(i) for i in ids]
        if not self.bytes and not self.fallback:
            return guarded(lambda: self.rust.decode(ids, skip_special_tokens=not special))
        data = b"".join(self.spelled(ids, special))
        text = (data.removeprefix(b" ") if self.fallback else data).decode("utf-8", errors="ignore")
        return normalise(text) if self.jamo else text

    def spelled(self, ids: Iterable[int], special: bool = False) -> Iterable[bytes]:
        """The bytes of each id, where pieces may be bytes."""
        hidden = frozenset() if special else self.reserved
        for piece in map(self.rust.id_to_token, ids):
            if piece is not None and piece not in hidden:
                own = piece in self.added
                yield piece.encode() if own else to_bytes(piece) if self.bytes else from_spaces(piece)

    @functools.cached_property
    def added(self) -> frozenset[str]:
        """Tokens that stand for their own text."""
        return frozenset(token.content for token in self.rust.get_added_tokens_decoder().values())

    @functools.cached_property
    def marks(self) -> frozenset[str]:
        """Tokens that the file calls special."""
        return frozenset(t.content for t in self.rust.get_added_tokens_decoder().values() if t.special)

    def token(self, index: int) -> str:
        """One piece, as a person would read it."""
        piece = self.rust.id_to_token(index)
        if piece is None:
            return ""
        if self.bytes and piece not in self.added and piece not in self.special.values():
            text = to_bytes(piece).decode("utf-8", errors="replace")
            text = normalise(text) if self.jamo else text
            return text if "\ufffd" not in text else "<" + to_bytes(piece).hex() + ">"
        return piece.replace(JOINT, "")

    @functools.cached_property
    def word_starts(self) -> np.ndarray:
        """(vocab,) True for a piece that begins a word: without ##, with ▁ or a space in front; special tokens too.

        The first word of a text has no space in front in byte-level pieces, and GPT-1's pieces mark a word's end
        instead: `begins` knows what to make of both.
        """
        pieces = [self.rust.id_to_token(i) or "" for i in range(len(self))]
        special = set(self.reserved)
        if self.bytes:
            spaces = {c for c, byte in ALPHABET.items() if chr(byte).isspace() and byte < 0x80}
            starts = [p[:1] in spaces for p in pieces]
        elif self.suffix:
            starts = [False] * len(pieces)
            special -= {self.special.get("unk", "")}  # it stands for one character
        elif self.spaces:
            starts = [p.startswith("▁") for p in pieces]
            special -= {self.special.get("unk", "")}  # it has a ▁ of its own before it, or is inside of a word
        elif self.model.get("type") == "WordPiece":
            starts = [not p.startswith(str(self.model.get("continuing_subword_prefix"))) for p in pieces]
        else:
            starts = [BYTE.fullmatch(p) is None for p in pieces]
        return np.array([s or p in special for s, p in zip(starts, pieces, strict=True)], bool)

    @property
    def suffix(self) -> str:
        """The mark at the end of a word's last piece, if there is one (GPT-1)."""
        return str(self.model.get("end_of_word_suffix") or "")

    @functools.cached_property
    def word_ends(self) -> np.ndarray:
        """(vocab,) True for a piece that ends a word for certain: GPT-1's </w>, and special tokens but the unknown."""
        pieces = [self.rust.id_to_token(i) or "" for i in range(len(self))]
        special = self.reserved - {self.special.get("unk", "")}
        return np.array([p in special or bool(self.suffix and p.endswith(self.suffix)) for p in pieces], bool)

    def begins(self, ids: Any) -> np.ndarray:
        """Of each id of a text whether it begins a word, whichever way this tokenizer marks that."""
        ids = np.asarray(ids, np.int64)
        after = np.append(True, self.word_ends[ids[:-1]])[: len(ids)]
        return self.word_starts[ids] | after

    def frame(self, pair: bool = False) -> Frame:
        """The template around one text, or around two."""
        for probe in ("a", "가", "1", "the", "."):
            made = guarded(lambda p=probe: self.rust.encode(p, p if pair else None, add_special_tokens=True))
            places = made.sequence_ids
            if 0 in places and (1 in places or not pair):
                break
        else:
            return Frame((), (), (), ((), 0, (), 0, ()))
        first, last = places.index(0), len(places) - 1 - places[::-1].index(1 if pair else 0)
        end = first + places.count(0)
        start = places.index(1) if pair else end
        spans = (slice(0, first), slice(end, start), slice(last + 1, None))
        ids, kinds = made.ids, made.type_ids
        before, between, after = (tuple(ids[s]) for s in spans)
        segments = [tuple(kinds[s]) for s in spans]
        return Frame(
            before, between, after, (segments[0], kinds[first], segments[1], kinds[start] if pair else 0, segments[2])
        )

    @property
    def left(self) -> bool:
        """Shorter texts are filled up at the left: the classifier's token comes last (XLNet)."""
        return self.frame().after[-2:] == (self.id("sep"), self.id("cls"))

    def save(self, path: Any) -> None:
        """Write tokenizer.json as it was read or trained, into a folder or as a file; the other side's beside it."""
        file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
        file.write_text(self.text, encoding="utf-8")
        if self.target is not None:
            self.target.save(file.with_suffix(".target.json"))


def guarded(call: Any, where: object = None) -> Any:
    """The Rust library's failures, panics included, as our error."""
    try:
        with hide_panic():
            return call()
    except (Error, KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # a Rust panic is not an Exception
        what = " ".join(str(error).split())[:200] or type(error).__name__
        if isinstance(error, TypeError) and what.startswith("Text"):  # what it says of a string that is not Unicode
            half = "a text is no string, or holds half a character (a lone surrogate)"
            raise Error(half, fix='text.encode("utf-8", "replace").decode() mends it') from None
        raise Error(
            f"the tokenizer failed: {what}", where=where, fix="is this a tokenizer.json of the tokenizers library?"
        ) from None


__all__ = ["ALPHABET", "SPECIAL", "Frame", "Tokenizer", "guarded", "normalise", "to_bytes"]
