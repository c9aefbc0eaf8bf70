"""Other readings of one tokenizer.json: without SentencePiece's table of characters, and with special tokens that no
text can spell."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

# Behind the name of a hidden piece: models see words without white space, and NUL is removed from text that is read.
HIDDEN = " \0"


def variant(text: str, *, table: bool, hide: Collection[str]) -> str:
    """The file without its table of characters (`table` = False), and with the pieces `hide` out of reach; ids stay."""
    about = json.loads(text)
    if not table:
        inner = about["normalizer"].get("normalizers", [])
        about["normalizer"] = {"type": "Sequence", "normalizers": inner[1:]} if inner else None
    if hide:
        about["model"] = hidden(about["model"], frozenset(hide))
        about["added_tokens"] = [
            {**token, "content": token["content"] + HIDDEN, "special": True} if token["content"] in hide else token
            for token in about.get("added_tokens") or []
        ]
    return json.dumps(about, ensure_ascii=False)


def hidden(model: dict[str, Any], hide: frozenset[str]) -> dict[str, Any]:
    """A model that cannot make these pieces. To mark them special is not enough: Unigram and word models find them in
    their vocabulary again, also as capitals or in full width that a normaliser makes plain."""

    def name(piece: str) -> str:
        return piece + HIDDEN if piece in hide else piece

    out, vocab = dict(model), model["vocab"]
    out["vocab"] = (
        {name(piece): i for piece, i in vocab.items()}
        if isinstance(vocab, dict)
        else [[name(piece), score] for piece, score in vocab]
    )
    if isinstance(model.get("unk_token"), str):
        out["unk_token"] = name(model["unk_token"])
    if "merges" in model:
        pairs = [pair.split(" ", 1) if isinstance(pair, str) else pair for pair in model["merges"]]
        out["merges"] = [pair for pair in pairs if hide.isdisjoint((*pair, "".join(pair)))]
    return out
