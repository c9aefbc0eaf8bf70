"""Supervised: what examples of a task ask for, learnt by the same loop as everything else.

A loader's store is here one of numbers: its tokens are the numbers of the examples.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..batch import Batch
from ..data.draws import shuffled
from ..data.plans import Plan, Raw, Shape, bucketed, room, single
from ..data.store import Store
from ..tasks.encoded import IGNORED, Encoded, shifted
from ..tasks.heads import Model
from .tokens import Losses, token_loss, wide


def numbers(data: Encoded) -> Store:
    """A store whose tokens are the numbers of examples."""
    count = len(data)
    return Store(np.arange(count), np.arange(count + 1), count, "examples")


@dataclass(frozen=True)
class Supervised:
    """A head's part learns the answers of examples; `kind` is the task's (tasks/task.py).

    `start` is what a decoder starts with; with `shifted` it reads the source once more, behind that token (or, with
    `wraps`, behind its last token: mBART). `weights` are those of classes (of several labels: of each label's yes, then
    of each label's no); `scale` is the deviation of numbers;
    `auxiliary` is the share of a language model's loss on the same text (GPT, eq. 5).
    """

    data: Encoded = field(compare=False, repr=False)
    kind: str
    part: str
    start: int | None = None
    shifted: bool = False
    wraps: bool = False
    weights: tuple[float, ...] = ()
    scale: float = 1.0
    smoothing: float = 0.0
    auxiliary: float = 0.0

    def plan(self, store: Store, seed: int, epoch: int) -> Plan:
        """All examples in random order; texts to be written beside others of their length."""
        count = len(self.data)
        if self.kind == "text" and self.data.target is not None:
            order = bucketed(self.data.sizes + np.diff(self.data.target[1]), seed, epoch)
        else:
            order = shuffled(count, seed, epoch, 0xDA7A)
        return single(order, order + 1)

    def sizes(self, plan: Plan) -> np.ndarray:
        """Tokens, documents (where there are several) and tokens of the source."""
        examples = np.asarray(plan.begin, np.int64)
        own = self.data.sizes[examples]
        count = np.diff(self.data.first)[examples] if self.data.grouped else np.zeros_like(own)
        if self.kind == "text" and self.data.target is not None:
            return np.stack((np.diff(self.data.target[1])[examples], count, own), 1)
        return np.stack((own, count, own if self.shifted else np.zeros_like(own)), 1)

    def shape(self, total: int, plan: Plan) -> Shape:
        """Room for about `total` tokens on the larger side."""
        sizes, d = self.sizes(plan), self.data
        longest, most = d.longest, int(d.sizes.max(initial=1))
        if self.kind == "text" and d.target is not None:
            writes = int(np.diff(d.target[1]).max(initial=1))
            larger = max(sizes[:, 0].mean(), sizes[:, 2].mean())
            near, far = (max(m, int(np.ceil(total * sizes[:, c].mean() / larger))) for c, m in ((2, most), (0, writes)))
            rows = room(total, np.array([larger]), 3.0) + int(np.ceil(max(near / longest, far / writes)))
            return Shape(rows, far, 0, writes, near, longest)
        tokens = max(total, most)
        rows = room(tokens, sizes[:, 0] / np.maximum(1, sizes[:, 1]), 1.5)
        places = max(rows, int(sizes[:, 1].max(initial=0))) if d.grouped else 0
        rows = max(rows, places) + int(np.ceil(tokens / longest))
        return Shape(rows, tokens, places, longest, tokens if self.shifted else 0, longest if self.shifted else 0)

    def corrupt(self, raw: Raw, seed: int) -> Batch:
        """Nothing is spoiled: the examples as they are."""
        return self.batch(raw.ids, raw.sample)

    def batch(self, examples: np.ndarray, samples: np.ndarray | None = None) -> Batch:
        """Some examples, for a decoder on both sides."""
        if self.kind == "text":
            assert self.start is not None
            return self.data.written(examples, self.start, samples)
        made = self.data.take(examples, samples)
        return shifted(made, self.start, self.wraps) if self.shifted else made

    def counts(self, batch: Batch) -> dict[str, int]:
        """How many answers, and tokens of the language model, there are."""
        found = {self.part: int(there(self.kind, batch).sum())}
        if self.auxiliary:
            sizes = batch.starts[1:] - batch.starts[:-1]
            found["lm"] = int((sizes - 1)[(batch.sample >= 0) & (sizes > 0)].sum())
        return found

    def loss(self, model: Model, batch: Batch) -> Losses:
        """The summed loss of the answers, and that of the language model."""
        if self.kind == "text":
            return {self.part: token_loss(model, batch, self.part, smoothing=self.smoothing)}
        hidden = model(batch)
        losses = {self.part: self.judged(model.logits(hidden, batch, self.part), batch)}
        if self.auxiliary:
            losses["lm"] = self.next_token(model, hidden, batch)
        return losses

    def judged(self, logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The summed loss of what a head answers, and how many answers count."""
        logits, asked = wide(logits), there(self.kind, batch)
        ways = {"many": self.many, "number": self.number, "span": span, "choice": choice}
        if self.kind in ways:
            return ways[self.kind](logits, batch, asked), asked.sum()
        weight = torch.tensor(self.weights, device=logits.device, dtype=logits.dtype) if self.weights else None
        answers = batch.labels if self.kind == "tags" else batch.answers
        if self.kind == "class" and batch.labels is not None:
            logits = summed(logits, batch)
        total = F.cross_entropy(
            logits, answers, weight, reduction="sum", ignore_index=IGNORED, label_smoothing=self.smoothing
        )
        return total, asked.sum()

    def many(self, logits: Tensor, batch: Batch, asked: Tensor) -> Tensor:
        """Each label by itself: yes or no."""
        labels = torch.where(asked[:, None], batch.answers, 0.0)
        weight = None
        if self.weights:
            yes, no = torch.tensor(self.weights, device=logits.device, dtype=logits.dtype).chunk(2)
            weight = torch.where(labels > 0, yes, no)
        each = F.binary_cross_entropy_with_logits(logits, labels, weight, reduction="none").mean(1)
        return torch.where(asked, each, 0.0).sum()

    def number(self, logits: Tensor, batch: Batch, asked: Tensor) -> Tensor:
        """Squared distances, in deviations of the training data."""
        logits = logits if batch.labels is None else summed(logits, batch)
        far = (logits[:, 0] - batch.answers[:, 0]) / self.scale
        return torch.where(asked, far, 0.0).square().sum()

    def next_token(self, model: Model, hidden: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """A share of the language model's loss: each token but a document's first, from those before it."""
        document = batch.layout.document
        follows = (document == document.roll(-1)) & (batch.sample >= 0)[document]
        follows[-1] = False
        labels = torch.where(follows, batch.ids.roll(-1), IGNORED)
        total = F.cross_entropy(wide(model.logits(hidden, part="lm")), labels, reduction="sum", ignore_index=IGNORED)
        return self.auxiliary * total, follows.sum()


def there(kind: str, batch: Batch) -> Any:
    """Which answers are asked for, in numpy or torch."""
    if kind in ("tags", "text"):
        return batch.labels != IGNORED
    if kind in ("many", "span"):
        return batch.answers[:, 0] != IGNORED
    if kind == "number":
        return batch.answers[:, 1] > 0
    return batch.answers == 1 if kind == "choice" else batch.answers != IGNORED


def summed(logits: Tensor, batch: Batch) -> Tensor:
    """(D, C) answers of documents → the same, each the sum over the documents of its example."""
    owner = owners(batch, len(logits))
    total = torch.zeros_like(logits).index_add(0, owner, logits * (owner >= 0)[:, None])
    return total[owner]


def owners(batch: Batch, documents: int) -> Tensor:
    """(D,) the example of each document; dummy documents have one of their own."""
    real = batch.labels != IGNORED
    own = torch.arange(documents, device=batch.ids.device)
    own = own.index_copy(
        0, torch.where(real, batch.chosen, documents - 1), torch.where(real, batch.labels, documents - 1)
    )
    return own


def span(logits: Tensor, batch: Batch, asked: Tensor) -> Tensor:
    """The first and the last token of an answer among all tokens of the document, in equal shares."""
    layout = batch.layout
    grid = layout.unpack(logits)  # (D, T, 2)
    real = torch.arange(layout.longest, device=logits.device) < layout.lengths[:, None]
    grid = grid.masked_fill(~real[..., None], torch.finfo(grid.dtype).min)
    sides = [F.cross_entropy(grid[..., i], batch.answers[:, i], reduction="sum", ignore_index=IGNORED) for i in (0, 1)]
    return (sides[0] + sides[1]) / 2


def choice(logits: Tensor, batch: Batch, asked: Tensor) -> Tensor:
    """The right one among the documents of an example."""
    scores, owner = logits[:, 0], owners(batch, len(logits))
    most = torch.full_like(scores, -torch.inf).scatter_reduce(0, owner, scores.detach(), "amax")
    total = torch.zeros_like(scores).index_add(0, owner, (scores - most[owner]).exp())
    return torch.where(asked, (total.clamp(min=1e-30).log() + most)[owner] - scores, 0.0).sum()


def class_weights(answers: np.ndarray, count: int) -> tuple[float, ...]:
    """Weights that make rare classes count as much as frequent ones; their mean over the examples is 1."""
    seen = np.bincount(answers[answers >= 0], minlength=count).astype(float)
    return tuple((seen.sum() / np.maximum(1, count * seen)).tolist())


def label_weights(answers: np.ndarray, count: int) -> tuple[float, ...]:
    """The same for (E, C) labels of which each is yes or no: the weights of all their yes, then of all their no."""
    each = [class_weights(answers[answers[:, i] >= 0, i].astype(np.int64), 2) for i in range(count)]
    return (*(yes for _, yes in each), *(no for no, _ in each))
