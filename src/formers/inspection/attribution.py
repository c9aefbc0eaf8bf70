"""Attribution: how much each token of a text contributes to one answer of the model, or to one answer rather than
another; and how faithful that is, by removing the tokens in that order.

A removed token has the embedding of a replacement (padding, where there is one) in its place; positions, segments and
special tokens stay. R copies of a text are read at once, T tokens of a side.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from ..batch import Batch
from ..config import JSONObject, ProgressCallback, Settings, format_value, suggest_name
from ..errors import Error, NonFinite
from ..former import Former
from ..nn.cpu_inference import is_frozen
from ..nn.head_pruning import find_attentions
from ..nn.layers import Embeddings
from ..nn.recurrent.convolution import CharacterCNN
from ..verbs import can_fill
from .document import round_floats
from .effort import BACKWARD_PASSES, estimate_pass, is_bearable
from .prediction import ROW_TOKENS, compute_logits, get_lm_part, list_candidates, name_token
from .recording import fill_memory, limit_to_thread, repeat_document
from .sides import TextInputs

METHODS = ("input_x_gradient", "integrated_gradients", "occlusion", "value_zeroing")
FIRST_STRETCHES, POINTS, MAX_STEPS = 8, 4, 512  # of integrated gradients: at first, of each, and points in all
MAX_GAP = 0.003  # of completeness, before more steps are taken
DELETION_SHARES = tuple(i / 10 for i in range(11))
RANDOM_ORDERS, FEW_ORDERS = 8, 2  # that a deletion curve is compared with; few of a long text
Shares = dict[str, Tensor]  # side → (R, T): 1 is the token itself, 0 its replacement
Hook = Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]


@dataclass(frozen=True)
class Target:
    """The answer that is explained: a token at a position, or a label, and the one it is contrasted with."""

    side: str
    part: str  # of the head
    slot: int | None  # the position whose state the head reads; None: it pools the text
    position: int | None  # the token that is explained; None: what comes next, or a label
    id: int
    text: str
    contrast_id: int | None = None
    contrast_text: str | None = None


@dataclass(frozen=True)
class DeletionCurve:
    """The explained value while a growing share of the tokens is removed: the highest attribution first, and in random
    order (the mean of several). The faster the first falls below the second, the more faithful the attribution."""

    shares: list[float]
    score: Tensor
    random: Tensor


@dataclass(frozen=True)
class MethodScores:
    """The attribution (T,) of every token by side; `gap` is the share of the value that integrated gradients miss."""

    sides: dict[str, Tensor]
    gap: float | None = None
    deletion: DeletionCurve | None = None


@dataclass(frozen=True)
class Attribution:
    """The explained answer, its value (a logit, or the difference of two), that without any token, and by method."""

    target: Target
    value: float
    baseline: float
    replacement: str
    methods: dict[str, MethodScores] = field(default_factory=dict)

    def to_dict(self) -> JSONObject:
        """Return the attribution as the view document has it."""
        one, contrast = self.target, None
        if one.contrast_id is not None:
            contrast = {"text": one.contrast_text, "id": one.contrast_id}
        about = {
            "side": one.side, "position": one.position, "text": one.text, "id": one.id, "contrast": contrast,
            "value": round_floats(self.value), "baseline": round_floats(self.baseline), "replacement": self.replacement,
        }  # fmt: skip
        return {"target": about, "methods": {name: describe_scores(scores) for name, scores in self.methods.items()}}


def describe_scores(scores: MethodScores) -> JSONObject:
    """Describe the scores of one method."""
    curve = scores.deletion
    deletion = None
    if curve is not None:
        deletion = {"shares": curve.shares, "score": round_floats(curve.score), "random": round_floats(curve.random)}
    sides = {side: round_floats(values) for side, values in scores.sides.items()}
    return {"sides": sides, "gap": None if scores.gap is None else round_floats(scores.gap), "deletion": deletion}


def attribute(
    former: Former, inputs: TextInputs, target: str | int | None = None, contrast: str | int | None = None,
    position: int | None = None, methods: Sequence[str] | None = None, seed: int = 0,
    tell: ProgressCallback | None = None,
) -> Attribution | None:  # fmt: skip
    """Attribute an answer to the tokens of a text; None for a model without a head.

    `methods` are by default all that do not take too long for the model and the text.

    The answer is the token `target` at `position`, by default the likeliest next token, a masked model's first blank,
    or the last token; of a classifier a label. With `contrast`, the difference between the two is explained: why this
    answer and not that one.
    """
    methods = choose_methods(former, inputs) if methods is None else methods
    for name in methods:
        if name not in METHODS:
            raise Error(f"there is no attribution {name!r}", fix=suggest_name(name, METHODS))
    if is_frozen(former.model) and any("gradient" in name for name in methods):
        what = "a model that was frozen for inference has no gradients"
        raise Error(what, fix="load it without freeze() or --dtype int8, or choose methods=['occlusion']")
    with torch.no_grad():
        target_choice = choose_target(former, inputs, target, contrast, position)
    if target_choice is None:
        return None
    return Explainer(former, *target_choice, tell).explain(methods, seed)


def choose_methods(former: Former, inputs: TextInputs) -> list[str]:
    """Choose the methods that a text is not too long for: two of them read it as often as it has tokens."""
    tokens = sum(len(side.tokens) for side in inputs.sides.values())
    gradients = FIRST_STRETCHES * POINTS * (1 + BACKWARD_PASSES)
    passes = {"input_x_gradient": 0, "integrated_gradients": gradients, "occlusion": tokens, "value_zeroing": tokens}
    once = estimate_pass(former, inputs)
    return [name for name in METHODS if is_bearable(former, passes[name] * once)]


def choose_target(
    former: Former, inputs: TextInputs, target: str | int | None, contrast: str | int | None, position: int | None
) -> tuple[TextInputs, Target] | None:
    """Choose what is explained, and return the inputs that it is read from: a masked model's token is hidden."""
    part, side = get_lm_part(former), inputs.main_side
    if part is None:
        return choose_label(former, inputs, target, contrast, position)
    tokens, labels = inputs.sides[side].tokens, inputs.label_ids
    plain = [i for i, token in enumerate(tokens) if not token.is_special and labels[i] >= 0]
    mask = former.tokenizer.id("mask") if former.tokenizer is not None and can_fill(former) else None
    blanks = [i for i, index in enumerate(labels) if mask is not None and index == mask]
    is_causal = not can_fill(former) and not former.is_two_stream
    if position is None and not (is_causal and side == "text"):
        position = next(iter(blanks), plain[-1] if plain else None)
    if position is not None and (type(position) is not int or not is_causal <= position < len(tokens)):
        fix = f"choose {int(is_causal)} to {len(tokens) - 1}"
        raise Error(f"position {format_value(position)} is not predicted", fix=fix)
    slot = len(tokens) - 1 if position is None else position - 1 if is_causal else position
    batch = inputs.get_batch()
    if can_fill(former):
        ids = batch.ids.clone()
        ids[slot] = mask
        inputs = replace(inputs, batch=batch.replace(ids=ids))
    elif former.is_two_stream:  # predicted from all others
        order = torch.zeros(len(tokens), dtype=torch.long, device=former.device)
        order[slot] = 1
        inputs = replace(inputs, batch=batch.replace(order=order))
    bare = Target(side, part, slot, position, 0, "")
    if target is None and (position is None or position in blanks or labels[position] < 0):
        answers = Explainer(former, inputs, bare).compute_answers(inputs.get_batch())
        index = list_candidates(former, answers, 1)[0][0].id
    else:
        index = labels[position] if target is None and position is not None else resolve_token(former, target)
    other = None if contrast is None else resolve_token(former, contrast)
    tokenizer = former.output_tokenizer
    return inputs, replace(
        bare, id=index, text=name_token(tokenizer, index), contrast_id=other,
        contrast_text=None if other is None else name_token(tokenizer, other),
    )  # fmt: skip


