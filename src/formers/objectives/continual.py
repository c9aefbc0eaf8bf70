"""Continual multi-task pretraining (ERNIE 2.0, Sun et al. 2019, arXiv:1907.12412): tasks are added one after the
other, and those before them continue. Every example belongs to one task, whose number the model reads as an embedding.

All tasks are made of text alone. What differs from the paper, which had other data for some of them:

masking     knowledge masking, as `ernie-units`
capital     is a word capitalised? The paper reads lower-cased text; here the words that are asked for are hidden, and
            examples without a capital letter (Korean, a lower-casing tokenizer) are left out
document    does a token occur elsewhere? In the paper in other segments of its document; here the token is hidden, and
            the question is whether its example has it again
reorder     2 or 3 sentences in random order: which order is it? (paper: paragraphs in up to m segments)
distance    two sentences: adjacent (0), of one document (1), of two documents (2)
discourse   which connective stood between two sentences? It is removed from the second one (paper: a corpus made so)
relevance   is a text the beginning of the document with this first sentence (0), a later part (1), another document's
            (2)? The paper has queries and titles of a search engine instead

D documents and S sentences of a store, E examples, N tokens of a batch.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch

from ..batch import IGNORE_INDEX, Array, Batch
from ..data import counter_rng as rng
from ..data import plans
from ..data.plans import FramedExamples, Plan, RawExamples, SentenceTable
from ..data.store import Store
from ..errors import Error
from ..protocols import Losses, Model
from ..ragged_arrays import compute_row_ids, compute_starts, expand_ranges
from ..text.tokenizer import Tokenizer
from .masking import NextSentence, UnitMaskedLM
from .token_losses import compute_answer_loss, compute_token_loss, count_real_labels

TASKS = ("masking", "capital", "document", "reorder", "distance", "discourse", "relevance")
TOKEN_TASKS = ("capital", "document")  # ask for a class of hidden tokens
TEXT_TASKS = ("reorder", "distance", "discourse", "relevance")  # ask for a class of a text
# The connectives of the discourse task, each with its class; those that are one token of a vocabulary are used.
CONNECTIVES = (
    ("but", "however", "yet", "하지만", "그러나", "그런데"), ("so", "therefore", "따라서", "그래서", "그러므로"),
    ("and", "also", "moreover", "그리고", "또한", "게다가"), ("then", "later", "finally", "이후", "결국", "마침내"),
    ("because", "since", "왜냐하면"), ("instead", "rather", "오히려", "대신"), ("if", "만약", "만일"),
    ("for", "indeed", "actually", "사실", "실제로"),
)  # fmt: skip
ORDERS = (*itertools.permutations(range(2)), *itertools.permutations(range(3)))
NUM_CLASSES = {
    "capital": 2, "document": 2, "reorder": len(ORDERS), "distance": 3, "discourse": len(CONNECTIVES), "relevance": 3,
}  # fmt: skip
# What the classes of each task mean, in words.
CLASS_NAMES = {
    "capital": ("not capitalised", "capitalised"), "document": ("occurs once", "occurs again"),
    "reorder": tuple(f"order {' '.join(str(i + 1) for i in order)}" for order in ORDERS),
    "distance": ("adjacent", "apart in one document", "from two documents"),
    "discourse": tuple(" / ".join(words) for words in CONNECTIVES),
    "relevance": ("the beginning of its document", "a later part of its document", "from another document"),
}  # fmt: skip
EXAMPLES_AT_ONCE = 1 << 14  # whose tokens are looked at together
TASK_DRAW, KIND_DRAW, ORDER_DRAW, OTHER_DRAW, WHERE_DRAW, SHUFFLE_DRAW = range(150, 156)  # what a random number is for


@dataclass(frozen=True)
class ContinualTasks(UnitMaskedLM, NextSentence):
    """Seven tasks, each added after the ones before it: `task_starts` are the examples at which they begin. None lets
    all of them run from the first example on, as an evaluation does. Every example hides 15 % of its units; those of
    the token tasks are replaced by [MASK], and the question about them is not which token they were."""

    unused_options: ClassVar[tuple[str, ...]] = (
        *UnitMaskedLM.unused_options, *NextSentence.unused_options, "short_seq_prob", "pair_part", "task_id",
    )  # fmt: skip
    has_random_pairs: ClassVar[bool] = False
    pair_part: str | None = None  # type: ignore[assignment]  # four parts answer for texts, each for its task
    task_starts: tuple[int, ...] | None = None
    capitals: np.ndarray | None = field(default=None, compare=False, repr=False)  # (vocab,) capitalised pieces
    connectives: np.ndarray | None = field(default=None, compare=False, repr=False)  # (vocab,) their class, or -1

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, length: int, **options: Any) -> ContinualTasks:  # dynamic: its fields
        """Look up which pieces are capitalised, and which are connectives."""
        objective = super().from_tokenizer(tokenizer, length, **options)
        texts = [tokenizer.decode([i]).strip() for i in range(len(tokenizer))]
        classes = {word: number for number, words in enumerate(CONNECTIVES) for word in words}
        object.__setattr__(objective, "capitals", np.array([text[:1].isupper() for text in texts]))
        object.__setattr__(objective, "connectives", np.array([classes.get(text.lower(), -1) for text in texts]))
        return objective

    @property
    def head_parts(self) -> frozenset[str]:
        """The parts of the head that the tasks train."""
        return frozenset((self.part, *TOKEN_TASKS, *TEXT_TASKS))

    def plan(self, store: Store, seed: int, epoch: int) -> Plan:
        """Draw the task of every example from those that have begun, and take the task's next one. A task without
        examples in this text (no connectives, documents of one sentence) is left out."""
        pools = self.plan_tasks(store, seed, epoch)
        sizes = np.array([len(pool) for pool in pools])
        if not sizes[0]:
            raise Error("the text is too short for a single example", fix="give more text, or take shorter examples")
        # Every epoch cuts the text elsewhere, so that other numbers of windows have a capital letter: all are counted.
        count = int(sizes.sum() - sizes[TASKS.index("capital")] + sizes[TASKS.index("masking")])
        begins = np.zeros(len(TASKS), np.int64) if self.task_starts is None else np.array(self.task_starts)
        known = (begins <= (epoch * count + np.arange(count))[:, None]) & (sizes > 0)  # (E, tasks)
        turn = rng.draw_uniform(seed, epoch, np.arange(count), TASK_DRAW) * known.sum(1)
        task = (known.cumsum(1) > turn[:, None]).argmax(1)
        chosen, where = [], []
        for number, pool in enumerate(pools):
            at = np.flatnonzero(task == number)
            if len(at):
                order = rng.shuffle_indices(len(pool), seed, epoch, SHUFFLE_DRAW + number)
                chosen.append(pool.select_examples(order[np.arange(len(at)) % len(pool)]))
                where.append(at)
        return Plan.concatenate(chosen).select_examples(np.argsort(np.concatenate(where), kind="stable"))

    def plan_tasks(self, store: Store, seed: int, epoch: int) -> list[Plan]:
        """Plan all examples of each task; a label is FIRST_LABELS of the task and the class."""
        book = SentenceTable.from_store(store, self.eos)
        windows = plans.plan_texts(store, self.eos, self.length - 2, seed, epoch)
        capitalised = windows.select_examples(self.find_capitalised(windows, store))
        pools = [label_plan(windows, "masking"), label_plan(capitalised, "capital"), label_plan(windows, "document")]
        key, owner = (seed, epoch), compute_row_ids(np.append(book.document_begins, len(book.begin)))
        last = book.document_ends[owner] if len(owner) else owner  # of each sentence's document
        every = np.arange(len(owner))
        pools.append(self.plan_reorder(book, every, last, key))
        near = every[every + 1 < last]
        pools.append(self.plan_distance(book, near, owner, key))
        pools.append(self.plan_discourse(book, store, near))
        pools.append(self.plan_relevance(book, key))
        return pools

    def find_capitalised(self, plan: Plan, store: Store) -> np.ndarray:
        """Return the numbers of the examples in which a piece is capitalised: only these have a question about it."""
        assert self.capitals is not None
        numbers = [np.empty(0, np.int64)]
        for low in range(0, len(plan), EXAMPLES_AT_ONCE):
            part = plan.slice_examples(low, low + EXAMPLES_AT_ONCE)
            tokens = np.asarray(store.tokens[expand_ranges(part.begin, part.end - part.begin)]).astype(np.int64)
            counts = np.diff(compute_starts(self.capitals[tokens])[compute_starts(part.lengths)])
            numbers.append(low + np.flatnonzero(counts))
        return np.concatenate(numbers)

    def cut_spans(self, book: SentenceTable, sentences: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
        """Return where sentences begin and end, each cut after so many tokens."""
        begin = book.begin[sentences]
        return begin, np.minimum(book.end[sentences], begin + most)

    def plan_reorder(self, book: SentenceTable, every: np.ndarray, last: np.ndarray, key: tuple[int, ...]) -> Plan:
        """Plan 2 or 3 consecutive sentences in an order that the class names."""
        first = every[(every - book.document_begins[self.find_documents(book, every)]) % 3 == 0]
        room = last[first] - first
        first, room = first[room > 1], room[room > 1]
        three = (room > 2) & (rng.draw_uniform(*key, first, KIND_DRAW) < 0.75)  # as 6 orders to 2
        kind = np.where(
            three, 2 + rng.draw_integers(6, *key, first, ORDER_DRAW), rng.draw_integers(2, *key, first, ORDER_DRAW)
        )
        count = np.where(three, 3, 2)
        table = np.array([order if len(order) == 3 else (*order, 0) for order in ORDERS])
        place = table[kind].ravel()[expand_ranges(np.arange(len(first)) * 3, count)]
        begin, end = self.cut_spans(book, np.repeat(first, count) + place, (self.length - 4) // 3)
        return make_plan("reorder", begin, end, count, kind)

    def find_documents(self, book: SentenceTable, sentences: np.ndarray) -> np.ndarray:
        """Return the document of each sentence."""
        return np.searchsorted(book.document_begins, sentences, side="right") - 1

    def plan_distance(self, book: SentenceTable, near: np.ndarray, owner: np.ndarray, key: tuple[int, ...]) -> Plan:
        """Plan a sentence with its next one (0), one that is further away (1), or another document's (2)."""
        mine = owner[near]
        size = book.document_ends[mine] - book.document_begins[mine]
        kind = rng.draw_integers(3, *key, near, KIND_DRAW)
        kind = np.where((kind == 1) & (size < 4), 0, kind)  # too short to have one that is not adjacent
        kind = np.where((kind == 2) & (len(book.document_begins) < 2), 0, kind)
        # Skip the sentence and its two neighbours, round the end of the document.
        step = 2 + rng.draw_integers(np.maximum(size - 3, 1), *key, near, WHERE_DRAW)
        far = book.document_begins[mine] + (near - book.document_begins[mine] + step) % size
        other = np.stack((near + 1, far, self.draw_elsewhere(book, mine, near, key)))[kind, np.arange(len(near))]
        return self.plan_two(book, "distance", near, book.begin[other], book.end[other], kind)

    def draw_elsewhere(
        self, book: SentenceTable, mine: np.ndarray, at: np.ndarray, key: tuple[int, ...]
    ) -> np.ndarray:  # fmt: skip
        """Draw a sentence of another document for each; its own first one if there is no other document."""
        if len(book.document_begins) < 2:
            return book.document_begins[mine]
        other = rng.draw_integers(len(book.document_begins) - 1, *key, at, OTHER_DRAW)
        other += other >= mine
        size = book.document_ends[other] - book.document_begins[other]
        return book.document_begins[other] + rng.draw_integers(size, *key, at, WHERE_DRAW)

    def plan_discourse(self, book: SentenceTable, store: Store, near: np.ndarray) -> Plan:
        """Plan two consecutive sentences, the second without the connective that it begins with."""
        assert self.connectives is not None
        second = near + 1
        kind = self.connectives[np.asarray(store.tokens[book.begin[second]]).astype(np.int64)]
        use = (kind >= 0) & (book.end[second] - book.begin[second] > 1)
        near, second, kind = near[use], second[use], kind[use]
        return self.plan_two(book, "discourse", near, book.begin[second] + 1, book.end[second], kind)

    def plan_relevance(self, book: SentenceTable, key: tuple[int, ...]) -> Plan:
        """Plan a document's first sentence with what follows it (0), a later part (1), or another document (2)."""
        size = book.document_ends - book.document_begins
        document = np.flatnonzero(size > 2)
        first, size = book.document_begins[document], size[document]
        kind = rng.draw_integers(3, *key, first, KIND_DRAW) if len(book.document_begins) > 1 else first % 2
        later = first + 2 + rng.draw_integers(np.maximum(size - 2, 1), *key, first, ORDER_DRAW)
        elsewhere = self.draw_elsewhere(book, document, first, key)
        start = np.stack((first + 1, later, elsewhere))[kind, np.arange(len(first))]
        end = book.end[book.document_ends[self.find_documents(book, start)] - 1]  # of its document
        return self.plan_two(book, "relevance", first, book.begin[start], end, kind)

    def plan_two(
        self, book: SentenceTable, name: str, first: np.ndarray, begin: np.ndarray, end: np.ndarray, kind: np.ndarray
    ) -> Plan:
        """Plan a sentence and a second text, each cut to half of the room."""
        most = (self.length - 3) // 2
        near = self.cut_spans(book, first, most)
        both = np.stack((near[0], begin), 1).ravel(), np.stack((near[1], np.minimum(end, begin + most)), 1).ravel()
        return make_plan(name, *both, np.full(len(first), 2), kind)

    def frame_examples(self, raw: RawExamples) -> tuple[FramedExamples, dict[str, Array]]:
        """Frame the examples, with the task's number for each token and the class for each text."""
        at, more = NextSentence.frame_examples(self, raw)
        task = find_tasks(raw.label)
        is_text = np.isin(task, [TASKS.index(name) for name in TEXT_TASKS])
        answers = np.where(is_text, raw.label - FIRST_LABELS[task], IGNORE_INDEX)
        return at, {**more, "tasks": task[compute_row_ids(at.starts)], "document_labels": answers}

    def hide_units(self, raw: RawExamples, seed: int) -> Batch:
        """Hide units as knowledge masking does, whatever is asked about them: the labels are the tokens."""
        return super().corrupt(raw, seed)

    def corrupt(self, raw: RawExamples, seed: int) -> Batch:
        """Hide units; where the task asks for a class of tokens, that is the label."""
        masked = self.hide_units(raw, seed)
        tokens = masked.ids.copy()  # before they were hidden
        tokens[masked.chosen] = masked.labels
        ids, labels, task = masked.ids.copy(), masked.labels.copy(), masked.tasks[masked.chosen]
        # How often an example has a token: of pairs (example, token), each with how many there are.
        pair = compute_row_ids(masked.starts) * self.vocab + tokens
        _, which, count = np.unique(pair, return_inverse=True, return_counts=True)
        assert self.capitals is not None
        answers = {"capital": self.capitals[masked.labels], "document": count[which][masked.chosen] > 1}
        for name, answer in answers.items():
            mine = task == TASKS.index(name)
            ids[masked.chosen[mine]] = self.mask
            labels[mine] = answer[mine]
        return masked.replace(ids=ids, labels=labels)

    def keep_part(self, batch: Batch, part: str) -> Batch:
        """Return a batch with the labels of one part of the head alone."""
        if part in TEXT_TASKS:
            own = batch.tasks[batch.starts[:-1].clip(max=len(batch.ids) - 1)] == TASKS.index(part)
            return batch.replace(document_labels=ignore_others(batch.document_labels, own))
        task = batch.tasks if batch.chosen is None else batch.tasks[batch.chosen]
        token_tasks = [TASKS.index(name) for name in TOKEN_TASKS]
        is_own = (task != token_tasks[0]) & (task != token_tasks[1]) if part == self.part else task == TASKS.index(part)
        return batch.replace(labels=ignore_others(batch.labels, is_own))

    def keep_own_labels(self, batch: Batch) -> Batch:
        """Return a batch with the labels that are tokens."""
        return self.keep_part(batch, self.part)

    def select_labels(self, batch: Batch) -> np.ndarray:
        """Return the hidden tokens of a batch that is still in numpy."""
        labels = self.keep_own_labels(batch).labels
        return labels[labels != IGNORE_INDEX]

    def count_labels(self, batch: Batch) -> dict[str, int]:
        """Return how many labels each task has."""
        tokens = {name: count_real_labels(self.keep_part(batch, name).labels) for name in (self.part, *TOKEN_TASKS)}
        texts = {name: count_real_labels(self.keep_part(batch, name).document_labels) for name in TEXT_TASKS}
        return {**tokens, **texts}

    def loss(self, model: Model, batch: Batch) -> Losses:
        """Compute the loss of each task; the model must have an embedding for all of them."""
        table = getattr(model.body.embed, "task", None)  # dynamic: only ERNIE's embeddings have one
        if table is None or table.num_embeddings < len(TASKS):
            what = f"continual pretraining has {len(TASKS)} tasks, and this model has no embedding for each"
            raise Error(what, fix="--model.use_tasks true --model.tasks 16, or a preset of ERNIE 2.0")
        hidden = model(batch)
        losses = {
            part: compute_token_loss(model, self.keep_part(batch, part), part, hidden)
            for part in (self.part, *TOKEN_TASKS)
        }
        answers = {part: compute_answer_loss(model, self.keep_part(batch, part), part, hidden) for part in TEXT_TASKS}
        return {**losses, **answers}


