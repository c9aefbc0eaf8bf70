"""The values that a model file declares: its heads, its format in other libraries, and the family as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .config import ConfigMap, renamed
from .keymap import KeyMap

Pool = Literal["first", "last", "mean", "max", "eos"]
Norm = Literal["plain", "token", "batch"]  # of the layers in a mix (nn/mix.py)
View = Literal["last", "second", "sum4", "cat4"]  # some of the layers, as they are (tasks/heads.py)


@dataclass(frozen=True)
class Head:
    """What turns hidden states into answers: pool (or not), some inner layers, an output layer.

    `inner` names layers in their order: dense, norm, dropout, or an activation. `out` is a width, "labels", "vocab"
    (tied to the token embedding if the config says so), or None for no output layer.
    """

    mix: Norm | View | None = None  # read a learned mix of all layers instead of the last one (ELMo)
    pool: Pool | None = None
    inner: tuple[str, ...] = ()
    out: int | Literal["labels", "vocab"] | None = "labels"
    layer: Callable[[], Any] | None = None  # makes an output layer of another kind (Transformer-XL)
    bias: bool = True
    frozen: bool = False  # the bias is not trained, and may be missing in a file (BART)
    after: str | None = None  # an activation of the output
    inner_dim: int | None = None  # the width of the inner layers, if it is not the model's (ALBERT)
    ways: int = 1  # the hidden state is so many states side by side, and each gets an answer (ELMo)
    states: int = 1  # how many hidden states it reads side by side (XLNet's beam: a token's and the beginning's)
    scale: float = 1.0  # of the hidden state before the output layer (T5)
    dropout: float = 0.0
    decoder: bool = True  # False: this head of an encoder-decoder reads the encoder, and there is no decoder
    optional: bool = False  # a file may lack this part (BERT without its pooler)


Heads = Mapping[str, Mapping[str, Head]]


@dataclass(frozen=True)
class Format:
    """How another library spells this family: its classes, its config, its tensor names."""

    model_type: str
    architectures: Mapping[str, str]  # their class → our head; of several for one head, the first is written
    config: ConfigMap
    keys: Callable[[Any, str], KeyMap]  # (config, head) → the map
    adjust: Callable[[dict[str, Any], str, Any], dict[str, Any]] | None = None  # (settings, class, file) → settings
    architecture: Callable[[Any, str], str | None] | None = None  # exceptions from the table when we write
    gone: str = ""  # why today's version of the other library does not read it, and which one does
    config_defaults: Mapping[str, Any] = field(default_factory=dict)  # keys to write where no original has a word


@dataclass(frozen=True)
class Family:
    """One member of the family, as its file declares it."""

    config: type
    body: type
    heads: Callable[[Any], Heads]  # head name → its parts
    pretraining: str  # the head that the family is pretrained with
    counted: str  # the head that published parameter counts include
    init: Callable[[Any], Mapping[str, Any]]  # name pattern → standard deviation (nn/init.py)
    presets: Mapping[str, Mapping[str, Any]]
    segments: bool = False  # it reads segments beside the tokens
    norm_order: Literal["pre", "post"] = "pre"  # of its blocks, where the config does not choose: norms first or last
    narrow_rate: bool = (
        False  # the highest stable rate falls faster than 1/√dim; larger models need larger batches
    )
    tokenizer: str = ""  # the kind that its papers use: a name in text/trainers.py
    objective: str = ""  # its own pretraining objective: a name in objectives/choose.py
    hf: Format | None = None
    bilm: Format | None = None  # options.json and hdf5 weights (interop/bilm.py)
    no_export: str = ""  # without `hf`: what to do instead, as the remedy of an error


# Hugging Face's names of activations; the first of several is the one we write.
ACTIVATIONS = {
    "relu": "relu", "relu2": "relu2", "gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu_accurate": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh", "quick_gelu": "gelu_quick", "silu": "silu", "swish": "silu", "mish": "mish",
    "tanh": "tanh", "sigmoid": "sigmoid", "leaky_relu": "leaky_relu", "linear": "linear",
}  # fmt: skip
ACT = renamed("act", ACTIVATIONS)
SUMMARY_ACT = renamed("summary_act", {**ACTIVATIONS, "": None})
TOKENS = {"pad_token_id": "pad", "bos_token_id": "bos", "eos_token_id": "eos"}
