"""Tokenizer: the Rust tokenizer with its special tokens, safe for untrusted files and for Korean; and `DecodeStream`,
which decodes ids as they are generated.

Also what it needs of the Rust library and its files: SentencePiece's table of characters, bytes in pieces (GPT-2's
printable stand-ins, SentencePiece's <0x..>), where tokens stand in a text as it came, and other readings of one
tokenizer.json, without the table or with special tokens that no text can spell."""

from __future__ import annotations

import base64
import bisect
import codecs
import functools
import hashlib
import json
import operator
import re
import unicodedata
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tokenizers
from numpy.typing import ArrayLike

from ..config import JSONObject, parse_json_object
from ..errors import Error
from .backend_safety import check_tokenizer_json, hide_panic, iterate_tables
from .batch_encoding import BatchEncoding, Texts, encode_texts
from .korean import MORPHEME_MARK, mark_morphemes, mark_with_origins, strip_morpheme_marks
from .normalise import compile_continuations, normalise

# Everything outside is left to the Rust library: in these ranges a character never joins with its neighbours.
JOINING_CHARACTERS = re.compile(
    "[^\x00-\x0c\x0e-\u02ff\u2010-\u2027\u3001-\u3029\u3041-\u3096\u30a1-\u30fe\u4e00-\u9fff\uac00-\ud7a3]"
)