def ignore_others(labels: Any, is_own: Any) -> Any:  # dynamic: both of numpy, or both of torch
    """Return labels with those that are not one's own ignored."""
    if isinstance(labels, np.ndarray):
        return np.where(is_own, labels, IGNORE_INDEX)
    return torch.where(is_own, labels, torch.full_like(labels, IGNORE_INDEX))


# A plan has one small number for each example: these are the first ones of the tasks, and the class is added.
FIRST_LABELS = compute_starts(np.array([NUM_CLASSES[name] if name in TEXT_TASKS else 1 for name in TASKS]))[:-1]


def find_tasks(label: np.ndarray) -> np.ndarray:
    """Return the number of the task that a plan's label belongs to."""
    return np.searchsorted(FIRST_LABELS, label, side="right") - 1


def label_plan(plan: Plan, name: str) -> Plan:
    """Return a plan whose examples are a task's, of class 0."""
    return Plan(plan.begin, plan.end, plan.span_offsets, np.full(len(plan), FIRST_LABELS[TASKS.index(name)], np.int8))


def make_plan(name: str, begin: np.ndarray, end: np.ndarray, count: np.ndarray, kind: np.ndarray) -> Plan:
    """Make a task's plan of spans, so many of each example, and their classes."""
    return Plan(begin, end, compute_starts(count), (FIRST_LABELS[TASKS.index(name)] + kind).astype(np.int8))
