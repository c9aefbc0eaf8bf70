"""Text while it is being generated: pieces come one by one, characters go out as soon as they are whole."""

from __future__ import annotations

import codecs

from .normalise import compile_continuations, normalise
from .tokenizer import Tokenizer

CONTEXT_PIECES = 4  # pieces: a mark with a space on either side may be three


class DecodeStream:
    """Decode ids one at a time. A character of three bytes may come in three pieces (Hangul in byte-level BPE): bytes
    are held back until they form one, so that `push` never shows �. All that it gives is what `decode` gives; `flush`
    adds a � if the last character was cut off, so that nothing is lost in silence. Where pieces are jamo, the last
    syllable may still grow (하 + ᆫ) and waits as well; `flush` gives it.

    `pending_bytes` are the bytes that wait.
    """

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
        """What one more id adds to the text."""
        made = self.tokenizer
        if made.is_byte_level or made.has_byte_fallback:
            data = b"".join(made.decode_bytes([int(index)], self.special))
            if made.has_byte_fallback and data and not self.has_started:
                data = data.removeprefix(b" ")
                self.has_started = True
            return self.take_settled(self.decoder.decode(data)) if made.has_jamo else self.decoder.decode(data)
        if not self.special and made.backend.id_to_token(int(index)) in made.declared_special:
            return ""
        before = made.decode(self.last_ids, special=self.special) if self.last_ids else ""
        text = made.decode([*self.last_ids, int(index)], special=self.special)
        self.last_ids = [*self.last_ids, int(index)][-CONTEXT_PIECES:]
        return text[len(before) :]

    def take_settled(self, more: str) -> str:
        """What of the text cannot change any more; the last letter and what stands on it wait."""
        text, joins = self.open_syllable + more, compile_continuations()
        at = max(0, len(text) - 1)
        while at and joins.match(text[at]):
            at -= 1
        self.open_syllable = text[at:]
        return normalise(text[:at])

    def drop_open_syllable(self) -> None:
        """Drop the last syllable where it waits: it was shown before this stream began (a prompt)."""
        self.open_syllable = ""

    def flush(self) -> str:
        """What is left when nothing more comes: the last syllable where pieces are jamo, and � for the bytes of a
        character that never became whole."""
        rest = normalise(self.open_syllable) + ("\ufffd" if self.pending_bytes else "")
        self.open_syllable = ""
        self.decoder.reset()
        return rest
