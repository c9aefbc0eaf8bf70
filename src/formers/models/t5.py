"""T5 (Raffel et al. 2019, arXiv:1910.10683), versions 1.0 and 1.1

Parent  transformer
New     1. every task is text to text   2. span corruption   3. instead of positions, a learned bias for each bucket of
        relative distance, shared by all layers   4. RMS norms, without mean and bias, before each sub-block
        5. unscaled attention scores: the initialisation makes up for it   6. version 1.1: gated gelu, untied head
Korean  모든 과제를 텍스트에서 텍스트로 바꾸는 문제로 다룹니다. 구간 손상으로 사전 학습하고, 위치 대신 상대 거리의
        버킷별 편향을, 레이어 정규화 대신 RMS 정규화를 씁니다. 1.1은 게이트가 있는 GELU와 분리된 출력 레이어를 씁니다.
Shapes  source ids (S,) → memory (S, dim); target ids (N,) → hidden (N, dim) → logits (N, vocab)
Differs from the reference: activations in half precision are not clamped (fp16 overflows; use bf16)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from ..config import HF_ACT_ROW, HF_TOKEN_ROWS, MAX_SIZE, ConfigMap, KeyRule, Settings, check_sizes, default_to_encoder
from ..errors import Error
from ..family import (
    CheckpointFormat,
    CitedSettings,
    Family,
    GpuSpeed,
    Head,
    ModelConfig,
    PaperRecipe,
    Presets,
    Recipe,
    TensorFile,
    cite_batch,
)
from ..keymap import KeyMap, TensorOp
from ..nn.attention.attention import Attention
from ..nn.attention.positions import BucketBias
from ..nn.block import Block, BlockStack
from ..nn.encoder_decoder import EncoderDecoder, TransformerStack
from ..nn.layers import Deviation, Embeddings, FeedForward, RMSNorm, get_activation
from ..text.tokenizer_kinds import PublishedForm, TokenizerStyle


@dataclass(frozen=True, kw_only=True)
class T5Config(ModelConfig):
    """T5's sizes and rates; the defaults are version 1.0, small."""

    vocab: int = 32128
    dim: int = 512
    layers: int = 6
    decoder_layers: int | None = None  # None: as the encoder; 0: an encoder only
    heads: int = 8
    head_dim: int = 64
    ff: int = 2048
    act: str = "relu"
    gated: bool = False
    buckets: int = 32
    far: int = 128  # the distance from which on all share a bucket
    eps: float = 1e-6
    dropout: float = 0.1  # of attention weights as well
    head_dropout: float = 0.0
    init: float = 1.0
    tied: bool = True
    scaled: bool = True  # the tied head multiplies by dim^-0.5
    pruned: tuple[str, ...] = ()  # attention heads taken out: "stack.layer.head"
    pad: int | None = 0
    eos: int | tuple[int, ...] | None = 1
    bos: int | None = None
    start: int | None = 0  # the decoder's first input

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "buckets", "far")
        check_sizes(self, "decoder_layers", minimum=0)
        get_activation(self.act)
        if self.buckets < 4 or self.buckets % 2 or self.far <= self.buckets // 2:
            what = f"{self.buckets} buckets up to distance {self.far} cannot be laid out"
            raise Error(what, fix="take an even number of at least 4 buckets, and far above half of it")
        if self.heads * self.head_dim > MAX_SIZE:
            raise Error(f"{self.heads} heads of {self.head_dim} are too many", fix="take fewer or smaller heads")


def build_stack(
    c: T5Config, layers: int, decoder: bool, build_feed_forward: Callable[[int, bool], nn.Module] | None = None
) -> TransformerStack:
    """Build blocks that share one position bias, then a norm; `build_feed_forward(layer, decoder)` makes another."""

    def build_attention(cross: bool = False) -> Attention:
        return Attention(c.dim, c.heads, head_dim=c.head_dim, bias=False, scale=1.0, dropout=c.dropout, cross=cross)

    return TransformerStack(
        BlockStack(
            Block(
                build_attention(),
                build_feed_forward(i, decoder)
                if build_feed_forward
                else FeedForward(c.dim, c.ff, c.act, gated=c.gated, bias=False, dropout=c.dropout),
                norm=lambda: RMSNorm(c.dim, c.eps), cross=build_attention(cross=True) if decoder else None,
                dropout=c.dropout,
            )
            for i in range(layers)
        ),
        RMSNorm(c.dim, c.eps), decoder=decoder, bias=BucketBias(c.heads, c.buckets, c.far, bidirectional=not decoder),
        dropout=c.dropout,
    )  # fmt: skip


