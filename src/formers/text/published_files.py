"""Tokenizers out of published files that are not a tokenizer.json: vocab.txt (BERT), vocab.json with merges.txt (GPT,
RoBERTa), and SentencePiece's models (T5, ALBERT, XLNet, mBART, Marian). Readers are given the styles that model files
declare, and choose by what a file says: its name, its pieces, the options of its tokenizer_config.json.

A SentencePiece file is a protobuf message, read as data: nothing is executed. Only the fields that say what a text
becomes are looked at; each length is checked against what is there before anything is cut out."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Rust

from ..config import JSONValue, parse_json_object
from ..errors import Error
from .backend_safety import JOINT_REGEXES, MAX_PIECE_CHARACTERS, MOSES_REGEX
from .tokenizer import SPECIAL_ROLES, Charsmap, Tokenizer, call_backend
from .tokenizer_kinds import PublishedForm, TokenizerStyle

HANGUL_SYLLABLE = re.compile("[가-힣]")
Styles = Iterable[TokenizerStyle]


def choose_style(
    styles: Styles, file: str, pieces: Collection[str], options: Mapping[str, JSONValue], where: object
) -> tuple[TokenizerStyle, PublishedForm]:
    """Choose the style of a published file: the one by which most of it is recognised; ties: the first."""
    best: tuple[int, TokenizerStyle, PublishedForm] | None = None
    for style in styles:
        for form in style.published_forms:
            count = form.count_matches(pieces, options) if file in form.files else None
            if count is not None and (best is None or count > best[0]):
                best = count, style, form
    if best is None:
        raise Error(f"no family publishes such a {file}", where=where, fix="give a tokenizer.json")
    _, style, form = best
    return form.apply_to(style), form


def from_vocab_txt(text: str, options: Mapping[str, JSONValue], styles: Styles, where: object = None) -> Tokenizer:
    """Read BERT's vocab.txt, one piece a line; `options` are those of its tokenizer_config.json."""
    return call_backend(lambda: build_wordpiece(text, options, styles, where), where)


def build_wordpiece(text: str, options: Mapping[str, JSONValue], styles: Styles, where: object) -> Tokenizer:
    """Build the tokenizer of a vocab.txt; what the Rust library does not like is still its own error."""
    pieces = [line.rstrip("\r\n") for line in text.split("\n")]
    pieces = pieces[:-1] if pieces and not pieces[-1] else pieces
    if all(line.endswith(f"\t{i}") for i, line in enumerate(pieces)):  # PaddlePaddle writes the number as well
        pieces = [line.rpartition("\t")[0] for line in pieces]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    style, _ = choose_style(styles, "vocab.txt", vocab, options, where)
    special = resolve_special_tokens(options, style.special)
    if lost := [token for role, token in special.items() if role in ("unk", "cls", "sep") and token not in vocab]:
        raise Error(f"{lost[0]!r} is not in the vocabulary", where=where, fix="is this the vocab.txt of a BERT?")
    usual = [p for p in pieces if p not in special.values() and not (p[:1] in "[<" and p[-1:] in "]>")]
    has_capitals = any(piece.lower() != piece and any(map(str.isupper, piece)) for piece in usual)
    lower = bool(options.get("do_lower_case", not has_capitals))  # lower-case text would never reach a capital
    strip = options.get("strip_accents")  # None: where text is made lower case
    # Stripping accents takes syllables apart into jamo, so that no piece with Hangul would be reached and all Korean be
    # unknown. English vocabularies have a handful of such pieces, Korean ones more than one in a hundred.
    if strip is None and sum(HANGUL_SYLLABLE.search(piece) is not None for piece in usual) * 100 > len(usual):
        strip = False
    rust = Rust(models.WordPiece(vocab=vocab, unk_token=special["unk"]))
    rust.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=bool(options.get("tokenize_chinese_chars", True)),
        strip_accents=strip, lowercase=lower,
    )  # fmt: skip
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rust.decoder = decoders.WordPiece(prefix="##")
    tokenizer = finish_tokenizer(rust, special, vocab, where, *rename_tokens(style, special))
    if "do_lower_case" not in options:
        case, other = ("no capitals", "false") if lower else ("capitals", "true")
        tokenizer.notes.append(
            f"nothing beside vocab.txt says whether capitals matter: there are {case} in the vocabulary, so text "
            f"{'is made lower case' if lower else 'keeps its case'}; "
            f'{{"do_lower_case": {other}}} in a tokenizer_config.json beside it says otherwise'
        )
    return tokenizer


