"""Beam search: the likeliest texts, several at a time (Graves 2012; Wu et al. 2016, §7)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import Error
from ..nn.probe import Probe
from .engine import AHEAD, Desk, Written, are_finite, check_rows
from .penalties import coverage_penalty, length_penalty
from .recorded import Recorded
from .rules import Rules

OUT = -1e9  # the score of a beam that does not count
NONE = -math.inf  # of a complete text that is not there


class Beams:
    """The K running texts of each prompt, and the K best that are complete; all of it stays on the device, where a
    recorded choice finds it.

    A complete text is held as three numbers: the step at which it ended, the row it had then, and its last token (-1 if
    that was an end mark, which does not belong to it).
    """

    def __init__(self, desk: Desk, rules: Rules):
        options, device = rules.options, desk.former.device
        self.desk, self.rules, self.options = desk, rules, options
        self.k, self.prompts = options.beams, len(desk.texts) // options.beams
        self.running = torch.zeros(self.prompts, self.k, device=device)
        self.running[:, 1:] = OUT  # at first all K texts are the same
        self.complete = torch.full((self.prompts, self.k), NONE, device=device)  # scores, the best first
        self.held = torch.full((self.prompts, self.k, 3), -1, device=device)
        self.open = torch.ones(self.prompts, dtype=torch.bool, device=device)
        self.first = torch.arange(self.prompts, device=device)[:, None] * self.k  # (prompts, 1) a prompt's first row
        self.ending: Tensor | None = None  # (vocab,) whether a token ends a text
        self.recorded = None if desk.runner.recorded is None else Recorded()
        self.logs: Tensor | None = None  # (rows, vocab) the newest log-probabilities
        self.live: list[int] = []  # of each row, whether it counts, when the desk was last asked
        self.past: list[Tensor] = []  # (2, rows) the tokens and parents of steps that the desk has not been told
        self.known: dict[tuple[int, ...], list[int]] = {}  # complete texts, by their three numbers
        self.alpha = 1.0 if options.length_penalty is None else options.length_penalty
        farthest = options.early == "never" and self.alpha > 0
        norms = [self.norm(length) for length in range(1, options.tokens + 1)]
        facts = [(step, norm, norms[-1] if farthest else norm) for step, norm in enumerate(norms)]
        self.facts = torch.tensor(facts, device=device)  # of each step: its number, and by what scores are divided
        self.seen: Tensor | None = None  # (rows, source) attention so far, where coverage counts
        if options.coverage and not desk.former.pair:
            raise Error("coverage is of attention over a source, and this model has none", fix="leave coverage out")

    def norm(self, length: int) -> float:
        """What the log-probability of so many new tokens is divided by."""
        gnmt = self.options.normalise == "gnmt"
        return length_penalty(length, self.alpha) if gnmt else length**self.alpha

    def read(self, step: int) -> Tensor:
        """(rows, vocab) log-probabilities of the next tokens, what is forbidden taken out."""
        probe = Probe(attention=True) if self.options.coverage else None
        if self.past:
            logs = self.desk.runner.step(self.past[-1][0], self.live).float().log_softmax(-1)
        else:
            self.live = [int(row not in self.desk.ended) for row in range(len(self.desk.texts))]
            logs = (self.desk.read(probe) if probe or step else self.desk.read_once()).log_softmax(-1)
        if probe is not None:
            if "cross" not in probe.weights:
                raise Error("coverage is of attention over a source, and this model has none", fix="leave coverage out")
            looked = torch.stack([w.float().mean(1)[:, -1] for w in probe.weights["cross"]]).mean(0)  # (rows, source)
            self.seen = looked if self.seen is None else self.seen + looked
        self.logs = logs
        return self.rules.apply(logs, self.desk.page, step)

    def covered(self) -> Tensor | None:
        """(rows,) the coverage penalty, if there is one."""
        beta = self.options.coverage
        if self.seen is None or self.desk.sources is None or beta is None:
            return None
        lengths = [len(source) for source in self.desk.sources for _ in range(self.k)]
        keep = torch.arange(self.seen.shape[1]) < torch.tensor(lengths)[:, None]
        looked = self.seen.clamp(min=1e-9)[:, None]  # a word that nobody has looked at yet costs much, not everything
        return coverage_penalty(looked, keep.to(self.seen.device), beta)

    def step(self, step: int) -> None:
        """One more token: complete texts are kept, the best of the others go on."""
        scores, last = self.read(step), step == self.options.tokens - 1
        if self.recorded is None or last or self.looks:
            picked = self.choose(scores, self.facts[step], last)
        else:
            picked = self.recorded(self.choose, scores, self.facts[step]).clone()
        self.past.append(picked)
        parents = picked[1]
        if self.desk.runner.chains or parents.tolist() != list(range(len(parents))):
            self.desk.runner.follow(parents, level=True)
        self.seen = None if self.seen is None else self.seen[parents]

    @property
    def looks(self) -> bool:
        """Whether more than the model's scores must be looked at after each step."""
        return bool(self.options.stop or self.options.coverage)

    def choose(self, scores: Tensor, facts: Tensor, last: bool = False) -> Tensor:
        """(2, rows) the tokens with which texts go on, and their parents; what is complete is kept. The tensors of this
        search stay where they are."""
        k, vocab = self.k, scores.shape[-1]
        total = (scores.unflatten(0, (self.prompts, k)) + self.running[..., None]).flatten(1)
        wide = max(2, 1 + len(self.rules.ends)) * k  # enough that K go on even if all the likeliest end
        values, places = total.topk(min(wide, k * vocab), -1)
        values = values.nan_to_num(OUT, neginf=2 * OUT)  # what is forbidden or no number is still a text, the last one
        rows, tokens = self.first + places // vocab, places % vocab
        if self.ending is None:
            self.ending = torch.zeros(vocab, dtype=torch.bool, device=scores.device)
            self.ending[list(self.rules.ends)] = True
        ends = self.ending[tokens]
        over = ends | self.stopped(rows, tokens) if self.options.stop else ends
        over = torch.ones_like(over) if last else over
        newest = torch.where(ends, -1, tokens)
        self.keep(facts, values[:, :k].masked_fill(~over[:, :k], NONE), rows[:, :k], newest[:, :k])
        going = over.int().sort(dim=-1, stable=True).indices[:, :k]  # the first K that are not over
        out = over.gather(1, going)
        self.running.copy_(values.gather(1, going).masked_fill(out, OUT))
        self.hope(facts)
        parents = torch.where(out, self.first, rows.gather(1, going))
        return torch.stack((tokens.gather(1, going).masked_fill(out, 0).flatten(), parents.flatten()))

    def stopped(self, rows: Tensor, tokens: Tensor) -> Tensor:
        """Which texts have a stop string with their new token."""
        texts = [
            [self.rules.stopped([*self.desk.new(row), token]) for row, token in zip(*both, strict=True)]
            for both in zip(rows.tolist(), tokens.tolist(), strict=True)
        ]
        return torch.tensor(texts, device=rows.device)

    def keep(self, facts: Tensor, values: Tensor, rows: Tensor, newest: Tensor) -> None:
        """Put texts that are complete, (prompts, K) each, among the K best; they have no value where they are not."""
        covered = self.covered()
        scores = values / facts[1] + (0 if covered is None else covered[rows])
        scores = torch.cat((self.complete, scores.masked_fill(~self.open[:, None], NONE)), 1)
        held = torch.cat((self.held, torch.stack((facts[0].long().expand_as(rows), rows, newest), -1)), 1)
        order = scores.sort(dim=-1, descending=True, stable=True).indices[:, : self.k]
        self.complete.copy_(scores.gather(1, order))
        self.held.copy_(held.gather(1, order[..., None].expand(-1, -1, 3)))

    def hope(self, facts: Tensor) -> None:
        """Close the prompts of which no running text can become better than the worst complete one."""
        worst = self.complete[:, -1]
        hopeful = worst == NONE
        if self.options.early is not True:
            hopeful = hopeful | (self.running[:, 0] / facts[2] > worst)
        self.open.logical_and_(hopeful)

    def tell(self, step: int) -> None:
        """Tell the desk what the steps since `step` have written, and which prompts are done."""
        assert self.logs is not None
        check_rows(are_finite(self.logs).tolist(), self.live)
        desk, held = self.desk, {tuple(one) for some in self.held.tolist() for one in some}
        self.known = {one: text for one, text in self.known.items() if one in held}
        for at, (tokens, parents) in enumerate(torch.stack(self.past).tolist(), step):
            for end, row, last in held:
                if end == at:
                    self.known[end, row, last] = desk.new(row) + ([] if last < 0 else [last])
            desk.add(tokens, parents)
        self.past = []
        for prompt, still in enumerate(self.open.tolist()):
            for row in () if still else range(prompt * self.k, prompt * self.k + self.k):
                desk.end(row)

    def found(self) -> list[list[Written]]:
        """The complete texts of each prompt, the best first."""
        both = zip(self.held.tolist(), self.complete.tolist(), strict=True)
        return [
            [Written(self.known[tuple(one)], score) for one, score in zip(*some, strict=True) if score > NONE]
            for some in both
        ]


@torch.inference_mode()
def search(desk: Desk, rules: Rules) -> list[list[Written]]:
    """The `samples` best texts of each prompt, the best first. Where the model's scores alone decide, a GPU takes many
    steps before the host looks at them; what it does beyond a prompt's end counts for nothing."""
    if rules.reads:
        desk.lay()
    beams, step, options = Beams(desk, rules), 0, rules.options
    while step < options.tokens and not desk.done:
        count = 1 if beams.looks else min(AHEAD, options.tokens - step, desk.room(rules))
        for at in range(step, step + count):
            beams.step(at)
        beams.tell(step)
        step += count
    return [found[: options.samples] for found in beams.found()]
