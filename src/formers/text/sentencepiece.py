"""Tokenizers out of SentencePiece's models (spiece.model, sentencepiece.bpe.model, source.spm), with each family's
special tokens: T5, ALBERT, XLNet, mBART, Marian. The files are read as data: nothing is executed.

A file is a protobuf message. Only the fields that say what a text becomes are looked at; each length is checked against
what is there before anything is cut out.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Rust

from ..config import parse_json_object
from ..errors import Error
from .charsmap import Charsmap
from .tokenizer import Tokenizer, call_backend
from .tokenizer_limits import MAX_PIECE_CHARACTERS
from .tokenizer_styles import FAIRSEQ_TOKENS, MBART_LANGUAGES, STYLES, TokenizerStyle
from .vocab_files import resolve_special_tokens

MAX_PIECES = 2**21  # more than any tokenizer has
MAX_MERGE_WORK = 10**8  # characters that are looked at to find the merges of a BPE
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)  # types of a piece
UNIGRAM, BPE = 1, 2  # types of a model


@dataclass
class SentencePieceModel:
    """Pieces with score and type, and how text is made ready for them."""

    pieces: list[tuple[str, float, int]] = field(default_factory=list)
    model_type: int = UNIGRAM
    byte_fallback: bool = False
    charsmap: bytes = b""
    add_dummy_prefix: bool = True  # a space is put in front
    remove_extra_whitespaces: bool = True  # spaces in front, behind and in a row are taken away
    treat_whitespace_as_suffix: bool = False  # a space belongs to the word before it

    @property
    def unknown_index(self) -> int:
        """The number of the unknown piece."""
        return next(i for i, (_, _, kind) in enumerate(self.pieces) if kind == UNKNOWN)


def parse_model(data: bytes, where: object = None) -> SentencePieceModel:
    """A model out of the bytes of its file."""
    model = SentencePieceModel()
    for number, value in iterate_fields(data, where):
        if number == 1:
            model.pieces.append(parse_piece(value, where))
            if len(model.pieces) > MAX_PIECES:
                raise make_model_error("it has too many pieces", where)
        elif number == 2:
            spec = dict(iterate_fields(value, where))
            model.model_type = expect_int(spec.get(3, UNIGRAM), where)
            model.byte_fallback, model.treat_whitespace_as_suffix = bool(spec.get(35, 0)), bool(spec.get(24, 0))
        elif number == 3:
            spec = dict(iterate_fields(value, where))
            model.charsmap = expect_bytes(spec.get(2, b""), where)
            model.add_dummy_prefix, model.remove_extra_whitespaces = bool(spec.get(3, 1)), bool(spec.get(4, 1))
            if not spec.get(5, 1):
                raise Error("spaces are not escaped in this model", where=where, fix="formers does not read this kind")
    check_model(model, where)
    return model


def check_model(model: SentencePieceModel, where: object) -> None:
    """What must hold before a tokenizer is built."""
    names = [name for name, _, _ in model.pieces]
    if sum(kind == UNKNOWN for _, _, kind in model.pieces) != 1:
        raise make_model_error("there is not one unknown piece", where)
    if len(set(names)) < len(names) or "" in names:
        raise make_model_error("a piece is there twice, or empty", where)
    if model.model_type not in (UNIGRAM, BPE):
        what = f"SentencePiece models of type {model.model_type} are not supported"
        raise Error(what, where=where, fix="unigram (1) and BPE (2) are")
    if model.charsmap:
        Charsmap(model.charsmap, where)  # the Rust library reserves what it says
    if model.treat_whitespace_as_suffix:
        raise Error(
            "spaces belong to the word before in this model", where=where, fix="formers does not read this kind"
        )


def parse_piece(data: Any, where: object) -> tuple[str, float, int]:
    """One piece: its text, score and type."""
    text, score, kind = b"", 0.0, NORMAL
    for number, value in iterate_fields(data, where):
        if number == 1:
            text = expect_bytes(value, where)
        elif number == 2:
            score = float(value) if isinstance(value, float) else math.nan
        elif number == 3:
            kind = expect_int(value, where)
    if len(text) > MAX_PIECE_CHARACTERS or not math.isfinite(score) or not NORMAL <= kind <= BYTE:
        raise make_model_error("a piece is not in form", where)
    try:
        return text.decode("utf-8"), score, kind
    except UnicodeDecodeError:
        raise make_model_error("a piece is not UTF-8", where) from None


def iterate_fields(data: Any, where: object) -> Iterator[tuple[int, Any]]:
    """Numbers and values of a protobuf message: int, float (32 bits), or bytes."""
    data, place = expect_bytes(data, where), 0
    while place < len(data):
        key, place = read_varint(data, place, where)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, place = read_varint(data, place, where)
            yield number, value
            continue
        if wire == 2:
            length, place = read_varint(data, place, where)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise make_model_error("a field has an unknown form", where)
        if place + length > len(data):
            raise make_model_error("a field is longer than the file", where)
        raw = data[place : place + length]
        place += length
        yield number, struct.unpack("<f", raw)[0] if wire == 5 else raw


def read_varint(data: bytes, place: int, where: object) -> tuple[int, int]:
    """A number of at most ten bytes."""
    value = 0
    for i, byte in enumerate(data[place : place + 10]):
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, place + i + 1
    raise make_model_error("a number does not end", where)


def expect_bytes(value: Any, where: object) -> bytes:
    """A value that has to be bytes."""
    if not isinstance(value, bytes):
        raise make_model_error("a field has the wrong type", where)
    return value


def expect_int(value: Any, where: object) -> int:
    """A value that has to be a number."""
    if not isinstance(value, int):
        raise make_model_error("a field has the wrong type", where)
    return value


def derive_merges(model: SentencePieceModel, where: object = None) -> list[tuple[str, str]]:
    """A BPE's merges: each piece can come from any two pieces that make it up; better scores first."""
    ids = {name: i for i, (name, _, kind) in enumerate(model.pieces) if kind in (NORMAL, USER, UNUSED)}
    if sum(len(name) ** 2 for name in ids) > MAX_MERGE_WORK:
        raise make_model_error("its pieces are too long", where)
    found = []
    for name, number in ids.items():
        pairs = [(name[:i], name[i:]) for i in range(1, len(name))]
        both = [(ids[a], ids[b], a, b) for a, b in pairs if a in ids and b in ids]
        found += [(-model.pieces[number][1], number, *pair) for pair in sorted(both)]
    return [(a, b) for *_, a, b in sorted(found)]