class Charsmap:
    """A double array of bytes that leads from a text to its replacement; nothing in it is trusted unchecked."""

    def __init__(self, data: bytes, where: object = None):
        size = int.from_bytes(data[:4], "little")
        if not 4 <= size <= len(data) - 4 or size % 4:
            raise Error("precompiled_charsmap is broken", where=where, fix="the file is damaged: fetch it again")
        self.double_array = np.frombuffer(data, "<u4", size // 4, 4).tolist()
        self.replacements = data[4 + size :]

    def find_longest(self, text: bytes, place: int) -> tuple[int, str] | None:
        """Find the longest entry that the text continues with here: its length in bytes, and what replaces it."""
        units, longest = self.double_array, None
        node = decode_child_offset(units[0])
        for i in range(place, len(text)):
            node ^= text[i]
            if node >= len(units) or units[node] & 0x800000FF != text[i]:
                break
            unit = units[node]
            node ^= decode_child_offset(unit)
            if unit >> 8 & 1:
                if node >= len(units):
                    break
                longest = i + 1 - place, units[node] & 0x7FFFFFFF
        if longest is None or longest[1] > len(self.replacements):
            return None
        end = self.replacements.find(b"\0", longest[1])
        return longest[0], self.replacements[longest[1] : None if end < 0 else end].decode("utf-8", "ignore")

    def apply(self, text: str) -> tuple[str, list[int]]:
        """Return the text with all entries replaced, and for each new character where it comes from."""
        data, out, origins = text.encode("utf-8", "ignore"), [], []
        place = letter = 0
        while place < len(data):
            match = self.find_longest(data, place)
            lead = data[place]
            size = 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4  # bytes of the character
            length, new = match or (size, data[place : place + size].decode())
            out.append(new)
            origins += [letter] * len(new)
            letter += sum(byte & 0xC0 != 0x80 for byte in data[place : place + length])
            place += length
        return "".join(out), origins


def decode_child_offset(unit: int) -> int:
    """Return where a node's children are."""
    return unit >> 10 << (unit >> 6 & 8)


# GPT-2's printable stand-in for each byte: character → byte.
PRINTABLE_BYTES = (*range(33, 127), *range(161, 173), *range(174, 256))
OTHER_BYTES = [byte for byte in range(256) if byte not in PRINTABLE_BYTES]
BYTE_ALPHABET = {chr(b): b for b in PRINTABLE_BYTES} | {chr(256 + i): b for i, b in enumerate(OTHER_BYTES)}
BYTE_PIECE = re.compile("<0x([0-9A-F]{2})>")


def byte_level_to_bytes(piece: str) -> bytes:
    """Return the bytes of a byte-level piece; an added token stands for its own text."""
    return bytes(BYTE_ALPHABET[c] for c in piece) if all(c in BYTE_ALPHABET for c in piece) else piece.encode()


def sentencepiece_to_bytes(piece: str) -> bytes:
    """Return the bytes of a SentencePiece piece that may stand for a single byte."""
    match = BYTE_PIECE.fullmatch(piece)
    return bytes([int(match[1], 16)]) if match else piece.replace("▁", " ").encode()


Offsets = list[tuple[int, int]]  # where each token begins and ends in its text


def find_offsets(encoding: tokenizers.Encoding, origins: list[int] | None, text: str) -> Offsets:
    """Find the places of an encoding's tokens; `origins` says where each character of what was cut comes from."""
    offsets: Offsets = encoding.offsets
    if origins is not None:
        offsets = [(origins[a], origins[b - 1] + 1) if b > a else (0, 0) for a, b in offsets]
    if unicodedata.is_normalized("NFC", text):
        return offsets
    whole: Offsets = []
    for place, (begin, end) in enumerate(offsets, 1):
        while place < len(offsets) and offsets[place][0] < end:  # a token that shares its characters, or a mark
            place += 1
        most = offsets[place][0] if place < len(offsets) else len(text)
        whole.append((begin, extend_token_end(text, end, most)) if end > begin else (begin, end))
    return whole


def extend_token_end(text: str, end: int, most: int) -> int:
    """Extend a token over what is one character with its last one: marks, and the rest of a decomposed syllable,
    which the library leaves out; `most` is where the next token begins."""
    last, size = end - 1, len(unicodedata.normalize("NFC", text[end - 1 : end]))
    while end < most and len(unicodedata.normalize("NFC", text[last : end + 1])) == size:
        end += 1
    while end < most and unicodedata.combining(text[end]):
        end += 1
    return end


# After the name of a hidden piece: models see words without white space, and NUL is removed from text that is read.
HIDDEN_SUFFIX = " \0"


def rewrite_tokenizer_json(text: str, *, table: bool, hide: Collection[str]) -> str:
    """Rewrite the file without its table of characters (`table` = False) and with `hide` out of reach; ids stay."""
    about = json.loads(text)
    if not table:
        inner = about["normalizer"].get("normalizers", [])
        about["normalizer"] = {"type": "Sequence", "normalizers": inner[1:]} if inner else None
    if hide:
        about["model"] = hide_pieces(about["model"], frozenset(hide))
        for token in about.get("added_tokens") or []:
            if token["content"] in hide:
                token |= {"content": token["content"] + HIDDEN_SUFFIX, "special": True}
    return json.dumps(about, ensure_ascii=False)


def hide_pieces(model: JSONObject, hide: frozenset[str]) -> JSONObject:
    """Hide pieces that a model must not make. To mark them special is not enough: Unigram and word models find them in
    their vocabulary again, also as capitals or in full width that a normaliser makes plain."""

    def name(piece: str) -> str:
        return piece + HIDDEN_SUFFIX if piece in hide else piece

    out, vocab = dict(model), model["vocab"]
    if isinstance(vocab, dict):
        out["vocab"] = {name(piece): i for piece, i in vocab.items()}
    else:
        out["vocab"] = [[name(piece), score] for piece, score in vocab]
    if isinstance(model.get("unk_token"), str):
        out["unk_token"] = name(model["unk_token"])
    if "merges" in model:
        pairs = [pair.split(" ", 1) if isinstance(pair, str) else pair for pair in model["merges"]]
        out["merges"] = [pair for pair in pairs if hide.isdisjoint((*pair, "".join(pair)))]
    return out


Result = TypeVar("Result")
SPECIAL_ROLES = ("pad", "unk", "bos", "eos", "cls", "sep", "mask")
MAX_SCAN_STEPS = 1 << 20  # steps of a search that costs less than all offsets as Python's tuples
GET_END = operator.itemgetter(1)
JAMO_VOWELS = "".join(map(chr, range(0x1161, 0x1176)))  # every syllable of decomposed Hangul has one of them


@dataclass(frozen=True)
class Template:
    """What a template puts around a text (or two): ids before, between and after, and the segment of each part."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    segments: tuple[tuple[int, ...], int, tuple[int, ...], int, tuple[int, ...]]  # before, A, between, B, after


class Tokenizer:
    """Text to ids and back. `special` names the special tokens by role: pad, unk, bos, eos, cls, sep, mask.

    `notes` says what one may not expect: what it does to Korean (also a warning, once), what was assumed. `target`
    is the tokenizer of the other side where a model has two (Marian). `parse_special`, where a method has it: text that
    spells a special token is that token, as in transformers; without it, such text is text like any other."""

    def __init__(self, text: str, special: Mapping[str, str] | None = None, *, where: object = None):
        self.json_text = text  # the file as it was, so that saving changes nothing
        about = parse_json_object(text, where)
        check_tokenizer_json(about, where)
        rust = call_backend(lambda: tokenizers.Tokenizer.from_str(text), where)
        self.backend: Any = rust  # dynamic: the stubs of tokenizers do not say how its methods are called
        self.backend.no_truncation()  # a published file may cut texts in silence
        self.backend.no_padding()
        known = self.backend.get_vocab(with_added_tokens=True)
        self.special = {r: token for r, token in (special or {}).items() if r in SPECIAL_ROLES and token in known}
        self.target: Tokenizer | None = None
        self.fingerprints: dict[str, str] = {}  # by that of the target; a large vocabulary takes a tenth of a second
        self.backends = {(False, True): self.backend}
        self.notes: list[str] = []
        self.context: int | None = None  # what the model that it belongs to can read
        stages = ("normalizer", "pre_tokenizer", "decoder")
        names = {stage: [part.get("type") for part in iterate_tables(about.get(stage))] for stage in stages}
        model = about.get("model")
        options = model.items() if isinstance(model, dict) else ()
        self.model_options: JSONObject = {k: v for k, v in options if k not in ("vocab", "merges")}
        self.is_byte_level = "ByteLevel" in names["decoder"]
        self.has_byte_fallback = "ByteFallback" in names["decoder"]
        self.has_metaspace = "Metaspace" in (*names["decoder"], *names["pre_tokenizer"]) or self.has_byte_fallback
        inner = [about.get("pre_tokenizer"), about.get("decoder")]
        self.has_morphemes = MORPHEME_MARK in json.dumps(inner, ensure_ascii=False)
        normal = about.get("normalizer") or {}
        steps = normal.get("normalizers") or [normal]
        chars = steps[0].get("precompiled_charsmap")  # later, it would see what other steps have made of the text
        self.charsmap = None if chars is None else Charsmap(base64.b64decode(chars), where)
        # What it takes apart, decoding composes again.
        self.has_jamo = self.is_byte_level and "NFD" in names["normalizer"]
        composes = any(name in ("NFC", "NFKC") for name in names["normalizer"])
        self.is_composing = composes or chars is not None or self.has_jamo

    def __len__(self) -> int:
        return self.backend.get_vocab_size(with_added_tokens=True)

    def __repr__(self) -> str:
        kinds = {"BPE": "byte-level BPE" if self.is_byte_level else "BPE", "Unigram": "unigram", "WordLevel": "words"}
        name = str(self.model_options.get("type"))
        marks = ", ".join(f"{role} {token}" for role, token in self.special.items())
        return f"Tokenizer({kinds.get(name, name)}, {len(self):,} pieces; {marks or 'no special tokens'})"

    def __call__(
        self, texts: Texts, text_pair: Texts | None = None, *, padding: bool | str = False,
        truncation: bool | str = False, max_length: int | None = None, return_tensors: str | None = None,
        add_special_tokens: bool = True,
    ) -> BatchEncoding:  # fmt: skip
        """Encode a text or a list of texts as transformers does: input_ids, attention_mask, and token_type_ids where
        the template marks the texts of a pair.

        A pair is given by `text_pair`, or as a tuple in the list. `padding` is True (to the longest) or "max_length",
        `truncation` True, "only_first" or "only_second", `return_tensors` "pt" or "np"; `max_length` is what the
        tokenizer's model can read if it is not given, and where that has no limit, nothing is cut."""
        return encode_texts(self, texts, text_pair, padding, truncation, max_length, return_tensors, add_special_tokens)

    def id(self, role: str) -> int | None:
        """Return the id of a special token by its role."""
        return self.backend.token_to_id(self.special[role]) if role in self.special else None

    @property
    def fingerprint(self) -> str:
        """What tells two tokenizers apart: a hash of the file's meaning, whatever its spacing."""
        other = "" if self.target is None else self.target.fingerprint
        if other not in self.fingerprints:
            meaning = json.dumps(json.loads(self.json_text), sort_keys=True, ensure_ascii=True, separators=(",", ":"))
            self.fingerprints[other] = hashlib.sha256((meaning + other).encode()).hexdigest()
        return self.fingerprints[other]

    def encode(
        self, text: str, pair: str | None = None, *, special: bool = True, normalise: bool = False,
        parse_special: bool = True,
    ) -> list[int]:  # fmt: skip
        """Return the ids of a text, or of a pair of them; with the family's special tokens unless set otherwise.
        `normalise` composes the text first (NFC), for published tokenizers that do not do it themselves."""
        both = [self.prepare_text(t, normalise) for t in (text, pair) if t is not None]
        if mapped := any(done for _, done in both):
            assert self.charsmap is not None
            both = [(t if done else self.charsmap.apply(t)[0], True) for t, done in both]
        rust = self.get_backend(mapped, parse_special)
        return call_backend(lambda: rust.encode(*(t for t, _ in both), add_special_tokens=special).ids)

    def encode_batch(
        self, texts: Sequence[str], *, special: bool = True, normalise: bool = False, parse_special: bool = True
    ) -> list[list[int]]:
        """Return the ids of many texts, on all cores."""
        if self.is_composing and not normalise and self.charsmap is None and not self.has_morphemes:
            rust = self.get_backend(False, parse_special)
            encodings = call_backend(lambda: rust.encode_batch_fast(list(texts), add_special_tokens=special))
            return [encoding.ids for encoding in encodings]
        if self.has_morphemes and self.charsmap is None:  # all new words go to the analyser together
            ready = [(text, False) for text in mark_morphemes([strip_morpheme_marks(text) for text in texts])]
        else:
            ready = [self.prepare_text(text, normalise) for text in texts]
        return [encodings.ids for encodings in self.encode_prepared(ready, special, parse_special, fast=True)]

    def encode_with_offsets(
        self, text: str, *, special: bool = True, parse_special: bool = True
    ) -> tuple[list[int], Offsets]:
        """Return the ids of a text, and where in it each stands: text[begin:end]; special tokens have (0, 0)."""
        return self.encode_batch_with_offsets([text], special=special, parse_special=parse_special)[0]

    def encode_batch_with_offsets(
        self, texts: Sequence[str], *, special: bool = True, parse_special: bool = True
    ) -> list[tuple[list[int], Offsets]]:
        """Return the ids of many texts, and where in its text each stands."""
        pairs = zip(texts, self.encode_with_origins(texts, special, parse_special), strict=True)
        return [(encoding.ids, find_offsets(encoding, origins, text)) for text, (encoding, origins) in pairs]

    def encode_and_locate(
        self, texts: Sequence[str], find_places: Callable[[str], Sequence[int]]
    ) -> list[tuple[list[int], list[int]]]:
        """Ids of many documents, and which tokens hold the characters at the places of each (`find_places`): the one
        that a character is in, else the next, else the last. A document spells no special token."""
        rows = []
        for text, (encoding, origins) in zip(texts, self.encode_with_origins(texts, False, False), strict=True):
            places, located_spans = find_places(text), None
            # The library looks through all tokens for each place.
            if origins is None and len(encoding) * len(places) < MAX_SCAN_STEPS:
                located_spans = [-1 if (token := encoding.char_to_token(at)) is None else token for at in places]
            if located_spans is None or -1 in located_spans:
                spans = find_offsets(encoding, origins, text)
                located_spans = [
                    bisect.bisect_right(spans, at, 0, max(0, len(spans) - 1), key=GET_END) for at in places
                ]
            rows.append((encoding.ids, located_spans))
        return rows

    def encode_with_origins(
        self, texts: Sequence[str], special: bool, parse_special: bool
    ) -> list[tuple[tokenizers.Encoding, list[int] | None]]:
        """Encode texts by the Rust library, and say where the characters that it was handed come from."""
        if self.has_morphemes:  # so that all new words go to the analyser together
            mark_morphemes([strip_morpheme_marks(text) for text in texts])
        traced = [self.prepare_with_origins(text) for text in texts]
        ready = [(text, origins is not None and self.charsmap is not None) for text, origins in traced]
        encodings = self.encode_prepared(ready, special, parse_special)
        return [(one, origins) for one, (_, origins) in zip(encodings, traced, strict=True)]

    def encode_prepared(
        self, ready: Sequence[tuple[str, bool]], special: bool, parse_special: bool, fast: bool = False
    ) -> list[tokenizers.Encoding]:
        """Encode texts by the Rust library, each by the one that suits it: with SentencePiece's table, or without
        (True: it has been applied). `fast` finds no offsets."""
        rows: list[Any] = [None] * len(ready)  # dynamic: an encoding in each place, once all are made
        for which in {done for _, done in ready}:
            rust = self.get_backend(which, parse_special)
            call = rust.encode_batch_fast if fast else rust.encode_batch
            places = [i for i, (_, done) in enumerate(ready) if done == which]
            encodings = call_backend(functools.partial(call, [ready[i][0] for i in places], add_special_tokens=special))
            for i, encoding in zip(places, encodings, strict=True):
                rows[i] = encoding
        return rows

    def prepare_text(self, text: str, compose: bool = False) -> tuple[str, bool]:
        """Prepare a text for the Rust library; return it and whether SentencePiece's table was applied."""
        if compose:
            text = normalise(text)
        if text.isascii() and (self.charsmap is None or "\r" not in text):
            return text, False
        if not self.is_composing:
            self.warn_about_hangul(text)
        if self.charsmap is None:
            return (mark_morphemes([strip_morpheme_marks(text)])[0] if self.has_morphemes else text), False
        ready, origins = self.prepare_with_origins(text)
        return ready, origins is not None and self.charsmap is not None

    def prepare_with_origins(self, text: str) -> tuple[str, list[int] | None]:
        """Prepare a text, and say for each character of it where it comes from; None: nothing was changed."""
        if self.charsmap is not None:
            return self.charsmap.apply(text) if JOINING_CHARACTERS.search(text) else (text, None)
        return mark_with_origins(text) if self.has_morphemes and not text.isascii() else (text, None)

    def get_backend(self, mapped: bool, parse_special: bool) -> Any:  # dynamic: as untyped as `backend`
        """Return the Rust tokenizer for text that has passed SentencePiece's table or not, and may spell specials."""
        key = mapped and self.charsmap is not None, parse_special or not self.reserved_tokens
        if key not in self.backends:
            hide = () if key[1] else self.reserved_tokens
            text = rewrite_tokenizer_json(self.json_text, table=not key[0], hide=hide)
            rust = call_backend(lambda: tokenizers.Tokenizer.from_str(text))
            rust.no_truncation()
            rust.no_padding()
            rust.encode_special_tokens = not key[1]
            self.backends[key] = rust
        return self.backends[key]

    @functools.cached_property
    def reserved_tokens(self) -> frozenset[str]:
        """The special tokens: those that have a role, and those that the file calls special."""
        return (self.declared_special | set(self.special.values())) - {""}

    def has_special_spelling(self, text: str) -> bool:
        """Return whether a special token is written out in a text."""
        return bool(self.reserved_tokens) and self.special_pattern.search(text) is not None

    @functools.cached_property
    def special_pattern(self) -> re.Pattern[str]:
        """Any special token, written out."""
        return re.compile("|".join(map(re.escape, sorted(self.reserved_tokens))))

    def warn_about_hangul(self, text: str) -> None:
        """Say once what happens to Korean here."""
        note = None
        if any(vowel in text for vowel in JAMO_VOWELS):
            note = "decomposed Hangul (NFD) is many times longer in tokens here, or unknown: pass normalise=True"
        elif self.is_splitting_hangul and any("가" <= c <= "힣" for c in text):
            note = "this tokenizer takes Hangul syllables apart into jamo, as it was published"
        if note is not None and note not in self.notes:
            self.notes.append(note)
            warnings.warn(note, stacklevel=4)

    @functools.cached_property
    def is_splitting_hangul(self) -> bool:
        """Its normaliser takes Hangul syllables apart."""
        normal = self.backend.normalizer
        return normal is not None and any("\u1100" <= c <= "\u11ff" for c in normal.normalize_str("한"))

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """Return the text of ids; bytes that form no character are left out, so that nothing shows as �."""
        ids = [int(i) for i in ids]
        if not self.is_byte_level and not self.has_byte_fallback:
            return call_backend(lambda: self.backend.decode(ids, skip_special_tokens=not special))
        data = b"".join(self.decode_bytes(ids, special))
        text = (data.removeprefix(b" ") if self.has_byte_fallback else data).decode("utf-8", errors="ignore")
        return normalise(text) if self.has_jamo else text

    def decode_bytes(self, ids: Iterable[int], special: bool = False) -> Iterable[bytes]:
        """Return the bytes of each id, where pieces may be bytes."""
        hidden = frozenset() if special else self.reserved_tokens
        to_bytes = byte_level_to_bytes if self.is_byte_level else sentencepiece_to_bytes
        for piece in map(self.backend.id_to_token, ids):
            if piece is not None and piece not in hidden:
                yield piece.encode() if piece in self.added_tokens else to_bytes(piece)

    @functools.cached_property
    def added_tokens(self) -> frozenset[str]:
        """Tokens that stand for their own text."""
        return frozenset(token.content for token in self.backend.get_added_tokens_decoder().values())

    @functools.cached_property
    def declared_special(self) -> frozenset[str]:
        """Tokens that the file calls special."""
        return frozenset(t.content for t in self.backend.get_added_tokens_decoder().values() if t.special)

    def get_token_text(self, index: int) -> str:
        """Return one piece, as a person would read it."""
        if (piece := self.backend.id_to_token(index)) is None:
            return ""
        if self.is_byte_level and piece not in self.added_tokens and piece not in self.special.values():
            text = byte_level_to_bytes(piece).decode("utf-8", errors="replace")
            text = normalise(text) if self.has_jamo else text
            return text if "\ufffd" not in text else "<" + byte_level_to_bytes(piece).hex() + ">"
        return piece.replace(MORPHEME_MARK, "")

    @functools.cached_property
    def word_starts(self) -> np.ndarray:
        """(vocab,) True for a piece that begins a word: without ##, with ▁ or a space in front; special tokens too. The
        first word of a text has no space in front in byte-level pieces, and GPT-1's pieces mark a word's end instead:
        `find_word_starts` knows what to make of both."""
        pieces = [self.backend.id_to_token(i) or "" for i in range(len(self))]
        special = set(self.reserved_tokens)
        if self.is_byte_level:
            spaces = {c for c, byte in BYTE_ALPHABET.items() if chr(byte).isspace() and byte < 0x80}
            starts = [p[:1] in spaces for p in pieces]
        elif self.end_of_word_suffix:
            starts = [False] * len(pieces)
            special -= {self.special.get("unk", "")}  # it stands for one character
        elif self.has_metaspace:
            starts = [p.startswith("▁") for p in pieces]
            special -= {self.special.get("unk", "")}  # it has a ▁ of its own before it, or is inside of a word
        elif self.model_options.get("type") == "WordPiece":
            starts = [not p.startswith(str(self.model_options.get("continuing_subword_prefix"))) for p in pieces]
        else:
            starts = [BYTE_PIECE.fullmatch(p) is None for p in pieces]
        return np.array([s or p in special for s, p in zip(starts, pieces, strict=True)], bool)

    @property
    def end_of_word_suffix(self) -> str:
        """The mark at the end of a word's last piece, if there is one (GPT-1)."""
        return str(self.model_options.get("end_of_word_suffix") or "")

    @functools.cached_property
    def word_ends(self) -> np.ndarray:
        """(vocab,) True for a piece that ends a word for certain: GPT-1's </w>, and special tokens but the unknown."""
        pieces = [self.backend.id_to_token(i) or "" for i in range(len(self))]
        special, mark = self.reserved_tokens - {self.special.get("unk", "")}, self.end_of_word_suffix
        return np.array([p in special or bool(mark and p.endswith(mark)) for p in pieces], bool)

    def find_word_starts(self, ids: ArrayLike) -> np.ndarray:
        """Return of each id of a text whether it begins a word, whichever way this tokenizer marks that."""
        ids = np.asarray(ids, np.int64)
        return self.word_starts[ids] | np.append(True, self.word_ends[ids[:-1]])[: len(ids)]

    def get_template(self, pair: bool = False) -> Template:
        """Return the template around one text, or around two."""
        for probe in ("a", "가", "1", "the", "."):
            texts = (probe, probe) if pair else (probe,)
            encoding = call_backend(functools.partial(self.backend.encode, *texts, add_special_tokens=True))
            places = encoding.sequence_ids
            if 0 in places and (1 in places or not pair):
                break
        else:
            return Template((), (), (), ((), 0, (), 0, ()))
        first, last = places.index(0), len(places) - 1 - places[::-1].index(1 if pair else 0)
        end = first + places.count(0)
        start = places.index(1) if pair else end
        spans = (slice(0, first), slice(end, start), slice(last + 1, None))
        ids, kinds = encoding.ids, encoding.type_ids
        (before, a), (between, b), (after, c) = ((tuple(ids[s]), tuple(kinds[s])) for s in spans)
        return Template(before, between, after, (a, kinds[first], b, kinds[start] if pair else 0, c))

    @property
    def is_left_padded(self) -> bool:
        """Shorter texts are filled up at the left: the classifier's token comes last (XLNet)."""
        return self.get_template().after[-2:] == (self.id("sep"), self.id("cls"))

    def save(self, path: str | Path, compact: bool = False) -> None:
        """Write tokenizer.json as it was read or trained, into a folder or as a file; the other side's beside it. With
        `compact` it has no spaces and line ends between its values, which takes half of the room."""
        file, text = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path), self.json_text
        if compact:
            text = json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))
        file.write_text(text, encoding="utf-8")
        if self.target is not None:
            self.target.save(file.with_suffix(".target.json"), compact)


