"""XLNet (Yang et al. 2019, arXiv:1906.08237)

Parent  transformer_xl
New     1. permutation language model: tokens are predicted in any order, each from those before it in that order
        2. two streams: a content stream that knows its token, and a query stream that knows only where it stands
        3. relative segments: a score asks whether two tokens are of one segment   4. biases and W_r in every layer
Shapes  ids (N,) → hidden (N, dim) → logits (N, vocab); with an order (N,), hidden is the query stream's at `chosen`
Differs from the reference: a query that may see no token at all gets nothing from the attention (transformers: the mean
        of all tokens); memory never holds padding; the dropout of positions is drawn once for all rows
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..batch import Batch
from ..config import ConfigMap, Row, divides, positive, probability, renamed
from ..errors import Error
from ..family import ACT, SUMMARY_ACT, TOKENS, Family, Format, Head, Pool
from ..keymap import KeyMap, Op
from ..nn.block import Block, Stack
from ..nn.dropout import Dropout
from ..nn.embeddings import Embeddings, working
from ..nn.feedforward import FeedForward, activation
from ..nn.masks import Index, Visible, both, causal, window
from ..nn.memory import Memory
from ..nn.norms import LayerNorm
from ..nn.positions import Sinusoids
from ..nn.probe import Probe
from ..nn.relative import Related, Relations
from ..nn.streams import Streams, TwoStream, order_tables, see_tables


@dataclass(frozen=True, kw_only=True)
class XLNetConfig:
    """XLNet's sizes and rates; the defaults are XLNet-base."""

    vocab: int = 32000
    dim: int = 768
    layers: int = 12
    heads: int = 12
    ff: int = 3072
    act: str = "gelu"
    eps: float = 1e-12
    dropout: float = 0.1  # of attention weights and positions as well
    causal: bool = False  # read left to right, as Transformer-XL does,
    same_length: bool = False  # and see equally far back from every token
    reversed: bool = False  # the second half of a batch's rows is text back to front: its distances have the other sign
    clamp: int | None = None  # distances beyond it count as it
    memory: int | None = None  # how many states a caller's Memory should keep (None: as many as there are),
    reuse: int | None = None  # and of how many tokens of each segment (None: all)
    summary: Pool = "last"  # which token classifiers read,
    summary_dense: bool = True  # through a dense layer
    summary_act: str | None = "tanh"
    summary_dropout: float = 0.1
    start_top: int = 5  # the beam head: so many beginnings of an answer,
    end_top: int = 5  # and so many ends for each
    init: float = 0.02
    tied: bool = True
    pruned: tuple[str, ...] = ()  # attention heads taken out: "stack.layer.head"
    pad: int | None = 5
    bos: int | None = 1
    eos: int | tuple[int, ...] | None = 2

    def __post_init__(self) -> None:
        positive(self, "vocab", "dim", "layers", "heads", "ff", "clamp", "memory", "reuse", "start_top", "end_top")
        positive(self, "init", least=0)
        probability(self, "dropout", "summary_dropout")
        divides(self)
        activation(self.act)
        activation(self.summary_act or "linear")
        if self.dim % 2:
            raise Error(f"dim must be even, got {self.dim}", fix="positions are pairs of a sine and a cosine")


