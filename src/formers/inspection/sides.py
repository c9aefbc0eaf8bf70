"""The text that is looked at, as a model reads it: tokens that a person can read, and the batch of one forward pass.

A side is what one stack reads: the "text" of an encoder or a decoder, the "source" and the "target" of an
encoder-decoder. T tokens of a side, M earlier tokens in a memory.
"""

from __future__ import annotations

import bisect
import unicodedata
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..batch import Batch
from ..config import JSONObject, format_value
from ..errors import Error
from ..evaluation.likelihood import get_begin_ids, get_label_ids
from ..former import Former
from ..inputs import ModelInputs, get_start_token
from ..nn.attention.segment_memory import SegmentMemory
from ..nn.head_pruning import find_attentions
from ..task import END_MARKED_HEADS, get_frame
from ..tasks.encoding import Span, TokenizedText, tokenize_texts
from ..text.normalise import normalise
from ..text.tokenizer import DecodeStream, Template, Tokenizer
from ..verbs import BLANK, can_fill, can_generate

MAX_TARGET_TOKENS = 32  # of a target that the model writes, where none is given
MAX_ATTENTION_BYTES = 2e9  # of the weights of all layers and heads
ZERO_WIDTH_JOINER = "\u200d"


@dataclass(frozen=True)
class Token:
    """One token of a side: its piece as the tokenizer spells it, and the characters that a person reads in its place.

    A piece inside a character, such as one byte of a Korean syllable, is `joined` to the piece before it, which shows
    the whole character; its own text is empty.
    """

    id: int  # -1: none, as a word that is read by its characters
    piece: str
    text: str
    start: int = 0  # characters of the side's text
    end: int = 0
    is_special: bool = False
    is_joined: bool = False

    def to_dict(self) -> JSONObject:
        """Return the token as the view document has it."""
        return {
            "id": self.id, "text": self.text, "piece": self.piece, "start": self.start, "end": self.end,
            "special": self.is_special, "joined": self.is_joined,
        }  # fmt: skip


@dataclass(frozen=True)
class Window:
    """The stretch of a long text that is shown: which of how many (counted from 0), and its tokens of all."""

    index: int
    count: int
    first: int
    last: int  # not included
    tokens: int  # of the whole text

    def describe(self) -> str:
        """Describe the stretch in a sentence."""
        more = f"; choose another window from 0 to {self.count - 1}" if self.count > 1 else ""
        return f"tokens {self.first:,} to {self.last - 1:,} of {self.tokens:,} are shown{more}"


@dataclass(frozen=True)
class Side:
    """What one stack reads: the text, its tokens, their segments, and earlier tokens that a memory holds; of a text
    that is longer than the model reads, a window."""

    text: str
    tokens: list[Token]
    segments: list[int] | None = None
    memory: list[Token] = field(default_factory=list)
    window: Window | None = None

    def to_dict(self) -> JSONObject:
        """Return the side as the view document has it."""
        about: JSONObject = {"text": self.text, "segments": self.segments, "memory": len(self.memory)}
        if self.memory:
            about["memory_tokens"] = [token.to_dict() for token in self.memory]
        if self.window is not None:
            about["window"] = asdict(self.window)
        return about | {"tokens": [token.to_dict() for token in self.tokens]}


@dataclass(frozen=True)
class TextInputs:
    """The sides of a text and the packed batch of one document that a model reads; word vectors have no batch."""

    sides: dict[str, Side]
    batch: Batch | None
    memory_ids: Tensor | None = None  # (M,) what is read before, into a segment memory
    label_ids: list[int] = field(default_factory=list)  # of each token of the predicted side: what it is as an output

    @property
    def main_side(self) -> str:
        """The side on which tokens are predicted."""
        return "target" if "target" in self.sides else "text"

    def get_batch(self) -> Batch:
        """Return the batch; word vectors have none."""
        if self.batch is None:
            raise Error("word vectors have no layers to look into", fix="look at their states: views=['states']")
        return self.batch