def call_backend(call: Callable[[], Result], where: object = None) -> Result:
    """Call the Rust library; its failures, panics included, become our error."""
    try:
        with hide_panic():
            return call()
    except (Error, KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # a Rust panic is not an Exception
        what = " ".join(str(error).split())[:200] or type(error).__name__
        if isinstance(error, TypeError) and what.startswith("Text"):  # what it says of a string that is not Unicode
            half = "a text is not a string, or holds half a character (a lone surrogate)"
            raise Error(half, fix='mend it with text.encode("utf-8", "replace").decode()') from None
        fix = "is this a tokenizer.json of the tokenizers library?"
        raise Error(f"the tokenizer failed: {what}", where=where, fix=fix) from None


CONTEXT_PIECES = 4  # pieces: a mark with a space on either side may be three


class DecodeStream:
    """Decode ids one at a time. A character of three bytes may come in three pieces (Hangul in byte-level BPE): bytes
    are held back until they form one, so that `push` never shows �. All that it gives is what `decode` gives; `flush`
    adds a � if the last character was cut off, so that nothing is lost in silence. Where pieces are jamo, the last
    syllable may still grow (하 + ᆫ) and waits as well; `flush` gives it.

    `pending_bytes` are the bytes that wait."""

    def __init__(self, tokenizer: Tokenizer, *, special: bool = False):
        self.tokenizer, self.special = tokenizer, special
        self.decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self.last_ids: list[int] = []  # the pieces before: they say whether a space comes in between
        self.has_started = False
        self.open_syllable = ""  # the last syllable, where pieces are jamo

    @property
    def pending_bytes(self) -> bytes:
        """Bytes that do not form a character yet."""
        return self.decoder.getstate()[0]

    def push(self, index: int) -> str:
        """Return what one more id adds to the text."""
        tokenizer = self.tokenizer
        if tokenizer.is_byte_level or tokenizer.has_byte_fallback:
            data = b"".join(tokenizer.decode_bytes([int(index)], self.special))
            if tokenizer.has_byte_fallback and data and not self.has_started:
                data = data.removeprefix(b" ")
                self.has_started = True
            return self.take_settled(self.decoder.decode(data)) if tokenizer.has_jamo else self.decoder.decode(data)
        if not self.special and tokenizer.backend.id_to_token(int(index)) in tokenizer.declared_special:
            return ""
        before = tokenizer.decode(self.last_ids, special=self.special) if self.last_ids else ""
        text = tokenizer.decode([*self.last_ids, int(index)], special=self.special)
        self.last_ids = [*self.last_ids, int(index)][-CONTEXT_PIECES:]
        return text[len(before) :]

    def take_settled(self, more: str) -> str:
        """Take what of the text cannot change any more; the last letter and what stands on it wait."""
        text, joins = self.open_syllable + more, compile_continuations()
        at = max(0, len(text) - 1)
        while at and joins.match(text[at]):
            at -= 1
        self.open_syllable = text[at:]
        return normalise(text[:at])

    def flush(self) -> str:
        """Return the rest when nothing more comes: the last syllable where pieces are jamo, and � for the bytes of a
        character that never became whole."""
        rest = normalise(self.open_syllable) + ("\ufffd" if self.pending_bytes else "")
        self.open_syllable = ""
        self.decoder.reset()
        return rest
