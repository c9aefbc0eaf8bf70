"""GPT-J (Wang and Komatsuzaki 2021, github.com/kingoflolz/mesh-transformer-jax)

Parent  gpt2
New     1. rotary positions: the first 64 dimensions of each head are rotated in adjacent pairs   2. attention and
        feed-forward in parallel, sharing one norm   3. no biases in attention   4. an untied output layer with a bias
Korean  회전 위치 임베딩(RoPE)을 씁니다. 어텐션과 피드포워드가 정규화 하나를 공유하며 병렬로 계산되고, 출력 레이어가
        따로 있습니다.
Shapes  ids (N,) → hidden (N, dim) → logits (N, vocab)
Differs from the reference: positions count from a document's first real token, even with left padding
"""

from __future__ import annotations

from dataclasses import dataclass

from ..config import HF_ACT_ROW, HF_TOKEN_ROWS, ConfigMap, Settings, check_sizes
from ..errors import Error
from ..family import CheckpointFormat, Family, Head, ModelConfig, PaperRecipe, Presets, cite_batch
from ..keymap import KeyMap
from ..nn.attention.attention import Attention
from ..nn.attention.masks import causal
from ..nn.attention.positions import RotaryEmbedding
from ..nn.block import Block, BlockStack, TransformerBody
from ..nn.layers import Embeddings, FeedForward, LayerNorm, get_activation
from . import gpt2