def encode_inputs(
    former: Former, text: str, second: str | None = None, before: str | None = None, window: int | None = None
) -> TextInputs:
    """Encode a text as a model reads it.

    `second` is the second text of a pair, or the target of an encoder-decoder, which writes one itself if it is not
    given. `before` is what a model with a memory has read earlier. Of a text that is longer than the model reads, a
    `window` is encoded (from 0); without one the first, with a warning.
    """
    if window is not None and (type(window) is not int or window < 0):
        raise Error(f"there is no window {format_value(window)}", fix="windows count from 0")
    for name, value in (("text", text), ("second", second), ("before", before)):
        if not isinstance(value, str) and (value is not None or name == "text"):
            raise Error(f"{name} must be a string, got {format_value(value)}", fix="give one text")
        if value is not None and not value.strip():
            raise Error("the text is empty" if name == "text" else f"{name} is empty", fix="give some words")
    if before is not None and not issubclass(former.state_class, SegmentMemory):
        what = f"{former.family} has no memory of an earlier text"
        raise Error(what, fix="leave before out; transformer_xl and xlnet have one")
    if former.is_encoder_decoder:
        return encode_two_sides(former, text, second, window)
    if former.definition.reads_characters or former.definition.is_static:
        if second is not None:
            raise Error(f"{former.family} reads one text", fix="leave the second text out")
        return encode_words(former, text)
    return encode_one_side(former, text, second, before, window)


def get_tokenizer(former: Former) -> Tokenizer:
    """Return the model's tokenizer, which every look at a text needs."""
    if former.tokenizer is None:
        raise Error("this model has no tokenizer", fix="load one that has, to look at text")
    return former.tokenizer


def choose_frame(former: Former, tokenizer: Tokenizer, pair: bool) -> Template:
    """Choose the marks around a text: a language model's first token, as its likelihood is computed, or the template
    of the tokenizer or the task."""
    if can_generate(former) and not former.is_two_stream and not former.is_encoder_decoder:
        # A config may name a token that the model does not have.
        begin = tuple(i for i in get_begin_ids(former) if i < former.config.vocab)
        return Template(begin, (), (), ((0,) * len(begin), 0, (), 0, ()))
    return get_frame(tokenizer, pair) if former.head.split("@")[0] in END_MARKED_HEADS else tokenizer.get_template(pair)


@dataclass(frozen=True)
class FramedText:
    """A text or a pair with its marks: the ids, the tokens and the segments of each."""

    text: str
    ids: list[int]
    tokens: list[Token]
    segments: list[int]
    window: Window | None = None


def find_room(former: Former) -> int | None:
    """Find how many tokens can be looked at: what the model reads at once, or what the attention weights of all layers
    leave room for in memory; None without such a limit."""
    known = find_attentions(former.model.body)
    heads = sum(module.heads for _, module in known.values())
    room = int((MAX_ATTENTION_BYTES / 4 / heads) ** 0.5) if heads else None
    limits = [limit for limit in (former.context, room) if limit is not None]
    return min(limits) if limits else None


class EncodedText(NamedTuple):
    """A text, its ids, and the characters of each."""

    text: str
    ids: list[int]
    spans: Sequence[Span]


