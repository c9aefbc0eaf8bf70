"""Scheduled sampling (Bengio et al. 2015): in training, a recurrent decoder reads some of its own predictions in place
of the target."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor

from ..batch import Batch
from ..errors import Error
from ..nn.encoder_decoder import RecurrentEncoderDecoder
from ..protocols import Model
from .token_losses import upcast_logits

SamplingSchedule = Literal["constant", "linear", "exponential", "inverse-sigmoid"]
# Schedule → the least and the largest decay (the least is excluded, unless it is 1), and an example.
DECAY_BOUNDS: dict[str, tuple[float, float, str]] = {
    "linear": (0.0, 1.0, "0.0001: so much less of the target at every step"),
    "exponential": (0.0, 1.0, "0.9999: so much of the share is left after every step"),
    "inverse-sigmoid": (1.0, math.inf, "1000: the steps over which the share falls"),
}
ONLY_RECURRENT = "only a recurrent decoder can be trained on its own predictions"


@dataclass(frozen=True, kw_only=True)
class ScheduledSampling:
    """Scheduled sampling (§2.4), for recurrent decoders: in training each input of the decoder is the target's token
    with a probability ε, else the token that the decoder predicts there, drawn from its distribution or the likeliest
    one. At step i, with k the `sampling_decay`, ε is `teacher_forcing` ("constant"), `teacher_forcing` - k·i
    ("linear"), or `teacher_forcing` times k^i ("exponential") or k / (k + exp(i / k)) ("inverse-sigmoid"), and never
    below `min_teacher_forcing`. Validation always reads the target."""

    teacher_forcing: float = 1.0  # the share of a recurrent decoder's inputs that are the target's, not predictions
    sampling_schedule: SamplingSchedule = "constant"  # how that share falls: linear, exponential or inverse-sigmoid,
    sampling_decay: float | None = None  # and how fast
    min_teacher_forcing: float = 0.0  # the share that it does not fall below
    sampled_token: Literal["drawn", "likeliest"] = "drawn"  # which prediction is read

    def __post_init__(self) -> None:
        for name, share in (
            ("teacher_forcing", self.teacher_forcing),
            ("min_teacher_forcing", self.min_teacher_forcing),
        ):
            if not 0 <= share <= 1:
                raise Error(f"{name} is a share between 0 and 1, got {share}", fix="15 % is 0.15")
        schedule, decay = self.sampling_schedule, self.sampling_decay
        if schedule == "constant":
            if decay is not None or self.min_teacher_forcing:
                name = "min_teacher_forcing" if decay is None else "sampling_decay"
                raise Error(f"{name} belongs to a sampling_schedule", fix="choose one, for example linear")
            return
        low, high, example = DECAY_BOUNDS[schedule]
        if decay is None or not (low < decay < high or decay == low == 1.0):
            bounds = "at least 1" if low else f"between {low:g} and {high:g}"
            what = f"the sampling_schedule {schedule} needs a sampling_decay {bounds}"
            what += "" if decay is None else f", got {decay}"
            raise Error(what, fix=f"for example {example}")

    @property
    def should_sample_inputs(self) -> bool:
        """True if the decoder is trained on predictions of its own, at some steps at least."""
        return self.teacher_forcing < 1 or self.sampling_schedule != "constant"

    def compute_teacher_forcing(self, step: int) -> float:
        """Compute the share of the decoder's inputs at a step, counted from 0, that are the target's tokens."""
        decay = self.sampling_decay
        if decay is None:
            return self.teacher_forcing
        if self.sampling_schedule == "linear":
            share = self.teacher_forcing - decay * step
        elif self.sampling_schedule == "exponential":
            share = self.teacher_forcing * decay**step
        else:  # the exponent is bounded, for exp would overflow
            share = self.teacher_forcing * decay / (decay + math.exp(min(step / decay, 700.0)))
        return max(self.min_teacher_forcing, share)

    def draw_predicted_inputs(self, batch: Batch, step: int) -> Batch:
        """Draw which inputs of the decoder are its own predictions. They are drawn at a share of 1 too: a recorded
        CUDA graph takes batches with the same fields at every step."""
        if not self.should_sample_inputs:
            return batch
        predicted = torch.rand(len(batch.ids)) >= self.compute_teacher_forcing(step)
        return batch.replace(predicted_inputs=predicted if isinstance(batch.ids, Tensor) else predicted.numpy())

    def compute_hidden(self, model: Model, batch: Batch, part: str) -> Tensor:
        """Compute the decoder's hidden states, with its own predictions as inputs where the batch has them."""
        if batch.predicted_inputs is None:
            return model(batch)
        if not isinstance(model.body, RecurrentEncoderDecoder):
            raise Error(ONLY_RECURRENT, fix="leave out teacher_forcing and sampling_schedule")

        def predict_token(hidden: Tensor) -> Tensor:
            logits = upcast_logits(model.logits(hidden.detach(), part=part))
            return (add_gumbel_noise(logits) if self.sampled_token == "drawn" else logits).argmax(-1)

        return model(batch, predict_token=predict_token)


SAMPLING_OPTIONS = tuple(field.name for field in fields(ScheduledSampling))
ONLY_TARGET = ScheduledSampling()  # no predictions are read


def add_gumbel_noise(logits: Tensor) -> Tensor:
    """Add Gumbel noise to logits: the largest is then a draw from their softmax, and no host sync is needed."""
    return logits - torch.log(-torch.log(torch.rand_like(logits)))
