"""Toy (nobody 2020, no paper)

Parent  gpt2
New     1. a member that is defined in this file alone, and known by one line in the registry
Shapes  ids (N,) → hidden (N, dim) → logits (N, vocab)
Differs from the reference: there is none
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import formers
from formers.config import HF_TOKEN_ROWS, ConfigMap, check_rates, check_sizes
from formers.family import CheckpointFormat, Family, Head, ModelConfig, Recipe
from formers.interop.tokenizer_files import load_tokenizer
from formers.keymap import KeyMap
from formers.nn.attention.attention import Attention
from formers.nn.attention.masks import causal
from formers.nn.block import Block, BlockStack, TransformerBody
from formers.nn.layers import Embeddings, FeedForward, LayerNorm
from formers.registry import FAMILIES, FamilyEntry, train_tokenizer
from formers.task import find_head
from formers.text.tokenizer_kinds import PublishedForm, TokenizerStyle
from formers.training.recipes import get_recipe
from tests.text.sentencepiece_messages import SMALL_MODEL, encode_message, encode_piece
from tests.tolerance import assert_equal_weights

STEPS = {"steps": 6, "eval_every": 3, "save_every": 6, "warmup_steps": 1, "batch_tokens": 256, "seq_length": 32}


@dataclass(frozen=True, kw_only=True)
class ToyConfig(ModelConfig):
    """The toy's sizes."""

    vocab: int = 400
    context: int = 48
    dim: int = 32
    layers: int = 1
    heads: int = 2
    ff: int = 64
    dropout: float = 0.0
    init: float = 0.05
    tied: bool = True
    eps: float = 1e-5
    pad: int | None = None
    bos: int | None = None
    eos: int | None = None
    pruned: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_sizes(self, "vocab", "context", "dim", "layers", "heads", "ff")
        check_rates(self, "dropout")


class Toy(TransformerBody):
    """A decoder of a few blocks."""

    def __init__(self, config: ToyConfig):
        c = config
        super().__init__(
            Embeddings(c.dim, c.vocab, positions=c.context, dropout=c.dropout),
            BlockStack(
                Block(
                    Attention(c.dim, c.heads), FeedForward(c.dim, c.ff, "relu"), norm=lambda: LayerNorm(c.dim, c.eps),
                    dropout=c.dropout,
                )
                for _ in range(c.layers)
            ),
            LayerNorm(c.dim, c.eps),
            masks=[causal],
        )  # fmt: skip


def build_heads(_: Any) -> dict[str, dict[str, Head]]:
    return {"none": {}, "lm": {"lm": Head(out="vocab", bias=False)}, "classify": {"classify": Head(pool="last")}}


HF_CONFIG = ConfigMap({
    **HF_TOKEN_ROWS, "vocab_size": "vocab", "n_positions": "context", "n_embd": "dim", "n_layer": "layers",
    "n_head": "heads", "n_inner": "ff", "dropout": "dropout", "initializer_range": "init",
    "tie_word_embeddings": "tied", "layer_norm_epsilon": "eps",
})  # fmt: skip


def build_key_map(c: ToyConfig, head: str) -> KeyMap:
    layers = ("attn.qkv", "attn.o", "ff.up", "ff.down", "attn_norm", "ff_norm")
    return KeyMap(
        {
            "tokens.weight": "embed.token.weight",
            "positions.weight": "embed.position.weight",
            "norm.*": "norm.*",
            **{f"layers.{{i}}.{name}.*": f"blocks.{{i}}.{name}.*" for name in layers},
        },
        heads={"lm": {"lm_head.weight": "out.weight"}, "classify": {"score.*": "out.*"}},
        tied={"lm_head.weight": "tokens.weight"} if c.tied else {},
    )


STYLE = TokenizerStyle(
    "toy", {"bos": "<toy>", "eos": "</toy>"}, ("<toy>", "</toy>"), (), "<toy> $A </toy>",
    published_forms=(PublishedForm(("spiece.model",), ("<toy>",)),),
)  # fmt: skip
FAMILY = Family(
    ToyConfig, Toy, build_heads, pretraining_head="lm", counted_head="lm",
    build_init_rules=lambda c: {"*": c.init}, presets={"toy-wide": {"dim": 64}},
    tokenizer="bpe", tokenizer_style=STYLE, objective="causal",
    quick_recipe=Recipe({**STEPS, "lr": 3e-3}, {"dim": 32, "layers": 1, "heads": 2, "ff": 64, "context": 48}),
    hf_format=CheckpointFormat("toy-decoder", {
        "ToyModel": "none", "ToyForCausalLM": "lm", "ToyForSequenceClassification": "classify",
    }, HF_CONFIG, build_key_map),
)  # fmt: skip


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(FAMILIES, "toy", FamilyEntry("toy", "a member defined here", ("toy-decoder",), module=__name__))


