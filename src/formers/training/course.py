"""A run on its way: what was asked and what was found, put together into a model, its objectives and a trainer."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..batch import Batch
from ..data.loader import batches, idle
from ..data.store import Store
from ..errors import Error
from ..former import Former, build, count
from ..interop.directory import load
from ..nn.block import scale_residual_branches
from ..nn.memory import Memory
from ..nn.projected import State
from ..objectives.choose import OBJECTIVES, WITHOUT_PAIRS, objective, settings
from ..registry import member
from ..text.tokenizer import Tokenizer
from .adopt import adopt, known
from .configure import Asked, sized
from .evaluate import Score, evaluate, unigram
from .loop import Trainer, close
from .material import Material
from .world import World


class Course:
    """A run on its way: the model, its objectives and the trainer, made of what was asked and found."""

    def __init__(self, asked: Asked, found: Material, world: World, say: Callable[[str], None] = lambda text: None):
        self.asked, self.found, self.world, self.say = asked, found, world, say
        s = asked.train
        self.goals = [self.goal(s.phase_length(phase), found.store) for phase in ((0, 1) if s.short else (1,))]
        self.former = former(asked, found.tokenizer, self.goals[-1], say)
        self.former.model.to(world.device)
        self.trainer = Trainer(self.former.model, self.goals, s, world)
        self.judged: Score | None = None
        self.seen: list[Batch] | None = None
        self.held_goal: Any = None
        self.alone = False  # every process sees all of it

    def goal(self, length: int, store: Store, held: bool = False, name: str | None = None) -> Any:
        """The objective for examples of a length, or another one by its `name`; with streams where the family carries
        something over."""
        asked, s = self.asked, self.asked.train
        options = {key: value for key, value in asked.objective.items() if key != "name"} if name is None else {}
        name = name or asked.objective["name"]
        body = member(asked.family).family.body
        known = settings(OBJECTIVES[name].kind)
        if s.carry and body_carries(body) and "streams" in known and "streams" not in options:
            for odd in ("ramp", "short"):
                if getattr(s, odd):
                    what = f"train.{odd} does not go with a memory that is carried over"
                    raise Error(what, fix="--train.carry false")
            rows = max(1, s.tokens // length)
            parts = 1 if held else s.accumulate
            rows = max(1, min(rows, len(store.tokens) // (length + 1) // parts))
            options |= {"streams": rows * parts, "rows": rows}
        return objective(name, self.found.tokenizer, length, **options)

    def source(self, phase: int, position: int) -> Iterator[tuple[Batch, int]]:
        """The batches of a phase from a position on."""
        s, goal = self.asked.train, self.goals[-1 if phase else 0]
        return batches(
            self.found.store, goal, s.tokens, s.seed, position, workers=s.workers, rank=self.world.rank,
            ranks=self.world.size, pin=self.world.device.type == "cuda",
        )  # fmt: skip

    def prepare_evaluation(self) -> None:
        """Choose the objective and the batches that the model is judged by, if there is held-out text. Text without
        pairs of its own is judged by hidden tokens alone."""
        held = self.found.held
        if held is None or self.seen is not None:
            return
        self.held_goal = self.goal(self.asked.train.length, held, held=True)
        self.alone = bool(getattr(self.held_goal, "streams", 0))
        ranks = () if self.alone else (self.world.rank, self.world.size)
        try:
            self.seen = self.share(held, *ranks)
        except Error as error:
            if (name := WITHOUT_PAIRS.get(self.asked.objective["name"])) is None:
                raise
            self.say(f"note: held-out text has no pairs of texts ({error.what}): it is judged by hidden tokens alone")
            self.held_goal = self.goal(self.asked.train.length, held, held=True, name=name)
            self.seen = self.share(held, *ranks)

    def looks(self) -> list[Batch]:
        """This process's share of the batches that the model is judged by; one with a memory reads on without a gap."""
        self.prepare_evaluation()
        assert self.seen is not None
        return self.seen

    def share(self, held: Store, rank: int = 0, ranks: int = 1) -> list[Batch]:
        """A process's share of the batches that are looked at."""
        s, most = self.asked.train, self.asked.data.looks
        some = batches(held, self.held_goal, s.tokens, s.seed + 1, epochs=1, rank=rank, ranks=ranks)
        mine = (batch for batch, _ in itertools.islice(some, -(-most // ranks)))
        return [batch if i * ranks + rank < most else idle(batch) for i, batch in enumerate(mine)]

    def check(self) -> dict[str, float]:
        """Losses and shares of right guesses on held-out text."""
        seen, forward, add = self.looks(), self.trainer.forward, list if self.alone else self.world.add
        with self.trainer.averaged():
            self.judged = evaluate(self.former.model, self.held_goal, seen, forward, add, self.world.device)
        losses = [v for k, v in self.judged.all.items() if not k.endswith("/right") and k != "balance"]
        return {"loss": sum(losses) if losses else math.nan, **self.judged.all}

    @cached_property
    def unigram(self) -> Score | None:
        """What token frequencies alone would give, on the same places, those of all processes."""
        if self.found.held is None or self.looks()[0].labels is None:
            return None
        return unigram(self.found.store, self.held_goal, self.share(self.found.held))

    def words(self) -> str:
        """The run in one line."""
        s = self.asked.train
        each, text = s.tokens * s.accumulate, len(self.found.store.tokens)
        seen = s.tokens * s.taken(0, s.steps, self.world.size) / max(1, text)
        size = f"{self.asked.family}: {count(self.former.model):,} parameters, {text:,} tokens of text"
        return f"{size}, {s.steps:,} steps of {each:,} ({seen:.1f} times the text)"


def body_carries(body: Any) -> bool:
    """A family whose state is worth carrying from batch to batch while it learns."""
    return getattr(body, "state", None) in (Memory, State)


def former(asked: Asked, tokenizer: Tokenizer, goal: Any, say: Callable[[str], None]) -> Former:
    """A new model that fits the tokenizer, or one from a checkpoint."""
    declared = member(asked.family).family
    head = declared.pretraining
    if asked.objective["name"] != declared.objective:  # another objective may need another head
        wanted = {part for part in (goal.part, getattr(goal, "answer", None)) if part is not None}
        heads = declared.heads(sized(asked, **ids(tokenizer, goal)) if asked.init is None else declared.config())
        head = next((name for name, parts in heads.items() if set(parts) == wanted), head)
    if asked.init is not None:
        known(asked)
        return adopt(load(asked.init, head=head), tokenizer, asked, say)
    config = sized(asked, **ids(tokenizer, goal))
    made = build(asked.family, head=head, seed=asked.train.seed, **dataclasses.asdict(config))
    scale_residual_branches(made.model, asked.train.residual_init)
    made.tokenizer = tokenizer
    return made


def ids(tokenizer: Tokenizer, goal: Any = None) -> dict[str, int | None]:
    """What a config takes over from a tokenizer: the size of the vocabulary, and the special ids."""
    found: dict[str, int | None] = {role: tokenizer.id(role) for role in ("pad", "bos", "eos")}
    if (start := getattr(goal, "start", None)) is not None:
        found["start"] = start
    return {**found, "vocab": len(tokenizer)}


def ready(path: Path, run: Course) -> None:
    """Fail before the first step what would fail at the last."""
    first = run.source(run.asked.train.phase(0), 0)
    batch, _ = next(first)
    close(first)
    ids_ = batch.ids if batch.source is None else np.concatenate((batch.ids, batch.source.ids))
    vocab = getattr(run.former.config, "vocab", None)
    if vocab is not None and ids_.ndim == 1 and int(ids_.max()) >= vocab:
        raise Error(
            f"token {int(ids_.max())} is beyond the model's vocabulary of {vocab}", where=path, fix="take its own"
        )
