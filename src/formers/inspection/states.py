"""Hidden states of a text's tokens, layer by layer: a picture in two dimensions and the nearest neighbours; and what
changes between two texts.

T tokens.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ..config import JSONObject
from ..errors import NonFinite
from ..former import Former
from ..nn.encoder_decoder import EncoderDecoder, RecurrentEncoderDecoder
from ..tasks.word_vectors import find_nearest_words, look_up_words
from .document import round_floats
from .recording import Recording, find_final_norm
from .sides import Side, TextInputs

if TYPE_CHECKING:
    from .api import View

MAX_NEIGHBOURS, FEW_NEIGHBOURS = 3, 1  # of a token; few in a long text
LONG_TEXT = 128  # tokens
MAX_FULL_DECOMPOSITION = 128  # rows of a matrix of which all eigenvectors are computed
SUBSPACE, MAX_ITERATIONS, MAX_AXIS_ERROR = 16, 40, 3e-6  # of a larger one: vectors that are iterated, rounds, residual


@dataclass(frozen=True)
class NearToken:
    """A token that lies near: its index in the text (of word vectors, in the vocabulary), its text and the cosine."""

    index: int
    text: str
    cosine: float


@dataclass(frozen=True)
class LayerStates:
    """One layer: the states (T, dim), their first two principal components (T, 2), the share of the variance that each
    explains, and the nearest tokens of each token."""

    layer: int  # 0: the embeddings
    vectors: Tensor
    projection: Tensor
    explained: Tensor
    neighbours: list[list[NearToken]]


@dataclass(frozen=True)
class States:
    """The hidden states of a side, layer by layer."""

    side: str
    layers: list[LayerStates]

    def to_dict(self) -> JSONObject:
        """Return the states as the view document has them."""
        return {
            "side": self.side,
            "layers": [
                {
                    "layer": one.layer, "pca": round_floats(one.projection), "explained": round_floats(one.explained),
                    "neighbours": [
                        [{"index": n.index, "text": n.text, "cosine": round_floats(n.cosine)} for n in row]
                        for row in one.neighbours
                    ],
                }
                for one in self.layers
            ],
        }  # fmt: skip


@torch.inference_mode()
def read_states(former: Former, inputs: TextInputs, recording: Recording) -> States:
    """Read the states of a recorded pass: of the text, or of an encoder-decoder's source."""
    body = former.model.body
    name, side = ("encoder", "source") if "source" in inputs.sides else (next(iter(recording.states)), "text")
    layers = list(recording.states[name])
    if isinstance(body, RecurrentEncoderDecoder):
        source = inputs.get_batch().source
        assert source is not None
        layers.append(body.encode(source))
    norm = find_final_norm(body)
    if side == "source" and isinstance(body, EncoderDecoder) and body.encoder is not None:
        norm = body.encoder.norm
    if norm is not None and layers:
        layers[-1] = norm(layers[-1])
    length = len(inputs.sides[side].tokens)
    return States(side, [describe_layer(i, x[:length], inputs.sides[side]) for i, x in enumerate(layers)])


def look_up_states(former: Former, inputs: TextInputs) -> States:
    """Look up the vectors of words; their neighbours are words of the whole vocabulary."""
    side = inputs.sides["text"]
    vectors, known = look_up_words(former, [token.piece for token in side.tokens])
    assert former.tokenizer is not None
    rows, number = [], former.tokenizer.backend.token_to_id
    for vector, token, is_known in zip(vectors.float(), side.tokens, known.tolist(), strict=True):
        if not bool(vector.isfinite().all()):
            raise NonFinite("word vectors")
        direction = F.normalize(vector, dim=-1)
        near = find_nearest_words(former, direction, MAX_NEIGHBOURS, [token.piece]) if is_known else []
        rows.append([NearToken(number(word), word, cosine) for word, cosine in near])
    projection, explained = project(vectors.float().cpu())
    return States("text", [LayerStates(0, vectors.float().cpu(), projection, explained, rows)])


