"""Filling blanks with a masked language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..batch import Batch
from ..config import format_value
from ..errors import Error, NonFinite
from ..former import Former
from ..inputs import check_length, list_texts
from ..text.normalise import normalise
from ..text.tokenizer import Tokenizer
from ..verbs import check_verb

BLANK = "___"
BATCH_ROWS = 32  # texts that are read at a time


@dataclass(frozen=True)
class Guess:
    """A prediction for a blank: the token as the tokenizer spells it, its probability, and the text with it.

    In `text` a piece that goes on with a word (##ing) is joined to it, and other blanks have their likeliest pieces.
    """

    token: str
    probability: float
    text: str


def fill(former: Former, texts: str | Sequence[str], top_k: int = 5) -> Any:
    """Predict the tokens at the blanks of a text, written ___ or as the mask token, the likeliest first.

    A text of one blank gives a list of guesses, one of several a list of such lists; a list of texts gives a list of
    what each of them gives.
    """
    check_verb(former, "fill")
    if type(top_k) is not int or top_k < 1:
        raise Error(f"top_k must be at least 1, got {format_value(top_k)}", fix="ask for 5 guesses")
    given = [
        normalise(t) if isinstance(t, str) else t for t in ([texts] if isinstance(texts, str) else list_texts(texts))
    ]
    rows = [encode_blanks(former, text) for text in given]
    for row in rows:
        check_length(len(row), former.context)
    found = []
    for at in range(0, len(rows), BATCH_ROWS):
        for text, chances in zip(
            given[at : at + BATCH_ROWS], predict_blanks(former, rows[at : at + BATCH_ROWS]), strict=True
        ):
            found.append(make_guesses(former, text, chances, top_k))
    plain = [several[0] if len(several) == 1 else several for several in found]
    return plain[0] if isinstance(texts, str) else plain


def encode_blanks(former: Former, text: str) -> list[int]:
    """Encode a text with its blanks; refuse a model without a mask token and a text without blanks."""
    tokenizer = former.tokenizer
    if tokenizer is None or tokenizer.id("mask") is None:
        raise Error("this model has no mask token", fix="load a BERT with its tokenizer")
    if not isinstance(text, str):
        raise Error(
            f"a text with blanks must be text, got {format_value(text)}", fix="give a string, or a list of them"
        )
    mask = tokenizer.special["mask"]
    ids = tokenizer.encode(text.replace(BLANK, mask))
    if tokenizer.id("mask") not in ids:
        raise Error("the text has 0 blanks", fix=f"mark at least one with {BLANK} or {mask}")
    return ids


@torch.inference_mode()
def predict_blanks(former: Former, rows: list[list[int]]) -> list[Tensor]:
    """Compute the probabilities (blanks, vocab) at the blanks of each row."""
    assert former.tokenizer is not None
    batch, mask = Batch.from_rows(rows, former.device), former.tokenizer.id("mask")
    hidden = former.model(batch)[batch.ids == mask]  # the output layer answers at the blanks alone
    chances = former.model.logits(hidden, part="mlm").float().softmax(-1)
    if not chances.isfinite().all():
        raise NonFinite("probabilities of pieces")
    return list(chances.split([sum(token == mask for token in row) for row in rows]))


def make_guesses(former: Former, text: str, chances: Tensor, top: int) -> list[list[Guess]]:
    """Make the `top` guesses for each blank; the rest of the text stays as it was written."""
    tokenizer = former.tokenizer
    assert tokenizer is not None
    between = text.replace(tokenizer.special["mask"], BLANK).split(BLANK)
    known = chances[:, : len(tokenizer)]  # a model may have more rows than there are pieces
    best, places = (found.tolist() for found in known.topk(min(top, known.shape[-1]), -1))
    words = [
        [(decode_piece(tokenizer, piece), is_continuation(tokenizer, piece)) for piece in pieces] for pieces in places
    ]
    likely = [some[0] for some in words]
    return [
        [
            Guess(
                tokenizer.get_token_text(piece),
                value,
                fill_blanks(between, [*likely[:blank], word, *likely[blank + 1 :]]),
            )
            for value, piece, word in zip(best[blank], places[blank], words[blank], strict=True)
        ]
        for blank in range(len(places))
    ]


def decode_piece(tokenizer: Tokenizer, piece: int) -> str:
    """Decode a token as it stands in a text, without sub-word marks; a special token by its name."""
    return tokenizer.decode([piece]).strip().removeprefix("##") or tokenizer.get_token_text(piece)


def is_continuation(tokenizer: Tokenizer, piece: int) -> bool:
    """Return whether a piece belongs to the word before it, as BERT's ##ing does."""
    return not tokenizer.word_starts[piece] and tokenizer.get_token_text(piece) not in tokenizer.reserved_tokens


def fill_blanks(between: Sequence[str], words: Sequence[tuple[str, bool]]) -> str:
    """Fill the blanks of a text; no space is left before a word's continuation."""
    made = between[0]
    for (word, continues), part in zip(words, between[1:], strict=True):
        made = (made.rstrip() if continues else made) + word + part
    return made
