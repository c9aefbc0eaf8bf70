"""Beam search: the likeliest texts, several at a time (Graves 2012; Wu et al. 2016, §7)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import Error
from ..nn.probe import Probe
from .engine import Desk, Written
from .penalties import coverage_penalty, length_penalty
from .rules import Rules

OUT = -1e9  # the score of a beam that does not count


class Beams:
    """The K running texts of each prompt, and the K best that are complete."""

    def __init__(self, desk: Desk, rules: Rules):
        options = rules.options
        self.desk, self.rules, self.options = desk, rules, options
        self.k, self.prompts = options.beams, len(desk.texts) // options.beams
        self.running = torch.zeros(self.prompts, self.k, device=desk.former.device)
        self.running[:, 1:] = OUT  # at first all K texts are the same
        self.complete: list[list[Written]] = [[] for _ in range(self.prompts)]
        self.open = [True] * self.prompts
        self.alpha = 1.0 if options.length_penalty is None else options.length_penalty
        self.seen: Tensor | None = None  # (rows, source) attention so far, where coverage counts
        if options.coverage and not desk.former.pair:
            raise Error("coverage is of attention over a source, and this model has none", fix="leave coverage out")

    def norm(self, length: int) -> float:
        """What the log-probability of so many new tokens is divided by."""
        gnmt = self.options.normalise == "gnmt"
        return length_penalty(length, self.alpha) if gnmt else length**self.alpha

    def scores(self, step: int) -> Tensor:
        """(rows, vocab) log-probabilities of the next tokens, what is forbidden taken out."""
        probe = Probe(attention=True) if self.options.coverage else None
        logs = self.desk.read(probe).log_softmax(-1)
        if probe is not None:
            if "cross" not in probe.weights:
                raise Error("coverage is of attention over a source, and this model has none", fix="leave coverage out")
            looked = torch.stack([w.float().mean(1)[:, -1] for w in probe.weights["cross"]]).mean(0)  # (rows, source)
            self.seen = looked if self.seen is None else self.seen + looked
        return self.rules.apply(logs, self.desk.page, step)

    def covered(self) -> list[float]:
        """The coverage penalty of each row."""
        if self.seen is None or self.desk.sources is None or not self.options.coverage:
            return [0.0] * len(self.desk.texts)
        lengths = [len(source) for source in self.desk.sources for _ in range(self.k)]
        keep = torch.arange(self.seen.shape[1]) < torch.tensor(lengths)[:, None]
        looked = self.seen.clamp(min=1e-9)[:, None]  # a word that nobody has looked at yet costs much, not everything
        return coverage_penalty(looked, keep.to(self.seen.device), self.options.coverage).tolist()

    def step(self, step: int) -> None:
        """One more token: complete texts are kept, the best of the others go on."""
        scores, k = self.scores(step), self.k
        vocab = scores.shape[-1]
        total = (scores.unflatten(0, (self.prompts, k)) + self.running[..., None]).flatten(1)
        wide = max(2, 1 + len(self.rules.ends)) * k  # enough that K go on even if all the likeliest end
        values, places = (found.tolist() for found in total.topk(min(wide, k * vocab), -1))
        covered, last, stops = self.covered(), step == self.options.tokens - 1, bool(self.options.stop)
        parents, tokens, running = [], [], []
        for prompt in range(self.prompts):
            going, ended = [], []
            for rank, (value, place) in enumerate(zip(values[prompt], places[prompt], strict=True)):
                beam, token = divmod(place, vocab)
                row = prompt * k + beam
                ends = token in self.rules.ends
                stopped = stops and not ends and self.rules.stopped([*self.desk.new(row), token])
                if not (ends or last or stopped):
                    going.append((value, row, token))
                elif rank < k:
                    text = self.desk.new(row) + ([] if ends else [token])
                    ended.append(Written(text, value / self.norm(step + 1) + covered[row]))
            going = going[:k] + [(OUT, prompt * k, 0)] * (k - len(going))
            if self.open[prompt]:
                best = sorted([*self.complete[prompt], *ended], key=lambda text: -text.score)
                self.complete[prompt] = best[:k]
                self.open[prompt] = not last and self.hopeful(prompt, going[0][0], step + 1)
            if not self.open[prompt]:
                for row in range(prompt * k, prompt * k + k):
                    self.desk.end(row)
            running.append([value for value, _, _ in going])
            parents += [row for _, row, _ in going]
            tokens += [token for _, _, token in going]
        self.running = torch.tensor(running, device=self.running.device)
        self.desk.add(tokens, parents)
        self.seen = None if self.seen is None else self.seen[parents]

    def hopeful(self, prompt: int, best: float, length: int) -> bool:
        """Whether a running text may still become better than the worst complete one."""
        complete, early = self.complete[prompt], self.options.early
        if len(complete) < self.k:
            return True
        if early is True:
            return False
        reach = self.options.tokens if early == "never" and self.alpha > 0 else length
        return best / self.norm(reach) > complete[-1].score


@torch.inference_mode()
def search(desk: Desk, rules: Rules) -> list[list[Written]]:
    """The `samples` best texts of each prompt, the best first."""
    if rules.reads:
        desk.lay()
    beams = Beams(desk, rules)
    for step in range(rules.options.tokens):
        beams.step(step)
        if not any(beams.open):
            break
    return [found[: rules.options.samples] for found in beams.complete]
