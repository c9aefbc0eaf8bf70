"""Tokenizer: the Rust tokenizer with its special tokens, safe for untrusted files and for Korean."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers

from ..config import table
from ..errors import Error
from . import bounds
from .normalise import normalise

SPECIAL = ("pad", "unk", "bos", "eos", "cls", "sep", "mask")


class Tokenizer:
    """Text to ids and back. `special` names the special tokens by role: pad, unk, bos, eos, cls, sep, mask."""

    def __init__(self, text: str, special: Mapping[str, str] | None = None, *, where: object = None):
        self.text = text  # the file as it was, so that saving changes nothing
        about = table(text, where)
        bounds.check(about, where)
        self.rust = guarded(lambda: tokenizers.Tokenizer.from_str(text), where)
        self.rust.no_truncation()  # a published file may cut texts in silence
        self.rust.no_padding()
        known = self.rust.get_vocab(with_added_tokens=True)
        self.special = {role: token for role, token in (special or {}).items() if role in SPECIAL and token in known}
        decoder = about.get("decoder")
        inner = decoder.get("decoders") if isinstance(decoder, dict) else None
        parts = [decoder, *(inner if isinstance(inner, list) else [])]
        self.bytes = any(isinstance(p, dict) and p.get("type") == "ByteLevel" for p in parts)

    def __len__(self) -> int:
        return self.rust.get_vocab_size(with_added_tokens=True)

    def id(self, role: str) -> int | None:
        """The id of a special token by its role."""
        return self.rust.token_to_id(self.special[role]) if role in self.special else None

    @property
    def fingerprint(self) -> str:
        """What tells two tokenizers apart: a hash of the file's meaning, whatever its spacing."""
        meaning = json.dumps(json.loads(self.text), sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(meaning.encode()).hexdigest()

    def encode(self, text: str, pair: str | None = None, *, special: bool = True) -> list[int]:
        """Ids of a text, or of a pair of them; with the family's special tokens unless told otherwise."""
        return guarded(lambda: self.rust.encode(text, pair, add_special_tokens=special).ids)

    def encode_batch(self, texts: Sequence[str], *, special: bool = True) -> list[list[int]]:
        """Ids of many texts, on all cores."""
        return [e.ids for e in guarded(lambda: self.rust.encode_batch_fast(list(texts), add_special_tokens=special))]

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Text of ids; bytes that do not form a character are left out, so that nothing shows as �."""
        ids = [int(i) for i in ids]
        if not self.bytes:
            return guarded(lambda: self.rust.decode(ids, skip_special_tokens=not special))
        hidden = set() if special else set(self.special.values())
        tokens = [t for t in (self.rust.id_to_token(i) for i in ids) if t is not None and t not in hidden]
        return b"".join(map(to_bytes, tokens)).decode("utf-8", errors="ignore")

    def token(self, index: int) -> str:
        """One piece, as a person would read it."""
        piece = self.rust.id_to_token(index)
        if piece is None:
            return ""
        if self.bytes and piece not in self.special.values():
            text = to_bytes(piece).decode("utf-8", errors="replace")
            return text if "\ufffd" not in text else "<" + to_bytes(piece).hex() + ">"
        return piece

    def save(self, path: Any) -> None:
        """Write tokenizer.json as it was read or trained."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.text)


def guarded(call: Any, where: object = None) -> Any:
    """The Rust library's failures, panics included, as our error."""
    try:
        return call()
    except (Error, KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # a Rust panic is not an Exception
        what = " ".join(str(error).split())[:200] or type(error).__name__
        raise Error(
            f"the tokenizer failed: {what}", where=where, fix="is this a tokenizer.json of the tokenizers library?"
        ) from None


def alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte: character → byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(rest)}


ALPHABET = alphabet()


def to_bytes(piece: str) -> bytes:
    """The bytes of a byte-level piece; an added token stands for its own text."""
    if all(c in ALPHABET for c in piece):
        return bytes(ALPHABET[c] for c in piece)
    return piece.encode()


__all__ = ["SPECIAL", "Tokenizer", "guarded", "normalise", "to_bytes"]
