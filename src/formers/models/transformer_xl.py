"""Transformer-XL (Dai et al. 2019, arXiv:1901.02860)

Parent  transformer (its decoder, without cross attention)
New     1. segment-level recurrence: each layer also attends to its inputs for earlier segments, cached in a memory
        without gradient   2. relative positions: a score is (q + u)·k + (q + v)·W_kR·R(distance), R sinusoidal
        3. adaptive inputs and adaptive softmax: rare tokens have narrow embeddings
Korean  앞 세그먼트의 은닉 상태를 메모리에 담아 기울기 없이 참조합니다. 상대 위치와 적응형 임베딩·소프트맥스를 씁니다.
Shapes  ids (N,), memory (rows, M, dim) of each layer → hidden (N, dim) → log-probabilities (N, vocab)
Differs from the reference: the memory starts empty, as in the paper (SegmentMemory(…, zeros=True) starts with zero
        vectors that are attended to, as the reference does); losses keep the order of the text, where the reference
        lists them by cluster; in both, a segment's last token predicts nothing; with same_length and no memory all
        tokens get the same weight, as in the reference
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..batch import Batch
from ..config import HF_TOKEN_ROWS, ConfigMap, KeyRule, check_sizes
from ..errors import Error
from ..family import CheckpointFormat, Family, Head, ModelConfig, PaperRecipe, Presets, Recipe, cite_batch
from ..keymap import KeyMap, TensorOp, transpose_tensor
from ..nn.adaptive_softmax import AdaptiveEmbedding, AdaptiveSoftmax, VocabClusters
from ..nn.attention.attention import Attention
from ..nn.attention.context import AttentionContext, Capture, RelativeInputs
from ..nn.attention.masks import WindowMask, causal, combine_masks
from ..nn.attention.positions import QueryBiases, RelativeScores, SinusoidalPositions
from ..nn.attention.segment_memory import SegmentMemory
from ..nn.block import Block, BlockStack, NormOrder
from ..nn.layers import Dropout, Embeddings, FeedForward, LayerNorm
from ..text.tokenizer_kinds import PublishedForm, TokenizerStyle


@dataclass(frozen=True, kw_only=True)
class TransformerXLConfig(ModelConfig):
    """Transformer-XL's sizes and rates; the defaults are the large model of WikiText-103."""

    vocab: int = 267735
    cutoffs: tuple[int, ...] = (20000, 40000, 200000)  # where the vocabulary is cut into clusters
    embed: int = 1024  # width of the first cluster's embeddings,
    shrink: int = 4  # and by how much each next cluster's are narrower
    dim: int = 1024
    layers: int = 18
    heads: int = 16
    head_dim: int = 64
    ff: int = 4096
    memory: int = 1600  # states that its users keep; any other number works as well
    same_length: bool = True  # every token sees the same number of tokens, that of the memory
    clamp: int | None = 1000  # distances beyond this one count as this one
    order: NormOrder = "post"
    shared_biases: bool = False  # all layers have the same u and v
    eps: float = 1e-5
    dropout: float = 0.1
    attention_dropout: float = 0.0
    init: float = 0.02
    init_projection: float = 0.01
    tied: bool = True  # the rows of the softmax are those of the embeddings,
    tied_projections: tuple[bool, ...] | None = None  # and each cluster's projection; None: of all but the first
    pruned: tuple[str, ...] = ()  # attention heads taken out: "stack.layer.head"
    pad: int | None = None
    bos: int | None = None
    eos: int | tuple[int, ...] | None = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "shrink", "clamp")
        check_sizes(self, "memory", "init_projection", minimum=0)
        count = self.clusters.num_clusters
        if self.dim % 2:
            raise Error(f"dim must be even, got {self.dim}", fix="half of a position is sines, half cosines")
        if self.order == "parallel":
            raise Error("order cannot be parallel", fix="choose pre or post")
        if self.tied_projections is not None:
            projections = (*self.tied_projections, *[False] * (count - len(self.tied_projections)))
            if len(projections) > count:
                what = f"{len(projections)} tied_projections are more than the {count} clusters"
                raise Error(what, fix="give one for each cluster")
            object.__setattr__(
                self, "tied_projections", None if projections == (False, *[True] * (count - 1)) else projections
            )

    @property
    def has_uniform_attention(self) -> bool:
        """With same_length and no memory nothing is left to see; the reference then gives every token of a segment the
        same weight, those that follow as well."""
        return self.same_length and not self.memory

    @property
    def clusters(self) -> VocabClusters:
        """How the vocabulary is cut."""
        return VocabClusters(self.vocab, self.dim, self.embed, self.cutoffs, self.shrink)

    @property
    def projection_ties(self) -> tuple[bool, ...]:
        """Of each cluster, whether its softmax takes the embedding's projection."""
        return (False, *[True] * len(self.cutoffs)) if self.tied_projections is None else self.tied_projections