class T5(EncoderDecoder):
    """An encoder-decoder; without decoder layers, the encoder alone."""

    def __init__(self, config: T5Config):
        c = config
        embed, encoder = Embeddings(c.dim, c.vocab, dropout=c.dropout), build_stack(c, c.layers, decoder=False)
        decoder = build_stack(c, c.num_decoder_layers, decoder=True) if c.num_decoder_layers else None
        super().__init__(embed, encoder, decoder)


def build_heads(c: T5Config) -> dict[str, dict[str, Head]]:
    """Build T5's heads; a classifier reads the decoder at the source's end mark, a tagger the encoder."""
    inner = ("dropout", "dense", "tanh", "dropout")
    return {
        "none": {},
        "lm": {"lm": Head(out="vocab", bias=False, scale=c.dim**-0.5 if c.scaled else 1.0)},
        "classify": {"classify": Head(pool="eos", inner_layers=inner, dropout=c.head_dropout)},
        "tag": {"tag": Head(inner_layers=("dropout",), dropout=c.head_dropout, reads_decoder=False)},
        "answer": {"answer": Head(out=2)},
    }


def build_init_rules(c: T5Config) -> dict[str, Deviation]:
    """Initialise as the released code does: 1/√fan_in, queries smaller by √head_dim in place of scaled scores."""
    narrow, wide = c.init * c.dim**-0.5, c.init * (c.heads * c.head_dim) ** -0.5
    query = c.init * (c.dim * c.head_dim) ** -0.5
    return {
        "*": narrow,
        "*.embed.token.weight": c.init,
        "heads.lm.out.weight": c.init,
        "*.attn.qkv.weight": (query, narrow, narrow),
        "*.cross.q.weight": query,
        "*.o.weight": wide,
        "*.ff.down.weight": c.init * c.ff**-0.5,
    }


def read_feed_forward(value: str) -> Settings:
    """Read feed_forward_proj: relu, gated-gelu and the like; the published gated-gelu is the tanh form."""
    gated = value.startswith("gated-")
    act = value.removeprefix("gated-")
    return {"gated": gated} | ({"act": "gelu_tanh"} if value == "gated-gelu" else HF_ACT_ROW.read(act))


def write_feed_forward(c: T5Config) -> str:
    """Write T5's feed_forward_proj; after "gated-", gelu means its tanh form."""
    if not c.gated:
        return HF_ACT_ROW.write(c)
    own: str = HF_ACT_ROW.write(c)
    return "gated-" + {"gelu_tanh": "gelu", "gelu": "gelu_python"}.get(c.act, own)


HF_CONFIG = ConfigMap(
    {
        "vocab_size": "vocab", "d_model": "dim", "d_kv": "head_dim", "d_ff": "ff", "num_heads": "heads",
        "num_layers": "layers",
        "num_decoder_layers": KeyRule(lambda v: {"decoder_layers": v}, lambda c: c.num_decoder_layers),
        "feed_forward_proj": KeyRule(read_feed_forward, write_feed_forward),
        "relative_attention_num_buckets": "buckets", "relative_attention_max_distance": "far",
        "dropout_rate": "dropout", "classifier_dropout": "head_dropout", "layer_norm_epsilon": "eps",
        "initializer_factor": "init", "tie_word_embeddings": "tied", "scale_decoder_outputs": "scaled",
        "decoder_start_token_id": "start", **HF_TOKEN_ROWS,
    },
    aliases={
        "hidden_size": "d_model", "num_attention_heads": "num_heads", "num_hidden_layers": "num_layers",
        "head_dim": "d_kv",
    },
    irrelevant_keys=frozenset({"n_positions", "is_gated_act", "dense_act_fn", "is_encoder_decoder", "is_decoder"}),
)  # fmt: skip


def adjust_settings(settings: Settings, architecture: str, file: TensorFile) -> Settings:
    """Set whether the head scales, as the settings' tie says, and whether it is tied, as only the tensors tell: today's
    transformers writes that every T5 is tied, and unties one whose file holds another head."""
    head = "lm_head.weight"
    table = ("shared.weight", "encoder.embed_tokens.weight")
    token = next((name for name in file if name.removeprefix("transformer.") in table), head)
    alone = architecture.endswith(("EncoderModel", "ForTokenClassification"))
    return {
        "scaled": settings.get("tied", True), **default_to_encoder(settings, decoder_layers="layers"),
        "tied": head not in file or file.is_equal(head, token), **({"decoder_layers": 0} if alone else {}),
    }  # fmt: skip