def rename_tokens(style: TokenizerStyle, special: Mapping[str, str]) -> list[str]:
    """Return the templates of a style, with other tokens in the roles of its own."""
    names = {token: special[role] for role, token in style.special.items()}
    parts = re.compile("|".join(map(re.escape, names)))
    return [parts.sub(lambda found: names[found[0]], text) for text in (style.single_template, style.pair_template)]


def from_merges(
    vocab: str, merges: str, options: Mapping[str, JSONValue], styles: Styles, where: object = None
) -> Tokenizer:
    """Read BPE from vocab.json and merges.txt: GPT-2's and RoBERTa's of bytes, or GPT-1's whose words end in </w>."""
    return call_backend(lambda: build_bpe(vocab, merges, options, styles, where), where)


def build_bpe(vocab: str, merges: str, options: Mapping[str, JSONValue], styles: Styles, where: object) -> Tokenizer:
    """Build the tokenizer of a vocab.json and merges.txt; what the Rust library rejects is still its own error."""
    pieces = {k: int(v) for k, v in parse_json_object(vocab, where).items()}
    if max(pieces.values(), default=0) >= len(pieces) + 1000:  # the Rust library would list all that are missing
        raise Error("the ids of the vocabulary have large gaps", where=where, fix="is this the vocab.json of a GPT-2?")
    lines = [line for line in merges.split("\n") if line.strip() and not line.startswith("#version")]
    pairs = [(left, right) for left, _, right in (line.strip("\r").partition(" ") for line in lines)]
    has_word_ends = any(right.endswith("</w>") for _, right in pairs[:1000])
    styles = [style for style in styles if style.has_word_ends == has_word_ends]
    style, _ = choose_style(styles, "merges.txt", pieces, options, where)
    special = resolve_special_tokens(options, style.special, pieces)
    if has_word_ends:
        return build_gpt1_bpe(pieces, pairs, special, where)
    space = bool(options.get("add_prefix_space", False))
    rust = Rust(models.BPE(vocab=pieces, merges=pairs))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    rust.decoder = decoders.ByteLevel()
    if "cls" in special and "sep" in special:
        (sep, cls) = [(special[r], pieces[special[r]]) for r in ("sep", "cls")]
        rust.post_processor = processors.RobertaProcessing(sep, cls, True, space)
    else:
        rust.post_processor = processors.ByteLevel(trim_offsets=False)
    return finish_tokenizer(rust, special, pieces, where)


def build_gpt1_bpe(
    pieces: dict[str, int], pairs: list[tuple[str, str]], special: Mapping[str, str], where: object
) -> Tokenizer:
    """Build GPT-1's: lower case and cut as BERT does (what transformers does; the first release also repaired text)."""
    unknown = special.get("unk")
    rust = Rust(models.BPE(vocab=pieces, merges=pairs, unk_token=unknown, end_of_word_suffix="</w>", fuse_unk=False))
    rust.normalizer = normalizers.BertNormalizer(lowercase=True)
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rust.decoder = decoders.BPEDecoder(suffix="</w>")
    return finish_tokenizer(rust, special, pieces, where)


MOSES_QUOTES = {"[\u2018\u2019]": "'", "[\u201c\u201d]|``|''": '"'}