def cut_window(whole: EncodedText, room: int | None, window: int | None) -> tuple[EncodedText, Window | None]:
    """Cut a window out of a text that has more tokens than there is room for; without a choice the first, loudly."""
    text, ids, spans = whole
    if room is None or len(ids) <= room:
        if window:
            raise Error(f"there is no window {window}: the text is read at once", fix="leave the window out")
        return whole, None
    room = max(1, room)
    count = -(-len(ids) // room)
    if window is not None and window >= count:
        raise Error(f"there is no window {window} of this text", fix=f"choose 0 to {count - 1}")
    low = (window or 0) * room
    high = min(low + room, len(ids))
    part = Window(window or 0, count, low, high, len(ids))
    if window is None:
        warnings.warn(f"the text is longer than a view can show: {part.describe()}", stacklevel=2)
    places = [span for span in spans[low:high] if span[1] > span[0]] or [(0, 0)]  # marks have no characters
    start, end = min(a for a, _ in places), max(b for _, b in places)
    moved = [(a - start, b - start) if b > a else (0, 0) for a, b in spans[low:high]]
    return EncodedText(text[start:end], ids[low:high], moved), part


def encode_framed(
    former: Former, tokenizer: Tokenizer, text: str, second: str | None, window: int | None = None
) -> FramedText:
    """Encode a text, or a pair, with the marks that the model expects around it; of a long text, a window. Where both
    texts of a pair are long, half of the room is for the first tokens of the second."""
    whole = [encode_text(former, tokenizer, normalise(t)) for t in (text, second) if t is not None]
    frame = choose_frame(former, tokenizer, second is not None)
    room = find_room(former)
    if room is not None:
        room -= len(frame.before) + len(frame.between) * (len(whole) - 1) + len(frame.after)
        if second is not None:
            whole[1], _ = cut_window(whole[1], max(room // 2, room - len(whole[0].ids)), None)
            room -= len(whole[1].ids)
    shown, shown_window = cut_window(whole[0], room, window)
    parts = [shown, *whole[1:]]
    first, own, middle, other, last = frame.segments
    ids, tokens, segments = list[int](), list[Token](), list[int]()

    def add_marks(marks: Sequence[int], kinds: Sequence[int]) -> None:
        ids.extend(marks)
        tokens.extend(make_special(tokenizer, index) for index in marks)
        segments.extend(kinds)

    add_marks(frame.before, first)
    for number, (words, row, spans) in enumerate(parts):
        if number:
            add_marks(frame.between, middle)
        ids.extend(row)
        tokens.extend(make_tokens(tokenizer, words, row, spans, len(parts[0][0]) + 1 if number else 0))
        segments.extend([other if number else own] * len(row))
    add_marks(frame.after, last)
    return FramedText("\n".join(words for words, _, _ in parts), ids, tokens, segments, shown_window)


def encode_one_side(
    former: Former, text: str, second: str | None, before: str | None, window: int | None
) -> TextInputs:  # fmt: skip
    """Encode a text, or a pair, for an encoder or a decoder."""
    tokenizer = get_tokenizer(former)
    encoding = encode_framed(former, tokenizer, text, second, window)
    segments = encoding.segments if former.definition.reads_segments and former.can_read_segments else None
    model_inputs = ModelInputs(
        torch.tensor([encoding.ids]), segments=None if segments is None else torch.tensor([segments])
    )
    batch, _ = former.pack_inputs(model_inputs)
    memory, memory_ids = list[Token](), None
    if before is not None:
        words, row, spans = encode_text(former, tokenizer, normalise(before))
        memory, memory_ids = make_tokens(tokenizer, words, row, spans), torch.tensor(row)
    side = Side(encoding.text, encoding.tokens, segments, memory, encoding.window)
    return TextInputs({"text": side}, batch, memory_ids, encoding.ids)


def encode_two_sides(former: Former, text: str, second: str | None, window: int | None = None) -> TextInputs:
    """Encode a source and a target; a target that is not given is what the model writes. The head of a task reads the
    source, or a pair, on both sides."""
    tokenizer = get_tokenizer(former)
    writes = tokenizer.target or tokenizer
    is_task = former.head not in ("lm", "none")
    encoding = encode_framed(former, tokenizer, text, second if is_task else None, window)
    source = Side(encoding.text, encoding.tokens, window=encoding.window)
    if is_task:
        batch, _ = former.pack_inputs(ModelInputs(torch.tensor([encoding.ids])))
        target_ids = batch.ids.tolist()
        tokens = [make_special(tokenizer, target_ids[0]), *source.tokens[:-1]]
        return TextInputs({"source": source, "target": Side(encoding.text, tokens)}, batch, None, target_ids)
    if second is None and can_generate(former):
        limit = MAX_TARGET_TOKENS if former.context is None else min(MAX_TARGET_TOKENS, former.context - 1)
        ids = former.continue_ids([encoding.ids], limit, temperature=0.0)[0]
        target_text, row, tokens = describe_written(writes, ids)
        target_window = None
    else:
        target_text = normalise(second or text)
        room, encoded = find_room(former), writes.encode_with_offsets(target_text, parse_special=False)
        whole = EncodedText(target_text, *encoded)
        (target_text, row, spans), target_window = cut_window(whole, None if room is None else room - 1, None)
        tokens = make_tokens(writes, target_text, row, spans)
    start = row[-1] if former.definition.starts_with_last_token and row else get_start_token(former.config)
    target_ids = [start, *row]
    model_inputs = ModelInputs(torch.tensor([encoding.ids]), target=torch.tensor([target_ids]))
    batch, _ = former.pack_inputs(model_inputs)
    target = Side(target_text, [make_special(writes, start), *tokens], window=target_window)
    return TextInputs({"source": source, "target": target}, batch, None, target_ids)


def encode_words(former: Former, text: str) -> TextInputs:
    """Encode a text whose words are read by their characters (ELMo) or looked up (word vectors)."""
    tokenized = tokenize_texts(former, [text])[0]
    words = [
        Token(-1, name, name, low, high) for name, (low, high) in zip(tokenized.tokens, tokenized.spans, strict=True)
    ]
    if not words:
        raise Error("the text has no words", fix="give some words")
    if former.definition.is_static:
        return TextInputs({"text": Side(tokenized.text, words)}, None)
    marks = [Token(-1, name, name, is_special=True) for name in ("<S>", "</S>")]
    ids = torch.cat((tokenized.prefix_ids, tokenized.ids, tokenized.suffix_ids))
    batch, _ = former.pack_inputs(ModelInputs(ids[None]))
    labels = [-1, *get_word_labels(former, tokenized), -1]
    return TextInputs({"text": Side(tokenized.text, [marks[0], *words, marks[1]])}, batch, None, labels)


def get_word_labels(former: Former, tokenized: TokenizedText) -> list[int]:
    """Return the ids of words as outputs; -1 where the model has no vocabulary of them."""
    return [-1] * len(tokenized.tokens) if former.tokenizer is None else get_label_ids(former, tokenized)


def encode_text(former: Former, tokenizer: Tokenizer, text: str) -> EncodedText:
    """Encode a text without marks. To a masked model, a blank (___) or its mask token is a token to predict."""
    mask = tokenizer.special.get("mask")
    has_blanks = mask is not None and can_fill(former) and (BLANK in text or mask in text)
    text = text.replace(BLANK, mask) if has_blanks and mask is not None else text
    ids, spans = tokenizer.encode_with_offsets(text, special=False, parse_special=has_blanks)
    if not ids:
        raise Error("the text has no tokens", fix="give some words")
    return EncodedText(text, ids, spans)


def describe_written(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[str, list[int], list[Token]]:
    """Return the text that was written as ids, and its tokens; a character of several pieces stands at the last."""
    stream, text, tokens = DecodeStream(tokenizer), "", []
    special = get_special_ids(tokenizer)
    for index in ids:
        more = stream.push(index)
        if index in special:
            tokens.append(make_special(tokenizer, index))
            continue
        piece, start = tokenizer.get_token_text(index), len(text)
        text += more
        tokens.append(Token(index, piece, more, start, len(text), is_joined=not more and bool(stream.pending_bytes)))
    return text, list(ids), tokens


def get_special_ids(tokenizer: Tokenizer) -> set[int]:
    """Return the ids of the special tokens."""
    known = (tokenizer.backend.token_to_id(name) for name in tokenizer.reserved_tokens)
    return {index for index in known if index is not None}


def make_special(tokenizer: Tokenizer, index: int) -> Token:
    """Make the token of a mark, which stands for no character of the text."""
    name = tokenizer.get_token_text(index) or f"<{index}>"
    return Token(index, name, name, is_special=True)


def make_tokens(
    tokenizer: Tokenizer, text: str, ids: Sequence[int], spans: Sequence[Span], offset: int = 0
) -> list[Token]:
    """Make the tokens of a text with their readable characters; `offset` is where the text begins in the side's."""
    special, tokens, edges, shown = get_special_ids(tokenizer), [], find_grapheme_starts(text), 0
    special -= {tokenizer.id("unk")}  # it stands for characters of the text
    for index, (start, end) in zip(ids, spans, strict=True):
        piece = tokenizer.get_token_text(index)
        is_added_space = not piece.strip(" ▁") and bool(text[start:end].strip())
        if end <= start or index in special or is_added_space:
            places = (start + offset, end + offset) if end > start else (0, 0)
            tokens.append(Token(index, piece, piece, *places, is_special=index in special))
            continue
        low = max(edges[bisect.bisect_right(edges, start) - 1], shown)
        at = bisect.bisect_left(edges, end)
        high = edges[at] if at < len(edges) else len(text)
        words = text[low:high]
        tokens.append(Token(index, piece, words, start + offset, end + offset, is_joined=not words))
        shown = max(shown, high)
    return tokens


def find_grapheme_starts(text: str) -> list[int]:
    """Find where the characters that a person sees begin: marks, emoji sequences, flags and jamo stay together."""
    starts = [0] if text else []
    flags = 0  # regional indicators in a row: two of them are a flag
    for at in range(1, len(text)):
        letter, last = text[at], text[at - 1]
        flags = flags + 1 if "\U0001f1e6" <= last <= "\U0001f1ff" else 0
        is_flag_end = "\U0001f1e6" <= letter <= "\U0001f1ff" and flags % 2 == 1
        extends = (
            unicodedata.category(letter) in ("Mn", "Mc", "Me")
            or letter == ZERO_WIDTH_JOINER
            or last == ZERO_WIDTH_JOINER
            or "\U0001f3fb" <= letter <= "\U0001f3ff"  # colours of skin
            or "\U000e0020" <= letter <= "\U000e007f"  # tags of regional flags
            or ("\u1160" <= letter <= "\u11ff" and "\u1100" <= last <= "\u11ff")  # jamo of one syllable
        )
        if not extends and not is_flag_end:
            starts.append(at)
    return starts


def add_memory(inputs: TextInputs, used: int) -> TextInputs:
    """Return inputs whose side shows as many earlier tokens as a memory holds."""
    side = inputs.sides["text"]
    return replace(inputs, sides={"text": replace(side, memory=side.memory[len(side.memory) - used :])})