def make_model_error(what: str, where: object) -> Error:
    """The error for a file that is no SentencePiece model."""
    return Error(f"not a SentencePiece model: {what}", where=where, fix="the file is damaged: fetch it again")


SPACE_MARK = "▁"
FOREIGN_PREFIX = "\U0010fffd"  # stands before a piece of Marian's other language: no text matches it
UNREACHABLE_SCORE = -1000.0  # score of a piece that is never read, such as a special token's
MAX_SENTINELS = 1000  # sentinels at most


def from_spm(data: bytes, options: Mapping[str, Any], where: object = None, name: str = "spiece.model") -> Tokenizer:
    """The tokenizer of a spiece.model or sentencepiece.bpe.model; `options` are those of its tokenizer_config.json."""
    return call_backend(lambda: build_tokenizer(parse_model(data, where), options, where, name), where)


def build_tokenizer(model: SentencePieceModel, options: Mapping[str, Any], where: object, name: str) -> Tokenizer:
    """The tokenizer of a parsed model; which family it is shows in the pieces."""
    pieces = list(score_pieces(model).items())
    names = {p for p, _ in pieces}
    if {"[CLS]", "[SEP]"} <= names:
        style = STYLES["albert"]
    elif {"<sep>", "<cls>"} <= names:
        style = STYLES["xlnet"]
    elif name == "sentencepiece.bpe.model":
        style, pieces = number_like_fairseq(pieces, options)
    else:
        style, pieces = add_sentinels(pieces, options)
    special = {
        r: t for r, t in resolve_special_tokens(options, style.special).items() if any(t == p for p, _ in pieces)
    }
    marks = tuple(p for p, _, kind in model.pieces if kind == CONTROL)
    added = [
        t for t in dict.fromkeys([*special.values(), *marks, *style.special_tokens]) if any(t == p for p, _ in pieces)
    ]
    rust = build_rust_model(model, pieces, special.get("unk", model.pieces[model.unknown_index][0]), where)
    rust.normalizer = build_normalizer(model, options, "[CLS]" in names or "<sep>" in names, "[CLS]" in names)
    ids = {p: i for i, (p, _) in enumerate(pieces)}
    if model.model_type == BPE:
        users = [p for p, _, kind in model.pieces if kind == USER and p not in added]
        rust.add_tokens([AddedToken(p, normalized=False) for p in users])
    TokenizerStyle(special, tuple(added), (), style.single_template, style.pair_template).add_to_backend(rust, ids)
    return Tokenizer(rust.to_str(pretty=True), special, where=where)