def describe_layer(number: int, states: Tensor, side: Side) -> LayerStates:
    """Project one layer's states (T, dim) and find each token's nearest others."""
    vectors = states.float().cpu()
    if not bool(vectors.isfinite().all()):
        raise NonFinite("hidden states")
    unit = F.normalize(vectors, dim=-1)
    cosine = (unit @ unit.T).fill_diagonal_(-2.0)
    count = min(MAX_NEIGHBOURS if len(vectors) <= LONG_TEXT else FEW_NEIGHBOURS, len(vectors) - 1)
    rows: list[list[NearToken]] = [[] for _ in side.tokens]
    if count > 0:
        best = cosine.topk(count, -1)
        for row, values, places in zip(rows, best.values.tolist(), best.indices.tolist(), strict=True):
            row += [NearToken(j, side.tokens[j].text, value) for value, j in zip(values, places, strict=True)]
    projection, explained = project(vectors)
    return LayerStates(number, vectors, projection, explained, rows)


def project(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Project vectors (T, dim) on their first two principal components; returns (T, 2) and the explained shares (2,).

    The sign of a component is that which makes its largest coordinate positive, so that a picture is always the same.
    """
    centred = vectors - vectors.mean(0)
    if len(vectors) <= MAX_FULL_DECOMPOSITION:
        centred = centred.double()
    products = centred @ centred.T if len(vectors) <= vectors.shape[1] else centred.T @ centred
    values, axes = find_main_axes(products)
    placed = axes * values.sqrt() if len(vectors) <= vectors.shape[1] else centred.double() @ axes
    signs = placed.gather(0, placed.abs().argmax(0)[None]).sign()[0]
    placed = placed * torch.where(signs == 0, 1.0, signs)
    total = centred.square().sum(dtype=torch.double).clamp(min=1e-30)
    padding = 2 - placed.shape[1]
    return F.pad(placed, (0, padding)).float(), F.pad(values / total, (0, padding)).float()


def find_main_axes(products: Tensor) -> tuple[Tensor, Tensor]:
    """Find the two largest eigenvalues (2,) of a symmetric matrix (n, n) that has none below 0, and their vectors.

    Of a large matrix, by subspace iteration in its own precision: all eigenvectors would take most of the time of a
    long text's view. Where that does not settle, by a full decomposition.
    """
    size = len(products)
    if size > MAX_FULL_DECOMPOSITION:
        axes = torch.randn(size, SUBSPACE, dtype=products.dtype, generator=torch.Generator().manual_seed(0))
        images = products @ axes
        for _ in range(MAX_ITERATIONS):
            axes = torch.linalg.qr(products @ images)[0]
            images = products @ axes
            values, turn = torch.linalg.eigh(axes.T @ images)
            values, turn = values.flip(0)[:2].clamp(min=0), turn.flip(1)[:, :2]
            error = (images @ turn - axes @ turn * values).norm(dim=0).max()
            if error <= MAX_AXIS_ERROR * values[0]:
                return values.double(), (axes @ turn).double()
    values, axes = torch.linalg.eigh(products.double())
    return values.flip(0)[:2].clamp(min=0), axes.flip(1)[:, :2]


def compare_views(first: View, second: View) -> JSONObject | None:
    """Describe what changes between two views of one model: the tokens that both texts have, the cosine of their states
    in every layer, and the change of their surprisal; None where the texts share no token."""
    if first.states is None or second.states is None or first.states.side != second.states.side:
        return None
    side = first.states.side
    pieces = [[token.piece for token in view.sides[side].tokens] for view in (first, second)]
    blocks = difflib.SequenceMatcher(None, pieces[0], pieces[1], autojunk=False).get_matching_blocks()
    pairs = [(block.a + i, block.b + i) for block in blocks for i in range(block.size)]
    if not pairs:
        return None
    a, b = (torch.tensor(places) for places in zip(*pairs, strict=True))
    layers = zip(first.states.layers, second.states.layers, strict=False)
    both = [(x.vectors[a], y.vectors[b]) for x, y in layers if x.vectors.shape[1] == y.vectors.shape[1]]
    changes: JSONObject = {"side": side, "pairs": [list(pair) for pair in pairs]}
    changes["cosine"] = [round_floats(F.cosine_similarity(x, y, dim=-1)) for x, y in both]
    surprisals = []
    for view in (first, second):
        prediction = view.prediction
        if prediction is not None and prediction.side == side and prediction.targets:
            surprisals.append(dict(zip(prediction.targets, prediction.surprisal.tolist(), strict=True)))
    if len(surprisals) == 2:
        before, after = surprisals
        changes["surprisal"] = [
            round_floats(after[j] - before[i]) if i in before and j in after else None for i, j in pairs
        ]
    return changes