class TransformerXL(nn.Module):
    """A decoder with a memory: adaptive tokens · √dim → blocks that see distances."""

    def __init__(self, config: TransformerXLConfig):
        super().__init__()
        c = self.config = config
        token = AdaptiveEmbedding(c.clusters)
        self.embed = Embeddings(c.dim, c.vocab, token=token, scale=c.dim**0.5, dropout=c.dropout)
        shared = QueryBiases(c.heads, c.head_dim) if c.shared_biases else None
        self.blocks = BlockStack(
            Block(
                Attention(
                    c.dim, c.heads, head_dim=c.head_dim, bias=False, dropout=c.attention_dropout,
                    relative=RelativeScores(c.dim, c.heads, c.head_dim, shared),
                ),
                FeedForward(c.dim, c.ff, "relu", dropout=c.dropout), norm=lambda: LayerNorm(c.dim, c.eps),
                norm_order=c.order, dropout=c.dropout,
            )
            for _ in range(c.layers)
        )  # fmt: skip
        self.sinusoids, self.dropout = SinusoidalPositions(c.dim, halves=True), Dropout(c.dropout)

    @property
    def embedding_table(self) -> nn.Module:
        """The embeddings that a softmax may be tied to."""
        return self.embed.token

    def forward(
        self, batch: Batch, *, memory: SegmentMemory | None = None, head_mask: Tensor | None = None,
        capture: Capture | None = None,
    ) -> Tensor:  # fmt: skip
        """(N,) → (N, dim)"""
        c, layout = self.config, batch.layout
        length = c.memory if memory is None else memory.length
        mask = combine_masks(causal, WindowMask(max(1, length))) if c.same_length else causal
        alike = c.has_uniform_attention and not length
        x = self.embed(batch, layout)
        key_length = layout.longest + (0 if memory is None else memory.used_slots)
        distance = torch.arange(key_length - 1, -2, -1, device=x.device)  # begins with that of first key and last query
        encodings = self.dropout(self.sinusoids(distance.clamp(min=-1, max=c.clamp)).to(x.dtype))
        attn_context = AttentionContext.start_pass(
            layout, mask=None if alike else mask, relative=RelativeInputs(encodings, has_uniform_weights=alike),
            segment_memory=memory, head_mask=head_mask, capture=capture, stack_name="decoder",
        )  # fmt: skip
        x = self.dropout(self.blocks(x, attn_context))
        if memory is not None:
            memory.advance(layout)
        return x


def build_heads(c: TransformerXLConfig) -> dict[str, dict[str, Head]]:
    """Build Transformer-XL's heads: "lm" answers with log-probabilities, a classifier reads the last token."""
    softmax = Head(
        out="vocab",
        build_output_layer=lambda: AdaptiveSoftmax(c.clusters, tied=c.tied, projection_ties=c.projection_ties),
    )
    return {"none": {}, "lm": {"lm": softmax}, "classify": {"classify": Head(pool="last", bias=False)}}


def build_init_rules(c: TransformerXLConfig) -> dict[str, float]:
    """Initialise as the released code does: projections of embeddings start smaller."""
    return {"*": c.init, "*.token.ups.*": c.init_projection, "*.out.downs.*": c.init_projection}


