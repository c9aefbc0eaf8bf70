"""TextCNN (Kim 2014, arXiv:1408.5882; Zhang & Wallace 2015, arXiv:1510.03820)

Parent  convolution (Collobert et al. 2011)
New     1. filters of several widths slide over word vectors, and each keeps its maximum over the text   2. pretrained
        word vectors, frozen, fine-tuned, or both   3. dropout of 0.5, and rows of the output layer clipped to norm 3
Korean  단어 벡터 위에 너비가 다른 여러 필터를 적용하고 필터마다 최댓값을 취합니다. 사전 학습한 단어 벡터를 고정하거나
        함께 학습합니다.
Shapes  ids (N,) → embed (N, E) → feature maps (N, widths · filters) → maxima (D, widths · filters) → labels (D, C)
Differs from the reference: with channels `both`, one set of filters reads both channels and the results are added, as
        the paper says (so it reads their sum); only a text shorter than a filter is padded with zeros
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from ..batch import Array, Batch
from ..config import check_sizes
from ..errors import Error
from ..family import Family, Head, ModelConfig, PaperRecipe, Presets, Recipe
from ..nn.attention.context import Capture
from ..nn.layers import Embeddings, OutputLayer, get_activation
from ..nn.recurrent.convolution import PackedConv, clip_row_norms
from . import vectors

if TYPE_CHECKING:
    from ..model import Model


@dataclass(frozen=True, kw_only=True)
class TextCNNConfig(ModelConfig):
    """Sizes and rates; the defaults are Kim's, with the vocabulary of his movie reviews."""

    vocab: int = 18765
    embed: int = 300
    widths: tuple[int, ...] = (3, 4, 5)
    filters: int = 100  # of each width
    channels: Literal["trained", "static", "both"] = "trained"  # Kim's non-static, static and multichannel
    act: str = "relu"
    dropout: float = 0.5
    max_norm: float = 3.0  # of the rows of the last layer; `clip_output_norms` keeps to it
    init: float = 0.1
    tied: bool = False
    pad: int | None = 0
    bos: int | None = None
    eos: int | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "filters")
        get_activation(self.act)
        if not self.widths or not all(1 <= width <= 1000 for width in self.widths):
            raise Error(f"widths must be numbers from 1 to 1000, got {self.widths}", fix="take for example 3, 4, 5")
        if self.max_norm <= 0:
            raise Error(f"max_norm must be above 0, got {self.max_norm}", fix="the paper takes 3")
        if self.tied:
            raise Error("a TextCNN has no output layer that could be tied", fix="set tied to false")

    @property
    def dim(self) -> int:  # type: ignore[override]
        """The width of what the head reads."""
        return len(self.widths) * self.filters

    @property
    def layers(self) -> int:  # type: ignore[override]
        """The number of convolutions; they stand side by side."""
        return len(self.widths)


class TextCNN(nn.Module):
    """Word vectors → convolutions → activation: what each filter finds at each word."""

    def __init__(self, config: TextCNNConfig):
        super().__init__()
        c = config
        self.embed = Embeddings(c.embed, c.vocab)
        self.fixed = Embeddings(c.embed, c.vocab) if c.channels == "both" else None
        (self.embed if c.channels == "static" else self.fixed or nn.Module()).requires_grad_(False)
        self.convolutions, self.act = PackedConv(c.embed, c.filters, c.widths), get_activation(c.act)

    @property
    def embedding_table(self) -> Tensor:
        """The word vectors."""
        return self.embed.token_weight

    def forward(self, batch: Batch, *, cache: object = None, capture: Capture | None = None) -> Tensor:
        """(N,) → (N, widths · filters)"""
        if cache is not None:
            raise Error("a TextCNN reads a text at once and keeps no memory of it", fix="leave memory out")
        layout = batch.layout
        x = self.embed(batch, layout)
        x = x if self.fixed is None else x + self.fixed(batch, layout)
        if capture is not None:
            capture.record_hidden("encoder", x)
        return self.act(self.convolutions(x, layout))

    @torch.no_grad()
    def load_word_vectors(self, vectors: Array, known: Array | None = None) -> None:
        """Take over word vectors (vocab, embed), into both channels if there are two. Where `known` (vocab,) is False a
        word has none: it keeps its random vector, stretched to the variance of the others (Kim, §4.3)."""
        table = self.embedding_table
        rows = torch.as_tensor(vectors, dtype=table.dtype, device=table.device)
        if rows.shape != table.shape:
            what = f"word vectors of shape {tuple(rows.shape)} do not fit a table of {tuple(table.shape)}"
            raise Error(what, fix="give one vector for each id of the vocabulary")
        here = torch.as_tensor(True if known is None else known, device=table.device).expand(len(table))
        if here.any() and not here.all():
            rows = torch.where(here[:, None], rows, table * (rows[here].std() / table[~here].std()))
        for embed in (self.embed, self.fixed):
            if embed is not None and here.any():
                embed.token_weight.copy_(rows)