def build_key_map(c: T5Config, head: str, feed_forward_name: str = "DenseReluDense") -> KeyMap:
    """Map T5's names; classifiers and taggers hold the body under `transformer.`."""
    body: dict[str, str | TensorOp] = {"shared.weight": "embed.token.weight"}
    for side, last in (("encoder", 1), ("decoder", 2)):
        layer, ours = f"{side}.block.{{i}}.layer", f"{side}.blocks.{{i}}"
        body |= {
            f"{layer}.0.SelfAttention.(q|k|v).weight": f"{ours}.attn.qkv.weight",
            f"{layer}.0.SelfAttention.o.weight": f"{ours}.attn.o.weight",
            f"{layer}.0.layer_norm.weight": f"{ours}.attn_norm.weight",
            f"{layer}.{last}.{feed_forward_name}.{'wi_1' if c.gated else 'wi'}.weight": f"{ours}.ff.up.weight",
            f"{layer}.{last}.{feed_forward_name}.wi_0.weight": f"{ours}.ff.gate.weight",
            f"{layer}.{last}.{feed_forward_name}.wo.weight": f"{ours}.ff.down.weight",
            f"{layer}.{last}.layer_norm.weight": f"{ours}.ff_norm.weight",
            f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight": f"{side}.bias.weight",
            f"{side}.final_layer_norm.weight": f"{side}.norm.weight",
        }
    cross, ours = "decoder.block.{i}.layer.1", "decoder.blocks.{i}"
    body |= {
        f"{cross}.EncDecAttention.q.weight": f"{ours}.cross.q.weight",
        f"{cross}.EncDecAttention.(k|v).weight": f"{ours}.cross.kv.weight",
        f"{cross}.EncDecAttention.o.weight": f"{ours}.cross.o.weight",
        f"{cross}.layer_norm.weight": f"{ours}.cross_norm.weight",
    }
    tied = {"encoder.embed_tokens.weight": "shared.weight", "decoder.embed_tokens.weight": "shared.weight"}
    return KeyMap(
        body,
        heads={
            "lm": {"lm_head.weight": "out.weight"},
            "classify": {"classification_head.dense.*": "dense.*", "classification_head.out_proj.*": "out.*"},
            "tag": {"classifier.*": "out.*"},
            "answer": {"qa_outputs.*": "out.*"},
        },
        prefix="transformer." if head in ("classify", "tag") else "",
        prefixes=("transformer.",),
        tied=tied | ({"lm_head.weight": "shared.weight"} if c.tied else {}),
        drop=(
            "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
            *(() if c.num_decoder_layers else ("decoder.**",)),
        ),
    )


def build_architecture_rule(name: str) -> Callable[[T5Config, str], str | None]:
    """Return the rule that a bare model without decoder layers is written as the encoder class."""
    return lambda config, head: f"{name}EncoderModel" if head == "none" and not config.num_decoder_layers else None


def map_classes(name: str) -> dict[str, str]:
    """Map their classes to our heads."""
    heads = {
        "Model": "none", "EncoderModel": "none", "ForConditionalGeneration": "lm", "WithLMHeadModel": "lm",
        "ForSequenceClassification": "classify", "ForTokenClassification": "tag", "ForQuestionAnswering": "answer",
    }  # fmt: skip
    return {name + ending: head for ending, head in heads.items()}


SIZES_V1_0: Presets = {  # of 1.0; the two largest have few, very wide heads and layers
    "small": {},
    "base": {"dim": 768, "layers": 12, "heads": 12, "ff": 3072},
    "large": {"dim": 1024, "layers": 24, "heads": 16, "ff": 4096},
    "3b": {"dim": 1024, "layers": 24, "heads": 32, "head_dim": 128, "ff": 16384},
    "11b": {"dim": 1024, "layers": 24, "heads": 128, "head_dim": 128, "ff": 65536},
}
SIZES_V1_1: Presets = {  # of 1.1 and mT5
    "small": {"layers": 8, "heads": 6, "ff": 1024},
    "base": {"dim": 768, "layers": 12, "heads": 12, "ff": 2048},
    "large": {"dim": 1024, "layers": 24, "heads": 16, "ff": 2816},
    "xl": {"dim": 2048, "layers": 24, "heads": 32, "ff": 5120},
    "xxl": {"dim": 4096, "layers": 24, "heads": 64, "ff": 10240},
}
SETTINGS_V1_1 = {"act": "gelu_tanh", "gated": True, "tied": False, "scaled": False}
PRESETS: Presets = {
    **{f"t5-{size}": values for size, values in SIZES_V1_0.items()},
    **{f"t5-v1_1-{size}": {**SETTINGS_V1_1, **values} for size, values in SIZES_V1_1.items()},
    "t5-mini": {"vocab": 8192, "dim": 256, "layers": 4, "heads": 4, "ff": 1024},
}

