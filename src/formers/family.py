"""The values that a model file declares: its heads, its format in other libraries, and the family as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast

from .config import AnyConfig, ConfigMap, Settings, check_rates, check_sizes, compute_head_dim, get_schema
from .errors import Error
from .keymap import KeyMap
from .text.tokenizer_kinds import TokenizerStyle

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from torch import nn

    from .batch import Array
    from .nn.layers import InitRule, MixNorm

Pooling = Literal["first", "last", "mean", "max", "attention", "eos"]
HeadEncoder = Literal["bilstm", "cnn"]  # layers of a head over all hidden states of a text (model.py)
LayerView = Literal["last", "second", "sum4", "concat4"]  # some of the layers, as they are (model.py)
MODEL_SIZES = ("vocab", "target_vocab", "context", "embed", "dim", "layers", "heads", "decoder_heads", "head_dim", "ff")


MODEL_WIDTHS = ("dim", "heads", "ff", "decoder_heads", "decoder_ff")  # what a narrower copy has less of


class ModelConfig:
    """What the rest of formers reads of a model's config. A family's own config is a dataclass that derives from this
    class and declares as fields what the family has; the values here are those of a family that has no such thing."""

    vocab: int  # the number of tokens
    target_vocab: int | None = None  # of translators with a vocabulary for each side
    context: int | None = None  # the most tokens that are read at once; None: no limit
    dim: int  # the width of the hidden states
    layers: int = 0
    heads: int = 0  # of self-attention; 0: none
    eps: float = 1e-5  # of norms
    segments: int = 0  # kinds of segments; 0: none, or segment ids are read as tokens (GPT-2)
    tasks: int  # kinds of tasks (ERNIE 2.0)
    tied: bool = False  # the output layer shares the token embeddings
    shared: bool = False  # both sides of an encoder-decoder have the same token embeddings
    causal: bool  # each token sees those before it alone, where `Family.can_be_causal`
    pruned: tuple[str, ...] = ()  # the attention heads that were removed (nn/head_pruning.py)
    decoder_layers: int | None = 0  # None: as many as `layers`
    decoder_heads: int | None = None  # None: as many as `heads`
    pad: int | None = None
    bos: int | None = None
    eos: int | tuple[int, ...] | None = None
    start: int | None = None  # the decoder's first token
    slots: int  # characters of a word, of `characters` kinds (ELMo)
    characters: int
    start_top: int  # beginnings and ends of answers that a beam keeps (XLNet)
    end_top: int

    def __post_init__(self) -> None:  # what every family's config must be; a family's own checks follow these
        declared = get_schema(type(self))
        check_sizes(self, *(name for name in MODEL_SIZES if name in declared))
        check_sizes(self, *({"init"} & declared.keys()), minimum=0)
        check_rates(self, *(name for name in declared if name.endswith("dropout")))
        if self.eps <= 0:
            raise Error(f"eps must be above 0, got {self.eps}", fix="take for example 1e-5")
        if self.pad is not None and not 0 <= self.pad < self.vocab:
            what = f"pad must be a token of the vocabulary of {self.vocab}, got {self.pad}"
            raise Error(what, fix="set pad, or leave it out")
        if self.heads and "head_dim" not in declared:
            compute_head_dim(self)
        if self.decoder_heads is not None:
            compute_head_dim(self, "decoder_heads")
        if self.shared and self.target_vocab not in (None, self.vocab):
            what = f"sides of {self.vocab} and {self.target_vocab} tokens cannot share their embeddings"
            raise Error(what, fix="set shared to false")

    def to_settings(self) -> Settings:
        """Return all settings that the family declares, by name."""
        return dict(vars(self))  # dynamic: the fields are those of the subclass

    def shrink_settings(self, narrowed: int, depth: int) -> Settings:
        """Return what changes in a copy of `depth` layers on each side, `narrowed` times narrower and without dropout;
        a family adds what else belongs to its layers."""
        own = self.to_settings()
        widths = {name: max(1, own[name] // narrowed) for name in MODEL_WIDTHS if own.get(name) is not None}
        rates = {name: 0.0 for name in own if name.endswith("dropout")}
        depths = {"layers": depth} | ({"decoder_layers": depth} if self.num_decoder_layers else {})
        return widths | rates | depths

    @classmethod
    def fit_recipe_sizes(cls, sizes: Settings, given: Settings) -> Settings:
        """Return what changes in a recipe's `sizes` because of those that were `given`; a family overrides this if one
        of its settings is bounded by another."""
        return {}

    @property
    def output_vocab(self) -> int:
        """The number of tokens that the output layer chooses from."""
        return self.target_vocab or self.vocab

    @property
    def num_decoder_layers(self) -> int:
        """The depth of the decoder, where it is a setting; else 0."""
        return self.layers if self.decoder_layers is None else self.decoder_layers

    @property
    def has_uniform_attention(self) -> bool:
        """True if earlier tokens attend to later ones, so that nothing can be cached (a kind of Transformer-XL)."""
        return False


ConfigType = TypeVar("ConfigType", bound=ModelConfig)


def replace_settings(config: ConfigType, **changes: object) -> ConfigType:
    """Return a config, which is a dataclass, with some settings changed."""
    return cast(ConfigType, replace(cast("DataclassInstance", config), **changes))


@dataclass(frozen=True)
class Head:
    """What turns hidden states into answers: pool (or not), some inner layers, an output layer. `inner_layers` names
    layers in their order: dense, norm, dropout, or an activation. `out` is a width, "labels", "vocab" (tied to the
    token embedding if the config says so), or None for no output layer."""

    layer_mix: MixNorm | LayerView | None = None  # read a learned mix of all layers instead of the last one (ELMo)
    encoder: HeadEncoder | None = None  # layers over the whole text before pooling (BERT, table 7)
    pool: Pooling | None = None
    inner_layers: tuple[str, ...] = ()
    out: int | Literal["labels", "vocab"] | None = "labels"
    build_output_layer: Callable[[], nn.Module] | None = None  # makes an output layer of another kind (Transformer-XL)
    bias: bool = True
    frozen_bias: bool = False  # the bias is not trained, and may be missing in a file (BART)
    out_act: str | None = None  # an activation of the output
    inner_dim: int | None = None  # the width of the inner layers, if it is not the model's (ALBERT)
    directions: int = 1  # the hidden state is this many states side by side, each with an output (ELMo)
    input_states: int = 1  # how many hidden states it reads side by side (XLNet's beam: a token's and the beginning's)
    scale: float = 1.0  # of the hidden state before the output layer (T5)
    dropout: float = 0.0
    reads_decoder: bool = True  # False: this head of an encoder-decoder reads the encoder, and there is no decoder
    optional: bool = False  # a file may lack this part (BERT without its pooler)


Presets = Mapping[str, Mapping[str, object]]  # name → settings of a model's config
HeadTable = Mapping[str, Mapping[str, Head]]


class TensorFile(Protocol):
    """A checkpoint's tensors by name, as `adjust_settings` reads them."""

    def __iter__(self) -> Iterator[str]: ...

    def is_equal(self, one: str, other: str) -> bool:
        """Return whether two tensors hold the same numbers."""


