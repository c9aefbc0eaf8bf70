"""Published tokenizer files that are not a tokenizer.json: vocab.txt, and vocab.json with merges.txt."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer as Rust
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from ..config import parse_json_object
from ..errors import Error
from .tokenizer import SPECIAL_ROLES, Tokenizer, call_backend
from .tokenizer_styles import BERT_TOKENS, GPT2_TOKENS, ROBERTA_TOKENS, STYLES, T5_TOKENS, make_special_token

HANGUL_SYLLABLE = re.compile("[가-힣]")


def from_vocab_txt(text: str, options: Mapping[str, Any], where: object = None) -> Tokenizer:
    """BERT's vocab.txt, one piece a line; `options` are those of its tokenizer_config.json."""
    return call_backend(lambda: build_wordpiece(text, options, where), where)


def build_wordpiece(text: str, options: Mapping[str, Any], where: object) -> Tokenizer:
    """The tokenizer of a vocab.txt; what the Rust library does not like is still its own error."""
    pieces = [line.rstrip("\r\n") for line in text.split("\n")]
    pieces = pieces[:-1] if pieces and not pieces[-1] else pieces
    if all(line.endswith(f"\t{i}") for i, line in enumerate(pieces)):  # PaddlePaddle writes the number as well
        pieces = [line.rpartition("\t")[0] for line in pieces]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    special = resolve_special_tokens(options, BERT_TOKENS)
    lost = [token for role, token in special.items() if role in ("unk", "cls", "sep") and token not in vocab]
    if lost:
        raise Error(f"{lost[0]!r} is not in the vocabulary", where=where, fix="is this the vocab.txt of a BERT?")
    usual = [p for p in pieces if p not in special.values() and not (p[:1] in "[<" and p[-1:] in "]>")]
    lower = bool(options.get("do_lower_case", not has_capitals(usual)))
    strip = options.get("strip_accents")  # None: where text is made lower case
    strip = False if strip is None and has_syllables(usual) else strip
    rust = Rust(models.WordPiece(vocab=vocab, unk_token=special["unk"]))
    rust.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=bool(options.get("tokenize_chinese_chars", True)),
        strip_accents=strip, lowercase=lower,
    )  # fmt: skip
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rust.decoder = decoders.WordPiece(prefix="##")
    marks = [(special[role], vocab[special[role]]) for role in ("cls", "sep")]
    (cls, _), (sep, _) = marks
    single, pair = f"{cls} $A {sep}", f"{cls} $A {sep} $B:1 {sep}:1"
    rust.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=marks)
    made = finish_tokenizer(rust, special, where)
    if "do_lower_case" not in options:
        found = "there are no capitals in the vocabulary, so text is made lower case"
        found = found if lower else "there are capitals in the vocabulary, so text keeps its case"
        found += (
            f'; {{"do_lower_case": {"false" if lower else "true"}}} in a tokenizer_config.json beside it says otherwise'
        )
        made.notes.append(f"nothing beside vocab.txt says whether capitals matter: {found}")
    return made


def has_capitals(pieces: Sequence[str]) -> bool:
    """Whether a piece has an upper-case letter: text that is made lower case would never reach it."""
    return any(piece.lower() != piece and any(map(str.isupper, piece)) for piece in pieces)


def has_syllables(pieces: Sequence[str]) -> bool:
    """Whether at least one piece in a hundred has Hangul syllables. Stripping accents takes syllables apart into jamo,
    so that no such piece would be reached and all Korean be unknown. English vocabularies have a handful of them."""
    return sum(HANGUL_SYLLABLE.search(piece) is not None for piece in pieces) * 100 > len(pieces)


def from_merges(vocab: str, merges: str, options: Mapping[str, Any], where: object = None) -> Tokenizer:
    """BPE out of vocab.json and merges.txt: GPT-2's and RoBERTa's of bytes, or GPT-1's whose words end in </w>."""
    return call_backend(lambda: build_bpe(vocab, merges, options, where), where)


def build_bpe(vocab: str, merges: str, options: Mapping[str, Any], where: object) -> Tokenizer:
    """The tokenizer of a vocab.json and merges.txt; what the Rust library does not like is still its own error."""
    pieces = {k: int(v) for k, v in parse_json_object(vocab, where).items()}
    if max(pieces.values(), default=0) >= len(pieces) + 1000:  # the Rust library would list all that are missing
        raise Error("the ids of the vocabulary have large gaps", where=where, fix="is this the vocab.json of a GPT-2?")
    lines = [line for line in merges.split("\n") if line.strip() and not line.startswith("#version")]
    pairs = [(left, right) for left, _, right in (line.strip("\r").partition(" ") for line in lines)]
    if any(right.endswith("</w>") for _, right in pairs[:1000]):
        return build_gpt1_bpe(pieces, pairs, options, where)
    usual = ROBERTA_TOKENS if "<mask>" in pieces and "<s>" in pieces else GPT2_TOKENS
    special = {role: token for role, token in resolve_special_tokens(options, usual).items() if token in pieces}
    space = bool(options.get("add_prefix_space", False))
    rust = Rust(models.BPE(vocab=pieces, merges=pairs))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    rust.decoder = decoders.ByteLevel()
    if "cls" in special and "sep" in special:
        (sep, cls) = [(special[r], pieces[special[r]]) for r in ("sep", "cls")]
        rust.post_processor = processors.RobertaProcessing(sep, cls, True, space)
    else:
        rust.post_processor = processors.ByteLevel(trim_offsets=False)
    return finish_tokenizer(rust, special, where)


def build_gpt1_bpe(
    pieces: dict[str, int], pairs: list[tuple[str, str]], options: Mapping[str, Any], where: object
) -> Tokenizer:
    """GPT-1's: lower case and cut as BERT does (what transformers does; the first release also repaired text)."""
    special = {
        role: token for role, token in resolve_special_tokens(options, {"unk": "<unk>"}).items() if token in pieces
    }
    unknown = special.get("unk")
    rust = Rust(models.BPE(vocab=pieces, merges=pairs, unk_token=unknown, end_of_word_suffix="</w>", fuse_unk=False))
    rust.normalizer = normalizers.BertNormalizer(lowercase=True)
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rust.decoder = decoders.BPEDecoder(suffix="</w>")
    return finish_tokenizer(rust, special, where)


def finish_tokenizer(rust: Rust, special: Mapping[str, str], where: object) -> Tokenizer:
    """The tokenizer with its special tokens marked as such."""
    known = rust.get_vocab()
    rust.add_special_tokens([make_special_token(t) for t in dict.fromkeys(special.values()) if t in known])
    return Tokenizer(rust.to_str(pretty=True), special, where=where)


def resolve_special_tokens(options: Mapping[str, Any], usual: Mapping[str, str]) -> dict[str, str]:
    """The special tokens by role: those of tokenizer_config.json or special_tokens_map.json, else the usual ones."""
    found = dict(usual)
    for role in SPECIAL_ROLES:
        token = options.get(f"{role}_token")
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            found[role] = token
    return found


def guess_special_tokens(text: str) -> Mapping[str, str]:
    """What the special tokens of a tokenizer.json are likely to be, by the names it has marked as special."""
    try:
        added = {t["content"] for t in json.loads(text).get("added_tokens", []) if t.get("special")}
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
        added = set()
    known = [BERT_TOKENS, ROBERTA_TOKENS, GPT2_TOKENS, T5_TOKENS, *(style.special for style in STYLES.values())]
    tables = sorted(known, key=lambda table: -len(added & set(table.values())))
    return {role: token for role, token in tables[0].items() if token in added}
