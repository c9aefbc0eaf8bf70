"""Attention weights of a text, computed beside the kernel that makes the output."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import Error, NonFinite
from ..former import Former
from ..inputs import ModelInputs
from ..nn.attention.context import Capture

MAX_SHOWN = 12  # pieces that a repr names


@dataclass(frozen=True, repr=False)
class Attention:
    """Pieces of a text and, by kind (encoder, decoder, cross), the weights (layers, heads, queries, keys)."""

    tokens: list[str]
    weights: dict[str, Tensor]

    def __repr__(self) -> str:
        """Describe the pieces and the shapes of the weights in one line."""
        some = " ".join(self.tokens[:MAX_SHOWN]) + (" …" if len(self.tokens) > MAX_SHOWN else "")
        tables = ", ".join(f"weights[{kind!r}] {tuple(table.shape)}" for kind, table in self.weights.items())
        return f"Attention({len(self.tokens)} pieces: {some}; {tables})"


@torch.inference_mode()
def attention(former: Former, text: str) -> Attention:
    """Compute the attention weights of a text in every layer and head.

    Weights show where a layer reads from, and do not explain why the model answers as it does (Jain & Wallace 2019,
    Wiegreffe & Pinter 2019).
    """
    nothing = Error(f"{former.family} has no attention within a text", fix="look at another member of the family")
    if former.definition.reads_characters:  # ELMo, which reads characters
        raise nothing
    if former.tokenizer is None:
        raise Error("this model has no tokenizer", fix="load one that has, to look at text")
    if not (ids := former.tokenizer.encode(text, normalise=True)):
        raise Error("the text is empty", fix="give some text to look at")
    batch, _ = former.pack_inputs(ModelInputs(torch.tensor([ids])), encoder_only=former.is_encoder_decoder)
    capture = Capture(with_attention=True)
    (former.model.body.encode if former.is_encoder_decoder else former.model)(batch, capture=capture)
    if not capture.attention_weights:
        raise nothing
    kinds = capture.attention_weights.items()
    stacked = {kind: torch.stack([w[0] for w in layers]).float().cpu() for kind, layers in kinds}
    if not all(bool(weights.isfinite().all()) for weights in stacked.values()):
        raise NonFinite("attention weights")
    return Attention([former.tokenizer.get_token_text(i) for i in ids], stacked)
