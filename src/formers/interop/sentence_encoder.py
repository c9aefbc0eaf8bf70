"""Exports for sentence-transformers: a model without its head, with modules that pool and normalise its states."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from ..config import Tell
from ..errors import Error
from ..former import Former, empty
from . import huggingface, safe
from .model_card import write_card

# Our word for a pooling, and the key of 1_Pooling/config.json (in the form that all versions read, and other servers).
POOLINGS = {
    "mean": "mean_tokens", "first": "cls_token", "max": "max_tokens", "last": "lasttoken",
    "weighted": "weightedmean_tokens",
}  # fmt: skip
ENCODERS = ("t5", "mt5")  # encoder-decoders of which sentence-transformers takes the encoder, as formers.embed does


def write_sentence_encoder(
    former: Former,
    out: Any,
    *,
    pool: str = "mean",
    normalise: bool = False,
    dtype: torch.dtype | None = None,
    shard: int = 5 * 10**9,
    tell: Tell | None = None,
    language: str | None = None,
) -> None:
    """Write a directory that SentenceTransformer(path) opens; its encode gives what formers.embed gives.

    `pool` and `normalise` are those of formers.embed. A text that is longer than the model's context is cut there;
    formers.embed reads it in windows.
    """
    if pool not in POOLINGS:
        raise Error(f"sentence-transformers has no pooling {pool!r}", fix="choose " + ", ".join(POOLINGS))
    if former.tokenizer is None:
        raise Error("sentence-transformers needs a tokenizer", fix="put its tokenizer.json beside the model")
    bare = take_encoder(former)

    def beside(folder: Path) -> None:
        write_modules(folder, bare, pool, normalise)
        write_card(folder, bare, huggingface.architecture_of(bare), language, sentences=True, dtype=dtype)

    huggingface.write(bare, out, dtype=dtype, shard=shard, tell=tell, language=language, beside=beside)


def write_modules(folder: Path, former: Former, pool: str, normalise: bool) -> None:
    """Write modules.json and the settings of each module."""
    steps = [("", "Transformer"), ("1_Pooling", "Pooling"), *([("2_Normalize", "Normalize")] if normalise else [])]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(steps)
    ]
    safe.write_json(folder / "modules.json", modules)
    limit = getattr(former.config, "context", None)
    safe.write_json(folder / "sentence_bert_config.json", {"max_seq_length": limit, "do_lower_case": False})
    chosen = {f"pooling_mode_{name}": ours == pool for ours, name in POOLINGS.items()}
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": former.config.dim, **chosen, "pooling_mode_mean_sqrt_len_tokens": False}
    safe.write_json(folder / "1_Pooling" / "config.json", pooling)
    if normalise:
        (folder / "2_Normalize").mkdir()
        safe.write_json(folder / "2_Normalize" / "config.json", {})


def take_encoder(former: Former) -> Former:
    """The model without its head, and of T5 without its decoder; the weights are the same tensors."""
    form = huggingface.find_format(former)
    config = former.config
    if former.pair:
        if former.family not in ENCODERS:
            what = f"sentence-transformers would read the decoder of a {former.family}, and formers.embed the encoder"
            others = "bert, roberta, albert, ernie, xlnet, t5 and the GPTs"
            raise Error(what, fix=f"keep the formers directory, or take one of {others}")
        config = dataclasses.replace(config, decoder_layers=0)
    made = empty(former.family, config, "none")
    own = dict(former.model.named_parameters())
    before = {move.theirs: move.ours for move in form.keys(former.config, former.head).moves(own, "")}
    new = [name for name, _ in made.model.named_parameters()]
    sources = {move.ours: before.get(move.theirs) for move in form.keys(config, "none").moves(new, "")}
    for part in list(made.model.heads):
        if any(source is None for name, source in sources.items() if name.startswith(f"heads.{part}.")):
            del made.model.heads[part]  # a pooler that this head does not have
    left = [name for name, _ in made.model.named_parameters()]
    made.model.load_state_dict({name: own[sources[name] or ""] for name in left}, strict=False, assign=True)
    made.tokenizer, made.training, made.kept = former.tokenizer, former.training, former.kept
    return made
