"""ELMo (Peters et al. 2018, arXiv:1802.05365)

Parent  lstm (language models over characters: Kim et al. 2016, Jozefowicz et al. 2016)
New     1. a forward and a backward language model that share their word representations and their softmax
        2. a word's vector is a weighted sum of all layers, with weights learned by the task
Korean  단어 임베딩과 소프트맥스를 공유하는 순방향·역방향 언어 모델입니다. 단어의 벡터는 모든 레이어의 가중합이며,
        가중치는 과제에서 학습합니다.
Shapes  ids (N, 50) characters → words (N, dim/2) → layers + 1 hidden states (N, dim): the words twice, then after each
        LSTM forward and backward side by side → lm logits (N, 2, vocab): [:, 0] the next word, [:, 1] the previous one
Differs from the reference: layer norm in the weighted sum follows Ba et al. (mix="token"); the released code normalises
        by one mean and variance of the whole batch (mix="batch"). Initial weights are normal where it has uniform ones
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..batch import Batch
from ..config import MAX_SIZE, ConfigMap, KeyRule, check_sizes, rename_key
from ..errors import Error
from ..family import CheckpointFormat, Family, Head, ModelConfig, PaperRecipe, Presets, Recipe
from ..keymap import KeyMap, TensorOp, transpose_tensor
from ..nn.attention.context import Capture
from ..nn.layers import ConstantInit, InitRule, MixNorm, get_activation, to_autocast_dtype
from ..nn.recurrent.convolution import CharacterCNN
from ..nn.recurrent.projected_lstm import BidirectionalSteps, LSTMState, ProjectedLSTM
from ..text.tokenizer_kinds import TokenizerStyle

FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))


@dataclass(frozen=True, kw_only=True)
class ELMoConfig(ModelConfig):
    """ELMo's sizes and rates; the defaults are the published original."""

    vocab: int = 793471  # words that the softmax knows; any word can be read
    characters: int = 262
    slots: int = 50  # characters of a word, its two marks included
    char_dim: int = 16
    filters: tuple[tuple[int, ...], ...] = FILTERS  # (width, number) each
    act: str = "relu"
    highways: int = 2
    dim: int = 1024  # of both directions together
    cell: int = 4096
    layers: int = 2
    cell_clip: float | None = 3.0
    clip: float | None = 3.0  # of the projected state
    skip: bool = True  # the input of a layer is added to its output, from layer 2 on
    dropout: float = 0.1
    head_dropout: float = 0.5
    mix: MixNorm = "plain"  # how layers are normed before a task mixes them

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "characters", "char_dim", "cell")
        check_sizes(self, "slots", minimum=3)
        check_sizes(self, "highways", minimum=0)
        get_activation(self.act)
        if self.dim % 2:
            raise Error(f"dim must be even, got {self.dim}", fix="half of it belongs to each direction")
        if self.highways > 100:
            raise Error(f"highways must be at most 100, got {self.highways}", fix="the published model has 2")
        for clip in (self.cell_clip, self.clip):
            if clip is not None and not clip > 0:
                raise Error(f"a clip must be above 0, got {clip}", fix="set it to 3, or to None for no clipping")
        good = all(len(f) == 2 and 0 < f[0] <= self.slots and 0 < f[1] <= MAX_SIZE for f in self.filters)
        if not good or not 0 < len(self.filters) <= 100:
            what = f"filters must be pairs (width, number) with widths up to {self.slots}"
            raise Error(what, fix="write for example [[1, 32], [2, 64]]")


class ELMo(nn.Module):
    """Characters → words → LSTMs in both directions, each layer reading the one below of its own direction."""

    embedding_table = None  # words are read as characters

    def __init__(self, config: ELMoConfig):
        super().__init__()
        c, half = config, config.dim // 2
        self.embed = CharacterCNN(c.characters, c.char_dim, c.filters, c.highways, half, c.act)
        layers = (ProjectedLSTM(half, c.cell, half, cell_clip=c.cell_clip, clip=c.clip) for _ in range(c.layers))
        self.layers = nn.ModuleList(layers)
        self.dropout, self.skip = nn.Dropout(c.dropout), c.skip

    def forward(self, batch: Batch, *, cache: LSTMState | None = None, capture: Capture | None = None) -> Tensor:
        """(N, slots) → (N, dim)"""
        words, steps = to_autocast_dtype(self.embed(batch.ids)), BidirectionalSteps(batch.layout)
        state = torch.cat((words, words), -1)
        x = steps.split_directions(words)  # (2, N, dim/2)
        for number, layer in enumerate(self.layers):
            if capture is not None:
                capture.record_hidden("encoder", state)
            x = self.dropout(x)
            y = layer(x, steps, cache, number)
            x = x + y if self.skip and number else y
            state = steps.join_directions(x)
        return state


