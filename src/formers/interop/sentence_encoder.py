"""Exports for sentence-transformers: a model without its head, with modules that pool and normalise its states."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from ..config import ProgressCallback
from ..errors import Error
from ..former import Former, build_empty
from . import huggingface, safe_files
from .model_card import write_model_card

# Our word for a pooling, and the key of 1_Pooling/config.json (in the form that all versions read, and other servers).
POOLING_KEYS = {
    "mean": "mean_tokens", "first": "cls_token", "max": "max_tokens", "last": "lasttoken",
    "weighted": "weightedmean_tokens",
}  # fmt: skip


def write_sentence_encoder(
    former: Former,
    out: Any,
    *,
    pool: str = "mean",
    normalise: bool = False,
    dtype: torch.dtype | None = None,
    shard: int = 5 * 10**9,
    tell: ProgressCallback | None = None,
    language: str | None = None,
) -> None:
    """Write a directory that SentenceTransformer(path) opens; its encode gives what formers.embed gives.

    `pool` and `normalise` are those of formers.embed. A text that is longer than the model's context is cut there;
    formers.embed reads it in windows.
    """
    if pool not in POOLING_KEYS:
        raise Error(f"sentence-transformers has no pooling {pool!r}", fix="choose " + ", ".join(POOLING_KEYS))
    if former.tokenizer is None:
        raise Error("sentence-transformers needs a tokenizer", fix="put its tokenizer.json beside the model")
    bare = extract_encoder(former)

    def write_extra_files(folder: Path) -> None:
        write_modules(folder, bare, pool, normalise)
        write_model_card(folder, bare, huggingface.find_architecture(bare), language, for_sentences=True, dtype=dtype)

    huggingface.write_checkpoint(
        bare, out, dtype=dtype, shard=shard, tell=tell, language=language, write_extra_files=write_extra_files
    )


def write_modules(folder: Path, former: Former, pool: str, normalise: bool) -> None:
    """Write modules.json and the settings of each module."""
    steps = [("", "Transformer"), ("1_Pooling", "Pooling"), *([("2_Normalize", "Normalize")] if normalise else [])]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(steps)
    ]
    safe_files.write_json(folder / "modules.json", modules)
    limit = former.context
    safe_files.write_json(folder / "sentence_bert_config.json", {"max_seq_length": limit, "do_lower_case": False})
    chosen = {f"pooling_mode_{name}": ours == pool for ours, name in POOLING_KEYS.items()}
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": former.config.dim, **chosen, "pooling_mode_mean_sqrt_len_tokens": False}
    safe_files.write_json(folder / "1_Pooling" / "config.json", pooling)
    if normalise:
        (folder / "2_Normalize").mkdir()
        safe_files.write_json(folder / "2_Normalize" / "config.json", {})


def extract_encoder(former: Former) -> Former:
    """The model without its head, and of T5 without its decoder; the weights are the same tensors."""
    form = huggingface.find_format(former)
    config = former.config
    if former.is_encoder_decoder:
        if not form.has_encoder_model:
            what = f"sentence-transformers would read the decoder of a {former.family}, and formers.embed the encoder"
            others = "bert, roberta, albert, ernie, xlnet, t5 and the GPTs"
            raise Error(what, fix=f"keep the formers directory, or take one of {others}")
        config = dataclasses.replace(config, decoder_layers=0)
    made = build_empty(former.family, config, "none")
    own = dict(former.model.named_parameters())
    before = {move.theirs: move.ours for move in form.build_key_map(former.config, former.head).map_tensors(own, "")}
    new = [name for name, _ in made.model.named_parameters()]
    sources = {move.ours: before.get(move.theirs) for move in form.build_key_map(config, "none").map_tensors(new, "")}
    for part in list(made.model.heads):
        if any(source is None for name, source in sources.items() if name.startswith(f"heads.{part}.")):
            del made.model.heads[part]  # a pooler that this head does not have
    left = [name for name, _ in made.model.named_parameters()]
    made.model.load_state_dict({name: own[sources[name] or ""] for name in left}, strict=False, assign=True)
    made.tokenizer, made.training_info, made.source_files = former.tokenizer, former.training_info, former.source_files
    return made
