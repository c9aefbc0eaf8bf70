"""XLNet (Yang et al. 2019, arXiv:1906.08237)

Parent  transformer_xl
New     1. permutation language modelling: tokens are predicted in any order, each from those before it in that order
        2. two streams: a content stream that sees its own token, and a query stream that knows only its position
        3. relative segments: a score depends on whether two tokens belong to the same segment   4. biases and W_r in
        every layer
Korean  토큰을 임의의 순서로 예측하는 순열 언어 모델입니다. 토큰을 아는 내용 스트림과 위치만 아는 쿼리 스트림, 상대
        세그먼트를 씁니다.
Shapes  ids (N,) → hidden (N, dim) → logits (N, vocab); with an order (N,), hidden is the query stream's at `chosen`
Differs from the reference: a query that can see no token gets nothing from attention (transformers: the mean of all
        tokens); the memory never holds padding; dropout of the position encodings is drawn once for all rows
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..batch import Batch, Layout
from ..config import HF_ACT_ROW, HF_SUMMARY_ROW, HF_TOKEN_ROWS, ConfigMap, KeyRule, Settings, check_sizes, rename_key
from ..errors import Error
from ..family import CheckpointFormat, Family, GpuSpeed, Head, ModelConfig, PaperRecipe, Pooling, Recipe, cite_batch
from ..keymap import KeyMap, TensorOp
from ..nn.attention.context import AttentionContext, Capture, RelativeInputs
from ..nn.attention.masks import IndexFunction, TableMask, WindowMask, causal, combine_masks
from ..nn.attention.positions import SinusoidalPositions
from ..nn.attention.segment_memory import SegmentMemory
from ..nn.attention.two_stream import (
    QueryStream,
    RelativeSegmentScores,
    TwoStreamAttention,
    build_order_masks,
    build_pair_masks,
)
from ..nn.block import Block, BlockStack
from ..nn.layers import Dropout, Embeddings, FeedForward, LayerNorm, get_activation, to_autocast_dtype
from ..text.tokenizer_kinds import SENTENCEPIECE_FILES, PublishedForm, TokenizerStyle


@dataclass(frozen=True, kw_only=True)
class XLNetConfig(ModelConfig):
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
    reversed: bool = False  # every batch is read as one with a reversed half, as a published file's bi_data asks
    clamp: int | None = None  # distances beyond it count as it
    memory: int | None = None  # how many states a caller's SegmentMemory should keep (None: as many as there are),
    reuse: int | None = None  # and of how many tokens of each segment (None: all)
    summary: Pooling = "last"  # which token classifiers read,
    summary_dense: bool = True  # through a dense layer
    summary_act: str | None = "tanh"
    summary_dropout: float = 0.1
    start_top: int = 5  # the beam head: how many starts of an answer are kept,
    end_top: int = 5  # and how many ends for each
    init: float = 0.02  # the deviation of all weights, as in the released code
    tied: bool = True
    pruned: tuple[str, ...] = ()  # attention heads taken out: "stack.layer.head"
    pad: int | None = 5
    bos: int | None = 1
    eos: int | tuple[int, ...] | None = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "clamp", "memory", "reuse", "start_top", "end_top")
        get_activation(self.act)
        get_activation(self.summary_act or "linear")
        if self.dim % 2:
            raise Error(f"dim must be even, got {self.dim}", fix="positions are pairs of a sine and a cosine")


class XLNet(nn.Module):
    """Tokens → post-norm blocks with relative positions, in one stream or two."""

    def __init__(self, config: XLNetConfig):
        super().__init__()
        c = self.config = config
        self.embed = Embeddings(c.dim, c.vocab, dropout=c.dropout)
        self.blank = nn.Parameter(torch.empty(1, c.dim))  # w, with which the query stream begins
        self.blocks = BlockStack(
            Block(
                TwoStreamAttention(
                    c.dim, c.heads, bias=False, dropout=c.dropout,
                    relative=RelativeSegmentScores(c.dim, c.heads, c.dim // c.heads),
                ),
                FeedForward(c.dim, c.ff, c.act, dropout=c.dropout), norm=lambda: LayerNorm(c.dim, c.eps),
                norm_order="post", dropout=c.dropout,
            )
            for _ in range(c.layers)
        )  # fmt: skip
        self.sinusoids, self.dropout = SinusoidalPositions(c.dim, halves=True), Dropout(c.dropout)

    @property
    def embedding_table(self) -> Tensor:
        """The token embeddings that an output layer may be tied to."""
        return self.embed.token_weight

    def forward(
        self, batch: Batch, *, memory: SegmentMemory | None = None, head_mask: Tensor | None = None,
        capture: Capture | None = None, visible_pairs: Tensor | None = None, targets: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """(N,) → (N, dim)

        With an `order`, a token's content stream sees the tokens of its own order or lower, its query stream those of a
        lower one; the result is the query stream at `chosen` (None: everywhere) and zero elsewhere. A table
        `visible_pairs` (documents, queries, keys) says it pair by pair instead, and then `targets` (M,) are the slots
        of the query stream; without them, the content stream is the result, in which a token always sees itself."""
        layout, used = batch.layout, 0 if memory is None else memory.used_slots
        masks = build_order_masks(batch.order, layout) if visible_pairs is None else build_pair_masks(visible_pairs)
        content, query = masks
        at = targets if batch.order is None else batch.chosen
        x = self.embed(batch.replace(segments=None), layout)
        options: Settings = {
            "segment_memory": memory, "head_mask": head_mask, "capture": capture,
            "relative": self.build_relative_inputs(batch, layout, used, x.dtype),
        }  # fmt: skip
        is_even = used == 0 or (memory is not None and memory.has_equal_rows and layout.is_uniform)
        stream, has_ranks = None, is_even and not self.config.causal
        order = batch.order if has_ranks else None  # the masks as an order, for a kernel that takes some places only
        key_order = None if order is None else prepend_to_rows(order, layout, used, -1)  # all see what is remembered
        if batch.order is not None or targets is not None:
            context = AttentionContext.start_pass(
                layout, mask=self.build_mask(query, used), opens_blind=True, stack_name="query",
                mask_ranks=None if key_order is None or order is None else (order - 1, key_order), **options,
            )  # fmt: skip
            stream = QueryStream(context, at, order, key_order)
            blank = self.blank.expand(layout.num_tokens if at is None else at.shape[0], -1)
            x = torch.cat((x, self.embed.dropout(to_autocast_dtype(blank))))
        attn_context = AttentionContext.start_pass(
            layout, mask=self.build_mask(content, used), stack_name="content", query_stream=stream,
            mask_ranks=None if key_order is None or order is None else (order, key_order), **options,
        )  # fmt: skip
        x = self.blocks(x, attn_context)
        if memory is not None:
            memory.advance(layout)
        return self.dropout(x if stream is None else stream.scatter_targets(x[layout.num_tokens :]))

    def build_mask(self, table: Tensor | None, used: int) -> IndexFunction | None:
        """Build the mask: by the direction of reading, and by a table of visible pairs."""
        c = self.config
        return combine_masks(
            causal if c.causal else None,
            WindowMask(used + 1) if c.causal and c.same_length else None,
            None if table is None else TableMask(table, used),
        )

    def build_relative_inputs(self, batch: Batch, layout: Layout, used: int, dtype: torch.dtype) -> RelativeInputs:
        """Return distances and segments of this pass; the `used` states of a memory count as segment 0. Distances in
        text that is back to front have the other sign."""
        c, has_reversed_half = self.config, self.config.reversed or batch.has_reversed_half
        distance = torch.arange(used + layout.longest - 1, -layout.longest - 1, -1, device=layout.starts.device)
        distance = distance if c.clamp is None else distance.clamp(-c.clamp, c.clamp)
        encodings = self.dropout(self.sinusoids(distance).to(dtype))
        turned = self.dropout(self.sinusoids(-distance).to(dtype)) if has_reversed_half else None
        is_other = segment_ids = None
        if batch.segments is not None:
            own = layout.unpack(batch.segments)  # (rows, T)
            is_other = (own[..., None] != nn.functional.pad(own, (used, 0))[:, None])[:, None]
            if used == 0 or layout.is_uniform:
                segment_ids = batch.segments, prepend_to_rows(batch.segments, layout, used, 0)
        return RelativeInputs(encodings, turned, is_other, segment_ids)


def prepend_to_rows(x: Tensor, layout: Layout, count: int, value: int) -> Tensor:
    """(N,) of packed tokens → the same with `count` values before those of each row, of which all have one length."""
    return nn.functional.pad(layout.unpack(x), (count, 0), value=value).flatten() if count else x


def build_heads(c: XLNetConfig) -> dict[str, dict[str, Head]]:
    """Build XLNet's heads; `beam` finds ends of an answer given its start, and whether there is an answer at all."""
    inner = ("dense",) * c.summary_dense + (() if c.summary_act is None else (c.summary_act,)) + ("dropout",)
    classify = Head(pool=c.summary, inner_layers=inner, dropout=c.summary_dropout)
    return {
        "none": {},
        "lm": {"lm": Head(out="vocab")},
        "classify": {"classify": classify},
        "tag": {"tag": Head()},
        "choose": {"choose": Head(pool=c.summary, inner_layers=inner, out=1, dropout=c.summary_dropout)},
        "answer": {"answer": Head(out=2)},
        "beam": {
            "start": Head(out=1),
            "end": Head(inner_layers=("dense", "tanh", "norm"), out=1, input_states=2),
            "cls": Head(inner_layers=("dense", "tanh"), out=1, bias=False, input_states=2),
        },
    }