def build_heads(c: ELMoConfig) -> dict[str, dict[str, Head]]:
    """Build the softmax that both directions share, and task heads over the mix of layers (§3.2, §3.3)."""
    return {
        "none": {},
        "lm": {"lm": Head(inner_layers=("dropout",), out="vocab", directions=2, dropout=c.dropout)},
        "classify": {"classify": Head(layer_mix=c.mix, pool="mean", inner_layers=("dropout",), dropout=c.head_dropout)},
        "tag": {"tag": Head(layer_mix=c.mix, inner_layers=("dropout",), dropout=c.head_dropout)},
    }


def build_init_rules(c: ELMoConfig) -> dict[str, InitRule]:
    """Initialise as the released code does; a highway starts by carrying its input over."""
    half, total = c.dim // 2, sum(number for _, number in c.filters)
    return {
        "*": 0.02,
        "body.*.bias": ConstantInit(0.0),
        "body.embed.character.weight": 3**-0.5,
        "body.embed.filters.*.weight": 0.05 / 3**0.5,
        "body.embed.highways.*.weight": total**-0.5,
        "body.embed.highways.*.gate.bias": ConstantInit(-2.0),
        "body.embed.project.weight": total**-0.5,
        "body.layers.*.weight": math.sqrt(2 / (c.dim + 4 * c.cell)),
        "body.layers.*.project": math.sqrt(2 / (half + c.cell)),
        "heads.lm.out.weight": half**-0.5,
        "heads.*.mix.weight": ConstantInit(0.0),
    }


