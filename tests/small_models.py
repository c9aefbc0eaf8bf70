"""Small models of every family, with random weights large enough to tell a wrong answer from a right one."""

from __future__ import annotations

import dataclasses
import functools
import unicodedata

import torch

import formers
from formers.registry import FAMILIES, train_tokenizer

# A size of each kind of setting that all tests can share; what a config does not have is left out.
SIZES = {
    "vocab": 47, "context": 20, "dim": 12, "layers": 2, "heads": 3, "head_dim": 5, "ff": 18, "buckets": 8, "far": 10,
    "rotary": 4, "rotary_fraction": 0.5, "window": 3, "halves": True, "experts": 3, "sparse": 1, "capacity": 9,
    "embed": 12, "shrink": 2, "cutoffs": (11, 23), "filters": 7, "slots": 9, "char_dim": 4,
    "segments": 2, "dropout": 0.0, "attention_dropout": 0.0, "embed_dropout": 0.0, "summary_dropout": 0.0,
    "head_dropout": 0.0, "bos": 1, "eos": 1, "pad": 0,
}  # fmt: skip
FAMILY_SIZES = {"elmo": {"filters": ((1, 5), (2, 6), (4, 7)), "cell": 10}}  # where one word means different things
TRANSFORMER_XL_SIZES = {
    "vocab": 50, "cutoffs": (10, 25), "embed": 16, "shrink": 2, "dim": 16, "layers": 2, "heads": 2, "head_dim": 6,
    "ff": 24, "memory": 8, "clamp": 6, "init": 0.3, "init_projection": 0.3, "eos": None,
}  # fmt: skip
TEXT_SIZES = {"vocab": 400, "cutoffs": (), "characters": 262, "slots": 50, "context": 40}  # with room for TEXTS
TEXTS = [
    "The cat sat on the mat, and the bank was closed.",
    "배를 타고 강을 건넜다.",
    unicodedata.normalize("NFD", "배가 아파서 병원에 갔다."),
    "x",
    "👩‍👩‍👧 ❤️ 좋아요 don't",
]


def list_heads(name):
    """Return the names of a family's heads."""
    family = FAMILIES[name].definition
    return list(family.build_heads(family.config_class()))


HEADS = [(name, head) for name in FAMILIES for head in list_heads(name)]


def select_sizes(name, **more):
    """Return the shared sizes, and those of `more`, that a family's config has."""
    known = {field.name for field in dataclasses.fields(FAMILIES[name].definition.config_class)}
    return {key: value for key, value in {**SIZES, **FAMILY_SIZES.get(name, {}), **more}.items() if key in known}


def build_small(name, head="auto", seed=0, **more):
    """Build a model of a family in the shared sizes; `more` are settings of its config."""
    f = formers.build(name, head=head, seed=seed, **{**select_sizes(name), **more})
    generator = torch.Generator().manual_seed(seed)
    for parameter in f.model.parameters():  # larger than at the start of training, so that nothing is lost in the noise
        with torch.no_grad():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return f


def to_model_ids(f, ids):
    """Return tokens as the family reads them: as they are, or each as a word of characters."""
    if not f.definition.reads_characters:
        return ids
    return (ids[..., None] * torch.arange(1, f.config.slots + 1)) % (f.config.characters - 1) + 1


def make_inputs(f, lengths=(7, 4, 6), seed=5):
    """Make rows of random ids of these lengths, padded; for an encoder-decoder with a target."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, 47, (len(lengths), max(lengths)), generator=g)
    keep = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids[torch.arange(len(lengths)), torch.tensor(lengths) - 1] = 1  # every row ends with the end mark
    given = {"ids": to_model_ids(f, ids), "keep": keep}
    if f.is_encoder_decoder and f.head in ("lm", "none"):
        given |= {"target": ids.flip(0)[:, :5].contiguous(), "target_keep": keep.flip(0)[:, :5].contiguous()}
    return given


def add_declared_fields(f, batch):
    """Return the batch with what the model has parameters for: segments, and an order for the second of two streams."""
    if any("segment" in name for name, _ in f.model.named_parameters()):
        batch = batch.replace(segments=batch.ids % 2)
    return batch.replace(order=torch.arange(len(batch.ids)) % 5) if f.definition.is_two_stream else batch


def sum_outputs(model, batch):
    """Return a number that depends on every output of the model."""
    hidden = model(batch)
    if not model.parts:  # word vectors: there is no head at all
        return (hidden**2).sum()
    return sum((model.logits(hidden, batch, part) ** 2).sum() for part in model.parts)


def train_small_tokenizer(f):
    """Train a small tokenizer of the kind that a family reads, on TEXTS."""
    made = train_tokenizer(f.family, [t for t in TEXTS for _ in range(4)], 300)
    assert len(made) <= f.config.vocab
    return made


def randomise_weights(module):
    """Draw all weights anew, biases and norms too, from torch's own generator; return the module."""
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.5)
    return module


def build_for_text(name, head="auto", **more):
    """Build a small model whose vocabulary and context have room for TEXTS."""
    return build_small(name, head, **select_sizes(name, **{**TEXT_SIZES, **more}))


def build_embedding_model(name, **more):
    """Build a small model without a head, if its family has such, and its tokenizer; word vectors of a few words."""
    if name == "vectors":
        from formers.interop.word_vectors import build_vectors_model

        words = ["the", "cat", "배를", "bank", "좋아요", "x", "강을", "아파서"]
        return build_vectors_model(
            words, torch.randn(len(words), 12, generator=torch.Generator().manual_seed(0)), lower=True
        )
    f = build_for_text(name, "none" if "none" in list_heads(name) else "auto", **more)
    if not hasattr(f.config, "slots"):
        f.tokenizer = train_small_tokenizer(f)
    return f


def build_language_model(name, **more):
    """Build a small model with its pretraining head, and its tokenizer."""
    f = build_for_text(name, **more)
    f.tokenizer = train_small_tokenizer(f)
    return f


VERB_LINES = ["the cat sat on the mat and the dog sat on the log", "안녕하세요 여러분 오늘은 날씨가 좋습니다 배가"] * 4


@functools.cache
def get_verb_tokenizer(kind):
    """Return a tokenizer of a kind and style, trained on VERB_LINES; made once."""
    return train_tokenizer(kind[0], VERB_LINES, 300, workers=1, style=kind[1])


@functools.cache
def get_verb_model(name, head):
    """Return a small model with a tokenizer of its family's kind, which can read VERB_LINES; made once."""
    if name == "vectors":
        from formers.interop.word_vectors import build_vectors_model

        words = [*VERB_LINES[0].split(), *VERB_LINES[1].split()]
        return build_vectors_model(list(dict.fromkeys(words)), torch.randn(len(set(words)), 12), lower=True)
    words = get_verb_tokenizer((FAMILIES[name].definition.tokenizer, FAMILIES[name].definition.tokenizer_style))
    sizes = {**TEXT_SIZES, "vocab": max(400, len(words)), "labels": 2}
    known = {
        key: value for key, value in sizes.items() if key in FAMILIES[name].definition.config_class.__dataclass_fields__
    }
    f = build_small(name, head, **known)
    f.tokenizer = words
    return f
