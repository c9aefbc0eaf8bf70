"""Tokenizers out of SentencePiece's models, with each family's special tokens: T5, ALBERT, XLNet, mBART, Marian."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Rust

from ..config import table
from ..errors import Error
from . import spm
from .published import roles
from .templates import FAIRSEQ, LANGUAGES, STYLES, Style
from .tokenizer import Tokenizer, guarded

SPACE = "▁"
FOREIGN = "\U0010fffd"  # stands before a piece of Marian's other language: no text matches it
LEAST = -1000.0  # score of a piece that is never read, such as a special token's
EXTRA = 1000  # sentinels at most


def from_spm(data: bytes, options: Mapping[str, Any], where: object = None, name: str = "spiece.model") -> Tokenizer:
    """The tokenizer of a spiece.model or sentencepiece.bpe.model; `options` are those of its tokenizer_config.json."""
    return guarded(lambda: one(spm.read(data, where), options, where, name), where)


def one(model: spm.Model, options: Mapping[str, Any], where: object, name: str) -> Tokenizer:
    """The same; which family it is shows in the pieces."""
    pieces = list(scores(model).items())
    names = {p for p, _ in pieces}
    if {"[CLS]", "[SEP]"} <= names:
        style = STYLES["albert"]
    elif {"<sep>", "<cls>"} <= names:
        style = STYLES["xlnet"]
    elif name == "sentencepiece.bpe.model":
        style, pieces = fairseq(pieces, options)
    else:
        style, pieces = ended(pieces, options)
    special = {r: t for r, t in roles(options, style.special).items() if any(t == p for p, _ in pieces)}
    marks = tuple(p for p, _, kind in model.pieces if kind == spm.CONTROL)
    added = [t for t in dict.fromkeys([*special.values(), *marks, *style.marks]) if any(t == p for p, _ in pieces)]
    rust = machine(model, pieces, special.get("unk", model.pieces[model.unknown][0]), where)
    rust.normalizer = ready(model, options, "[CLS]" in names or "<sep>" in names, "[CLS]" in names)
    ids = {p: i for i, (p, _) in enumerate(pieces)}
    if model.kind == spm.BPE:
        users = [p for p, _, kind in model.pieces if kind == spm.USER and p not in added]
        rust.add_tokens([AddedToken(p, normalized=False) for p in users])
    Style(special, tuple(added), (), style.single, style.pair).finish(rust, ids)
    return Tokenizer(rust.to_str(pretty=True), special, where=where)


def scores(model: spm.Model) -> dict[str, float]:
    """Each piece's score. A user-defined piece always wins where it fits: SentencePiece gives it more than any other
    way to cut the same bytes could have."""
    best = max((s for _, s, kind in model.pieces if kind == spm.NORMAL), default=0.0)
    own = {spm.NORMAL: lambda p, s: s, spm.USER: lambda p, s: len(p.encode()) * best - 0.1}
    return {p: own[kind](p, s) if kind in own else LEAST for p, s, kind in model.pieces}


def ended(pieces: list[tuple[str, float]], options: Mapping[str, Any]) -> tuple[Style, list[tuple[str, float]]]:
    """T5's and what is like it: a text ends in </s>, and sentinels stand at the top of the vocabulary."""
    names = {p for p, _ in pieces}
    extra = options.get("extra_ids", 100 if "<pad>" in names and "<s>" not in names else 0)
    if type(extra) is not int or not 0 <= extra <= EXTRA:
        raise Error(f"extra_ids: {extra!r} is not a number of sentinels", fix="correct tokenizer_config.json")
    own = tuple(t for i in reversed(range(extra)) if (t := f"<extra_id_{i}>") not in names)
    template = ("$A </s>", "$A </s> $B </s>") if "</s>" in names else ("$A", "$A $B:1")
    return Style(STYLES["translation"].special, (), own, *template), [*pieces, *((t, LEAST) for t in own)]


