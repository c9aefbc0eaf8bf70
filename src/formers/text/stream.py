"""Text while it is being generated: pieces come one by one, characters go out as soon as they are whole."""

from __future__ import annotations

import codecs

from .normalise import continuations, normalise
from .tokenizer import Tokenizer

CONTEXT = 4  # pieces: a mark with a space on either side may be three


class Stream:
    """Decode ids one at a time. A character of three bytes may come in three pieces (Hangul in byte-level BPE): bytes
    are held back until they form one, so that `push` never shows �. All that it gives is what `decode` gives; `end`
    adds a � if the last character was cut off, so that nothing is lost in silence. Where pieces are jamo, the last
    syllable may still grow (하 + ᆫ) and waits as well; `end` gives it.

    `held` are the bytes that wait.
    """

    def __init__(self, tokenizer: Tokenizer, *, special: bool = False):
        self.tokenizer, self.special = tokenizer, special
        self.decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self.last: list[int] = []  # the pieces before: they say whether a space comes in between
        self.begun = False
        self.open = ""  # the last syllable, where pieces are jamo

    @property
    def held(self) -> bytes:
        """Bytes that do not form a character yet."""
        return self.decoder.getstate()[0]

    def push(self, index: int) -> str:
        """What one more id adds to the text."""
        made = self.tokenizer
        if made.bytes or made.fallback:
            data = b"".join(made.spelled([int(index)], self.special))
            if made.fallback and data and not self.begun:
                data = data.removeprefix(b" ")
                self.begun = True
            return self.settled(self.decoder.decode(data)) if made.jamo else self.decoder.decode(data)
        if not self.special and made.rust.id_to_token(int(index)) in made.marks:
            return ""
        before = made.decode(self.last, special=self.special) if self.last else ""
        text = made.decode([*self.last, int(index)], special=self.special)
        self.last = [*self.last, int(index)][-CONTEXT:]
        return text[len(before) :]

    def settled(self, more: str) -> str:
        """What of the text cannot change any more; the last letter and what stands on it wait."""
        text, joins = self.open + more, continuations()
        at = max(0, len(text) - 1)
        while at and joins.match(text[at]):
            at -= 1
        self.open = text[at:]
        return normalise(text[:at])

    def forget(self) -> None:
        """Drop the last syllable where it waits: it was shown before this stream began (a prompt)."""
        self.open = ""

    def end(self) -> str:
        """What is left when nothing more comes: the last syllable where pieces are jamo, and � for the bytes of a
        character that never became whole."""
        rest = normalise(self.open) + ("\ufffd" if self.held else "")
        self.open = ""
        self.decoder.reset()
        return rest
