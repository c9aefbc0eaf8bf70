"""Which weights learn, and how much: frozen layers, adapters, a rate for each layer."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ...errors import Error
from ...former import Former
from ...nn.lora import add_adapters, get_adapter_tensors, remove_adapters
from ...protocols import Listener
from .finetune_config import TuneConfig


@torch.no_grad()
def initialise_number_head(former: Former, part: str, numbers: np.ndarray) -> None:
    """A new head for numbers begins at their mean, with outputs of about their deviation."""
    out: Any = former.model.parts[part].out
    values = numbers[numbers[:, 1] > 0, 0]
    if out.bias is not None:
        out.bias.fill_(float(values.mean()))
    out.weight.mul_(max(1e-6, float(values.std())))


def select_trainable(former: Former, tune: TuneConfig) -> None:
    """Hold still what is not to learn: layers from below, or the whole body (which then drops nothing out either)."""
    body = former.model.body
    if tune.lora and not add_adapters(body, tune.lora, tune.lora_alpha):
        raise Error(f"{former.family} has no matrices that take adapters", fix="leave tune.lora out")
    if tune.lora:
        return
    if tune.features != "no" or tune.freeze < 0:
        body.requires_grad_(False)
        body.eval()
        body.train = lambda mode=True: body
        return
    if tune.freeze > count_layers(former):
        what = f"this {former.family} has {count_layers(former)} layers: {tune.freeze} cannot be held still"
        raise Error(what, fix="give a smaller tune.freeze, or -1 for all of them")
    if tune.freeze:
        for name, weight in former.model.named_parameters():
            if name.startswith("body.") and get_layer_depth(name, former) <= tune.freeze:
                weight.requires_grad_(False)


def finalise_model(former: Former, tune: TuneConfig) -> None:
    """A model that has learnt, as it is saved: adapters merged in, or in a file beside the weights; a language model
    that only helped to learn has gone."""
    if former.head.endswith("+lm"):
        former.head = former.head.removesuffix("+lm")
        del former.model.heads["lm"]
    if not tune.lora:
        return
    body = former.model.body
    if not tune.lora_merge:
        former.adapters = get_adapter_tensors(body)
    remove_adapters(body, merge=tune.lora_merge)


def get_layer_depth(name: str, former: Former) -> int:
    """How far above the ground a weight is: embeddings 0, then the layers from 1 on, the head above all."""
    if not name.startswith("body."):
        return count_layers(former) + 1
    found = re.search(r"(encoder|decoder)?\.?blocks\.(\d+)\.", name)
    if found is None:
        return count_layers(former) if ".norm." in name and "embed" not in name else 0
    return int(found[2]) + 1 + (former.config.layers if found[1] == "decoder" and former.is_encoder_decoder else 0)


def count_layers(former: Former) -> int:
    """All layers, one above the other."""
    return former.config.layers + (former.config.num_decoder_layers if former.is_encoder_decoder else 0)


def compute_lr_scales(former: Former, decay: float) -> dict[str, float]:
    """The share of the learning rate of each weight: less for each layer further down (Howard & Ruder 2018, §3.2)."""
    if decay == 1.0:
        return {}
    top = count_layers(former) + 1
    return {name: decay ** (top - get_layer_depth(name, former)) for name, _ in former.model.named_parameters()}


class WeightRule:
    """What a family does to its weights after each step (TextCNN limits a norm)."""

    def __init__(self, former: Former, rule: Callable[[Any, Any], None]):
        self.former, self.rule = former, rule

    def on_update(self, step: int) -> None:
        """Apply the rule."""
        self.rule(self.former.model, self.former.config)


def list_listeners(former: Former) -> list[Listener]:
    """List what follows the weights of a model in training because its family says so."""
    rule = former.definition.after_step
    return [] if rule is None else [WeightRule(former, rule)]