def score_pieces(model: SentencePieceModel) -> dict[str, float]:
    """Each piece's score. A user-defined piece always wins where it fits: SentencePiece gives it more than any other
    way to cut the same bytes could have."""
    best = max((s for _, s, kind in model.pieces if kind == NORMAL), default=0.0)
    own = {NORMAL: lambda p, s: s, USER: lambda p, s: len(p.encode()) * best - 0.1}
    return {p: own[kind](p, s) if kind in own else UNREACHABLE_SCORE for p, s, kind in model.pieces}


def add_sentinels(
    pieces: list[tuple[str, float]], options: Mapping[str, Any]
) -> tuple[TokenizerStyle, list[tuple[str, float]]]:
    """T5's and what is like it: a text ends in </s>, and sentinels stand at the top of the vocabulary."""
    names = {p for p, _ in pieces}
    extra = options.get("extra_ids", 100 if "<pad>" in names and "<s>" not in names else 0)
    if type(extra) is not int or not 0 <= extra <= MAX_SENTINELS:
        raise Error(f"extra_ids: {extra!r} is not a number of sentinels", fix="correct tokenizer_config.json")
    own = tuple(t for i in reversed(range(extra)) if (t := f"<extra_id_{i}>") not in names)
    template = ("$A </s>", "$A </s> $B </s>") if "</s>" in names else ("$A", "$A $B:1")
    return TokenizerStyle(STYLES["translation"].special, (), own, *template), [
        *pieces,
        *((t, UNREACHABLE_SCORE) for t in own),
    ]


def number_like_fairseq(
    pieces: list[tuple[str, float]], options: Mapping[str, Any]
) -> tuple[TokenizerStyle, list[tuple[str, float]]]:
    """mBART's and XLM-R's: fairseq numbers <s> <pad> </s> <unk> first, then the model's pieces from the fourth on."""
    first = [(t, UNREACHABLE_SCORE) for t in FAIRSEQ_TOKENS]
    kind = str(options.get("tokenizer_class", ""))
    if "MBart" not in kind and "src_lang" not in options:
        return STYLES["roberta"], [*first, *pieces[3:], ("<mask>", UNREACHABLE_SCORE)]
    language = str(options.get("src_lang") or "en_XX")
    if language not in MBART_LANGUAGES:
        raise Error(f"src_lang {language!r} is not one of mBART's", fix="known: " + " ".join(MBART_LANGUAGES))
    marks = (*MBART_LANGUAGES, "<mask>")
    style = TokenizerStyle(
        STYLES["mbart"].special, FAIRSEQ_TOKENS, marks, f"$A </s> {language}", f"$A $B </s> {language}"
    )
    return style, [*first, *pieces[3:], *((t, UNREACHABLE_SCORE) for t in marks)]