ArchitectureRule = Callable[[AnyConfig, str], str | None]  # (config, head) → their class, if no table says it


@dataclass(frozen=True)
class CheckpointFormat:
    """How another library spells this family: its classes, its config, its tensor names."""

    model_type: str
    architectures: Mapping[str, str]  # their class → our head; of several for one head, the first is written
    config_map: ConfigMap
    build_key_map: Callable[[AnyConfig, str], KeyMap]  # (config, head) → the map
    adjust_settings: Callable[[Settings, str, TensorFile], Settings] | None = None  # also by class and file
    choose_architecture: ArchitectureRule | None = None  # exceptions from the table when we write
    unsupported_reason: str = ""  # why today's version of the other library does not read it, and which one does
    has_encoder_model: bool = False  # sentence-transformers takes the encoder alone, as formers.embed does
    config_defaults: Mapping[str, object] = field(default_factory=dict)  # keys to write where no original has a word


@dataclass(frozen=True)
class Recipe:
    """Settings that a family is trained with, by table; others keep their defaults."""

    train: Settings = field(default_factory=dict)
    model: Settings = field(default_factory=dict)
    objective: Settings = field(default_factory=dict)
    tune: Settings = field(default_factory=dict)  # of fine-tuning
    data: Settings = field(default_factory=dict)


CitedSettings = Mapping[str, tuple[object, str]]  # dotted name → its value, and where that is stated
OURS = "not stated; ours"
GPU_BATCH_TOKENS = 65_536  # of one batch; larger ones are accumulated


@dataclass(frozen=True)
class PaperRecipe:
    """What a paper trained its models with: every setting with its source, a place in the paper or in the released
    code. What is stated nowhere is ours, and its source says so."""

    settings: CitedSettings = field(default_factory=dict)
    by_preset: Mapping[str, CitedSettings] = field(default_factory=dict)  # what differs for other published sizes
    # The rate by (the model's width, warmup steps), where the paper has a formula for it.
    compute_lr: Callable[[int, int], float] | None = None

    def select(self, preset: str | None = None) -> CitedSettings:
        """Return the settings of a published size."""
        return {**self.settings, **self.by_preset.get(preset or "", {})}


