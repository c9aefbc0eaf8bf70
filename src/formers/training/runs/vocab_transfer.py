"""Continued pretraining: a checkpoint takes another tokenizer. Pieces that both know keep their vectors; a new one
starts as the mean of the old pieces that spell it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from ...config import Settings
from ...errors import Error
from ...former import Former, build, build_empty
from ...interop.model_directory import read_checkpoint_info
from ...text.tokenizer import Tokenizer
from ..config_merge import PretrainConfig


def check_checkpoint_family(config: PretrainConfig) -> None:
    """Refuse a checkpoint of another family before its weights are read."""
    name = read_checkpoint_info(str(config.init)).family
    if name is not None and name != config.family:
        raise Error(
            f"holds a {name}, not a {config.family}", where=config.init, fix=f"formers pretrain {name} --init …"
        )


def transfer_vocabulary(
    former: Former, tokenizer: Tokenizer, config: PretrainConfig, say: Callable[[str], None]
) -> Former:
    """Return the model with a tokenizer: its own as it is, another with its embeddings resized."""
    own = former.config.to_settings()
    changed = {k: v for k, v in config.model_overrides.items() if own.get(k) != v and k != "vocab"}
    free = {k: v for k, v in changed.items() if "dropout" in k}
    if set(changed) - set(free):
        key = min(set(changed) - set(free))
        what = f"model.{key} cannot be {changed[key]}: the checkpoint has {own.get(key)}"
        raise Error(what, where=config.init, fix="leave it out; only dropout may change")
    context = former.context
    if context is not None and config.train.seq_length > context:
        what = f"examples of {config.train.seq_length} tokens are longer than the checkpoint's context of {context}"
        raise Error(what, fix=f"--train.seq_length {context}")
    old = former.tokenizer
    if old is not None and old.fingerprint == tokenizer.fingerprint and not free:
        return former
    if old is None:
        if former.config.vocab != len(tokenizer):
            what = f"the checkpoint has no tokenizer and {former.config.vocab} pieces, this tokenizer {len(tokenizer)}"
            raise Error(what, where=config.init, fix="put its tokenizer.json into the same folder")
        former.tokenizer = tokenizer
        return former
    if old.fingerprint != tokenizer.fingerprint:
        known = {old.get_token_text(i) for i in range(len(old))}
        kept = sum(tokenizer.get_token_text(i) in known for i in range(len(tokenizer)))
        say(
            f"the checkpoint gets another tokenizer: {kept:,} of {len(tokenizer):,} pieces keep their vectors, the rest"
            f" start from their parts; --tokenizer {config.init} keeps its own"
        )
    return resize_vocabulary(former, old, tokenizer, free)


def resize_vocabulary(former: Former, old: Tokenizer, new: Tokenizer, changes: Settings) -> Former:
    """Return a model of the new vocabulary: tensors with a row for each token are made new, the others are copied."""
    values: Settings = {**dataclasses.asdict(former.config), **changes}
    following = set[str]()
    if old.fingerprint != new.fingerprint:  # else rows that pad the vocabulary stay too
        values["vocab"] = len(new)
        values |= {role: new.id(role) for role in ("pad", "bos", "eos") if role in values}
        following = find_vocab_weights(former)
    new_former, table = build(former.family, head=former.head, **values), map_token_origins(old, new)
    source = dict(former.model.named_parameters())
    with torch.no_grad():
        for name, tensor in new_former.model.named_parameters():
            weight = source[name]
            if name not in following:
                tensor.copy_(weight)
            elif (*weight.shape[:1], *tensor.shape) == (former.config.vocab, len(new), *weight.shape[1:]):
                mean = weight.mean(0)  # of all, where a new piece has no old ones
                tensor.copy_(torch.stack([weight[row].mean(0) if row else mean for row in table]))
            else:
                what = f"{name} {tuple(weight.shape)} cannot follow a vocabulary of {len(new)} pieces"
                raise Error(what, fix="keep the checkpoint's own tokenizer for this family")
    new_former.tokenizer, new_former.labels = new, former.labels
    return new_former


def find_vocab_weights(former: Former) -> set[str]:
    """Find the weights whose shape depends on the vocabulary; a size alone does not tell, it may be a layer's."""
    config = dataclasses.replace(former.config, vocab=former.config.vocab + 1)
    larger = dict(build_empty(former.family, config, former.head, former.labels).model.named_parameters())
    return {name for name, tensor in former.model.named_parameters() if tensor.shape != larger[name].shape}


def map_token_origins(old: Tokenizer, new: Tokenizer) -> list[list[int]]:
    """Find the old pieces that each new piece starts from: itself, its role, or those that spell it."""
    known = {old.get_token_text(i): i for i in range(len(old))}
    known |= {token: i for role, token in new.special.items() if (i := old.id(role)) is not None}
    rows: list[list[int]] = []
    for i in range(len(new)):
        token = new.get_token_text(i)
        rows.append([known[token]] if token in known else old.encode(new.decode([i]) or token, special=False))
    return rows
