"""How long the parts of a view take, in floating-point operations, so that the same text always gives the same view:
what takes long is left out unless somebody asks for it, and the view says so."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from ..config import JSONObject
from ..former import Former
from ..model import estimate_flops_per_token
from .sides import TextInputs

# Operations, by whether there is a GPU: two cores do about 10¹¹ in a second, an H200 a hundred times as many.
MAX_DEFAULT_FLOPS = {False: 1e11, True: 1e13}  # of a part that nobody has asked for
MAX_ASKED_FLOPS = {False: 2e13, True: 2e15}  # of one kind of attribution, or of head costs, that is not named itself
BACKWARD_PASSES = 2  # a backward pass takes as long as so many forward passes


@dataclass(frozen=True)
class LeftOut:
    """A part of a view that was not computed: because of its size, or because only some want it."""

    name: str  # a view, "masked" (hiding each token in turn), or a method of attribution
    option: str  # of the command line, which adds it
    reason: Literal["size", "default"]

    def to_dict(self) -> JSONObject:
        """Return the part as the view document has it."""
        return asdict(self)


def estimate_pass(former: Former, inputs: TextInputs) -> float:
    """Estimate the operations of one forward pass over a text, without the output layer."""
    batch = inputs.get_batch()
    source = 0 if batch.source is None else batch.source.ids.shape[0]
    tokens = batch.ids.shape[0] + source
    share = batch.ids.shape[0] / tokens
    each = estimate_flops_per_token(former.model, max(batch.longest, source), 0.0, share)
    return each * tokens / (1 + BACKWARD_PASSES)


def estimate_logits(former: Former, positions: int) -> float:
    """Estimate the operations of the output layer at some positions."""
    return 2.0 * former.config.dim * former.output_vocab * positions


def is_cheap(former: Former, flops: float) -> bool:
    """Return whether a part may be computed that nobody has asked for."""
    return flops <= MAX_DEFAULT_FLOPS[former.device.type == "cuda"]


def is_bearable(former: Former, flops: float) -> bool:
    """Return whether a part may be computed whole that was asked for along with others."""
    return flops <= MAX_ASKED_FLOPS[former.device.type == "cuda"]