# The initial weights are a share of 1/√fan_in: with the init of others it would begin, and step, 20 times too small.
QUICK_MODEL = {"layers": 2, "init": 1.0}
SCRATCH_TRAIN = {"optimizer": "rms-adamw", "lr": 1e-2}
ALIKE = "released released_checkpoints.md: T5.1.1 is similar to the paper's models, §3.7"
PAPER_V1_0: CitedSettings = {  # of the published sizes; the others' is the baseline's
    "train.steps": (1_000_000, "§3.7; without its supervised tasks, which are mixed in there"),
    **cite_batch(2048, 512, "§3.7: 2¹¹ sequences"),
}
PAPER_V1_1: CitedSettings = {
    "train.steps": (1_000_000, "T5X, docs/models.md, released as checkpoint_1000000"),
    **cite_batch(2048, 512, ALIKE),
    "model.dropout": (0.0, "released released_checkpoints.md: T5.1.1 without dropout in pretraining"),
}
PAPER = PaperRecipe(
    {
        "objective.name": ("span-corruption", "§3.3.4"),
        "objective.noise_density": (0.15, "§3.3.3"),
        "objective.mean_span_length": (3.0, "§3.3.4"),
        "objective.across_documents": (True, "§3.1.2: packed; released preprocessors.py joins documents"),
        "train.optimizer": ("adafactor", "§3.1.2"),
        "train.lr": (1e-2, "§3.1.2"),
        "train.weight_decay": (0.0, "none stated"),
        "train.schedule": ("rsqrt", "§3.1.2: 1/√max(n, k)"),
        "train.warmup_steps": (10_000, "§3.1.2: k, constant until then"),
        "train.steps": (2**19, "§3.1.2: the baseline; the published sizes took 1 million steps, §3.7"),
        **cite_batch(128, 512, "§3.1.2: the baseline; the published sizes took 2¹¹ sequences, §3.7"),
        "train.grad_clip": (0.0, "none stated; Adafactor clips updates"),
        "model.dropout": (0.1, "§3.1.1"),
        "data.vocab_size": (32_000, "§3.1.3"),
    },
    {
        **{f"t5-{size}": PAPER_V1_0 for size in SIZES_V1_0},
        **{f"t5-v1_1-{size}": PAPER_V1_1 for size in SIZES_V1_1},
    },
)  # fmt: skip

SPECIAL_TOKENS = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}
SENTINELS = tuple(f"<extra_id_{i}>" for i in reversed(range(100)))  # the first sentinel is the very last piece
STYLE = TokenizerStyle(
    "t5", SPECIAL_TOKENS, ("<pad>", "</s>", "<unk>"), SENTINELS, "$A </s>", "$A </s> $B </s>",
    default_kinds=("unigram",),  # other models with a spiece.model also have a <s>
    published_forms=(PublishedForm(("spiece.model",), special=SPECIAL_TOKENS | {"bos": "<s>"}),),
)  # fmt: skip
FAMILY = Family(
    T5Config, T5, build_heads, pretraining_head="lm", counted_head="lm", build_init_rules=build_init_rules,
    presets=PRESETS, tokenizer="unigram", tokenizer_style=STYLE, objective="span-corruption",
    shown_objectives=("prefix-spans", "deshuffle"), is_encoder_decoder=True,
    quick_recipe=Recipe(SCRATCH_TRAIN, QUICK_MODEL),
    paper_recipe=PAPER,
    scratch_recipe=Recipe(SCRATCH_TRAIN),
    finetune_recipe=Recipe({"optimizer": "rms-adamw", "lr": 1e-3, "schedule": "constant"}),
    task_prefixes={"translate": "translate {source} to {to}: ", "summarise": "summarize: "},
    hub_checkpoints=(
        *(f"google-t5/t5-{size}" for size in ("small", "base", "large", "3b", "11b")),
        *(f"google/t5-v1_1-{size}" for size in ("small", "base", "large", "xl", "xxl")),
    ),
    hf_format=CheckpointFormat(
        "t5", map_classes("T5"), HF_CONFIG, build_key_map, adjust_settings, build_architecture_rule("T5"),
        has_encoder_model=True,
    ),
    h200_speed=GpuSpeed("t5-base", 461_265, 512, target_share=0.18),
)  # fmt: skip
