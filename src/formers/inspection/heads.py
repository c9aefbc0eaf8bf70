"""Attention heads: what it costs in loss to mask each, and which could be pruned for the least cost.

L layers, H heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..config import JSONObject, ProgressCallback
from ..errors import Error, NonFinite
from ..former import Former
from ..nn.head_pruning import find_attentions, get_kept_heads
from ..verbs import can_fill
from .document import round_floats
from .effort import estimate_pass, is_bearable
from .prediction import compute_logits, get_lm_part
from .recording import fill_memory, repeat_document
from .sides import TextInputs

MASK_EVERY = 7  # a masked model hides every seventh token, in one copy of a long text, in seven so that each is hidden
PRUNED_SHARE = 0.5
ForwardArgs = dict[str, Any]  # dynamic: arguments of a forward pass, a memory or masks of heads


@dataclass(frozen=True)
class HeadCosts:
    """The loss of a text in bits per token (or label), and by kind how much it rises (L, H) when one head is masked; a
    head that was pruned has NaN."""

    baseline: float
    costs: dict[str, Tensor]
    is_by_stack: bool  # heads are pruned by stack: an encoder-decoder
    owners: dict[str, list[int]] = field(
        default_factory=dict
    )  # by kind: the first layer with the same weights (ALBERT)

    def choose_pruned(self, share: float = PRUNED_SHARE) -> dict[Any, Any]:  # dynamic: nested by stack or not
        """Choose the heads that cost least, a share of all, as `prune` takes them; every layer keeps one at least.

        Layers that share their weights lose a head together: it stands at the first of them, and costs their sum."""
        if not 0 <= share < 1:
            raise Error(f"a share of heads is from 0 to 1, got {share}", fix="take 0.5")
        sums: dict[tuple[str, int, int], float] = {}
        for kind, costs in self.costs.items():
            owners = self.owners.get(kind) or list(range(len(costs)))
            for owner, row in zip(owners, costs.tolist(), strict=True):
                for head, cost in enumerate(row):
                    sums[kind, owner, head] = sums.get((kind, owner, head), 0.0) + cost
        known = [(cost, *place) for place, cost in sums.items() if not math.isnan(cost)]
        left = {(kind, layer): 0 for _, kind, layer, _ in known}
        for _, kind, layer, _ in known:
            left[kind, layer] += 1
        chosen: dict[str, dict[int, list[int]]] = {}
        budget = int(share * len(known))
        for _, kind, layer, head in sorted(known):
            if budget and left[kind, layer] > 1:
                chosen.setdefault(kind, {}).setdefault(layer, []).append(head)
                left[kind, layer] -= 1
                budget -= 1
        by_kind = {kind: {layer: sorted(row) for layer, row in sorted(rows.items())} for kind, rows in chosen.items()}
        return by_kind if self.is_by_stack else next(iter(by_kind.values()), {})

    def to_dict(self) -> JSONObject:
        """Return the costs as the view document has them."""
        pruned = self.choose_pruned() if self.is_by_stack else {next(iter(self.costs)): self.choose_pruned()}
        names = {
            kind: {
                str(layer): rows[owner]
                for layer, owner in enumerate(self.owners.get(kind) or range(len(self.costs[kind]))) if owner in rows
            }
            for kind, rows in pruned.items()
        }  # fmt: skip
        costs = {kind: {"cost": round_floats(table)} for kind, table in self.costs.items()}
        return {**costs, "baseline": round_floats(self.baseline), "prune": names}


@torch.inference_mode()
def measure_heads(former: Former, *texts: TextInputs, tell: ProgressCallback | None = None) -> HeadCosts | None:
    """Measure the loss of texts with each head masked in turn; None for a model without heads or without a loss."""
    known = find_attentions(former.model.body)
    losses = [make_loss(former, inputs) for inputs in texts]
    if not known or any(loss is None for loss in losses):
        return None

    def measure(heads: Any) -> float:  # dynamic: masks, as `logits` takes them
        how = {} if heads is None else former.build_forward_args(None, heads)
        return sum(loss(how) for loss in losses if loss is not None) / len(losses)

    baseline, costs, owners = measure(None), dict[str, Tensor](), dict[str, list[int]]()
    total, done = sum(module.heads for _, module in known.values()), 0
    is_by_stack = former.definition.is_encoder_decoder
    for kind in dict.fromkeys(kind for kind, _ in known):
        modules = [module for (stack, _), (_, module) in known.items() if stack == kind]
        owners[kind] = [next(i for i, other in enumerate(modules) if other is module) for module in modules]
        table = torch.full((len(modules), modules[0].original_heads), math.nan)
        for layer, module in enumerate(modules):
            for head in get_kept_heads(module):
                mask = torch.ones_like(table)
                mask[layer, head] = 0.0
                table[layer, head] = measure({kind: mask} if is_by_stack else mask) - baseline
                done += 1
                if tell is not None:
                    tell("heads", done, total, "")
        costs[kind] = table
    return HeadCosts(baseline, costs, is_by_stack, owners)


def make_loss(former: Former, inputs: TextInputs) -> Callable[[ForwardArgs], float] | None:
    """Return the function that computes a text's loss in bits per token or label; None for a model without a head."""
    part, batch = get_lm_part(former), inputs.get_batch()
    ids = torch.tensor(inputs.label_ids, device=former.device)
    if part is None:
        return make_label_loss(former, inputs)
    if can_fill(former):
        assert former.tokenizer is not None
        tokens, mask = inputs.sides["text"].tokens, former.tokenizer.id("mask")
        places = [i for i, token in enumerate(tokens) if not token.is_special]
        rows = min(MASK_EVERY, len(places))
        if mask is None or not rows:
            return None
        passes = rows * sum(module.heads for _, module in find_attentions(former.model.body).values())
        if not is_bearable(former, estimate_pass(former, inputs) * passes):
            places, rows = places[::MASK_EVERY], 1
        slots = torch.tensor([(i % rows) * len(tokens) + at for i, at in enumerate(places)], device=former.device)
        labels = ids[places]
        batch = repeat_document(batch, rows)
        batch.ids[slots] = mask
    else:
        shift = 0 if former.is_two_stream else 1
        batch = batch.replace(order=torch.arange(len(ids), device=former.device)) if former.is_two_stream else batch
        slots = torch.arange(len(ids) - shift, device=former.device)
        known = ids[shift:] >= 0
        slots, labels = slots[known], ids[shift:][known]

    def compute_loss(how: ForwardArgs) -> float:
        memory = {} if can_fill(former) else fill_memory(former, inputs)
        scores = compute_logits(former, former.model(batch, **how, **memory)[slots], part).log_softmax(-1)
        return float(-scores.gather(1, labels[:, None]).mean()) / math.log(2)

    return compute_loss if len(labels) else None


def make_label_loss(former: Former, inputs: TextInputs) -> Callable[[ForwardArgs], float] | None:
    """Return the function that computes the loss of what a task's head answers without any mask."""
    name, head = next(((n, p) for n, p in former.model.parts.items() if p.out is not None), (None, None))
    if name is None or head is None or former.head == "beam":
        return None
    batch = inputs.get_batch().replace(sample=torch.zeros(1))

    def compute_answers(how: ForwardArgs) -> Tensor:
        logits = former.model.logits(former.model(batch, **how), batch, name).float()
        if not bool(logits.isfinite().all()):
            raise NonFinite("logits")
        return logits

    first = compute_answers({})
    if first.shape[-1] == 1:  # a number: how far it moves
        return lambda how: float((compute_answers(how) - first).abs().mean())
    answer = first.argmax(-1)

    def compute_loss(how: ForwardArgs) -> float:
        scores = compute_answers(how).log_softmax(-1)
        return float(-scores.gather(-1, answer[..., None]).mean()) / math.log(2)

    return compute_loss