def from_symbols(
    symbols: Sequence[str], lower: bool, options: Mapping[str, JSONValue], styles: Styles, where: object = None
) -> Tokenizer:
    """Read Transformer-XL's vocabulary, words in the order of their numbers. Text is cut into words and marks as in
    WikiText-103, where @-@, @,@ and @.@ join what a hyphen, comma or period parts; as in transformers, nothing is added
    to a text."""
    ids = {word: number for number, word in enumerate(symbols)}
    style, _ = choose_style(styles, "vocab.pkl", ids, options, where)
    special = resolve_special_tokens(options, style.special, ids)
    unknown = special.get("unk") or next((word for word in ("<unk>", "<UNK>") if word in ids), None)
    if unknown is None:
        raise Error("there is no word for unknown ones", where=where, fix="is this the vocab.pkl of a Transformer-XL?")
    special["unk"] = unknown

    def build_rust() -> Tokenizer:
        rust = Rust(models.WordLevel(ids, unk_token=unknown))
        steps = [normalizers.Replace(Regex(marks), plain) for marks, plain in MOSES_QUOTES.items()]
        steps += [normalizers.Replace(Regex(pattern), f" {symbol} ") for symbol, pattern in JOINT_REGEXES.items()]
        rust.normalizer = normalizers.Sequence([*([normalizers.Lowercase()] if lower else []), *steps])
        cut = pre_tokenizers.Split(Regex(MOSES_REGEX), "isolated")
        rust.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.WhitespaceSplit()])
        joints = [decoders.Replace(f" {symbol} ", symbol[1]) for symbol in JOINT_REGEXES]
        words = decoders.WordPiece(prefix="\0", cleanup=True)  # no word begins so: only the spaces before marks go
        rust.decoder = decoders.Sequence([words, decoders.Fuse(), *joints])
        return finish_tokenizer(rust, special, ids, where, "$A", "$A $B:1")

    return call_backend(build_rust, where)


def finish_tokenizer(
    rust: Rust, special: Mapping[str, str], ids: Mapping[str, int], where: object, *templates: str
) -> Tokenizer:
    """Mark a tokenizer's special tokens as such, and give it the templates of one text and of two."""
    tokens = tuple(token for token in dict.fromkeys(special.values()) if token in ids)
    return TokenizerStyle("", special, tokens, (), *templates).finish_tokenizer(rust, ids, where)


def resolve_special_tokens(
    options: Mapping[str, JSONValue], usual: Mapping[str, str], known: Collection[str] | None = None
) -> dict[str, str]:
    """Return the special tokens by role, of tokenizer_config.json or special_tokens_map.json, else the usual ones;
    without those that are not among the `known` pieces."""
    roles = dict(usual)
    for role in SPECIAL_ROLES:
        token = options.get(f"{role}_token")
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            roles[role] = token
    return roles if known is None else {role: token for role, token in roles.items() if token in known}


def guess_special_tokens(text: str, styles: Styles) -> dict[str, str]:
    """Guess the roles of a tokenizer.json's special tokens: as in the style that has most of the tokens which the file
    marks as special, and among such styles in the one that gives them most roles; ties: the first."""
    try:
        added = {t["content"] for t in json.loads(text).get("added_tokens", []) if t.get("special")}
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
        added = set()
    best: dict[str, str] = {}
    for style in styles:
        for table in (style.special, *(form.special or {} for form in style.published_forms)):
            roles = {role: token for role, token in table.items() if token in added}
            if (len(set(roles.values())), len(roles)) > (len(set(best.values())), len(best)):
                best = roles
    return best


MAX_PIECES = 2**21  # more than any tokenizer has
MAX_MERGE_WORK = 10**8  # characters that are looked at to find the merges of a BPE
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)  # types of a piece
UNIGRAM, BPE = 1, 2  # types of a model
Value = TypeVar("Value", bytes, int)


@dataclass
class SentencePieceModel:
    """Pieces with score and type, and how text is made ready for them."""

    pieces: list[tuple[str, float, int]] = field(default_factory=list)
    model_type: int = UNIGRAM
    byte_fallback: bool = False
    charsmap: bytes = b""
    add_dummy_prefix: bool = True  # a space is put in front
    remove_extra_whitespaces: bool = True  # leading, trailing and repeated spaces are taken away
    treat_whitespace_as_suffix: bool = False  # a space belongs to the word before it