HF_CONFIG = ConfigMap(
    {
        "vocab_size": "vocab", "d_model": "dim", "n_layer": "layers", "n_head": "heads", "d_inner": "ff",
        "d_head": KeyRule(lambda value: {}, lambda c: c.dim // c.heads), "ff_activation": HF_ACT_ROW,
        "layer_norm_eps": "eps", "dropout": "dropout", "attn_type": rename_key("causal", {"bi": False, "uni": True}),
        "same_length": "same_length", "bi_data": "reversed",
        "clamp_len": KeyRule(lambda n: {"clamp": None if n <= 0 else n}, lambda c: -1 if c.clamp is None else c.clamp),
        "mem_len": KeyRule(lambda n: {"memory": n or None}, lambda c: c.memory),
        "reuse_len": KeyRule(lambda n: {"reuse": n or None}, lambda c: c.reuse),
        "summary_type": rename_key("summary", {"last": "last", "cls_index": "last", "first": "first", "mean": "mean"}),
        "summary_use_proj": "summary_dense", "summary_activation": HF_SUMMARY_ROW,
        "summary_last_dropout": "summary_dropout", "start_n_top": "start_top", "end_n_top": "end_top",
        "initializer_range": "init", "tie_word_embeddings": "tied", **HF_TOKEN_ROWS,
    },
    fixed_values={"untie_r": (True,), "summary_proj_to_labels": (False,), "summary_first_dropout": (0, 0.0)},
    # of the released code's own files, and whether a caller who gives no memory gets one
    irrelevant_keys=frozenset({"dropatt", "init", "init_range", "init_std", "max_position_embeddings", "use_mems_eval",
                          "use_mems_train"}),
    aliases={"n_token": "vocab_size", "hidden_size": "d_model", "num_attention_heads": "n_head",
             "num_hidden_layers": "n_layer"},
    defaults={"d_model": 1024, "n_layer": 24, "n_head": 16, "d_inner": 4096, "mem_len": 512},
)  # fmt: skip


def build_key_map(c: XLNetConfig, head: str) -> KeyMap:
    """Map XLNet's names; projections are (dim, heads, head_dim) tensors."""
    width = (c.heads, c.dim // c.heads)

    def flatten_heads(name: str, parts: int = 1) -> TensorOp:  # (parts · dim, H, D) ↔ (parts · H · D, dim)
        return TensorOp(
            name,
            lambda t: t.unflatten(0, (parts, c.dim)).flatten(2).transpose(1, 2).flatten(0, 1),
            lambda t: t.unflatten(0, (parts, -1)).transpose(1, 2).unflatten(2, width).flatten(0, 1),
        )

    attn, ff = "layer.{i}.rel_attn", "layer.{i}.ff"
    summary = {"sequence_summary.summary.*": "dense.*", "logits_proj.*": "out.*"}
    return KeyMap(
        {
            "word_embedding.weight": "embed.token.weight",
            "mask_emb": TensorOp("blank", lambda t: t.flatten(0, 1), lambda t: t[None]),
            f"{attn}.(q|k|v)": flatten_heads("blocks.{i}.attn.qkv.weight", 3),
            f"{attn}.o": TensorOp("blocks.{i}.attn.o.weight", lambda t: t.flatten(1), lambda t: t.unflatten(1, width)),
            f"{attn}.r": flatten_heads("blocks.{i}.attn.relative.r.weight"),
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


PRESETS = {
    "xlnet-base": {},
    "xlnet-large": {"dim": 1024, "layers": 24, "heads": 16, "ff": 4096},
    "xlnet-mini": {"vocab": 8192, "dim": 256, "layers": 4, "heads": 4, "ff": 1024},
}

APPENDIX = "arXiv version 2, §A.4.1, table 7"
PAPER = PaperRecipe(
    {
        "objective.name": ("plm", "§2.2"),
        "objective.target_ratio": (85 / 512, "released README: num_predict 85; the paper has 1/6 (K = 6)"),
        "objective.max_ngram": (5, "released data_utils.py: max_gram"),
        "objective.context_factor": (6, "released README: mask_alpha"),
        "objective.reversed": (
            False,
            "§3.1 reverses half of each batch; left out, the fused kernels for GPUs do not take it",
        ),
        "train.optimizer": ("adamw", "§3.1: Adam with weight decay"),
        "train.lr": (4e-4, APPENDIX),
        "train.betas": ((0.9, 0.999), "released model_utils.py"),
        "train.eps": (1e-6, APPENDIX),
        "train.weight_decay": (0.01, APPENDIX),
        "train.schedule": ("linear", f"§3.1 and {APPENDIX}; the released train.py ends at a thousandth, here at 0"),
        "train.warmup_steps": (40_000, APPENDIX),
        "train.steps": (500_000, "§3.1"),
        **cite_batch(8192, 512, f"{APPENDIX} (version 1 and the released README have batches of 2,048)"),
        "train.carry_memory": (True, "§2.4"),
        "train.grad_clip": (1.0, "released train.py"),
        "model.memory": (384, "arXiv version 1, §A.3.1, table 7"),
        "model.dropout": (0.1, f"{APPENDIX}: hidden and attention; after GELU 0, here the same"),
        "data.vocab_size": (32_000, "released README: spm_train"),
    }
)

SPECIAL_TOKENS = {
    "pad": "<pad>", "unk": "<unk>", "bos": "<s>", "eos": "</s>", "cls": "<cls>", "sep": "<sep>", "mask": "<mask>",
}  # fmt: skip
STYLE = TokenizerStyle(
    "xlnet", SPECIAL_TOKENS, ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"), (),
    "$A <sep> <cls>:2", "$A <sep> $B:1 <sep>:1 <cls>:2",
    published_forms=(PublishedForm(SENTENCEPIECE_FILES, ("<sep>", "<cls>"), plain_quotes=True),),
)  # fmt: skip
FAMILY = Family(
    XLNetConfig, XLNet, build_heads, pretraining_head="lm", counted_head="lm", presets=PRESETS, reads_segments=True,
    tokenizer="unigram", tokenizer_style=STYLE, objective="plm", norm_order="post", is_two_stream=True,
    can_be_causal=True, state_class=SegmentMemory,
    quick_recipe=Recipe({"lr": 1.5e-3}, {"layers": 2}),  # it stalls at higher rates
    paper_recipe=PAPER,
    hub_checkpoints=("xlnet/xlnet-base-cased", "xlnet/xlnet-large-cased"),
    hf_format=CheckpointFormat("xlnet", {
        "XLNetModel": "none", "XLNetLMHeadModel": "lm", "XLNetForSequenceClassification": "classify",
        "XLNetForTokenClassification": "tag", "XLNetForMultipleChoice": "choose",
        "XLNetForQuestionAnsweringSimple": "answer", "XLNetForQuestionAnswering": "beam",
    }, HF_CONFIG, build_key_map),
    h200_speed=GpuSpeed("xlnet-base", 292_638, 512),
)  # fmt: skip
