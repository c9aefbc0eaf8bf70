"""The interfaces between packages, as types: what a model, an objective, a source of examples and the records of a run
must have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from torch import Tensor, nn

from .batch import Array, Batch, BatchShape
from .config import JSONObject

if TYPE_CHECKING:
    from .model import HeadPart
    from .nn.layers import Embeddings

Losses = dict[str, tuple[Tensor, Tensor]]  # by name: the sum, and the number of labels that it is divided by


class Body(Protocol):
    """The network under the heads: packed ids in, hidden states (N, dim) out."""

    embed: Embeddings  # the input embeddings; ERNIE 2.0 has a table of tasks in them
    encoder: nn.Module  # of encoder-decoders

    @property
    def embedding_table(self) -> Tensor:
        """(vocab, dim) the token embeddings, which a tied output layer shares."""

    def __call__(self, batch: Batch, **options: object) -> Tensor:
        """Compute hidden states; options are a cache or memory, a capture and masks of heads."""


class Model(Protocol):
    """A body and its head, as objectives see it."""

    training: bool

    @property
    def body(self) -> Body:
        """The network under the head."""

    @property
    def parts(self) -> Mapping[str, HeadPart]:
        """The parts of the head by name, each with its output layer `out` and its declaration `spec`."""

    def __call__(self, batch: Batch, **options: object) -> Tensor:
        """Compute hidden states (N, dim); of an encoder-decoder, the decoder's."""

    def logits(self, hidden: Tensor, batch: Batch | None = None, part: str | None = None) -> Tensor:
        """Compute what a part of the head answers; parts that pool need the batch of the hidden states."""


class Objective(Protocol):
    """A training objective as the trainer and validation see it; those over text also make examples (data/plans.py)."""

    @property
    def part(self) -> str:
        """The part of the head that it trains."""

    @property
    def pair_part(self) -> str | None:
        """The part of the head that answers for whole documents: NSP, SOP."""

    @property
    def head_parts(self) -> frozenset[str]:
        """All parts of the head that it trains."""

    def keep_own_labels(self, batch: Batch) -> Batch:
        """Return a batch in which the labels of `part` alone count."""

    @property
    def num_streams(self) -> int:
        """How many parallel streams of text carry their state from batch to batch; 0: none."""

    @property
    def streams_per_batch(self) -> int:
        """How many of the streams a batch has; 0: all of them."""

    @property
    def reuse_length(self) -> int | None:
        """How many tokens of a segment are remembered; None: all."""

    def count_labels(self, batch: Batch) -> dict[str, int]:
        """Count the labels of each named loss, which is known before the model has run."""

    def prepare_step_batch(self, batch: Batch, step: int) -> Batch:
        """Return a training batch with what depends on the step, drawn from torch's generator on the CPU."""

    def loss(self, model: Model, batch: Batch) -> Losses:
        """Compute the named losses as (sum, count)."""

    def select_labels(self, batch: Batch) -> Array:
        """Return the labels that its own part is asked for, of a batch that is still in numpy."""


class ExamplePlan(Protocol):
    """The examples of an epoch in the order of their use, numbered from 0."""

    def __len__(self) -> int: ...

    def slice_examples(self: PlanType, low: int, high: int) -> PlanType:
        """Return a plan of the examples low … high - 1 alone, numbered from 0."""


PlanType = TypeVar("PlanType", bound=ExamplePlan)


class ExampleSource(Protocol[PlanType]):
    """Examples out of which the loader makes batches: a token store with an objective (data/plans.py), encoded examples
    of a task (data/encoded_examples.py), or a mixture of sources (data/mixture.py)."""

    def plan_epoch(self, seed: int, epoch: int) -> PlanType:
        """Choose the examples of an epoch; every epoch has as many."""

    def measure_sizes(self, plan: PlanType) -> np.ndarray:
        """Measure examples as (E, 3): at most so many tokens, labels and source tokens of each."""

    def choose_shape(self, total: int, plan: PlanType) -> BatchShape:
        """Choose the shape of batches with room for `total` tokens (on the larger side) of examples like a plan's."""

    def make_batch(self, plan: PlanType, samples: np.ndarray, seed: int) -> Batch:
        """Make an unpadded numpy batch of all examples of a plan; `samples` (E,) are their numbers over all epochs, on
        which every random draw depends."""


AnySource = ExampleSource[Any]  # dynamic: the class of its plans, which nobody else looks into


class Listener(Protocol):
    """What follows the weights in training, such as a rule of the family's."""

    def on_update(self, step: int) -> None:
        """Act after a step has changed the weights; `step` were done before it. Skipped steps are not reported."""


class RunRecords(Protocol):
    """What a report reads of a run."""

    @property
    def path(self) -> Path:
        """The run's folder."""

    def read_info(self) -> JSONObject:
        """Read run.json: settings, data, machine and result."""

    def read_history(self) -> list[JSONObject]:
        """Read the measurements so far, one row for each step or evaluation."""

    def read_samples(self) -> list[JSONObject]:
        """Read what the model could do at some steps: rows with `step`, `given`, `made` and perhaps `target`."""


class AttentionWeights(Protocol):
    """What a report shows of a model's attention over a text."""

    @property
    def tokens(self) -> Sequence[str]:
        """The pieces of the text."""

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The weights (layers, heads, queries, keys) by kind: encoder, decoder."""