HF_CONFIG = ConfigMap(
    {
        "vocab_size": "vocab", "cutoffs": "cutoffs", "d_model": "dim", "d_embed": "embed", "n_head": "heads",
        "d_head": "head_dim", "d_inner": "ff", "div_val": "shrink", "n_layer": "layers", "mem_len": "memory",
        "clamp_len": KeyRule(lambda v: {"clamp": v if v > 0 else None}, lambda c: c.clamp or -1),
        "pre_lnorm": KeyRule(lambda v: {"order": "pre" if v else "post"}, lambda c: c.order == "pre"),
        "untie_r": KeyRule(lambda v: {"shared_biases": not v}, lambda c: not c.shared_biases),
        "tie_projs": KeyRule(lambda v: {"tied_projections": v}, lambda c: c.projection_ties),
        "same_length": "same_length", "dropout": "dropout", "dropatt": "attention_dropout",
        "layer_norm_epsilon": "eps", "init_std": "init", "proj_init_std": "init_projection",
        "tie_word_embeddings": "tied", **HF_TOKEN_ROWS,
    },
    legacy_rules={"proj_share_all_but_first": lambda v: {} if v else {"tied_projections": ()}},
    aliases={
        "n_token": "vocab_size", "hidden_size": "d_model", "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    fixed_values={"attn_type": (0,), "sample_softmax": (-1, 0)},
    irrelevant_keys=frozenset({
        "adaptive", "ext_len", "init", "init_range", "max_position_embeddings", "tgt_len", "tie_weight",
        "trainer_compatible",
    }),
)  # fmt: skip


def build_key_map(c: TransformerXLConfig, head: str) -> KeyMap:
    """Map Transformer-XL's names; what is tied or shared may be there as a copy."""
    biases: dict[str, str | TensorOp] = {
        "layers.{i}.dec_attn.r_w_bias": "blocks.{i}.attn.relative.biases.u",
        "layers.{i}.dec_attn.r_r_bias": "blocks.{i}.attn.relative.biases.v",
    }
    tied: dict[str, str] = {}
    if c.shared_biases:
        biases = {f"r_{n}_bias": f"blocks.0.attn.relative.biases.{ours}" for n, ours in (("w", "u"), ("r", "v"))}
        tied |= {f"layers.{i}.dec_attn.{name}": name for i in range(c.layers) for name in biases}
    if c.tied:
        tables = range(len(c.clusters.table_sizes))
        tied |= {f"crit.out_layers.{i}.weight": f"word_emb.emb_layers.{i}.weight" for i in tables}
    for i, same in enumerate(c.projection_ties if c.clusters.is_projected else ()):
        if same:
            tied[f"crit.out_projs.{i}"] = f"word_emb.emb_projs.{0 if c.shrink == 1 else i}"
    return KeyMap(
        {
            "word_emb.emb_layers.{i}.weight": "embed.token.tables.{i}.weight",
            "word_emb.emb_projs.{i}": "embed.token.ups.{i}.weight",
            "layers.{i}.dec_attn.qkv_net.weight": "blocks.{i}.attn.qkv.weight",
            "layers.{i}.dec_attn.o_net.weight": "blocks.{i}.attn.o.weight",
            "layers.{i}.dec_attn.r_net.weight": "blocks.{i}.attn.relative.r.weight",
            **biases,
            "layers.{i}.dec_attn.layer_norm.*": "blocks.{i}.attn_norm.*",
            "layers.{i}.pos_ff.CoreNet.0.*": "blocks.{i}.ff.up.*",
            "layers.{i}.pos_ff.CoreNet.3.*": "blocks.{i}.ff.down.*",
            "layers.{i}.pos_ff.layer_norm.*": "blocks.{i}.ff_norm.*",
        },
        heads={
            "lm": {
                "crit.cluster_weight": "out.cluster.weight",
                "crit.cluster_bias": "out.cluster.bias",
                "crit.out_layers.{i}.*": "out.tables.{i}.*",
                "crit.out_projs.{i}": transpose_tensor("out.downs.{i}.weight"),
            },
            "classify": {"score.weight": "out.weight"},
        },
        prefix="" if head == "none" else "transformer.", prefixes=("transformer.",), tied=tied,
        drop=("pos_emb.inv_freq",),
    )  # fmt: skip


PRESETS: Presets = {
    "transfo-xl-wt103": {},
    "transformer-xl-mini": {
        "vocab": 8192, "cutoffs": (1000, 3000), "embed": 256, "dim": 256, "layers": 4, "heads": 4, "ff": 1024,
        "memory": 128, "clamp": None, "same_length": False, "eos": None,
    },
}  # fmt: skip

CODE = "released pytorch/run_wt103_large.sh"
PAPER = PaperRecipe(
    {
        "objective.name": ("causal", "§3"),
        "train.optimizer": ("adam", CODE),
        "train.lr": (2.5e-4, CODE),
        "train.betas": ((0.9, 0.999), "released pytorch/train.py: the defaults of torch"),
        "train.eps": (1e-8, "released pytorch/train.py: the defaults of torch"),
        "train.weight_decay": (0.0, "released pytorch/train.py: none"),
        "train.schedule": ("cosine", "released pytorch/train.py"),
        "train.min_lr_ratio": (0.0, "released pytorch/train.py: eta_min"),
        "train.warmup_steps": (16_000, CODE),
        "train.steps": (4_000_000, CODE),
        **cite_batch(128, 384, CODE),
        "train.carry_memory": (True, "§3.2"),
        "train.grad_clip": (0.25, "released pytorch/train.py"),
        "model.memory": (384, f"{CODE}; 1,600 in evaluation"),
        "model.dropout": (0.2, CODE),
        "model.attention_dropout": (0.2, CODE),
        "data.vocab_size": (267_735, "published vocabulary of WikiText-103"),
    }
)

SPECIAL_TOKENS = {"eos": "<eos>", "unk": "<unk>"}
STYLE = TokenizerStyle(
    "transformer_xl", SPECIAL_TOKENS, ("<eos>", "<unk>"), (), "$A <eos>", "$A <eos> $B <eos>",
    splits_at_spaces=True, published_forms=(PublishedForm(("vocab.pkl",)),),
)  # fmt: skip
FAMILY = Family(
    TransformerXLConfig, TransformerXL, build_heads, pretraining_head="lm", counted_head="lm",
    build_init_rules=build_init_rules, presets=PRESETS, tokenizer="words", tokenizer_style=STYLE,
    objective="causal", norm_order="post", state_class=SegmentMemory,
    quick_recipe=Recipe({"lr": 1e-3}, {"layers": 2}),  # it stalls at higher rates
    paper_recipe=PAPER,
    hub_checkpoints=("transfo-xl/transfo-xl-wt103",),
    hf_format=CheckpointFormat("transfo-xl", {
        "TransfoXLModel": "none", "TransfoXLLMHeadModel": "lm", "TransfoXLForSequenceClassification": "classify",
    }, HF_CONFIG, build_key_map,
        unsupported_reason="transformers 5 has no Transformer-XL any more; version 4.35.2 opens it"),
)  # fmt: skip
