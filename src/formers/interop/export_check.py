"""Who can load an exported model: transformers, vLLM or text-embeddings-inference; said before anything is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..config import build, shown
from ..errors import Error
from ..former import Former
from ..keymap import KeyMap
from ..nn.prune import whole
from ..registry import Member, member
from .huggingface import COMMON, FIXED, their_config

READERS = {"transformers": "transformers", "vllm": "vLLM", "tei": "text-embeddings-inference"}
# vLLM's own registry of classes, and as what it serves them.
VLLM = {
    **dict.fromkeys(
        ("GPT2LMHeadModel", "GPTJForCausalLM", "GPTNeoXForCausalLM", "BloomForCausalLM"), "it generates text"
    ),
    **dict.fromkeys(("BertModel", "RobertaModel"), "it gives embeddings"),
    "RobertaForMaskedLM": "it gives embeddings; the head is passed over",
    **dict.fromkeys(
        ("GPT2ForSequenceClassification", "BertForSequenceClassification", "RobertaForSequenceClassification"),
        "it classifies texts",
    ),
    "BertForTokenClassification": "it classifies tokens, in newer versions",
}
DROPPED = ("BartModel", "BartForConditionalGeneration", "MBartForConditionalGeneration")  # after vLLM 0.10.2
# Values that vLLM's classes insist on, or take for granted.
INSISTS: dict[str, tuple[str, Any]] = {
    "scale_attn_by_inverse_layer_idx": ("GPT2", False),
    "scale_attn_weights": ("GPT2", True),
    "tie_word_embeddings": ("GPTJ", False),
}
TEI_ACTS = ("gelu", "relu", "silu")
TEI_HEADS = {
    "none": "it gives embeddings (start it with --pooling mean or cls)",
    "classify": "it classifies texts",
    "mlm": "it gives embeddings (--pooling mean, cls or splade)",
    "pretraining": "it gives embeddings (--pooling mean or cls); the head is passed over",
    "nsp": "it gives embeddings (--pooling mean or cls); the head is passed over",
}


def check(former: Former, reader: str) -> str:
    """Yes, in a few words, or an Error with the reason: can a reader load this model once it is exported?"""
    one = member(former.family)
    if one.name == "transformer_xl":
        why = "transformers 5 has no Transformer-XL any more, and the others never had"
        raise no(reader, why, "transformers 4.35.2 loads the exported model")
    config = written(one, former)
    return {"transformers": transformers, "vllm": vllm, "tei": tei}[reader](one, former, config)


def no(reader: str, why: str, fix: str) -> Error:
    """The answer no."""
    return Error(f"no, {READERS[reader]} cannot load it: {why}", fix=fix)


def written(one: Member, former: Former) -> dict[str, Any]:
    """The config.json that an export writes, if it says all that this model is."""
    hf = one.family.hf
    if hf is None:
        raise alone(f"{one.name} has no format in transformers, and the others take no other")
    try:
        config = their_config(former, former.dtype)
    except Error as error:
        raise alone(error.what, error.fix) from None
    said = hf.config.read(config, where="config.json", common=[*COMMON, *FIXED])
    if hf.adjust is not None:
        tensors = Tensors(former, hf.keys(former.config, former.head))
        said = hf.adjust(said, config["architectures"][0], tensors)
    again = build(one.family.config, said, where="config.json")
    for field in dataclasses.fields(former.config):  # what it says may be said in other words; silence is silence
        value = getattr(former.config, field.name)
        if field.name not in (*said, "pruned") and value != getattr(again, field.name):  # pruned heads come back empty
            raise alone(f"transformers has no word for {field.name} = {shown(value)}")
    return config


def alone(why: str, fix: str | None = None) -> Error:
    """The answer no, whoever asks."""
    return Error(
        f"no, none of transformers, vLLM and text-embeddings-inference can load it: {why}",
        fix=fix or "keep it as a formers directory",
    )


class Tensors:
    """The tensors that an export writes, by name; made only to be compared."""

    def __init__(self, former: Former, keys: KeyMap):
        self.parameters = whole(former.model.body, dict(former.model.named_parameters()))
        self.moves = {name: move for move in keys.moves(self.parameters) for name in move.theirs}

    def __iter__(self) -> Iterator[str]:
        return iter(self.moves)

    def get(self, name: str) -> Tensor:
        """One of them."""
        move = self.moves[name]
        return move.save(self.parameters[move.ours].detach())[name]

    def equal(self, one: str, other: str) -> bool:
        """Two of them hold the same."""
        return torch.equal(self.get(one), self.get(other))


def transformers(one: Member, former: Former, config: dict[str, Any]) -> str:
    """Whatever has a format."""
    return f"yes: {config['architectures'][0]}.from_pretrained"


def vllm(one: Member, former: Former, config: dict[str, Any]) -> str:
    """What vLLM has a class of its own for."""
    name = config["architectures"][0]
    if name in DROPPED:
        raise no("vllm", f"{name} was taken out of it; versions up to 0.10.2 have it", "take an older version")
    if name not in VLLM:
        raise no("vllm", f"it has no {name}", other(one, VLLM))
    for key, (prefix, value) in INSISTS.items():
        if name.startswith(prefix) and config.get(key, value) != value:
            raise no("vllm", f"it knows {name} with {key} = {value} only", "serve it with formers or transformers")
    note = "" if former.tokenizer is not None else "; without a tokenizer only by --skip-tokenizer-init"
    return f"yes: {name}, {VLLM[name]}{note}"


def tei(one: Member, former: Former, config: dict[str, Any]) -> str:
    """Of this family, encoders with absolute positions: BERT and RoBERTa."""
    if one.name not in ("bert", "roberta"):
        raise no("tei", f"of this family it serves bert and roberta, not {one.name}", "serve it with formers")
    if former.head not in TEI_HEADS:
        raise no("tei", f"it has no head {former.head}", "--head none exports the encoder alone")
    if config["hidden_act"] not in TEI_ACTS:
        known = ", ".join(TEI_ACTS)
        raise no("tei", f"hidden_act {config['hidden_act']} is not one of {known}", "serve it with formers")
    if former.tokenizer is None:
        raise no("tei", "it needs a tokenizer.json", "put the tokenizer beside the model and export again")
    return f"yes: {config['architectures'][0]}, {TEI_HEADS[former.head]}"


def other(one: Member, known: dict[str, str]) -> str:
    """Heads of the same family that would do."""
    assert one.family.hf is not None
    heads = [head for name, head in one.family.hf.architectures.items() if name in known]
    return f"it would with --head {', '.join(heads)}" if heads else "serve it with formers or transformers"