def parse_model(data: bytes, where: object = None) -> SentencePieceModel:
    """Parse a model from the bytes of its file."""
    model = SentencePieceModel()
    for number, value in iterate_fields(data, where):
        if number == 1:
            model.pieces.append(parse_piece(value, where))
            if len(model.pieces) > MAX_PIECES:
                raise make_model_error("it has too many pieces", where)
        elif number == 2:
            spec = dict(iterate_fields(value, where))
            model.model_type = expect(int, spec.get(3, UNIGRAM), where)
            model.byte_fallback, model.treat_whitespace_as_suffix = bool(spec.get(35, 0)), bool(spec.get(24, 0))
        elif number == 3:
            spec = dict(iterate_fields(value, where))
            model.charsmap = expect(bytes, spec.get(2, b""), where)
            model.add_dummy_prefix, model.remove_extra_whitespaces = bool(spec.get(3, 1)), bool(spec.get(4, 1))
            if not spec.get(5, 1):
                raise Error("spaces are not escaped in this model", where=where, fix="formers does not read this kind")
    check_model(model, where)
    return model


def check_model(model: SentencePieceModel, where: object) -> None:
    """Check what must hold before a tokenizer is built."""
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
        what = "spaces belong to the word before in this model"
        raise Error(what, where=where, fix="formers does not read this kind")


def parse_piece(data: object, where: object) -> tuple[str, float, int]:
    """Parse one piece: its text, score and type."""
    fields = dict(iterate_fields(data, where))
    text, kind = expect(bytes, fields.get(1, b""), where), expect(int, fields.get(3, NORMAL), where)
    score = fields.get(2, 0.0) if isinstance(fields.get(2, 0.0), float) else math.nan
    if len(text) > MAX_PIECE_CHARACTERS or not math.isfinite(score) or not NORMAL <= kind <= BYTE:
        raise make_model_error("a piece is not in form", where)
    try:
        return text.decode("utf-8"), score, kind
    except UnicodeDecodeError:
        raise make_model_error("a piece is not UTF-8", where) from None


def iterate_fields(
    data: object, where: object
) -> Iterator[tuple[int, Any]]:  # dynamic: a number or bytes, by the field
    """Yield numbers and values of a protobuf message: int, float (32 bits), or bytes."""
    data, place = expect(bytes, data, where), 0
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
    """Read a number of at most ten bytes."""
    value = 0
    for i, byte in enumerate(data[place : place + 10]):
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, place + i + 1
    raise make_model_error("a number does not end", where)


def expect(kind: type[Value], value: object, where: object) -> Value:
    """Return a field's value, which has to be of a type."""
    if not isinstance(value, kind):
        raise make_model_error("a field has the wrong type", where)
    return value


def derive_merges(model: SentencePieceModel, where: object = None) -> list[tuple[str, str]]:
    """Derive a BPE's merges: each piece can come from any two pieces that make it up; better scores first."""
    ids = {name: i for i, (name, _, kind) in enumerate(model.pieces) if kind in (NORMAL, USER, UNUSED)}
    if sum(len(name) ** 2 for name in ids) > MAX_MERGE_WORK:
        raise make_model_error("its pieces are too long", where)
    merges = []
    for name, number in ids.items():
        pairs = [(name[:i], name[i:]) for i in range(1, len(name))]
        both = [(ids[a], ids[b], a, b) for a, b in pairs if a in ids and b in ids]
        merges += [(-model.pieces[number][1], number, *pair) for pair in sorted(both)]
    return [(a, b) for *_, a, b in sorted(merges)]


def make_model_error(what: str, where: object) -> Error:
    """Return the error for a file that is not a SentencePiece model."""
    return Error(f"not a SentencePiece model: {what}", where=where, fix="the file is damaged: fetch it again")


SPACE_MARK = "▁"
FOREIGN_PREFIX = "\U0010fffd"  # stands before a piece of Marian's other language: no text matches it
UNREACHABLE_SCORE = -1000.0  # score of a piece that is never read, such as a special token's
MAX_SENTINELS = 1000  # sentinels at most


