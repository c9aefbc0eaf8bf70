"""Where a text ends: stop strings over the borders of tokens, and pieces that are shown as soon as they are safe."""

from __future__ import annotations

from collections.abc import Sequence

from ..text.decode_stream import DecodeStream
from ..text.tokenizer import Tokenizer

PROMPT_TAIL = 8  # tokens of a prompt that say how the text goes on: is there a space?


class StopWatcher:
    """A text as it grows: `push` ids and get what may be shown, characters that are whole and no part of a stop string.

    As soon as a stop string is complete the text `is_stopped`: it ends before it. Where several are complete at once,
    it ends before the longest. What `push` and `flush` give, joined, is the text; how its tokens are cut does not
    matter.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = (), prompt: Sequence[int] = ()):
        self.stream, self.stop_strings, self.is_stopped, self.held_back = (
            DecodeStream(tokenizer),
            tuple(stops),
            False,
            "",
        )
        for index in prompt[-PROMPT_TAIL:]:
            self.stream.push(index)
        self.stream.drop_open_syllable()

    def push(self, index: int) -> str:
        """What one more id makes safe to show."""
        return "" if self.is_stopped else self.add_text(self.stream.push(index))

    def flush(self) -> str:
        """What was held back and was no stop string after all."""
        if self.is_stopped:
            return ""
        piece = self.add_text(self.stream.flush())
        piece, self.held_back, self.is_stopped = piece + self.held_back, "", True
        return piece

    def add_text(self, more: str) -> str:
        """What of the text is safe with so much more of it."""
        text = self.held_back + more
        found = [(at + len(stop), at) for stop in self.stop_strings if (at := text.find(stop)) >= 0]
        if found:
            self.is_stopped, self.held_back = True, ""
            return text[: min(found)[1]]
        keep = self.count_held_back(text)
        self.held_back = text[len(text) - keep :]
        return text[: len(text) - keep]

    def count_held_back(self, text: str) -> int:
        """How many characters at the end might begin a stop string."""
        longest = min(len(text), max(map(len, self.stop_strings), default=1) - 1)
        return next((n for n in range(longest, 0, -1) if any(s.startswith(text[-n:]) for s in self.stop_strings)), 0)
