"""ALBERT (Lan et al. 2019, arXiv:1909.11942)

Parent  bert
New     1. embeddings of width E < dim, projected up to dim   2. all layers share one block (or a few groups of layers
        do; or attention or feed-forward layers alone, `share`)   3. sentence order prediction instead of next sentence
        prediction
Korean  좁은 임베딩을 사영으로 넓히고, 모든 레이어가 블록 하나를 공유합니다. 다음 문장 예측 대신 문장 순서 예측을
        학습합니다.
Shapes  ids (N,), segments (N,) → embed (N, E) → hidden (N, dim) → mlm logits (M, vocab), sop logits (D, 2)
Differs from the reference: no known differences
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ..config import ConfigMap, KeyRule, Settings, check_sizes
from ..errors import Error
from ..family import CheckpointFormat, Family, GpuSpeed, Head, PaperRecipe, Presets, Recipe, cite_batch
from ..keymap import KeyMap
from ..nn.attention.attention import Attention
from ..nn.attention.masks import causal
from ..nn.block import Block, BlockStack, TransformerBody
from ..nn.layers import Embeddings, FeedForward, LayerNorm
from ..text.tokenizer_kinds import SENTENCEPIECE_FILES, PublishedForm, TokenizerStyle
from . import bert

Sharing = Literal["all-shared", "shared-attention", "shared-FFN", "not-shared"]  # as table 4 calls them


@dataclass(frozen=True, kw_only=True)
class ALBERTConfig(bert.BERTConfig):
    """ALBERT's sizes and rates; the defaults are ALBERT-base, version 2."""

    vocab: int = 30000
    embed: int = 128  # the width of the embeddings
    groups: int = 1  # of neighbouring layers, which share their blocks
    inner: int = 1  # blocks that a layer runs one after the other
    share: Sharing = "all-shared"  # what the layers of a group share (table 4)
    act: str = "gelu_tanh"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    head_dropout: float | None = 0.1
    bos: int | None = 2
    eos: int | tuple[int, ...] | None = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "groups", "inner")
        if self.share != "all-shared" and (self.groups, self.inner) != (1, 1):
            what = f"share {self.share!r} goes with one group of layers of one block"
            raise Error(what, fix="leave groups and inner out, or share all-shared")
        if self.groups > self.layers or self.layers * self.inner > 1000:
            what = f"{self.layers} layers of {self.inner} blocks cannot form {self.groups} groups"
            raise Error(what, fix="take fewer groups than layers, and 1,000 blocks at most")

    def shrink_settings(self, narrowed: int, depth: int) -> Settings:
        """Return what changes in a smaller copy, whose groups are as large a share of its layers."""
        return super().shrink_settings(narrowed, depth) | {"groups": max(1, self.groups * depth // self.layers)}

    @property
    def block_order(self) -> list[int]:
        """The block of each step: the layers of a group run the group's blocks."""
        if self.share != "all-shared":
            return list(range(self.layers))
        firsts = [int(i / (self.layers / self.groups)) * self.inner for i in range(self.layers)]
        return [first + j for first in firsts for j in range(self.inner)]


class ALBERT(TransformerBody):
    """An encoder: narrow embeddings → norm → up → the same post-norm block again and again, or blocks that share their
    attention or their feed-forward layer, each with its norm."""

    def __init__(self, config: ALBERTConfig):
        c = config
        super().__init__(
            Embeddings(
                c.embed, c.vocab, positions=c.context, segments=c.segments, norm=LayerNorm(c.embed, c.eps),
                dropout=c.dropout, up=c.dim,
            ),
            BlockStack(
                (
                    Block(
                        Attention(c.dim, c.heads, dropout=c.attention_dropout), FeedForward(c.dim, c.ff, c.act),
                        norm=lambda: LayerNorm(c.dim, c.eps), norm_order="post", dropout=c.dropout,
                    )
                    for _ in range(len(set(c.block_order)))
                ),
                layer_order=c.block_order,
            ),
            masks=[causal if c.causal else None], stack_name="encoder",
        )  # fmt: skip
        shared = {"shared-attention": ("attn", "attn_norm"), "shared-FFN": ("ff", "ff_norm")}.get(c.share, ())
        for block in self.blocks[1:] if shared else ():
            for name in shared:
                # Used by every block and registered in the first one alone, so that a file has it once.
                delattr(block, name)
                object.__setattr__(block, name, getattr(self.blocks[0], name))  # dynamic: a part by its name


def build_heads(c: ALBERTConfig) -> dict[str, dict[str, Head]]:
    """Build BERT's heads; masked tokens are predicted at the width of the embeddings, and sop stands in for nsp."""
    mine = {name: parts for name, parts in bert.build_heads(c).items() if name not in ("nsp", "lm")}
    mlm = replace(mine["mlm"]["mlm"], inner_dim=c.embed)
    return mine | {"mlm": {"mlm": mlm}, "pretraining": {"mlm": mlm, "sop": mine["classify"]["classify"]}}


def write_groups(c: ALBERTConfig) -> int:
    """Return the number of groups to write: layers that share nothing are as many groups."""
    if c.share in ("shared-attention", "shared-FFN"):
        what = f"transformers has no ALBERT whose layers share one part alone ({c.share})"
        raise Error(what, fix="keep the formers directory: formers.load opens it")
    return c.layers if c.share == "not-shared" else c.groups


HF_CONFIG = ConfigMap(
    {key: row for key, row in bert.CONFIG_ROWS.items() if key not in ("classifier_dropout", "is_decoder")}
    | {
        "embedding_size": "embed", "inner_group_num": "inner",
        "num_hidden_groups": KeyRule(lambda n: {"groups": n, "share": "all-shared"}, write_groups),
        "classifier_dropout_prob": "head_dropout",
    },
    fixed_values={**bert.FIXED_CONFIG, "is_decoder": (False,)},
    irrelevant_keys=frozenset({"net_structure_type", "gap_size", "num_memory_blocks", "down_scale_factor"}),
    defaults={"hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384},
)  # fmt: skip


def build_key_map(c: ALBERTConfig, head: str) -> KeyMap:
    """Map ALBERT's names; the blocks are numbered by group and inside it."""
    body = {name: ours for name, ours in bert.BODY_KEYS.items() if name.startswith("embeddings")}
    body["encoder.embedding_hidden_mapping_in.*"] = "embed.up.*"
    for number in range(len(set(c.block_order))):
        group, inner = divmod(number, c.inner)
        theirs, ours = f"encoder.albert_layer_groups.{group}.albert_layers.{inner}", f"blocks.{number}"
        body |= {
            f"{theirs}.attention.(query|key|value).*": f"{ours}.attn.qkv.*",
            f"{theirs}.attention.dense.*": f"{ours}.attn.o.*",
            f"{theirs}.attention.LayerNorm.*": f"{ours}.attn_norm.*",
            f"{theirs}.ffn.*": f"{ours}.ff.up.*",
            f"{theirs}.ffn_output.*": f"{ours}.ff.down.*",
            f"{theirs}.full_layer_layer_norm.*": f"{ours}.ff_norm.*",
        }
    heads, mlm = {"sop": {"@pooler.*": "dense.*", "sop_classifier.classifier.*": "out.*"}}, "predictions"
    return bert.build_key_map(c, head, "albert", body, transform=mlm, out=mlm, pooler="@pooler", heads=heads)


PRESETS: Presets = {
    "albert-base": {},
    "albert-large": {"dim": 1024, "layers": 24, "heads": 16, "ff": 4096},
    "albert-xlarge": {"dim": 2048, "layers": 24, "heads": 16, "ff": 8192},
    "albert-xxlarge": {"dim": 4096, "layers": 12, "heads": 64, "ff": 16384},
}

DROPOUT = "not stated, BERT's; §4.8 removes it from the largest model, the released version 2 from all"
PAPER = PaperRecipe(
    {
        "objective.name": ("sop", "§3.1"),
        "objective.max_ngram": (3, "§4.1"),
        "objective.mask_rate": (0.15, "released create_pretraining_data.py"),
        "objective.short_seq_prob": (0.1, "§4.1"),
        "train.optimizer": ("lamb", "§4.1"),
        "train.lr": (1.76e-3, "§4.1"),
        "train.betas": ((0.9, 0.999), "You et al. 2019, §4; released lamb_optimizer.py"),
        "train.eps": (1e-6, "released lamb_optimizer.py"),
        "train.weight_decay": (0.01, "released optimization.py"),
        "train.schedule": ("linear", "released optimization.py"),
        "train.warmup_steps": (3_125, "released README: num_warmup_steps"),
        "train.steps": (125_000, "§4.1"),
        **cite_batch(4096, 512, "§4.1"),
        "train.grad_clip": (1.0, "released optimization.py"),
        "model.dropout": (0.1, DROPOUT),
        "model.attention_dropout": (0.1, DROPOUT),
        "data.vocab_size": (30_000, "§4.1"),
    },
    {
        "albert-xxlarge": {
            "train.steps": (1_500_000, "§4.9: the best model"),
            "model.dropout": (0.0, "§4.8 and §4.9: removed"),
            "model.attention_dropout": (0.0, "§4.8 and §4.9: removed"),
        }
    },
)

SPECIAL_TOKENS = {"pad": "<pad>", "unk": "<unk>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
STYLE = TokenizerStyle(
    "albert", SPECIAL_TOKENS, tuple(SPECIAL_TOKENS.values()), (), bert.STYLE.single_template, bert.STYLE.pair_template,
    published_forms=(PublishedForm(SENTENCEPIECE_FILES, ("[CLS]", "[SEP]"), plain_quotes=True, lower=True),),
)  # fmt: skip
FAMILY = Family(
    ALBERTConfig, ALBERT, build_heads, pretraining_head="pretraining", counted_head="none", presets=PRESETS,
    reads_segments=True, can_be_causal=True, tokenizer="unigram", tokenizer_style=STYLE, objective="sop",
    norm_order="post",
    quick_recipe=Recipe(bert.QUICK_TRAIN, bert.QUICK_MODEL | {"embed": 64}),
    paper_recipe=PAPER,
    hub_checkpoints=tuple(
        f"albert/albert-{size}-{v}" for size in ("base", "large", "xlarge", "xxlarge") for v in ("v1", "v2")
    ),
    hf_format=CheckpointFormat("albert", {
        "AlbertModel": "none", "AlbertForPreTraining": "pretraining", "AlbertForMaskedLM": "mlm",
        "AlbertForSequenceClassification": "classify", "AlbertForTokenClassification": "tag",
        "AlbertForQuestionAnswering": "answer", "AlbertForMultipleChoice": "choose",
    }, HF_CONFIG, build_key_map),
    h200_speed=GpuSpeed("albert-base", 652_336, 512),
)  # fmt: skip