def from_spm(
    data: bytes, options: Mapping[str, JSONValue], styles: Styles, where: object = None, name: str = "spiece.model"
) -> Tokenizer:
    """Build the tokenizer of a spiece.model or sentencepiece.bpe.model; `options` as in tokenizer_config.json."""
    return call_backend(lambda: build_tokenizer(parse_model(data, where), options, styles, where, name), where)


def build_tokenizer(
    model: SentencePieceModel, options: Mapping[str, JSONValue], styles: Styles, where: object, name: str
) -> Tokenizer:
    """Build the tokenizer of a parsed model. One that is recognised by its pieces has all of them; otherwise fairseq's
    numbers or sentinels are still to be added."""
    pieces = list(score_pieces(model).items())
    style, form = choose_style(styles, name, {p for p, _ in pieces}, options, where)
    if not form.tokens:
        finish = number_like_fairseq if name == "sentencepiece.bpe.model" else add_sentinels
        style, pieces = finish(style, pieces, options)
    ids = {p: i for i, (p, _) in enumerate(pieces)}
    special = resolve_special_tokens(options, style.special, ids)
    marks = [p for p, _, kind in model.pieces if kind == CONTROL]
    added = [t for t in dict.fromkeys([*special.values(), *marks, *style.special_tokens]) if t in ids]
    unknown = next(p for p, _, kind in model.pieces if kind == UNKNOWN)
    rust = build_rust_model(model, pieces, special.get("unk", unknown), where)
    rust.normalizer = build_normalizer(model, options, form.plain_quotes, form.lower)
    if model.model_type == BPE:
        users = [p for p, _, kind in model.pieces if kind == USER and p not in added]
        rust.add_tokens([AddedToken(p, normalized=False) for p in users])
    style = dataclasses.replace(style, special=special, first_tokens=tuple(added), last_tokens=())
    return style.finish_tokenizer(rust, ids, where)


def score_pieces(model: SentencePieceModel) -> dict[str, float]:
    """Score each piece. A user-defined piece always wins where it fits: SentencePiece gives it more than any other
    way to cut the same bytes could have."""
    best = max((s for _, s, kind in model.pieces if kind == NORMAL), default=0.0)
    own = {NORMAL: lambda p, s: s, USER: lambda p, s: len(p.encode()) * best - 0.1}
    return {p: own[kind](p, s) if kind in own else UNREACHABLE_SCORE for p, s, kind in model.pieces}


def add_sentinels(
    style: TokenizerStyle, pieces: list[tuple[str, float]], options: Mapping[str, JSONValue]
) -> tuple[TokenizerStyle, list[tuple[str, float]]]:
    """Finish T5's and what is like it: a text ends in </s>, if there is one, and sentinels stand at the top of the
    vocabulary: as many as tokenizer_config.json says, or the style's own if nothing shows that the model is another."""
    names = {p for p, _ in pieces}
    extra = options.get("extra_ids", len(style.last_tokens) if "<pad>" in names and "<s>" not in names else 0)
    if type(extra) is not int or not 0 <= extra <= MAX_SENTINELS:
        raise Error(f"extra_ids: {extra!r} is not a number of sentinels", fix="correct tokenizer_config.json")
    own = tuple(t for i in reversed(range(extra)) if (t := f"<extra_id_{i}>") not in names)
    if "</s>" not in names:
        style = dataclasses.replace(style, single_template="$A", pair_template="$A $B:1")
    style = dataclasses.replace(style, first_tokens=(), last_tokens=own)
    return style, [*pieces, *((t, UNREACHABLE_SCORE) for t in own)]


def number_like_fairseq(
    style: TokenizerStyle, pieces: list[tuple[str, float]], options: Mapping[str, JSONValue]
) -> tuple[TokenizerStyle, list[tuple[str, float]]]:
    """Finish mBART's and XLM-R's: fairseq numbers the style's first tokens, then the model's pieces from the fourth on,
    then the style's last tokens. A template has the language of the text, first (mBART-50) or last."""
    first, last = ([(t, UNREACHABLE_SCORE) for t in tokens] for tokens in (style.first_tokens, style.last_tokens))
    if style.languages and (language := options.get("src_lang")):
        if language not in style.languages:
            what = f"src_lang {str(language)!r} is not one of {style.name}'s"
            raise Error(what, fix="known: " + " ".join(style.languages))
        single, pair = (
            " ".join(language if token in style.languages else token for token in template.split())
            for template in (style.single_template, style.pair_template)
        )
        style = dataclasses.replace(style, single_template=single, pair_template=pair)
    return style, [*first, *pieces[3:], *last]