def test_a_member_is_one_module_and_one_line(toy, tmp_path):
    """It pretrains, writes, is saved, exported and loaded, and fine-tuned from its checkpoint and from nothing."""
    texts = [f"the {a} cat saw the {b} dog and went home" for a in ("red", "old", "shy") for b in ("big", "sad", "wet")]
    run = formers.pretrain("toy", texts * 12, out=tmp_path / "run", data={"vocab_size": 300})
    assert run.former.family == "toy"
    assert run.former.config.dim == 32
    assert run.former.tokenizer.special == {"bos": "<toy>", "eos": "</toy>"}
    written = run.former.generate("the red cat", max_new_tokens=4, temperature=0)
    assert isinstance(written, str)
    assert run.former.score(texts[:2])[0].tokens

    formers.save(run.former, tmp_path / "saved")
    again = formers.load(tmp_path / "saved")
    assert_equal_weights(again, run.former)
    assert again.generate("the red cat", max_new_tokens=4, temperature=0) == written
    formers.export(again, tmp_path / "exported", to="transformers")
    exported = formers.load(tmp_path / "exported")
    assert exported.family == "toy"
    assert_equal_weights(exported, run.former)

    rows = [{"text": text, "label": "red" if "red" in text else "other"} for text in texts * 2]
    for model in (str(tmp_path / "saved"), "toy"):
        tuned = formers.finetune(
            model, rows, task="classify", out=tmp_path / f"tuned-{model == 'toy'}", tune={"epochs": 1},
            data={"vocab_size": 300},
        )  # fmt: skip
        assert set(tuned.former.labels) == {"red", "other"}
        assert tuned.former.classify(texts[0]).label in tuned.former.labels


def test_a_member_declares_its_own_template(toy):
    """By the family's name, and by that of its style: its special tokens come first, and stand around a text."""
    made = train_tokenizer("toy", ["the red cat"] * 3, 300)
    assert made.get_token_text(0) == "<toy>"
    assert made.encode("the cat") == [0, *made.encode("the cat", special=False), 1]
    assert train_tokenizer("bpe", ["the red cat"] * 3, 300, style="toy").json_text == made.json_text
    assert train_tokenizer("gpt2", ["the red cat"] * 3, 300).special == {"bos": "<|endoftext|>", "eos": "<|endoftext|>"}


def test_a_members_published_tokenizer_is_recognised(toy, tmp_path):
    """By what its style declares: pieces in a file of SentencePiece, special tokens in a bare tokenizer.json."""
    marks = [encode_piece("<toy>", 0.0, 3), encode_piece("</toy>", 0.0, 3)]
    for name, pieces in (("toy", [*marks, *SMALL_MODEL]), ("t5", SMALL_MODEL)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "spiece.model").write_bytes(encode_message(*pieces))
    made = load_tokenizer(tmp_path / "toy")
    assert made.special == STYLE.special
    assert made.encode("a") == [0, 4, 1]
    assert load_tokenizer(tmp_path / "t5").special == {"eos": "</s>", "unk": "<unk>"}
    (tmp_path / "tokenizer.json").write_text(train_tokenizer("toy", ["the red cat"] * 3, 300).json_text)
    assert load_tokenizer(tmp_path / "tokenizer.json").special == STYLE.special


def test_a_member_without_a_korean_summary_has_a_card(toy):
    assert FAMILIES["toy"].card.korean == ""
    assert FAMILIES["toy"].card.shapes.startswith("ids (N,)")


def test_a_member_is_found_by_name(toy):
    row = formers.tree("toy")[0]
    assert (row["title"], row["objective"], row["tokenizer"]) == ("Toy", "causal", "bpe")
    assert row["tasks"] == ["classify", "regress", "lm"]
    assert find_head({"none": {}, "both": {"lm": Head(), "choose": Head()}}, "choose") == "both"
    wide = formers.build("toy", preset="toy-wide")
    assert wide.config.dim == 64
    assert wide.logits(torch.ones(1, 5, dtype=torch.long)).shape == (1, 5, 400)
    with pytest.raises(formers.Error, match="paper recipe"):
        get_recipe("toy", "paper")