class XLNet(nn.Module):
    """Tokens → post-norm blocks with relative positions, in one stream or two."""

    state = Memory

    def __init__(self, config: XLNetConfig):
        super().__init__()
        c = self.config = config
        self.embed = Embeddings(c.dim, c.vocab, dropout=c.dropout)
        self.blank = nn.Parameter(torch.empty(1, c.dim))  # w, with which the query stream begins
        self.blocks = Stack(
            Block(
                TwoStream(
                    c.dim, c.heads, bias=False, dropout=c.dropout,
                    relative=Relations(c.dim, c.heads, c.dim // c.heads),
                ),
                FeedForward(c.dim, c.ff, c.act, dropout=c.dropout),
                norm=lambda: LayerNorm(c.dim, c.eps),
                order="post",
                dropout=c.dropout,
            )
            for _ in range(c.layers)
        )  # fmt: skip
        self.sinusoids, self.dropout = Sinusoids(c.dim, halves=True), Dropout(c.dropout)

    @property
    def table(self) -> Tensor:
        """The token embeddings that an output layer may be tied to."""
        return self.embed.token.weight

    def forward(
        self,
        batch: Batch,
        *,
        memory: Memory | None = None,
        heads: Tensor | None = None,
        probe: Probe | None = None,
        see: Tensor | None = None,
        targets: Tensor | None = None,
    ) -> Tensor:
        """(N,) → (N, dim)

        With an `order`, a token's content stream sees the tokens of its own order or lower, its query stream those of
        a lower one; the result is the query stream at `chosen` (None: everywhere) and zero elsewhere. A table `see`
        (documents, queries, keys) says it pair by pair instead, and then `targets` (M,) are the slots of the query
        stream; without them, the content stream is the result, in which a token always sees itself.
        """
        layout, used = batch.layout, 0 if memory is None else memory.used
        content, query = order_tables(batch.order, layout) if see is None else see_tables(see)
        at = targets if batch.order is None else batch.chosen
        x = self.embed(batch.replace(segments=None), layout)
        how: dict[str, Any] = {"recall": memory, "heads": heads, "probe": probe}
        sight = self.relate(Streams(layout, mask=self.mask(content, used), kind="content", **how), batch, x.dtype)
        if batch.order is not None or targets is not None:
            other = Related(layout, mask=self.mask(query, used), kind="query", **how)
            other.places, other.back, other.differs = sight.places, sight.back, sight.differs
            sight.add(other, at)
            if batch.order is not None and memory is None and not self.config.causal and probe is None:
                sight.pick(batch.order, batch.segments)
            blank = self.blank.expand(layout.total if at is None else at.shape[0], -1)
            x = torch.cat((x, self.embed.dropout(working(blank))))
        x = self.blocks(x, sight)
        if memory is not None:
            memory.advance(layout)
        return self.dropout(x if sight.other is None else sight.spread(x[layout.total :]))

    def mask(self, table: Tensor | None, used: int) -> Index | None:
        """Who sees whom, by the direction of reading and by a table."""
        c = self.config
        return both(
            causal if c.causal else None,
            window(used + 1) if c.causal and c.same_length else None,
            None if table is None else Visible(table, used),
        )

    def relate(self, sight: Streams, batch: Batch, dtype: torch.dtype) -> Streams:
        """Distances and segments of this pass; what is remembered counts as segment 0."""
        c, layout = self.config, sight.query
        distance = torch.arange(sight.span - 1, -layout.longest - 1, -1, device=layout.starts.device)
        distance = distance if c.clamp is None else distance.clamp(-c.clamp, c.clamp)
        sight.places = self.dropout(self.sinusoids(distance).to(dtype))
        sight.back = self.dropout(self.sinusoids(-distance).to(dtype)) if c.reversed else None
        if batch.segments is not None:
            own = layout.unpack(batch.segments)  # (rows, T)
            known = nn.functional.pad(own, (sight.span - layout.longest, 0))  # (rows, K)
            sight.differs = (own[..., None] != known[:, None])[:, None]
        return sight


def heads(c: XLNetConfig) -> dict[str, dict[str, Head]]:
    """XLNet's heads; `beam` looks for ends of an answer given its beginning, and whether there is an answer at all."""
    inner = ("dense",) * c.summary_dense + (() if c.summary_act is None else (c.summary_act,)) + ("dropout",)
    classify = Head(pool=c.summary, inner=inner, dropout=c.summary_dropout)
    return {
        "none": {},
        "lm": {"lm": Head(out="vocab")},
        "classify": {"classify": classify},
        "tag": {"tag": Head()},
        "choose": {"choose": Head(pool=c.summary, inner=inner, out=1, dropout=c.summary_dropout)},
        "answer": {"answer": Head(out=2)},
        "beam": {
            "start": Head(out=1),
            "end": Head(inner=("dense", "tanh", "norm"), out=1, states=2),
            "cls": Head(inner=("dense", "tanh"), out=1, bias=False, states=2),
        },
    }


def init(c: XLNetConfig) -> dict[str, float]:
    """The released code: N(0, 0.02) everywhere."""
    return {"*": c.init}


HF_CONFIG = ConfigMap(
    {
        "vocab_size": "vocab", "d_model": "dim", "n_layer": "layers", "n_head": "heads", "d_inner": "ff",
        "d_head": Row(lambda value: {}, lambda c: c.dim // c.heads), "ff_activation": ACT, "layer_norm_eps": "eps",
        "dropout": "dropout", "attn_type": renamed("causal", {"bi": False, "uni": True}), "same_length": "same_length",
        "bi_data": "reversed",
        "clamp_len": Row(lambda n: {"clamp": None if n <= 0 else n}, lambda c: -1 if c.clamp is None else c.clamp),
        "mem_len": Row(lambda n: {"memory": n or None}, lambda c: c.memory),
        "reuse_len": Row(lambda n: {"reuse": n or None}, lambda c: c.reuse),
        "summary_type": renamed("summary", {"last": "last", "cls_index": "last", "first": "first", "mean": "mean"}),
        "summary_use_proj": "summary_dense",
        "summary_activation": SUMMARY_ACT,
        "summary_last_dropout": "summary_dropout", "start_n_top": "start_top", "end_n_top": "end_top",
        "initializer_range": "init", "tie_word_embeddings": "tied", **TOKENS,
    },
    fixed={"untie_r": (True,), "summary_proj_to_labels": (False,), "summary_first_dropout": (0, 0.0)},
    # of the released code's own files, and whether a caller who gives no memory gets one
    irrelevant=frozenset({"dropatt", "init", "init_range", "init_std", "max_position_embeddings", "use_mems_eval",
                          "use_mems_train"}),
    aliases={"n_token": "vocab_size", "hidden_size": "d_model", "num_attention_heads": "n_head",
             "num_hidden_layers": "n_layer"},
    defaults={"d_model": 1024, "n_layer": 24, "n_head": 16, "d_inner": 4096, "mem_len": 512},
)  # fmt: skip


def keys(c: XLNetConfig, head: str) -> KeyMap:
    """XLNet's names; projections are (dim, heads, head_dim) tensors."""
    width = (c.heads, c.dim // c.heads)

    def inward(name: str, parts: int = 1) -> Op:  # (parts · dim, H, D) ↔ (parts · H · D, dim)
        return Op(
            name,
            lambda t: t.unflatten(0, (parts, c.dim)).flatten(2).transpose(1, 2).flatten(0, 1),
            lambda t: t.unflatten(0, (parts, -1)).transpose(1, 2).unflatten(2, width).flatten(0, 1),
        )

    attn, ff = "layer.{i}.rel_attn", "layer.{i}.ff"
    summary = {"sequence_summary.summary.*": "dense.*", "logits_proj.*": "out.*"}
    return KeyMap(
        {
            "word_embedding.weight": "embed.token.weight",
            "mask_emb": Op("blank", lambda t: t.flatten(0, 1), lambda t: t[None]),
            f"{attn}.(q|k|v)": inward("blocks.{i}.attn.qkv.weight", 3),
            f"{attn}.o": Op("blocks.{i}.attn.o.weight", lambda t: t.flatten(1), lambda t: t.unflatten(1, width)),
            f"{attn}.r": inward("blocks.{i}.attn.relative.r.weight"),
            f"{attn}.r_w_bias": "blocks.{i}.attn.relative.biases.u",
            f"{attn}.r_r_bias": "blocks.{i}.attn.relative.biases.v",
            f"{attn}.r_s_bias": "blocks.{i}.attn.relative.s",
            f"{attn}.seg_embed": "blocks.{i}.attn.relative.segment",
            f"{attn}.layer_norm.*": "blocks.{i}.attn_norm.*",
            f"{ff}.layer_1.*": "blocks.{i}.ff.up.*",
            f"{ff}.layer_2.*": "blocks.{i}.ff.down.*",
            f"{ff}.layer_norm.*": "blocks.{i}.ff_norm.*",
        },
        heads={
            "lm": {"lm_loss.*": "out.*"},
            "classify": summary,
            "choose": summary,
            "tag": {"classifier.*": "out.*"},
            "answer": {"qa_outputs.*": "out.*"},
            "start": {"start_logits.dense.*": "out.*"},
            "end": {
                "end_logits.dense_0.*": "dense.*", "end_logits.LayerNorm.*": "norm.*", "end_logits.dense_1.*": "out.*",
            },
            "cls": {"answer_class.dense_0.*": "dense.*", "answer_class.dense_1.weight": "out.weight"},
        },
        prefix="" if head == "none" else "transformer.",
        prefixes=("transformer.",),
        tied={"lm_loss.weight": "word_embedding.weight"} if c.tied else {},
        aliases={f"{norm}.{old}": f"{norm}.{new}" for norm in ("layer_norm", "LayerNorm")
                 for old, new in (("gamma", "weight"), ("beta", "bias"))},
    )  # fmt: skip


PRESETS: dict[str, dict[str, Any]] = {
    "xlnet-base": {},
    "xlnet-large": {"dim": 1024, "layers": 24, "heads": 16, "ff": 4096},
    "xlnet-mini": {"vocab": 8192, "dim": 256, "layers": 4, "heads": 4, "ff": 1024},
}

FAMILY = Family(
    XLNetConfig, XLNet, heads, pretraining="lm", counted="lm", init=init, presets=PRESETS, segments=True,
    tokenizer="unigram", objective="permutation", norm_order="post",
    hf=Format("xlnet", {
        "XLNetModel": "none", "XLNetLMHeadModel": "lm", "XLNetForSequenceClassification": "classify",
        "XLNetForTokenClassification": "tag", "XLNetForMultipleChoice": "choose",
        "XLNetForQuestionAnsweringSimple": "answer", "XLNetForQuestionAnswering": "beam",
    }, HF_CONFIG, keys),
)  # fmt: skip
