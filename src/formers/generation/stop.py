"""Where a text ends: stop strings over the borders of tokens, and pieces that are shown as soon as they are safe."""

from __future__ import annotations

from collections.abc import Sequence

from ..text.stream import Stream
from ..text.tokenizer import Tokenizer

NEAR = 8  # tokens of a prompt that say how the text goes on: is there a space?


class Watch:
    """A text as it grows: `push` ids and get what may be shown, characters that are whole and no part of a stop string.

    As soon as a stop string is complete the text is `over`: it ends before it. Where several are complete at once, it
    ends before the longest. What `push` and `end` give, joined, is the text; how its tokens are cut does not matter.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = (), prompt: Sequence[int] = ()):
        self.stream, self.stops, self.over, self.held = Stream(tokenizer), tuple(stops), False, ""
        for index in prompt[-NEAR:]:
            self.stream.push(index)
        self.stream.forget()

    def push(self, index: int) -> str:
        """What one more id makes safe to show."""
        return "" if self.over else self.taken(self.stream.push(index))

    def end(self) -> str:
        """What was held back and was no stop string after all."""
        if self.over:
            return ""
        piece = self.taken(self.stream.end())
        piece, self.held, self.over = piece + self.held, "", True
        return piece

    def taken(self, more: str) -> str:
        """What of the text is safe with so much more of it."""
        text = self.held + more
        found = [(at + len(stop), at) for stop in self.stops if (at := text.find(stop)) >= 0]
        if found:
            self.over, self.held = True, ""
            return text[: min(found)[1]]
        keep = self.reach(text)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def reach(self, text: str) -> int:
        """How many characters at the end might begin a stop string."""
        longest = min(len(text), max(map(len, self.stops), default=1) - 1)
        return next((n for n in range(longest, 0, -1) if any(s.startswith(text[-n:]) for s in self.stops)), 0)
