"""The engine: texts that grow token by token, by draws or by a search, for every family that writes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import NonFinite
from ..former import Former
from ..nn.memory import Memory
from ..nn.probe import Probe
from ..tasks.inputs import start_token
from .rules import Rules
from .runner import Runner

AHEAD = 16  # tokens that a GPU writes before the host looks at them


@dataclass(frozen=True)
class Written:
    """What was written: the new ids, without the end mark, and of a search the score (else 0)."""

    ids: list[int]
    score: float = 0.0


class Desk:
    """Texts at work: every prompt has `each` rows, one after the other. To an encoder-decoder prompts are sources, and
    its texts begin with `start` (or the config's own).

    When a row fills a decoder's context, the last half of it is read again and the rest forgotten; a model with a
    memory forgets what is oldest. A row that has `ended` is read no more.
    """

    def __init__(
        self, former: Former, prompts: Sequence[list[int]], tokens: int, each: int = 1, start: int | None = None
    ):
        self.former, self.each = former, each
        self.sources = prompts if former.pair else None
        begin = (start_token(former.config) if start is None else start) if former.pair else None
        self.texts = [list(row) if begin is None else [begin] for row in prompts for _ in range(each)]
        self.begun = [len(text) for text in self.texts]
        self.context: int | None = getattr(former.config, "context", None)
        most = max(self.begun) + tokens
        forgets = issubclass(former.state, Memory)
        self.rereads = getattr(former.config, "all_alike", False)  # earlier tokens see later ones: read all again
        self.size = former.config.memory or most if forgets else min(self.context or most, most)
        self.size = 0 if self.rereads else self.size
        self.streams = np.tile(np.arange(each), len(prompts))  # which draws are a row's: those of its sample's number
        self.windows = [0] * len(self.texts)  # where what a row has read begins
        if self.context is not None and (longest := max(self.begun)) > self.context:
            what = f"a prompt of {longest:,} tokens is longer than the context: its last {self.context:,} are read"
            warnings.warn(what, stacklevel=2)
            self.windows = [max(0, n - self.context) for n in self.begun]
        self.ended: set[int] = set()
        self.page: Tensor | None = None  # (rows, tokens) the texts, filled up with -1 on the left, where they are asked
        self.begin()

    def begin(self) -> None:
        """Read the windows from their beginning."""
        vars(self).pop("runner", None)  # what it has recorded serves the next one
        self.runner = Runner(self.former, len(self.texts), self.size, self.sources, self.each)
        both = enumerate(zip(self.texts, self.windows, strict=True))
        self.fed = [[] if row in self.ended else text[n:] for row, (text, n) in both]

    def lay(self) -> None:
        """Keep the texts as a tensor as well."""
        longest = max(map(len, self.texts))
        rows = [[-1] * (longest - len(text)) + text for text in self.texts]
        self.page = torch.tensor(rows, device=self.former.device)

    def read(self, probe: Probe | None = None) -> Tensor:
        """(rows, vocab) scores of the next tokens."""
        if self.rereads and self.runner.most:
            self.begin()
        over = [
            self.context is not None and row not in self.ended and len(text) - self.windows[row] > self.context
            for row, text in enumerate(self.texts)
        ]
        if self.context is not None and any(over):  # a row's window depends on the row alone
            half = self.context // 2 or 1
            self.windows = [
                len(text) - half if full else n for text, n, full in zip(self.texts, self.windows, over, strict=True)
            ]
            self.begin()
        scores = self.runner.read(self.fed) if probe is None else self.runner.read(self.fed, probe)
        return scores.float()

    def read_once(self) -> Tensor:
        """The first `read` of a search: what is the same for all rows of a prompt, the first of them reads for all."""
        if self.former.pair or self.runner.two:
            return self.read()
        firsts = [row - row % self.each for row in range(len(self.texts))]
        self.fed = [fed if row == first else [] for row, (fed, first) in enumerate(zip(self.fed, firsts, strict=True))]
        scores = self.read()[firsts]
        self.runner.follow(firsts)
        return scores

    def add(self, tokens: Sequence[int], parents: Sequence[int] | None = None) -> None:
        """One more token for each row, which goes on from the text of its parent (else of itself); the runner has been
        told of parents before."""
        if parents is not None and list(parents) != list(range(len(self.texts))):
            self.texts = [list(self.texts[parent]) for parent in parents]
            self.page = None if self.page is None else self.page[list(parents)]
        for row, token in enumerate(tokens):
            if row not in self.ended:
                self.texts[row].append(token)
        again = self.runner.again
        self.fed = [[] if row in self.ended else text[-again:] for row, text in enumerate(self.texts)]
        if self.page is not None:
            self.page = torch.cat((self.page, torch.tensor(tokens, device=self.page.device)[:, None]), 1)

    def end(self, row: int) -> None:
        """A text is complete; what was read of it is forgotten: a row that is full keeps nobody from going on."""
        if row not in self.ended:
            self.ended.add(row)
            self.fed[row] = []
            self.runner.drop(row)

    def room(self, rules: Rules) -> int:
        """How many tokens may be written without a look at the texts."""
        if rules.reads or self.page is not None or not self.runner.chains or (self.ended and not self.runner.recorded):
            return 1
        longest = max(len(text) - n for text, n in zip(self.texts, self.windows, strict=True))
        return AHEAD if self.context is None else max(1, self.context - longest + 1)

    @property
    def done(self) -> bool:
        """All texts are complete."""
        return len(self.ended) == len(self.texts)

    def new(self, row: int) -> list[int]:
        """What a row has written."""
        return self.texts[row][self.begun[row] :]


@torch.inference_mode()
def draws(desk: Desk, rules: Rules, ahead: int = 1) -> Iterator[list[int | None]]:
    """Write by draws (or greedily), step by step: each row's new token, None where there is none.

    Up to `ahead` tokens are written before the first of them is shown, where nothing but the model's scores decides:
    then a GPU need not wait for the host at every token. What a row writes behind its end is dropped.
    """
    step, tokens = 0, rules.options.tokens
    if rules.reads:
        desk.lay()
    while step < tokens and not desk.done:
        count = min(ahead, tokens - step, desk.room(rules))
        for picked in chain(desk, rules, step, count):
            shown = [None if row in desk.ended else token for row, token in enumerate(picked)]
            for row, token in enumerate(shown):
                if token is not None and token in rules.ends:
                    desk.end(row)
                    shown[row] = None
            desk.add(picked)
            yield shown
            if desk.done:
                return
        step += count


def chain(desk: Desk, rules: Rules, step: int, count: int) -> list[list[int]]:
    """`count` tokens for each row, one after the other, which leave the device together."""
    options, found = rules.options, list[Tensor]()
    numbers = None
    if options.temperature != 0:
        numbers = options.numbers(step + np.arange(count)[:, None], desk.streams, desk.former.device)
    live = [int(row not in desk.ended) for row in range(len(desk.texts))]
    for i in range(count):
        scores = desk.read() if i == 0 else desk.runner.step(found[-1], live).float()
        allowed = rules.apply(scores, desk.page, step + i)
        found.append(options.take(allowed, None if numbers is None else numbers[i]))
    *tokens, finite = torch.stack((*found, are_finite(scores))).tolist()  # one transfer from the device for all of it
    check_rows(finite, live)
    return tokens


def are_finite(scores: Tensor) -> Tensor:
    """(rows, vocab) scores → (rows,) 1 where their largest is finite: NaN and infinity both show in it.

    What a row has read stays in its state, so the scores of the last of several steps tell of all of them.
    """
    return scores.amax(-1).isfinite().long()


def check_rows(finite: Sequence[int], live: Sequence[int]) -> None:
    """Raise NonFinite if a row that counts has scores that are not finite."""
    if not all(good or not counts for good, counts in zip(finite, live, strict=True)):
        raise NonFinite("scores of the next token")


def written(desk: Desk, rules: Rules) -> list[list[Written]]:
    """All that is written, in one go: `samples` texts for each prompt."""
    if rules.options.beams > 1:
        from .beam import search

        return search(desk, rules)
    for _ in draws(desk, rules, AHEAD):
        pass
    rows = [Written(desk.new(row)) for row in range(len(desk.texts))]
    return [rows[at : at + desk.each] for at in range(0, len(rows), desk.each)]