BILM_CONFIG = ConfigMap(
    {
        "n_tokens_vocab": "vocab", "dropout": "dropout", "lstm.dim": "cell", "lstm.n_layers": "layers",
        "lstm.projection_dim": KeyRule(lambda v: {"dim": 2 * v}, lambda c: c.dim // 2), "lstm.cell_clip": "cell_clip",
        "lstm.proj_clip": "clip", "lstm.use_skip_connections": "skip", "char_cnn.embedding.dim": "char_dim",
        "char_cnn.filters": "filters", "char_cnn.activation": rename_key("act", {"relu": "relu", "tanh": "tanh"}),
        "char_cnn.n_highway": "highways", "char_cnn.max_characters_per_token": "slots",
        # 261 while training; with the row for padding, which is not in the file, 262.
        "char_cnn.n_characters": KeyRule(lambda v: {"characters": 262 if v == 261 else v}, lambda c: c.characters),
    },
    fixed_values={"bidirectional": (True,), "share_embedding_softmax": (False,)},
    irrelevant_keys=frozenset({
        "all_clip_norm_val", "batch_size", "learning_rate", "n_epochs", "n_negative_samples_batch", "n_train_tokens",
        "sample_softmax", "unroll_steps",
    }),
    defaults={
        "lstm.n_layers": 1, "lstm.cell_clip": None, "lstm.proj_clip": None, "lstm.use_skip_connections": False,
        "char_cnn.n_highway": 0,
    },
)  # fmt: skip


def swap_gates(name: str, matrix: bool) -> TensorOp:
    """Put gate j first: the published file has one tensor for each direction with gates i, j, f, o, ours has both."""

    def change(t: Tensor) -> Tensor:
        i, j, rest = t.tensor_split((t.shape[-1] // 4, t.shape[-1] // 2), -1)
        return torch.cat((j, i, rest), -1)

    return TensorOp(
        name,
        lambda t: change(t.unflatten(0, (2, -1))),
        lambda t: change(t).flatten(0, 1) if matrix else change(t).flatten(),
    )


def build_key_map(c: ELMoConfig, head: str) -> KeyMap:
    """Map the names of bilm-tf's weights; its files lack the softmax, ours may have it under its training name."""
    cell = "RNN_(0|1)/RNN/MultiRNNCell/Cell{i}/LSTMCell"
    rows: dict[str, str | TensorOp] = {
        "char_embed": TensorOp("embed.character.weight", lambda t: nn.functional.pad(t, (0, 0, 1, 0)), lambda t: t[1:]),
        "CNN/W_cnn_{i}": TensorOp(
            "embed.filters.{i}.weight", lambda t: t.squeeze(0).permute(2, 1, 0), lambda t: t.permute(2, 1, 0)[None]
        ),
        "CNN/b_cnn_{i}": "embed.filters.{i}.bias",
        "CNN_high_{i}/W_carry": transpose_tensor("embed.highways.{i}.gate.weight"),
        "CNN_high_{i}/b_carry": "embed.highways.{i}.gate.bias",
        "CNN_high_{i}/W_transform": transpose_tensor("embed.highways.{i}.transform.weight"),
        "CNN_high_{i}/b_transform": "embed.highways.{i}.transform.bias",
        "CNN_proj/W_proj": transpose_tensor("embed.project.weight"),
        "CNN_proj/b_proj": "embed.project.bias",
        f"{cell}/W_0": swap_gates("layers.{i}.weight", matrix=True),
        f"{cell}/B": swap_gates("layers.{i}.bias", matrix=False),
        f"{cell}/W_P_0": TensorOp("layers.{i}.project", lambda t: t.unflatten(0, (2, -1)), lambda t: t.flatten(0, 1)),
    }
    return KeyMap(rows, heads={"lm": {"softmax/W": "out.weight", "softmax/b": "out.bias"}})


PRESETS: Presets = {
    "elmo-original": {},
    "elmo-medium": {"dim": 512, "cell": 2048, "highways": 1},
    "elmo-small": {"dim": 256, "cell": 1024, "highways": 1},
    "elmo-mini": {"vocab": 8192, "dim": 256, "cell": 512, "highways": 1, "filters": FILTERS[:5]},
}

PAPER = PaperRecipe(
    {
        "objective.name": ("bidirectional", "§3.1"),
        "objective.num_sampled": (8192, "bilm-tf, bin/train_elmo.py: n_negative_samples_batch"),
        "train.optimizer": ("adagrad", "bilm-tf, bilm/training.py: initial accumulator 1"),
        "train.lr": (0.2, "bilm-tf, bilm/training.py"),
        "train.weight_decay": (0.0, "bilm-tf, bilm/training.py: none"),
        "train.schedule": ("constant", "bilm-tf, bilm/training.py"),
        "train.warmup_steps": (0, "bilm-tf, bilm/training.py: none"),
        "train.steps": (1_000_840, "§3.4: 10 epochs; bilm-tf, bin/train_elmo.py: 768,648,884 tokens, 7,680 a step"),
        "train.seq_length": (20, "bilm-tf, bin/train_elmo.py: unroll_steps"),
        "train.batch_tokens": (2_560, "bilm-tf, bin/train_elmo.py: 128 rows of 20"),
        "train.accumulate": (3, "bilm-tf, bin/train_elmo.py: 3 GPUs"),
        "train.grad_clip": (10.0, "bilm-tf, bin/train_elmo.py: all_clip_norm_val"),
        "model.dropout": (0.1, "bilm-tf, bin/train_elmo.py"),
        "data.vocab_size": (793_471, "bilm-tf, README: vocab-2016-09-10.txt of the 1 Billion Word Benchmark"),
    }
)

SPECIAL_TOKENS = {"bos": "<S>", "eos": "</S>", "unk": "<UNK>"}
STYLE = TokenizerStyle("elmo", SPECIAL_TOKENS, tuple(SPECIAL_TOKENS.values()), default_kinds=("characters",))
FAMILY = Family(
    ELMoConfig, ELMo, build_heads, pretraining_head="lm", counted_head="none", build_init_rules=build_init_rules,
    presets=PRESETS, tokenizer="characters", tokenizer_style=STYLE, objective="bidirectional",
    lr_falls_with_dim=True, reads_characters=True, state_class=LSTMState,
    quick_recipe=Recipe(
        {"batch_tokens": 512, "seq_length": 16, "lr": 1e-3},
        {"dim": 64, "layers": 2, "filters": ((1, 16), (2, 16), (3, 32), (4, 64)), "highways": 1},
    ),
    paper_recipe=PAPER,
    # At 5e-4, the rate of other families, it gave every text the most frequent label for ten epochs.
    scratch_recipe=Recipe({"lr": 2e-3}),
    bilm_format=CheckpointFormat("bilm", {"bilm": "none"}, BILM_CONFIG, build_key_map),
    onnx_refusal="its recurrent layers run step by step",
    export_remedy="formers export without --for writes the options.json and hdf5 file of bilm-tf and AllenNLP",
)  # fmt: skip
