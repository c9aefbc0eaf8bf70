"""The values that a model file declares: its heads, its format in other libraries, and the family as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from .config import ConfigMap, rename_key
from .keymap import KeyMap

if TYPE_CHECKING:
    from .nn.layers import MixNorm

Pooling = Literal["first", "last", "mean", "max", "eos"]
LayerView = Literal["last", "second", "sum4", "cat4"]  # some of the layers, as they are (model.py)


@dataclass(frozen=True)
class Head:
    """What turns hidden states into answers: pool (or not), some inner layers, an output layer.

    `inner_layers` names layers in their order: dense, norm, dropout, or an activation. `out` is a width, "labels",
    "vocab" (tied to the token embedding if the config says so), or None for no output layer.
    """

    layer_mix: MixNorm | LayerView | None = None  # read a learned mix of all layers instead of the last one (ELMo)
    pool: Pooling | None = None
    inner_layers: tuple[str, ...] = ()
    out: int | Literal["labels", "vocab"] | None = "labels"
    build_output_layer: Callable[[], Any] | None = None  # makes an output layer of another kind (Transformer-XL)
    bias: bool = True
    frozen_bias: bool = False  # the bias is not trained, and may be missing in a file (BART)
    out_act: str | None = None  # an activation of the output
    inner_dim: int | None = None  # the width of the inner layers, if it is not the model's (ALBERT)
    directions: int = 1  # the hidden state is so many states side by side, and each gets an answer (ELMo)
    input_states: int = 1  # how many hidden states it reads side by side (XLNet's beam: a token's and the beginning's)
    scale: float = 1.0  # of the hidden state before the output layer (T5)
    dropout: float = 0.0
    reads_decoder: bool = True  # False: this head of an encoder-decoder reads the encoder, and there is no decoder
    optional: bool = False  # a file may lack this part (BERT without its pooler)


HeadTable = Mapping[str, Mapping[str, Head]]


@dataclass(frozen=True)
class CheckpointFormat:
    """How another library spells this family: its classes, its config, its tensor names."""

    model_type: str
    architectures: Mapping[str, str]  # their class → our head; of several for one head, the first is written
    config_map: ConfigMap
    build_key_map: Callable[[Any, str], KeyMap]  # (config, head) → the map
    adjust_settings: Callable[[dict[str, Any], str, Any], dict[str, Any]] | None = (
        None  # (settings, class, file) → settings
    )
    choose_architecture: Callable[[Any, str], str | None] | None = None  # exceptions from the table when we write
    unsupported_reason: str = ""  # why today's version of the other library does not read it, and which one does
    config_defaults: Mapping[str, Any] = field(default_factory=dict)  # keys to write where no original has a word


@dataclass(frozen=True)
class Family:
    """One member of the family, as its file declares it."""

    config_class: type
    body_class: type
    build_heads: Callable[[Any], HeadTable]  # head name → its parts
    pretraining_head: str  # the head that the family is pretrained with
    counted_head: str  # the head that published parameter counts include
    build_init_rules: Callable[[Any], Mapping[str, Any]]  # name pattern → standard deviation (nn/layers.py)
    presets: Mapping[str, Mapping[str, Any]]
    reads_segments: bool = False  # it reads segments beside the tokens
    norm_order: Literal["pre", "post"] = "pre"  # of its blocks, where the config does not choose: norms first or last
    lr_falls_with_dim: bool = (
        False  # the highest stable rate falls faster than 1/√dim; larger models need larger batches
    )
    tokenizer: str = ""  # the kind that its papers use: a name in text/trainers/registry.py
    objective: str = ""  # its own pretraining objective: a name in objectives/registry.py
    hf_format: CheckpointFormat | None = None
    bilm_format: CheckpointFormat | None = None  # options.json and hdf5 weights (interop/bilm.py)
    export_remedy: str = ""  # without `hf_format`: what to do instead, as the remedy of an error


# Hugging Face's names of activations; the first of several is the one we write.
HF_ACTIVATIONS = {
    "relu": "relu", "relu2": "relu2", "gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu_accurate": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh", "quick_gelu": "gelu_quick", "silu": "silu", "swish": "silu", "mish": "mish",
    "tanh": "tanh", "sigmoid": "sigmoid", "leaky_relu": "leaky_relu", "linear": "linear",
}  # fmt: skip
HF_ACT_ROW = rename_key("act", HF_ACTIVATIONS)
HF_SUMMARY_ACT_ROW = rename_key("summary_act", {**HF_ACTIVATIONS, "": None})
HF_TOKEN_ROWS = {"pad_token_id": "pad", "bos_token_id": "bos", "eos_token_id": "eos"}
