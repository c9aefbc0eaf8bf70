"""Filling a blank with a masked language model."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..errors import Error
from ..former import Former

BLANK = "___"


@dataclass(frozen=True)
class Guess:
    """One way to fill a blank."""

    token: str
    probability: float
    text: str


@torch.inference_mode()
def fill(former: Former, text: str, top: int = 5) -> list[Guess]:
    """The likeliest pieces for the one blank in a text, written ___ or as the mask token."""
    if former.tokenizer is None or former.tokenizer.id("mask") is None:
        raise Error("this model has no mask token", fix="load a BERT with its tokenizer")
    if not {"mlm", "pretraining"} & {former.head}:
        raise Error(f"{former.family} with head {former.head!r} does not fill blanks", fix="load it with head='mlm'")
    mask = former.tokenizer.special["mask"]
    ids = former.tokenizer.encode(text.replace(BLANK, mask))
    blanks = [i for i, token in enumerate(ids) if token == former.tokenizer.id("mask")]
    if len(blanks) != 1:
        raise Error(f"the text has {len(blanks)} blanks", fix=f"mark exactly one with {BLANK} or {mask}")
    logits = former.logits(torch.tensor([ids]))
    logits = logits["mlm"] if isinstance(logits, dict) else logits
    best = logits[0, blanks[0]].float().softmax(-1).topk(min(top, former.config.vocab))
    guesses = []
    for value, index in zip(best.values.tolist(), best.indices.tolist(), strict=True):
        filled = [index if i == blanks[0] else token for i, token in enumerate(ids)]
        guesses.append(Guess(former.tokenizer.token(index), value, former.tokenizer.decode(filled)))
    return guesses