def cite_batch(sequences: int, length: int, source: str) -> CitedSettings:
    """Return the settings of a step of so many sequences, cut into equal batches that fit into a GPU."""
    each = next(n for n in range(min(sequences, GPU_BATCH_TOKENS // length), 0, -1) if sequences % n == 0)
    cut = f"{sequences:,} sequences of {length:,} a step"
    return {
        "train.seq_length": (length, source), "train.batch_tokens": (each * length, f"{source}: {cut}"),
        "train.accumulate": (sequences // each, f"ours: {cut} in batches of {each * length:,} tokens"),
    }  # fmt: skip


def count_growing_steps(batches: float, start: int, end: int, growing: int) -> int:
    """Count the steps that read so many batches, where their number in a step grows over `growing` steps from `start`
    to `end`, rounded down."""
    steps = read = 0
    while read < batches:
        read += start + (end - start) * steps // growing
        steps += 1
    return steps


# How an encoder-decoder learns to translate from random weights.
TRANSLATION_TUNE = {
    "epochs": 30, "batch_size": 128, "label_smoothing": 0.1, "patience": 5, "seq_length": 128, "warmup_ratio": 0.0,
}  # fmt: skip


@dataclass(frozen=True)
class GpuSpeed:
    """Tokens a second of a whole training run on one H200, from which plans for other sizes and GPUs follow: the column
    "loop, tokens/s" of "The whole loop on a GPU" in benchmarks/RESULTS.md, with the published dropout."""

    model: str | Mapping[str, object]  # a preset, or its settings
    tokens_per_second: int  # of both sides of an encoder-decoder
    length: int  # of the examples, on the longer side
    target_share: float = 0.0  # of the tokens of an encoder-decoder


@dataclass(frozen=True)
class Family:
    """One member of the family, as its file declares it."""

    config_class: type[AnyConfig]  # a ModelConfig
    body_class: type
    build_heads: Callable[[AnyConfig], HeadTable]  # head name → its parts
    pretraining_head: str  # the head that the family is pretrained with
    counted_head: str  # the head that published parameter counts include
    presets: Presets
    tokenizer: str  # the kind that it was published with: a name in text/tokenizer_kinds.py
    tokenizer_style: TokenizerStyle  # its special tokens and templates
    # Name pattern → standard deviation (nn/layers.py); by default the config's `init` everywhere.
    build_init_rules: Callable[[AnyConfig], Mapping[str, InitRule]] = lambda config: {"*": config.init}
    # What it reads and how; the other rooms ask these fields, never the body or the config's fields.
    reads_segments: bool = False  # segments beside the tokens
    reads_tasks: bool = False  # the number of a task beside the tokens, if its config says so (ERNIE 2.0)
    reads_characters: bool = False  # a word is a row of `config.slots` characters (ELMo)
    is_encoder_decoder: bool = False
    has_recurrent_decoder: bool = False  # it reads token by token, and may be fed its own predictions in training
    is_two_stream: bool = False  # a second stream predicts tokens that it does not see (XLNet)
    is_static: bool = False  # a table of vectors: words are looked up, whatever their context
    can_be_causal: bool = False  # reads both ways, unless `config.causal` says otherwise
    starts_with_last_token: bool = False  # a text shifted right begins with its own last token, its language (mBART)
    # Keeps earlier tokens, and is carried from batch to batch in pretraining; None: a KV cache, which is not carried.
    state_class: type | None = None
    # A constraint on the weights after each step, by (model, config).
    after_step: Callable[[Any, AnyConfig], None] | None = None  # dynamic: model.Model, which stands above this file
    norm_order: Literal["pre", "post"] = "pre"  # of its blocks, where the config does not choose: norms first or last
    lr_falls_with_dim: bool = False  # the highest stable rate falls faster than 1/√dim, and batches must grow
    objective: str = ""  # its own pretraining objective, a name in objectives/registry.py; none if not pretrained
    shown_objectives: tuple[str, ...] = ()  # others that formers show trains a tokenizer of this family for
    quick_recipe: Recipe = Recipe()  # what differs from the small model and its training in training/recipes.py
    paper_recipe: PaperRecipe = PaperRecipe()  # what its paper trained the published sizes with
    scratch_recipe: Recipe = Recipe()  # of a task trained from random weights
    # Of a task trained from a checkpoint; `tune` for tasks that answer by a label, from random weights too.
    finetune_recipe: Recipe = Recipe()
    reads_both_orders: bool = False  # the two texts of a similarity are read in both orders (GPT)
    task_tokenizer_options: Settings = field(default_factory=dict)  # of a tokenizer trained for a task alone
    adds_task_tokens: bool = False  # fine-tuning adds the last special tokens of its style (GPT)
    # Takes over word vectors as its own embeddings, by (body, vectors, known rows).
    load_word_vectors: Callable[[Any, Array, Array], None] | None = None  # dynamic: its own body class
    task_prefixes: Mapping[str, str] = field(default_factory=dict)  # task → words before the text (T5)
    has_language_codes: bool = False  # the languages of a translation are tokens (mBART)
    never_writes_pad: bool = False  # its decoder starts with the pad token and must not write it (Marian)
    hub_checkpoints: tuple[str, ...] = ()  # owner/name of those that are known by their bare name
    hub_tag: str = "text-generation"  # the hub's name of what its language model does
    hf_format: CheckpointFormat | None = None
    bilm_format: CheckpointFormat | None = None  # options.json and hdf5 weights (interop/bilm.py)
    is_served_by_tei: bool = False  # text-embeddings-inference knows its exported encoder
    onnx_refusal: str = ""  # why it has no ONNX graph with free lengths; empty: it has one
    h200_speed: GpuSpeed | None = None  # None: not measured
    export_remedy: str = ""  # without `hf_format`: what to do instead, as the remedy of an error

    @property
    def has_carried_state(self) -> bool:
        """Whether pretraining carries a state from batch to batch."""
        return self.state_class is not None