def build_rust_model(
    model: SentencePieceModel, pieces: Sequence[tuple[str, float]], unknown: str, where: object
) -> Rust:
    """Build the model, and how it puts text together again."""
    number = next((i for i, (p, _) in enumerate(pieces) if p == unknown), None)
    if number is None:
        raise Error(f"the unknown token {unknown!r} is not in the vocabulary", where=where, fix="correct unk_token")
    if model.model_type == BPE:
        ids, merges = {p: i for i, (p, _) in enumerate(pieces)}, derive_merges(model, where)
        rust = Rust(models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=model.byte_fallback))
    else:
        # Unknown costs 10 more than the worst piece.
        lowest = min((s for _, s in pieces if s > UNREACHABLE_SCORE), default=0.0)
        scored = [(p, lowest if s <= UNREACHABLE_SCORE else s) for p, s in pieces]
        rust = Rust(models.Unigram(scored, unk_id=number, byte_fallback=model.byte_fallback))
    split = all(SPACE_MARK not in p[1:] for p, _ in pieces)
    rust.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE_MARK, prepend_scheme="never", split=split)
    scheme = "always" if model.add_dummy_prefix else "never"
    spaces = [decoders.Replace(FOREIGN_PREFIX, ""), decoders.Metaspace(replacement=SPACE_MARK, prepend_scheme=scheme)]
    rust.decoder = decoders.Sequence([*([decoders.ByteFallback()] if model.byte_fallback else []), *spaces])
    return rust


def build_normalizer(
    model: SentencePieceModel, options: Mapping[str, JSONValue], quotes: bool, small: bool
) -> normalizers.Normalizer:
    """Text as the model wants it. ALBERT and XLNet also make quotes plain, strip accents and (ALBERT) capitals; NFC
    puts Hangul together again, which the model's own table would do."""
    steps: list[normalizers.Normalizer] = []
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
    source: bytes, target: bytes, vocab: str, options: Mapping[str, JSONValue], styles: Styles, where: object = None
) -> Tokenizer:
    """Marian's two models and the one table of numbers that both share; `.target` reads the other language."""

    def build_side(data: bytes) -> Tokenizer:
        return call_backend(lambda: build_marian_side(parse_model(data, where), vocab, options, styles, where), where)

    tokenizer = build_side(source)
    tokenizer.target = build_side(target)
    return tokenizer


def build_marian_side(
    model: SentencePieceModel, vocab: str, options: Mapping[str, JSONValue], styles: Styles, where: object
) -> Tokenizer:
    """Build one side. Pieces of the other one keep their number and cannot be read."""
    ids = {k: int(v) for k, v in parse_json_object(vocab, where).items()}
    if sorted(ids.values()) != list(range(len(ids))):
        raise Error("the vocabulary does not number its pieces from 0", where=where, fix="correct vocab.json")
    own = {p: s for p, s in score_pieces(model).items() if s > UNREACHABLE_SCORE}
    style, _ = choose_style(styles, "source.spm", ids, options, where)
    special = resolve_special_tokens(options, style.special, ids)
    marks = [*special.values(), *(p for p in ids if p.startswith(">>") and p.endswith("<<"))]
    names = ((p, p if p in own or p in marks else FOREIGN_PREFIX + p) for p in sorted(ids, key=ids.__getitem__))
    pieces = [(name, own.get(p, UNREACHABLE_SCORE)) for p, name in names]
    rust = build_rust_model(model, pieces, special.get("unk", "<unk>"), where)
    rust.normalizer = build_normalizer(model, options, quotes=False, small=False)
    style = dataclasses.replace(style, special=special, first_tokens=tuple(dict.fromkeys(marks)), last_tokens=())
    return style.finish_tokenizer(rust, ids, where)
