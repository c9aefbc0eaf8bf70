"""A pretraining run on its way: a model, its objectives and a trainer, made of the settings and the prepared data.

SampleWriter shows what the model can do on the way: at fixed steps it continues a held-out text, or guesses what was
hidden in one.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...batch import IGNORE_INDEX, Batch
from ...data.loader import blank_batch, load_batches
from ...data.plans import TokenSource
from ...data.store import Store
from ...errors import Error, NonFinite
from ...family import Family
from ...former import Former, build, count_trainable
from ...interop.model_directory import load
from ...nn.attention.segment_memory import SegmentMemory
from ...nn.block import scale_residual_branches
from ...nn.recurrent.projected_lstm import LSTMState
from ...objectives.causal import CausalLM
from ...objectives.registry import OBJECTIVES, UNPAIRED_OBJECTIVES, build_objective, list_options
from ...registry import find_family
from ...text.tokenizer import Tokenizer
from ..config_merge import PretrainConfig, build_model_config
from ..distributed.process_group import ProcessGroup
from ..trainer import Trainer, close_batches
from ..validation import Score, compute_unigram_baseline, evaluate
from .prepare_data import PreparedData
from .vocab_transfer import check_checkpoint_family, transfer_vocabulary


class PretrainRun:
    """A run on its way: the model, its objectives and the trainer, made of what was asked and found."""

    def __init__(
        self,
        asked: PretrainConfig,
        found: PreparedData,
        world: ProcessGroup,
        say: Callable[[str], None] = lambda text: None,
    ):
        self.config, self.data, self.world, self.say = asked, found, world, say
        s = asked.train
        self.objectives = [
            self.build_objective(s.get_phase_length(phase), found.store)
            for phase in ((0, 1) if s.short_length else (1,))
        ]
        self.former = load_or_build_model(asked, found.tokenizer, self.objectives[-1], say)
        self.former.model.to(world.device)
        self.trainer = Trainer(self.former.model, self.objectives, s, world)
        self.latest_score: Score | None = None
        self.valid_batches: list[Batch] | None = None
        self.valid_objective: Any = None
        self.is_validation_replicated = False  # every process sees all of it

    def build_objective(self, length: int, store: Store, held: bool = False, name: str | None = None) -> Any:
        """The objective for examples of a length, or another one by its `name`; with streams where the family carries
        something over."""
        asked, s = self.config, self.config.train
        options = {key: value for key, value in asked.objective.items() if key != "name"} if name is None else {}
        name = name or asked.objective["name"]
        family = find_family(asked.family).definition
        known = list_options(OBJECTIVES[name].objective_class)
        if s.carry_memory and has_carried_state(family) and "num_streams" in known and "num_streams" not in options:
            for setting in ("batch_rampup_steps", "short_length"):
                if getattr(s, setting):
                    what = f"train.{setting} does not go with a memory that is carried over"
                    raise Error(what, fix="--train.carry_memory false")
            rows = max(1, s.batch_tokens // length)
            parts = 1 if held else s.accumulate
            rows = max(1, min(rows, len(store.tokens) // (length + 1) // parts))
            options |= {"num_streams": rows * parts, "streams_per_batch": rows}
        return build_objective(name, self.data.tokenizer, length, **options)

    def iter_batches(self, phase: int, position: int) -> Iterator[tuple[Batch, int]]:
        """The batches of a phase from a position on."""
        s, goal = self.config.train, self.objectives[-1 if phase else 0]
        return load_batches(
            TokenSource(self.data.store, goal), s.batch_tokens, s.seed, position, workers=s.workers,
            rank=self.world.rank, ranks=self.world.size, pin=self.world.device.type == "cuda",
        )  # fmt: skip

    def prepare_evaluation(self) -> None:
        """Choose the objective and the batches that the model is judged by, if there is held-out text. Text without
        pairs of its own is judged by hidden tokens alone."""
        held = self.data.valid_store
        if held is None or self.valid_batches is not None:
            return
        self.valid_objective = self.build_objective(self.config.train.seq_length, held, held=True)
        self.is_validation_replicated = bool(self.valid_objective.num_streams)
        ranks = () if self.is_validation_replicated else (self.world.rank, self.world.size)
        try:
            self.valid_batches = self.load_valid_batches(held, *ranks)
        except Error as error:
            if (name := UNPAIRED_OBJECTIVES.get(self.config.objective["name"])) is None:
                raise
            self.say(f"note: held-out text has no pairs of texts ({error.what}): it is judged by hidden tokens alone")
            self.valid_objective = self.build_objective(self.config.train.seq_length, held, held=True, name=name)
            self.valid_batches = self.load_valid_batches(held, *ranks)

    def get_valid_batches(self) -> list[Batch]:
        """This process's share of the batches that the model is judged by; one with a memory reads on without a gap."""
        self.prepare_evaluation()
        assert self.valid_batches is not None
        return self.valid_batches

    def load_valid_batches(self, held: Store, rank: int = 0, ranks: int = 1) -> list[Batch]:
        """A process's share of the batches that are looked at."""
        s, most = self.config.train, self.config.train.eval_batches
        source = TokenSource(held, self.valid_objective)
        some = load_batches(source, s.batch_tokens, s.seed + 1, epochs=1, rank=rank, ranks=ranks)
        mine = (batch for batch, _ in itertools.islice(some, -(-most // ranks)))
        return [batch if i * ranks + rank < most else blank_batch(batch) for i, batch in enumerate(mine)]

    def evaluate(self) -> dict[str, float]:
        """Losses and shares of right guesses on held-out text."""
        seen, forward, add = (
            self.get_valid_batches(),
            self.trainer.executor.forward,
            list if self.is_validation_replicated else self.world.sum_over_ranks,
        )
        with self.trainer.use_ema_weights():
            self.latest_score = evaluate(self.former.model, self.valid_objective, seen, forward, add, self.world.device)
        losses = [v for k, v in self.latest_score.metrics.items() if not k.endswith("/right") and k != "balance"]
        return {"loss": sum(losses) if losses else math.nan, **self.latest_score.metrics}

    @cached_property
    def unigram_baseline(self) -> Score | None:
        """What token frequencies alone would give, on the same places, those of all processes."""
        if self.data.valid_store is None or self.get_valid_batches()[0].labels is None:
            return None
        return compute_unigram_baseline(
            self.data.store, self.valid_objective, self.load_valid_batches(self.data.valid_store)
        )

    def describe(self) -> str:
        """The run in one line."""
        s = self.config.train
        each, text = s.batch_tokens * s.accumulate, len(self.data.store.tokens)
        seen = s.batch_tokens * s.count_batches_between(0, s.steps, self.world.size) / max(1, text)
        size = f"{self.config.family}: {count_trainable(self.former.model):,} parameters, {text:,} tokens of text"
        return f"{size}, {s.steps:,} steps of {each:,} ({seen:.1f} times the text)"


def has_carried_state(family: Family) -> bool:
    """A family whose state is worth carrying from batch to batch while it learns."""
    return family.state_class in (SegmentMemory, LSTMState)


def load_or_build_model(asked: PretrainConfig, tokenizer: Tokenizer, goal: Any, say: Callable[[str], None]) -> Former:
    """A new model that fits the tokenizer, or one from a checkpoint."""
    declared = find_family(asked.family).definition
    head = declared.pretraining_head
    if asked.objective["name"] != declared.objective:  # another objective may need another head
        wanted = {part for part in (goal.part, goal.pair_part) if part is not None}
        heads = declared.build_heads(
            build_model_config(asked, **get_tokenizer_config(tokenizer, goal))
            if asked.init is None
            else declared.config_class()
        )
        head = next((name for name, parts in heads.items() if set(parts) == wanted), head)
    if asked.init is not None:
        check_checkpoint_family(asked)
        return transfer_vocabulary(load(asked.init, head=head), tokenizer, asked, say)
    config = build_model_config(asked, **get_tokenizer_config(tokenizer, goal))
    made = build(asked.family, head=head, seed=asked.train.seed, **dataclasses.asdict(config))
    scale_residual_branches(made.model, asked.train.residual_init)
    made.tokenizer = tokenizer
    return made


def get_tokenizer_config(tokenizer: Tokenizer, goal: Any = None) -> dict[str, int | None]:
    """What a config takes over from a tokenizer: the size of the vocabulary, and the special ids."""
    found: dict[str, int | None] = {role: tokenizer.id(role) for role in ("pad", "bos", "eos")}
    if (start := getattr(goal, "start", None)) is not None:
        found["start"] = start
    return {**found, "vocab": len(tokenizer)}


def check_first_batch(path: Path, run: PretrainRun) -> None:
    """Fail before the first step what would fail at the last."""
    first = run.iter_batches(run.config.train.get_phase(0), 0)
    batch, _ = next(first)
    close_batches(first)
    ids_ = batch.ids if batch.source is None else np.concatenate((batch.ids, batch.source.ids))
    vocab = getattr(run.former.config, "vocab", None)
    if vocab is not None and ids_.ndim == 1 and int(ids_.max()) >= vocab:
        raise Error(
            f"token {int(ids_.max())} is beyond the model's vocabulary of {vocab}", where=path, fix="take its own"
        )


SAMPLE_TOKENS = 40  # that are continued
MAX_SHOWN_TOKENS = 60  # tokens of an example that are shown


class SampleWriter:
    """Asks the model the same at every time, and keeps the answers in samples.jsonl."""

    def __init__(self, former: Former, goal: Any, found: PreparedData, folder: Path):
        self.former, self.objective, self.file = former, goal, folder / "samples.jsonl"
        self.store: Store = found.valid_store or found.store
        self.tokenizer = found.tokenizer

    def write_sample(self, step: int) -> None:
        """One sample now; what a family cannot do is left out."""
        was, state = self.former.model.training, torch.random.get_rng_state()
        self.former.model.eval()
        try:
            said = self.continue_text() if isinstance(self.objective, CausalLM) else self.predict_hidden()
        except NonFinite:  # the training loop decides what becomes of such a run
            said = None
        finally:
            self.former.model.train(was)
            torch.random.set_rng_state(state)
        if said is not None:
            with open(self.file, "a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **said}, ensure_ascii=False) + "\n")

    def continue_text(self) -> dict[str, str] | None:
        """The beginning of a held-out document, continued."""
        low = int(self.store.starts[0])
        some = min(16, int(self.store.starts[1]) - low, len(self.store.tokens) - low)
        prompt = np.asarray(self.store.tokens[low : low + some]).astype(np.int64).tolist()
        made = self.former.continue_ids([prompt], SAMPLE_TOKENS, temperature=0.7, top_k=40)[0]
        return {"given": self.tokenizer.decode(prompt), "made": self.tokenizer.decode(made)}

    @torch.no_grad()
    def predict_hidden(self) -> dict[str, str] | None:
        """What was asked in a held-out example, and what the model says."""
        source = TokenSource(self.store, self.objective)
        some = itertools.islice(load_batches(source, self.objective.length * 2, 1, epochs=1), 1)
        batch, _ = next(some, (None, 0))
        if batch is None or batch.ids.ndim > 1 or batch.labels is None:
            return None
        end = int(batch.starts[1])
        chosen = np.arange(len(batch.ids)) if batch.chosen is None else batch.chosen
        mine = np.flatnonzero((chosen < end) & (batch.labels != IGNORE_INDEX))[:MAX_SHOWN_TOKENS]
        moved = batch.to(self.former.device)
        hidden = self.former.model(moved)[torch.as_tensor(chosen[mine], device=self.former.device)]
        guess = self.former.model.logits(hidden, part=self.objective.part).argmax(-1).tolist()
        shown = batch if batch.source is None else batch.source
        given = shown.ids[: min(int(shown.starts[1]), MAX_SHOWN_TOKENS)].tolist()
        words = lambda row: " ".join(map(self.tokenizer.get_token_text, row))  # noqa: E731
        return {"given": words(given), "asked": words(batch.labels[mine].tolist()), "made": words(guess)}