def fairseq(pieces: list[tuple[str, float]], options: Mapping[str, Any]) -> tuple[Style, list[tuple[str, float]]]:
    """mBART's and XLM-R's: fairseq numbers <s> <pad> </s> <unk> first, then the model's pieces from the fourth on."""
    first = [(t, LEAST) for t in FAIRSEQ]
    kind = str(options.get("tokenizer_class", ""))
    if "MBart" not in kind and "src_lang" not in options:
        return STYLES["roberta"], [*first, *pieces[3:], ("<mask>", LEAST)]
    language = str(options.get("src_lang") or "en_XX")
    if language not in LANGUAGES:
        raise Error(f"src_lang {language!r} is not one of mBART's", fix="known: " + " ".join(LANGUAGES))
    marks = (*LANGUAGES, "<mask>")
    style = Style(STYLES["mbart"].special, FAIRSEQ, marks, f"$A </s> {language}", f"$A $B </s> {language}")
    return style, [*first, *pieces[3:], *((t, LEAST) for t in marks)]


def machine(model: spm.Model, pieces: Sequence[tuple[str, float]], unknown: str, where: object) -> Rust:
    """The model, and how it puts text together again."""
    number = next((i for i, (p, _) in enumerate(pieces) if p == unknown), None)
    if number is None:
        raise Error(f"the unknown token {unknown!r} is not in the vocabulary", where=where, fix="correct unk_token")
    if model.kind == spm.BPE:
        rust = Rust(
            models.BPE(
                vocab={p: i for i, (p, _) in enumerate(pieces)}, merges=spm.merges(model, where), unk_token=unknown,
                fuse_unk=True, byte_fallback=model.byte_fallback,
            )
        )  # fmt: skip
    else:
        lowest = min((s for _, s in pieces if s > LEAST), default=0.0)  # unknown costs 10 more than the worst piece
        scored = [(p, lowest if s <= LEAST else s) for p, s in pieces]
        rust = Rust(models.Unigram(scored, unk_id=number, byte_fallback=model.byte_fallback))
    split = all(SPACE not in p[1:] for p, _ in pieces)
    rust.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="never", split=split)
    scheme = "always" if model.dummy else "never"
    spaces = [decoders.Replace(FOREIGN, ""), decoders.Metaspace(replacement=SPACE, prepend_scheme=scheme)]
    rust.decoder = decoders.Sequence([*([decoders.ByteFallback()] if model.byte_fallback else []), *spaces])
    return rust


def ready(model: spm.Model, options: Mapping[str, Any], quotes: bool, small: bool) -> Any:
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
    if model.squeeze:
        any_space = quotes and options.get("remove_space", True)
        steps.append(normalizers.Replace(Regex(r"\s+" if any_space else " {2,}"), " "))
        steps += [normalizers.Replace(Regex(pattern), "") for pattern in ("^ ", f"[ {SPACE}]+$")]
    if model.dummy:
        steps.append(normalizers.Prepend(SPACE))
    return normalizers.Sequence(steps)


def from_marian(
    source: bytes, target: bytes, vocab: str, options: Mapping[str, Any], where: object = None
) -> Tokenizer:
    """Marian's two models and the one table of numbers that both share; `.target` reads the other language."""
    made, other = (
        guarded(lambda d=d: side(spm.read(d, where), vocab, options, where), where) for d in (source, target)
    )
    made.target = other
    return made


def side(model: spm.Model, vocab: str, options: Mapping[str, Any], where: object) -> Tokenizer:
    """One side. Pieces of the other one keep their number and cannot be read."""
    ids = {k: int(v) for k, v in table(vocab, where).items()}
    if sorted(ids.values()) != list(range(len(ids))):
        raise Error("the vocabulary does not number its pieces from 0", where=where, fix="correct vocab.json")
    own = {p: s for p, s in scores(model).items() if s > LEAST}
    special = {r: t for r, t in roles(options, STYLES["t5"].special).items() if t in ids}
    codes = [p for p in ids if p.startswith(">>") and p.endswith("<<")]
    marks = [*special.values(), *codes]
    pieces = [
        (p, own[p]) if p in own else (p if p in marks else FOREIGN + p, LEAST)
        for p in sorted(ids, key=lambda p: ids[p])
    ]
    rust = machine(model, pieces, special.get("unk", "<unk>"), where)
    rust.normalizer = ready(model, options, quotes=False, small=False)
    Style(special, tuple(dict.fromkeys(marks)), (), "$A </s>", "$A $B </s>").finish(rust, ids)
    return Tokenizer(rust.to_str(pretty=True), special, where=where)