def build_heads(c: TextCNNConfig) -> dict[str, dict[str, Head]]:
    """Build the classifier over the maxima."""
    return {"none": {}, "classify": {"classify": Head(pool="max", inner_layers=("dropout",), dropout=c.dropout)}}


def clip_output_norms(model: Model, config: TextCNNConfig) -> None:
    """Clip the norms of the output layer's rows to `max_norm`; called after each optimizer step."""
    out = model.parts["classify"].out
    assert isinstance(out, OutputLayer)
    assert out.weight is not None
    clip_row_norms(out.weight, config.max_norm)


PRESETS: Presets = {
    "textcnn": {},
    "textcnn-static": {"channels": "static"},
    "textcnn-multichannel": {"channels": "both"},
    "textcnn-wide": {"widths": (7, 7, 7, 7), "filters": 400},
    "textcnn-mini": {"vocab": 8192, "embed": 64, "filters": 32},
}

SCRATCH_MODEL = {"init": 0.05}  # short vectors, so that rare words add little noise
SCRATCH_TUNE = {"epochs": 10, "batch_size": 50, "patience": 3, "warmup_ratio": 0.0}
SCRATCH_TRAIN = {
    "optimizer": "adam", "lr": 1e-3, "schedule": "constant", "weight_decay": 0.0, "betas": (0.9, 0.999), "ema": 0.99,
}  # fmt: skip

# Of a task, not of pretraining: formers finetune takes these by their names.
PAPER = PaperRecipe(
    {
        "train.optimizer": ("adadelta", "Kim 2014, §3.1"),
        "train.lr": (1.0, "Zeiler 2012, algorithm 1: Adadelta has no rate"),
        "train.betas": ((0.0, 0.95), "released conv_net_sentence.py: ρ, the second"),
        "train.eps": (1e-6, "released conv_net_sentence.py"),
        "train.weight_decay": (0.0, "Kim 2014, §3.1: a bound on norms instead"),
        "train.schedule": ("constant", "Zeiler 2012, algorithm 1: Adadelta has no schedule"),
        "tune.batch_size": (50, "Kim 2014, §3.1"),
        "tune.epochs": (25, "released conv_net_sentence.py"),
        "model.dropout": (0.5, "Kim 2014, §3.1"),
        "model.max_norm": (3.0, "Kim 2014, §3.1"),
        "data.vocab_size": (18_765, "Kim 2014, table 1: all words of MR"),
    }
)

FAMILY = Family(
    TextCNNConfig, TextCNN, build_heads, pretraining_head="classify", counted_head="classify",
    presets=PRESETS, after_step=clip_output_norms, tokenizer="words", tokenizer_style=vectors.STYLE,
    paper_recipe=PAPER,
    scratch_recipe=Recipe(SCRATCH_TRAIN, SCRATCH_MODEL, tune=SCRATCH_TUNE, data={"vocab_size": 30_000}),
    task_tokenizer_options={"lower": True, "min_count": 2},
    load_word_vectors=TextCNN.load_word_vectors,
    onnx_refusal="its filters would read the padding of short texts",
    export_remedy="keep the formers directory: formers.load and formers classify open it",
)  # fmt: skip
