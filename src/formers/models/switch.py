"""Switch Transformer (Fedus et al. 2021, arXiv:2101.03961)

Parent  t5
New     1. some feed-forward layers are mixtures of experts, and each token is routed to one of them   2. an expert has
        a capacity; tokens beyond it skip the layer   3. a load-balancing loss (nn/experts.py)   4. the router runs in
        fp32, and initial weights are smaller
Korean  일부 피드포워드 레이어에 전문가를 여럿 두고 토큰마다 하나만 씁니다. 전문가가 처리하는 토큰 수에는
        한도(용량)가 있고, 균형 손실로 전문가를 고르게 쓰게 합니다.
Shapes  as t5; a router outputs (N, experts)
Differs from the reference: capacity is counted per document; without a fixed value it is the paper's factor times the
        document's length, where transformers always has a fixed one; zero sparse layers means none, where transformers
        still builds one (a file that says 0 is read its way)
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace

from torch import nn

from ..config import HF_ACT_ROW, ConfigMap, KeyRule, Settings, check_rates, check_sizes, default_to_encoder
from ..errors import Error
from ..family import CheckpointFormat, Family, GpuSpeed, Head, PaperRecipe, Presets, TensorFile, cite_batch
from ..keymap import KeyMap, TensorOp
from ..nn.encoder_decoder import EncoderDecoder
from ..nn.experts import Experts
from ..nn.layers import Deviation, Embeddings, FeedForward
from . import t5


@dataclass(frozen=True, kw_only=True)
class SwitchConfig(t5.T5Config):
    """The Switch Transformer's sizes and rates; the defaults are Switch-base of 8 experts."""

    dim: int = 768
    layers: int = 12
    heads: int = 12
    ff: int = 3072
    experts: int = 8
    sparse: int = 6  # layers with experts,
    decoder_sparse: int | None = None  # and those of the decoder; None: as many, or all of its layers
    capacity: int | None = None  # tokens of a document that an expert takes; None: by the factors
    capacity_factor: float = 1.25
    eval_capacity_factor: float = 2.0
    jitter: float = 0.01
    expert_dropout: float | None = None  # inside the experts; None: as everywhere (§2.4: 0.4 in fine-tuning)
    router_bias: bool = False
    shared: bool = True  # both sides have the same token embeddings

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "experts", "capacity")
        check_sizes(self, "sparse", "decoder_sparse", minimum=0)
        check_rates(self, "jitter")
        if self.sparse > self.layers or (self.num_decoder_layers and self.num_decoder_sparse > self.num_decoder_layers):
            raise Error("there are more sparse layers than layers", fix="set sparse and decoder_sparse to fewer")
        if not self.shared and (self.tied or self.scaled):
            what = "sides with embeddings of their own have an output of its own, not tied and not scaled"
            raise Error(what, fix="set tied and scaled to false, or shared to true")
        if min(self.capacity_factor, self.eval_capacity_factor) <= 0:
            raise Error("a capacity factor must be above 0", fix="take 1.25 and 2.0")

    def shrink_settings(self, narrowed: int, depth: int) -> Settings:
        """Return what changes in a smaller copy: as large a share of its layers is sparse, with 8 experts at most, of
        which a token meets one."""
        counts = {"sparse": self.sparse, "decoder_sparse": self.decoder_sparse}
        sparse = {k: max(min(1, n), n * depth // self.layers) for k, n in counts.items() if n is not None}
        return super().shrink_settings(narrowed, depth) | sparse | {"experts": min(self.experts, 8)}

    @classmethod
    def fit_recipe_sizes(cls, sizes: Settings, given: Settings) -> Settings:
        """Return fewer sparse layers where fewer layers were given than the recipe has sparse ones."""
        layers, sparse = sizes.get("layers", cls.layers), sizes.get("sparse", cls.sparse)
        is_bounded = "layers" in given and "sparse" not in given and isinstance(layers, int)
        return {"sparse": min(sparse, layers)} if is_bounded else {}

    @property
    def num_decoder_sparse(self) -> int:
        """The number of the decoder's sparse layers."""
        return min(self.sparse, self.num_decoder_layers) if self.decoder_sparse is None else self.decoder_sparse

    def find_sparse_layers(self, decoder: bool) -> set[int]:
        """Return the layers of a side that have experts, evenly spaced from the second on."""
        layers, count = (self.num_decoder_layers, self.num_decoder_sparse) if decoder else (self.layers, self.sparse)
        step = layers // count if count else layers
        return {i for i in range(layers) if count and (step == 1 or i % step == 1)}


class Switch(EncoderDecoder):
    """T5, some of whose feed-forward layers are experts."""

    def __init__(self, config: SwitchConfig):
        c = config

        def build_feed_forward(layer: int, decoder: bool) -> nn.Module:
            if layer not in c.find_sparse_layers(decoder):
                return FeedForward(c.dim, c.ff, c.act, bias=False, dropout=c.dropout)
            return Experts(
                c.dim, c.ff, c.experts, c.act, capacity=c.capacity, factors=(c.capacity_factor, c.eval_capacity_factor),
                jitter=c.jitter, dropout=c.dropout if c.expert_dropout is None else c.expert_dropout,
                router_bias=c.router_bias,
            )  # fmt: skip

        encoder = t5.build_stack(c, c.layers, False, build_feed_forward)
        decoder = t5.build_stack(c, c.num_decoder_layers, True, build_feed_forward) if c.num_decoder_layers else None
        embed = Embeddings(c.dim, c.vocab, dropout=c.dropout)
        target = Embeddings(c.dim, c.vocab, dropout=c.dropout) if decoder is not None and not c.shared else None
        super().__init__(embed, encoder, decoder, target)


def build_heads(c: SwitchConfig) -> dict[str, dict[str, Head]]:
    """Build the first two of T5's heads."""
    return {name: parts for name, parts in t5.build_heads(c).items() if name in ("none", "lm")}


def build_init_rules(c: SwitchConfig) -> dict[str, Deviation]:
    """Initialise as in §2.4, with a tenth of the usual variance; embeddings as T5."""
    small = math.sqrt(0.1)
    rules: dict[str, Deviation] = {
        k: tuple(small * s for s in v) if isinstance(v, tuple) else small * v for k, v in t5.build_init_rules(c).items()
    }
    return rules | {
        "*.ff.down": small * c.init * c.ff**-0.5, "*.embed.token.weight": c.init, "heads.lm.out.weight": c.init,
    }  # fmt: skip


def write_capacity(c: SwitchConfig) -> int:
    """Return the capacity to write; theirs is always a fixed number."""
    if c.capacity is None:
        warnings.warn("transformers has no capacity factor: expert_capacity is written as 64", stacklevel=2)
    return c.capacity or 64


def check_sparse_count(sparse: int, layers: int) -> int:
    """Refuse 0: their spacing rule makes one sparse layer even then."""
    if layers and not sparse:
        raise Error("transformers has no Switch Transformer without experts on a side", fix="take a T5")
    return sparse


T5_ONLY_KEYS = ("feed_forward_proj", "classifier_dropout", "scale_decoder_outputs")
HF_CONFIG = ConfigMap(
    {key: row for key, row in t5.HF_CONFIG.rules.items() if key not in T5_ONLY_KEYS}
    | {
        "dense_act_fn": HF_ACT_ROW, "num_experts": "experts",
        "num_sparse_encoder_layers": KeyRule(
            lambda n: {"sparse": n or 1}, lambda c: check_sparse_count(c.sparse, c.layers)
        ),
        "num_sparse_decoder_layers": KeyRule(
            lambda n: {"decoder_sparse": n or 1},
            lambda c: check_sparse_count(c.num_decoder_sparse, c.num_decoder_layers),
        ),
        # The dropout of experts has no key, and no meaning where nothing is trained.
        "dropout_rate": KeyRule(lambda rate: {"dropout": rate, "expert_dropout": None}, lambda c: c.dropout),
        "tie_word_embeddings": "scaled", "router_jitter_noise": "jitter", "router_bias": "router_bias",
        "expert_capacity": KeyRule(lambda v: {"capacity": v}, write_capacity),
    },
    aliases=t5.HF_CONFIG.aliases,
    fixed_values={
        "router_dtype": ("float32",), "router_ignore_padding_tokens": (False,), "add_cross_attention": (False,),
        "feed_forward_proj": ("relu",), "is_gated_act": (False,), "router_type": ("tokens_masked",),
    },
    irrelevant_keys=frozenset({
        "n_positions", "is_encoder_decoder", "is_decoder", "router_z_loss_coef", "router_aux_loss_coef",
        "add_router_probs", "encoder_sparse_step", "decoder_sparse_step", "batch_prioritized_routing",
        "num_selected_experts",
    }),
    defaults={"d_ff": 2048, "d_model": 768, "num_layers": 12, "num_decoder_layers": 12, "num_heads": 12,
              "expert_capacity": 64, "num_sparse_encoder_layers": 3, "num_sparse_decoder_layers": 3},
)  # fmt: skip


def adjust_settings(settings: Settings, architecture: str, file: TensorFile) -> Settings:
    """Adjust as T5 does; an encoder alone has no sparse decoder layers, and untied models have a table on each side."""
    changes = t5.adjust_settings(settings, architecture, file)
    alone = {"decoder_sparse": 0} if changes.get("decoder_layers") == 0 else {}
    changes = (
        changes if alone or changes.get("decoder_layers") else default_to_encoder(changes, decoder_sparse="sparse")
    )
    return changes | {"shared": changes["scaled"], "tied": changes["scaled"] and changes["tied"]} | alone


def build_key_map(c: SwitchConfig, head: str) -> KeyMap:
    """Map T5's names, and those of the experts, which are separate tensors there and one of ours."""
    theirs = t5.build_key_map(c, head, feed_forward_name="mlp")
    every = "|".join(f"expert_{i}" for i in range(c.experts))
    body, tied, second = dict(theirs.body), dict(theirs.tied), dict[str, str]()
    shared, near, far = "shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
    if not c.shared:
        del body[shared]
        body |= {near: "embed.token.weight", far: "target.token.weight"}
        tied, second = {}, {shared: near}
    elif not c.scaled:  # said to be untied: nothing is there unless it is written
        second = tied
    for side, last in (("encoder", 1), ("decoder", 2)):
        layer, ours = f"{side}.block.{{i}}.layer.{last}.mlp", f"{side}.blocks.{{i}}.ff"
        body[f"{layer}.router.classifier.*"] = f"{ours}.router.*"
        for name, part in (("wi", "up"), ("wo", "down")):
            body[f"{layer}.experts.({every}).{name}.weight"] = TensorOp(
                f"{ours}.{part}", lambda t: t.unflatten(0, (c.experts, -1)), lambda t: t.flatten(0, 1)
            )
    return replace(theirs, body=body, tied=tied, alternate_names=second)


HF_PREFIX = "SwitchTransformers"
HF_CLASSES = {name: head for name, head in t5.map_classes(HF_PREFIX).items() if head in ("none", "lm")}
PRESETS: Presets = {
    **{f"switch-base-{n}": {"experts": n} for n in (8, 16, 32, 64, 128, 256)},
    "switch-large-128": {"dim": 1024, "layers": 24, "heads": 16, "ff": 4096, "sparse": 12, "experts": 128},
}

PAPER = PaperRecipe(
    {
        **{name: (value, f"as T5, {source}") for name, (value, source) in t5.PAPER.settings.items()},
        "objective.name": ("switch", "§2.2: T5's masking, with a loss that balances"),
        "objective.balance_weight": (0.01, "§2.2"),
        "train.steps": (550_000, "§4.1"),
        **cite_batch(2048, 512, "§4.1: 2²⁰ tokens; lengths as T5"),
        "model.capacity_factor": (
            1.25,
            "§2.2 and table 1; released mesh_tensorflow/transformer/moe.py: capacity_factor_train",
        ),
        "model.eval_capacity_factor": (2.0, "released mesh_tensorflow/transformer/moe.py: capacity_factor_eval"),
        "model.jitter": (0.01, "released mesh_tensorflow/transformer/moe.py: switch_jitter"),
    }
)

FAMILY = Family(
    SwitchConfig, Switch, build_heads, pretraining_head="lm", counted_head="lm", build_init_rules=build_init_rules,
    presets=PRESETS, tokenizer="unigram", tokenizer_style=t5.FAMILY.tokenizer_style, objective="switch",
    is_encoder_decoder=True, quick_recipe=t5.FAMILY.quick_recipe, paper_recipe=PAPER,
    scratch_recipe=t5.FAMILY.scratch_recipe,
    finetune_recipe=replace(t5.FAMILY.finetune_recipe, tune={"expert_dropout": 0.4}),  # §2.4
    task_prefixes=t5.FAMILY.task_prefixes,
    hub_checkpoints=(*(f"google/switch-base-{n}" for n in (8, 16, 32, 64, 128, 256)), "google/switch-large-128"),
    hf_format=CheckpointFormat(
        "switch_transformers", HF_CLASSES, HF_CONFIG, build_key_map, adjust_settings,
        t5.build_architecture_rule(HF_PREFIX),
    ),
    h200_speed=GpuSpeed({"sparse": 3, "ff": 2048}, 470_249, 512, target_share=0.18),
)  # fmt: skip