@dataclass(frozen=True, kw_only=True)
class GPTJConfig(ModelConfig):
    """GPT-J's sizes and rates; the defaults are the 6B model."""

    vocab: int = 50400
    context: int = 2048
    dim: int = 4096
    layers: int = 28
    heads: int = 16
    rotary: int | None = 64  # numbers of each head that are turned; None: all
    ff: int | None = None  # None: 4 · dim
    act: str = "gelu_tanh"
    eps: float = 1e-5
    dropout: float = 0.0
    embed_dropout: float = 0.0
    attention_dropout: float = 0.0
    init: float = 0.02
    tied: bool = False
    pruned: tuple[str, ...] = ()  # attention heads taken out: "stack.layer.head"
    pad: int | None = None
    bos: int | None = 50256
    eos: int | tuple[int, ...] | None = 50256

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "rotary")
        width = self.dim // self.heads
        if self.rotary_dim % 2 or self.rotary_dim > width:
            what = f"{self.rotary_dim} of a head's {width} numbers cannot be turned in pairs"
            raise Error(what, fix=f"set rotary to an even number up to {width}")
        get_activation(self.act)

    @classmethod
    def fit_recipe_sizes(cls, sizes: Settings, given: Settings) -> Settings:
        """Return fewer numbers to turn where the heads that were given are narrower than the recipe has them."""
        dim, heads = sizes.get("dim", cls.dim), sizes.get("heads", cls.heads)
        rotary = sizes.get("rotary", cls.rotary)
        if "rotary" in given or not {"dim", "heads"} & {*given}:
            return {}
        if not (isinstance(dim, int) and isinstance(heads, int) and isinstance(rotary, int) and dim > heads > 0):
            return {}  # None, or words, which an error follows for
        return {"rotary": min(rotary, dim // heads // 2 * 2)}

    @property
    def rotary_dim(self) -> int:
        """How many numbers of each head are turned."""
        return self.dim // self.heads if self.rotary is None else self.rotary


class GPTJ(TransformerBody):
    """A decoder: token → parallel blocks with one norm each → norm."""

    def __init__(self, config: GPTJConfig):
        c = config
        rotary = RotaryEmbedding(c.rotary_dim, is_interleaved=True)
        super().__init__(
            Embeddings(c.dim, c.vocab, dropout=c.embed_dropout),
            BlockStack(
                Block(
                    Attention(c.dim, c.heads, bias=False, dropout=c.attention_dropout, rotary=rotary),
                    FeedForward(c.dim, c.ff or 4 * c.dim, c.act), norm=lambda: LayerNorm(c.dim, c.eps),
                    norm_order="parallel", shared_norm=True, dropout=c.dropout,
                )
                for _ in range(c.layers)
            ),
            LayerNorm(c.dim, c.eps), masks=[causal],
        )  # fmt: skip


def build_heads(c: GPTJConfig) -> dict[str, dict[str, Head]]:
    """Build the heads of all decoders but the tagger; the output layer has a bias."""
    mine = {name: parts for name, parts in gpt2.build_decoder_heads(0.0).items() if name != "tag"}
    return mine | {"lm": {"lm": Head(out="vocab")}}


HF_CONFIG = ConfigMap(
    {
        "vocab_size": "vocab", "n_positions": "context", "n_embd": "dim", "n_layer": "layers", "n_head": "heads",
        "rotary_dim": "rotary", "n_inner": "ff", "activation_function": HF_ACT_ROW, "layer_norm_epsilon": "eps",
        "resid_pdrop": "dropout", "embd_pdrop": "embed_dropout", "attn_pdrop": "attention_dropout",
        "initializer_range": "init", "tie_word_embeddings": "tied", **HF_TOKEN_ROWS,
    },
    aliases={
        "hidden_size": "n_embd", "max_position_embeddings": "n_positions", "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    fixed_values={"rotary": (True,), "scale_attn_weights": (True,)},
    irrelevant_keys=frozenset({
        "n_ctx", "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels",
        "summary_first_dropout",
    }),
)  # fmt: skip


def build_key_map(c: GPTJConfig, head: str) -> KeyMap:
    """Map GPT-J's names."""
    return KeyMap(
        {
            "wte.weight": "embed.token.weight",
            "h.{i}.ln_1.*": "blocks.{i}.attn_norm.*",
            "h.{i}.attn.(q_proj|k_proj|v_proj).weight": "blocks.{i}.attn.qkv.weight",
            "h.{i}.attn.out_proj.weight": "blocks.{i}.attn.o.weight",
            "h.{i}.mlp.fc_in.*": "blocks.{i}.ff.up.*",
            "h.{i}.mlp.fc_out.*": "blocks.{i}.ff.down.*",
            "ln_f.*": "norm.*",
        },
        heads={"lm": {"lm_head.*": "out.*"}, **{part: gpt2.DECODER_HEAD_KEYS[part] for part in ("classify", "answer")}},
        prefix="" if head == "none" else "transformer.",
        prefixes=("transformer.",),
        tied={"lm_head.weight": "wte.weight"} if c.tied else {},
        drop=("h.{i}.attn.bias", "h.{i}.attn.masked_bias", "h.{i}.attn.embed_positions"),
    )


PRESETS: Presets = {"gpt-j-6b": {}}

CODE = "released configs/6B_roto_256.json"
PAPER = PaperRecipe(
    {
        "objective.name": ("causal", "released README"),
        "objective.across_documents": (True, "released create_finetune_tfrecords.py: documents are joined"),
        "train.optimizer": ("adamw", "released device_train.py"),
        "train.lr": (1.2e-4, CODE),
        "train.betas": ((0.9, 0.999), "released device_train.py: the defaults of optax"),
        "train.eps": (1e-8, "released device_train.py: the defaults of optax"),
        "train.weight_decay": (0.1, CODE),
        "train.schedule": ("cosine", "released mesh_transformer/util.py: gpt3_schedule"),
        "train.min_lr_ratio": (0.1, f"{CODE}: end_lr"),
        "train.warmup_steps": (3_000, CODE),
        "train.decay_steps": (303_000, f"{CODE}: 300,000 after the warmup"),
        "train.steps": (383_500, f"model card of gpt-j-6b; 350,000 in {CODE}"),
        **cite_batch(512, 2048, f"{CODE}: 32 replicas × 16"),
        "train.grad_clip": (1.0, "released device_train.py"),
        "model.dropout": (0.0, "published config.json"),
        "model.embed_dropout": (0.0, "published config.json"),
        "model.attention_dropout": (0.0, "published config.json"),
        "data.vocab_size": (50_257, "model card of gpt-j-6b: GPT-2's tokenizer"),
    }
)

FAMILY = Family(
    GPTJConfig, GPTJ, build_heads, pretraining_head="lm", counted_head="lm", presets=PRESETS, reads_segments=True,
    tokenizer="bpe", tokenizer_style=gpt2.FAMILY.tokenizer_style, objective="causal",
    paper_recipe=PAPER,
    hub_checkpoints=("EleutherAI/gpt-j-6b",),
    hf_format=CheckpointFormat("gptj", {
        "GPTJModel": "none", "GPTJForCausalLM": "lm", "GPTJForSequenceClassification": "classify",
        "GPTJForQuestionAnswering": "answer",
    }, HF_CONFIG, build_key_map),
)  # fmt: skip