def choose_label(
    former: Former, inputs: TextInputs, target: str | int | None, contrast: str | int | None, position: int | None
) -> tuple[TextInputs, Target] | None:
    """Choose the label that is explained, by default the likeliest; None without a head."""
    name, head = next(((n, p) for n, p in former.model.parts.items() if p.out is not None), (None, None))
    if name is None or head is None or former.head == "beam":
        return None
    side = inputs.main_side
    slot = None
    if head.spec.pool is None:
        plain = [i for i, token in enumerate(inputs.sides[side].tokens) if not token.is_special]
        slot = (plain[0] if plain else 0) if position is None else position
        if type(slot) is not int or not 0 <= slot < len(inputs.sides[side].tokens):
            raise Error(f"there is no token {format_value(position)}", fix="positions count from 0")
    bare = Target(side, name, slot, slot, 0, "")
    answers = Explainer(former, inputs, bare).compute_answers(inputs.get_batch())[0]
    width = len(answers)
    names = list(former.labels) if len(former.labels) == width else [str(i) for i in range(width)]

    def resolve(value: str | int) -> int:
        if isinstance(value, str) and value in names:
            return names.index(value)
        if type(value) is int and 0 <= value < width:
            return value
        raise Error(f"there is no label {format_value(value)}", fix="known: " + ", ".join(names[:20]))

    index = int(answers.argmax()) if target is None else resolve(target)
    other = None if contrast is None else resolve(contrast)
    chosen = replace(bare, id=index, text=names[index], contrast_id=other)
    return inputs, chosen if other is None else replace(chosen, contrast_text=names[other])