def build_rust_model(
    model: SentencePieceModel, pieces: Sequence[tuple[str, float]], unknown: str, where: object
) -> Rust:
    """The model, and how it puts text together again."""
    number = next((i for i, (p, _) in enumerate(pieces) if p == unknown), None)
    if number is None:
        raise Error(f"the unknown token {unknown!r} is not in the vocabulary", where=where, fix="correct unk_token")
    if model.model_type == BPE:
        rust = Rust(
            models.BPE(
                vocab={p: i for i, (p, _) in enumerate(pieces)}, merges=derive_merges(model, where), unk_token=unknown,
                fuse_unk=True, byte_fallback=model.byte_fallback,
            )
        )  # fmt: skip
    else:
        lowest = min(
            (s for _, s in pieces if s > UNREACHABLE_SCORE), default=0.0
        )  # unknown costs 10 more than the worst piece
        scored = [(p, lowest if s <= UNREACHABLE_SCORE else s) for p, s in pieces]
        rust = Rust(models.Unigram(scored, unk_id=number, byte_fallback=model.byte_fallback))
    split = all(SPACE_MARK not in p[1:] for p, _ in pieces)
    rust.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE_MARK, prepend_scheme="never", split=split)
    scheme = "always" if model.add_dummy_prefix else "never"
    spaces = [decoders.Replace(FOREIGN_PREFIX, ""), decoders.Metaspace(replacement=SPACE_MARK, prepend_scheme=scheme)]
    rust.decoder = decoders.Sequence([*([decoders.ByteFallback()] if model.byte_fallback else []), *spaces])
    return rust


def build_normalizer(model: SentencePieceModel, options: Mapping[str, Any], quotes: bool, small: bool) -> Any:
    """Text as the model wants it. ALBERT and XLNet also make quotes plain, strip accents and (ALBERT) capitals; NFC
    puts Hangul together again, which the model's own table would do."""
    steps: list[Any] = []
    if quotes:
        steps += [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        if not options.get("keep_accents", False):
            steps += [normalizers.NFKD(), normalizers.StripAccents(), normalizers.NFC()]
        if options.get("do_lower_case", small):
            steps.append(normalizers.Lowercase())
    if model.charsmap:
        steps.append(normalizers.Precompiled(model.charsmap))
    if model.remove_extra_whitespaces:
        any_space = quotes and options.get("remove_space", True)
        steps.append(normalizers.Replace(Regex(r"\s+" if any_space else " {2,}"), " "))
        steps += [normalizers.Replace(Regex(pattern), "") for pattern in ("^ ", f"[ {SPACE_MARK}]+$")]
    if model.add_dummy_prefix:
        steps.append(normalizers.Prepend(SPACE_MARK))
    return normalizers.Sequence(steps)


def from_marian(
    source: bytes, target: bytes, vocab: str, options: Mapping[str, Any], where: object = None
) -> Tokenizer:
    """Marian's two models and the one table of numbers that both share; `.target` reads the other language."""
    made, other = (
        call_backend(lambda d=d: build_marian_side(parse_model(d, where), vocab, options, where), where)
        for d in (source, target)
    )
    made.target = other
    return made


def build_marian_side(model: SentencePieceModel, vocab: str, options: Mapping[str, Any], where: object) -> Tokenizer:
    """One side. Pieces of the other one keep their number and cannot be read."""
    ids = {k: int(v) for k, v in parse_json_object(vocab, where).items()}
    if sorted(ids.values()) != list(range(len(ids))):
        raise Error("the vocabulary does not number its pieces from 0", where=where, fix="correct vocab.json")
    own = {p: s for p, s in score_pieces(model).items() if s > UNREACHABLE_SCORE}
    special = {r: t for r, t in resolve_special_tokens(options, STYLES["t5"].special).items() if t in ids}
    codes = [p for p in ids if p.startswith(">>") and p.endswith("<<")]
    marks = [*special.values(), *codes]
    pieces = [
        (p, own[p]) if p in own else (p if p in marks else FOREIGN_PREFIX + p, UNREACHABLE_SCORE)
        for p in sorted(ids, key=lambda p: ids[p])
    ]
    rust = build_rust_model(model, pieces, special.get("unk", "<unk>"), where)
    rust.normalizer = build_normalizer(model, options, quotes=False, small=False)
    TokenizerStyle(special, tuple(dict.fromkeys(marks)), (), "$A </s>", "$A $B </s>").add_to_backend(rust, ids)
    return Tokenizer(rust.to_str(pretty=True), special, where=where)
