"""What a model can do on the way: at fixed steps it continues a held-out text, or guesses what was hidden in one."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..data.loader import IGNORED, batches
from ..data.store import Store
from ..errors import NonFinite
from ..former import Former
from ..generation.sample import Options, continue_ids
from ..objectives.causal import CausalLM
from .material import Material

TOKENS = 40  # that are continued
SHOWN = 60  # tokens of an example that are shown


class Samples:
    """Asks the model the same at every time, and keeps the answers in samples.jsonl."""

    def __init__(self, former: Former, goal: Any, found: Material, folder: Path):
        self.former, self.goal, self.file = former, goal, folder / "samples.jsonl"
        self.store: Store = found.held or found.store
        self.tokenizer = found.tokenizer

    def take(self, step: int) -> None:
        """One sample now; what a family cannot do is left out."""
        was, state = self.former.model.training, torch.random.get_rng_state()
        self.former.model.eval()
        try:
            said = self.continued() if isinstance(self.goal, CausalLM) else self.guessed()
        except NonFinite:  # the training loop decides what becomes of such a run
            said = None
        finally:
            self.former.model.train(was)
            torch.random.set_rng_state(state)
        if said is not None:
            with open(self.file, "a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **said}, ensure_ascii=False) + "\n")

    def continued(self) -> dict[str, str] | None:
        """The beginning of a held-out document, continued."""
        low = int(self.store.starts[0])
        some = min(16, int(self.store.starts[1]) - low, len(self.store.tokens) - low)
        prompt = np.asarray(self.store.tokens[low : low + some]).astype(np.int64).tolist()
        made = continue_ids(self.former, [prompt], TOKENS, Options(temperature=0.7, top_k=40))[0]
        return {"given": self.tokenizer.decode(prompt), "made": self.tokenizer.decode(made)}

    @torch.no_grad()
    def guessed(self) -> dict[str, str] | None:
        """What was asked in a held-out example, and what the model says."""
        some = itertools.islice(batches(self.store, self.goal, self.goal.length * 2, 1, epochs=1), 1)
        batch, _ = next(some, (None, 0))
        if batch is None or batch.ids.ndim > 1 or batch.labels is None:
            return None
        end = int(batch.starts[1])
        chosen = np.arange(len(batch.ids)) if batch.chosen is None else batch.chosen
        mine = np.flatnonzero((chosen < end) & (batch.labels != IGNORED))[:SHOWN]
        moved = batch.to(self.former.device)
        hidden = self.former.model(moved)[torch.as_tensor(chosen[mine], device=self.former.device)]
        guess = self.former.model.logits(hidden, part=self.goal.part).argmax(-1).tolist()
        shown = batch if batch.source is None else batch.source
        given = shown.ids[: min(int(shown.starts[1]), SHOWN)].tolist()
        words = lambda row: " ".join(map(self.tokenizer.token, row))  # noqa: E731
        return {"given": words(given), "asked": words(batch.labels[mine].tolist()), "made": words(guess)}