def resolve_token(former: Former, token: str | int | None) -> int:
    """Return the id of a token given by its text or its id."""
    tokenizer, size = former.output_tokenizer, former.output_vocab
    if type(token) is int and 0 <= token < size:
        return token
    if not isinstance(token, str) or tokenizer is None:
        raise Error(f"{format_value(token)} is not a token", fix=f"give its text, or an id from 0 to {size - 1}")
    if former.definition.reads_characters:
        index = tokenizer.backend.token_to_id(token)
        ids = [] if index is None else [index]
    else:
        ids = tokenizer.encode(token, special=False, parse_special=False)
        ids = ids[1:] if len(ids) == 2 and not tokenizer.get_token_text(ids[0]).strip(" ▁") else ids
    if len(ids) != 1:
        pieces = ", ".join(repr(tokenizer.get_token_text(i)) for i in ids) or "none that is known"
        raise Error(f"{token!r} is not one token but {len(ids)}: {pieces}", fix="give one of them")
    return ids[0]


@dataclass(frozen=True)
class Stretch:
    """A stretch of the way from the replaced text to the text: its attributions (T,) by side, and what they miss."""

    low: float
    high: float
    scores: Shares
    error: float


class Explainer:
    """Computes the explained value for copies of a text some of whose tokens are replaced."""

    def __init__(
        self, former: Former, inputs: TextInputs, target: Target, tell: ProgressCallback | None = None
    ):  # fmt: skip
        self.former, self.inputs, self.target, self.tell = former, inputs, target, tell
        self.stage, self.done, self.expected = "", 0, 0  # what is computed now, and how many copies of how many
        self.replacement_id = choose_replacement(former)
        self.removable = self.find_removable()

    def find_removable(self) -> dict[str, list[int]]:
        """Find the tokens of each side that can be removed: no special ones, not the hidden one, and of a side that is
        read from left to right none after the position that is explained."""
        slot, tokens = self.target.slot, {}
        is_masked = can_fill(self.former) or self.former.is_two_stream
        for side, one in self.inputs.sides.items():
            places = [i for i, token in enumerate(one.tokens) if not token.is_special]
            if side == self.target.side and slot is not None and get_lm_part(self.former) is not None:
                places = [i for i in places if i != slot] if is_masked else [i for i in places if i <= slot]
            tokens[side] = places
        return tokens

    def explain(self, methods: Sequence[str], seed: int) -> Attribution:
        """Compute the attributions of some methods, each with its deletion curve."""
        whole, nothing = self.make_shares(1), self.make_shares(1)
        for side, places in self.removable.items():
            nothing[side][:, places] = 0.0
        with torch.no_grad():
            value, baseline = float(self.compute_values(whole)), float(self.compute_values(nothing))
        tokenizer = self.former.tokenizer
        name = "zeros" if self.replacement_id is None else name_token(tokenizer, self.replacement_id)
        self.begin_stage("random order")
        random = self.measure_random(seed)
        scores = {}
        for method in methods:
            self.begin_stage(method.replace("_", " "))
            if (attribution := self.run_method(method, value, baseline)) is not None:
                curve = DeletionCurve(list(DELETION_SHARES), self.measure_deletion(attribution.sides), random)
                scores[method] = replace(attribution, deletion=curve)
        return Attribution(self.target, value, baseline, name, scores)

    def begin_stage(self, name: str) -> None:
        """Begin a stage of which progress is reported."""
        self.stage, self.done, self.expected = name, 0, 0

    def report_rows(self, done: int, expected: int = 0) -> None:
        """Report copies that were read, and how many more are expected."""
        self.done, self.expected = self.done + done, self.expected + expected
        if self.tell is not None and self.stage:
            self.tell(self.stage, self.done, self.expected, "")

    def run_method(self, method: str, value: float, baseline: float) -> MethodScores | None:
        """Compute one method's scores; None where the model has nothing that it could be applied to."""
        if method == "input_x_gradient":
            gradients = self.compute_gradients(self.make_shares(1), relative=False)
            return MethodScores({side: x[0].float() for side, x in gradients.items()})
        if method == "integrated_gradients":
            return self.integrate_gradients(value, baseline)
        if method == "occlusion":
            return MethodScores(self.occlude(value))
        return self.zero_values(value)

    def make_shares(self, rows: int) -> Shares:
        """Make shares of 1 for so many copies: nothing is replaced."""
        return {side: torch.ones(rows, len(one.tokens)) for side, one in self.inputs.sides.items()}

    def iterate_rows(self, shares: Shares) -> Iterator[Shares]:
        """Split copies into groups that are read at once."""
        longest = sum(x.shape[1] for x in shares.values())
        step, rows = max(1, ROW_TOKENS // longest), len(next(iter(shares.values())))
        self.report_rows(0, rows)
        for low in range(0, rows, step):
            yield {side: x[low : low + step] for side, x in shares.items()}
            self.report_rows(min(step, rows - low))

    def compute_values(self, shares: Shares) -> Tensor:
        """Compute the explained value (R,) of each copy."""
        values = []
        for some in self.iterate_rows(shares):
            batch = repeat_document(self.inputs.get_batch(), len(next(iter(some.values()))))
            with self.mix_embeddings(batch, some):
                values.append(self.select_value(self.compute_answers(batch)))
        return torch.cat(values).cpu()

    def compute_answers(self, batch: Batch, memory: Settings | None = None) -> Tensor:
        """Compute the head's answers (R, width) at the explained position of each copy. `memory` is the earlier text as
        `read_memory` returns it, if that was read already."""
        model, slot = self.former.model, self.target.slot
        hidden = model(batch, **(self.read_memory(batch) if memory is None else memory))
        if slot is None:
            answers = model.logits(hidden, batch, self.target.part).float()
        else:
            at = batch.starts[:-1].long() + slot
            answers = compute_logits(self.former, hidden[at], self.target.part)
        if not bool(answers.isfinite().all()):
            raise NonFinite("logits")
        return answers

    def read_memory(self, batch: Batch) -> Settings:
        """Read the earlier text, if there is one, into a memory of as many rows as there are copies."""
        rows = batch.starts.shape[0] - 1
        if self.inputs.memory_ids is None or rows == 1:
            return fill_memory(self.former, self.inputs)
        size = self.former.config.memory or len(self.inputs.memory_ids)
        how = self.former.build_forward_args(self.former.create_state(rows, size), None)
        self.former.model(Batch.from_rows([self.inputs.memory_ids.tolist()] * rows, self.former.device), **how)
        return how

    def select_value(self, answers: Tensor) -> Tensor:
        """Select the explained logit (R,), or its difference to the contrast's."""
        value = answers[:, self.target.id]
        return value if self.target.contrast_id is None else value - answers[:, self.target.contrast_id]

    @contextlib.contextmanager
    def mix_embeddings(
        self, batch: Batch, shares: Shares, embeddings: list[tuple[str, Tensor, Tensor, Tensor]] | None = None
    ) -> Iterator[None]:
        """Mix each token's embedding with its replacement's by the shares. `embeddings` receives of every table that is
        read: the side, the embeddings, the replacement's, and a tensor of zeros added to the mix, for gradients."""
        sides = {"text": batch.ids} if batch.source is None else {"source": batch.source.ids, "target": batch.ids}

        def mix(module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
            side = next((name for name, ids in sides.items() if ids is given[0]), None)
            if side is None:  # other ids are looked up as well, such as GPT-2's segments
                return output
            base = torch.zeros_like(output[:1])
            if self.replacement_id is not None and not isinstance(module, CharacterCNN):
                base = module.forward(torch.tensor([self.replacement_id], device=output.device))
            share = shares[side].flatten()[:, None].to(output)
            mixed = base + (output - base) * share
            if embeddings is None:
                return torch.where(share == 1, output, mixed)  # bit for bit, where nothing is replaced
            zeros = torch.zeros_like(output, requires_grad=True)
            embeddings.append((side, output.detach(), base.detach(), zeros))
            return mixed + zeros

        hooks = [table.register_forward_hook(limit_to_thread(mix)) for table in find_tables(self.former.model.body)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def compute_gradients(self, shares: Shares, relative: bool = True) -> Shares:
        """Compute gradient · embedding of every token of each copy, (R, T) by side; with `relative`, embeddings count
        from that of the replacement. What cannot be removed has 0: it does not change on the way."""
        rows: dict[str, list[Tensor]] = {side: [] for side in shares}
        for some in self.iterate_rows(shares):
            count = len(next(iter(some.values())))
            batch = repeat_document(self.inputs.get_batch(), count)
            embeddings: list[tuple[str, Tensor, Tensor, Tensor]] = []
            with torch.enable_grad(), self.mix_embeddings(batch, some, embeddings):
                value = self.select_value(self.compute_answers(batch)).sum()
                slopes = torch.autograd.grad(value, [one[3] for one in embeddings], allow_unused=True)
            total = {side: torch.zeros(count, x.shape[1], dtype=torch.float64) for side, x in some.items()}
            for (side, x, base, _), slope in zip(embeddings, slopes, strict=True):
                if slope is not None:
                    product = (slope * (x - base if relative else x)).double().sum(-1)
                    total[side] += product.view(count, -1).cpu()
            for side, gradient in total.items():
                keep = torch.zeros(gradient.shape[1], dtype=gradient.dtype)
                keep[self.removable[side]] = 1.0
                rows[side].append(gradient * keep)
        return {side: torch.cat(parts) for side, parts in rows.items()}

    def integrate_gradients(self, value: float, baseline: float) -> MethodScores:
        """Integrate the gradients from the replaced text to the text (Sundararajan et al. 2017, arXiv:1703.01365).

        On every stretch of the way the attributions must sum to the change of the value, so that the error of each is
        known: those that miss most are halved until the whole misses little, or the steps are used up.
        """
        edges = np.linspace(0, 1, FIRST_STRETCHES + 1)
        stretches = self.integrate_stretches(edges[:-1], edges[1:])
        limit, steps = MAX_GAP * max(abs(value - baseline), 1e-6), FIRST_STRETCHES * POINTS
        while abs(sum(one.error for one in stretches)) > limit and steps < MAX_STEPS:
            stretches.sort(key=lambda one: abs(one.error))
            worst = [stretches.pop() for _ in range(min(FIRST_STRETCHES // 2, len(stretches)))]
            low, high = np.array([one.low for one in worst]), np.array([one.high for one in worst])
            middle = (low + high) / 2
            stretches += self.integrate_stretches(np.append(low, middle), np.append(middle, high))
            steps += 2 * len(worst) * POINTS
        scores = {side: torch.stack([one.scores[side] for one in stretches]).sum(0) for side in self.inputs.sides}
        gap = abs(sum(float(x.sum()) for x in scores.values()) - (value - baseline)) / max(abs(value - baseline), 1e-6)
        return MethodScores({side: x.float() for side, x in scores.items()}, gap)

    def integrate_stretches(self, low: np.ndarray, high: np.ndarray) -> list[Stretch]:
        """Integrate over stretches of the way with Gauss-Legendre points."""
        places, weights = np.polynomial.legendre.leggauss(POINTS)
        at = low[:, None] + (places + 1) / 2 * (high - low)[:, None]  # (stretches, points)
        gradients = self.compute_gradients(self.make_way(at.ravel()))
        factors = torch.from_numpy(weights / 2 * (high - low)[:, None])  # (stretches, points)
        parts = {side: (x.unflatten(0, at.shape) * factors[..., None]).sum(1) for side, x in gradients.items()}
        with torch.no_grad():
            before, after = (self.compute_values(self.make_way(ends)).double() for ends in (low, high))
        totals = []
        for i, (a, b) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
            scores = {side: x[i] for side, x in parts.items()}
            error = sum(float(x.sum()) for x in scores.values()) - float(after[i] - before[i])
            totals.append(Stretch(a, b, scores, error))
        return totals

    def make_way(self, places: np.ndarray) -> Shares:
        """Make the shares of points (R,) on the way from the replaced text (0) to the text (1)."""
        shares = self.make_shares(len(places))
        for side, where in self.removable.items():
            shares[side][:, where] = torch.from_numpy(places).float()[:, None]
        return shares

    @torch.no_grad()
    def occlude(self, value: float) -> Shares:
        """Measure how much the value falls when each token is replaced alone."""
        return {side: self.measure_drops(side, value) for side in self.inputs.sides}

    def measure_drops(self, side: str, value: float) -> Tensor:
        """Measure the fall of the value (T,) for each token of a side that can be removed."""
        places, drops = self.removable[side], torch.zeros(len(self.inputs.sides[side].tokens))
        if places:
            shares = self.make_shares(len(places))
            shares[side][torch.arange(len(places)), places] = 0.0
            drops[places] = value - self.compute_values(shares)
        return drops

    @torch.no_grad()
    def zero_values(self, value: float) -> MethodScores | None:
        """Measure how much the value falls when a token's value vectors are zero in every attention, so that no other
        token reads from it (after Mohebbi et al. 2023, arXiv:2301.12971); None without attention."""
        attentions = find_attentions(self.former.model.body)
        if not attentions:
            return None
        scores = {}
        for side in self.inputs.sides:
            places, drops = self.removable[side], torch.zeros(len(self.inputs.sides[side].tokens))
            self.report_rows(0, len(places))
            for low in range(0, len(places), step := max(1, ROW_TOKENS // len(drops))):
                some = places[low : low + step]
                batch = repeat_document(self.inputs.get_batch(), len(some))
                keep = torch.ones(len(some), len(drops), device=self.former.device)
                keep[torch.arange(len(some)), some] = 0.0
                memory = self.read_memory(batch)  # before any value is zero
                with zero_projected_values(self.former, side, keep.flatten()):
                    drops[some] = value - self.select_value(self.compute_answers(batch, memory)).cpu()
                self.report_rows(len(some))
            scores[side] = drops
        return MethodScores(scores)

    @torch.no_grad()
    def measure_deletion(self, scores: Shares) -> Tensor:
        """Measure the value while the tokens are removed, the highest attribution first."""
        places = [(side, at) for side, where in self.removable.items() for at in where]
        values = torch.tensor([float(scores[side][at]) for side, at in places])
        return self.follow_order([places[i] for i in values.argsort(descending=True, stable=True).tolist()])

    @torch.no_grad()
    def measure_random(self, seed: int) -> Tensor:
        """Measure the value while the tokens are removed in random order: the mean of several orders."""
        places = [(side, at) for side, where in self.removable.items() for at in where]
        generator = torch.Generator().manual_seed(seed)
        once = estimate_pass(self.former, self.inputs)
        is_short = is_bearable(self.former, len(METHODS) * RANDOM_ORDERS * len(DELETION_SHARES) * once)
        count = RANDOM_ORDERS if is_short else FEW_ORDERS
        orders = [torch.randperm(len(places), generator=generator).tolist() for _ in range(count)]
        return torch.stack([self.follow_order([places[i] for i in order]) for order in orders]).mean(0)

    def follow_order(self, order: list[tuple[str, int]]) -> Tensor:
        """Compute the value at each share of the tokens removed, in this order."""
        shares = self.make_shares(len(DELETION_SHARES))
        for row, share in enumerate(DELETION_SHARES):
            for side, at in order[: round(share * len(order))]:
                shares[side][row, at] = 0.0
        return self.compute_values(shares)


def choose_replacement(former: Former) -> int | None:
    """Choose the token that stands for a removed one: padding, else the unknown token, else a mark; None: zeros."""
    if former.definition.reads_characters:
        return None
    tokenizer, size = former.tokenizer, former.config.vocab
    known = [None if tokenizer is None else tokenizer.id(role) for role in ("pad", "unk", "eos", "bos")]
    return next((i for i in (known[0], former.config.pad, *known[1:]) if i is not None and 0 <= i < size), None)


def find_tables(body: nn.Module) -> list[nn.Module]:
    """Find the modules that look up tokens: tables, or ELMo's words out of characters."""
    tables = [m.token for m in body.modules() if isinstance(m, Embeddings)]
    tables += [m for m in body.modules() if isinstance(m, CharacterCNN)]
    return list(dict.fromkeys(tables))


@contextlib.contextmanager
def zero_projected_values(former: Former, side: str, keep: Tensor) -> Iterator[None]:
    """Multiply the value vectors of a side's tokens by `keep` (N,) in every attention that reads them."""
    owners = {"text": ("encoder", "decoder"), "source": ("encoder", "cross"), "target": ("decoder",)}[side]

    def make_hook(parts: int) -> Hook:
        def zero(module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
            *others, values = output.chunk(parts, -1)
            return torch.cat((*others, values * keep[:, None].to(values)), -1)

        return zero

    hooks, done = [], set[str]()
    for (kind, _), (path, module) in find_attentions(former.model.body).items():
        if kind not in owners or path in done:
            continue
        done.add(path)  # layers may share a block
        projection, parts = (module.kv, 2) if module.is_cross else (module.qkv, 3)
        hooks.append(projection.register_forward_hook(limit_to_thread(make_hook(parts))))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
