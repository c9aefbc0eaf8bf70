"""Stop strings across token borders, and streaming of text as soon as it cannot be part of one."""

from __future__ import annotations

from collections.abc import Sequence

from ..text.tokenizer import DecodeStream, Tokenizer

PROMPT_TAIL = 8  # tokens of a prompt that say how the text goes on: is there a space?


class StopWatcher:
    """A growing text: `push` ids and get whole characters that are no part of a stop string.

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
        """Add an id; returns the text that is now safe to show."""
        return "" if self.is_stopped else self.add_text(self.stream.push(index))

    def flush(self) -> str:
        """End the text; returns what was held back and is no stop string."""
        if self.is_stopped:
            return ""
        piece = self.add_text(self.stream.flush())
        piece, self.held_back, self.is_stopped = piece + self.held_back, "", True
        return piece

    def add_text(self, more: str) -> str:
        """Add text; returns what is now safe to show."""
        text = self.held_back + more
        found = [(at + len(stop), at) for stop in self.stop_strings if (at := text.find(stop)) >= 0]
        if found:
            self.is_stopped, self.held_back = True, ""
            return text[: min(found)[1]]
        keep = self.count_held_back(text)
        self.held_back = text[len(text) - keep :]
        return text[: len(text) - keep]

    def count_held_back(self, text: str) -> int:
        """Return how many characters at the end might begin a stop string."""
        longest = min(len(text), max(map(len, self.stop_strings), default=1) - 1)
        return next((n for n in range(longest, 0, -1) if any(s.startswith(text[-n:]) for s in self.stop_strings)), 0)
