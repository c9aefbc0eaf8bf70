"""The works of benchmarks/gpu.py: for each, the peer's model and input, and ours of the same sizes and dropout."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch

import formers
from formers.batch import IGNORE_INDEX, Batch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
IS_DRY_RUN = DEVICE == "cpu"  # a dry run of the script itself


def choose_size(big: Any, small: Any) -> Any:
    """Sizes on a GPU, and on a CPU."""
    return small if IS_DRY_RUN else big


@dataclass
class TrainingCase:
    """One row of the table: `tokens` are the real ones; `given` is the peer's input, `batch` ours."""

    name: str
    tokens: int
    build_peer: Callable[[], Any]
    peer_inputs: dict[str, torch.Tensor]
    build_ours: Callable[[], Any]
    head_part: str
    batch: Batch


def build_on_device(family: str, **settings: Any) -> Callable[[], Any]:
    """A model of ours on the device."""

    def build_model() -> Any:
        with torch.device(DEVICE):
            return formers.build(family, **settings)

    return build_model


def make_causal_batch(ids: torch.Tensor) -> Batch:
    """Rows of one length, each token predicted from those before it."""
    labels = torch.cat((ids[:, 1:], torch.full_like(ids[:, :1], IGNORE_INDEX)), 1)
    return Batch.from_padded(ids).replace(labels=labels.flatten())


def build_gpt2_case() -> TrainingCase:
    from transformers import GPT2Config, GPT2LMHeadModel

    rows, columns = choose_size(32, 2), choose_size(1024, 32)
    ids = torch.randint(5, 50000, (rows, columns))
    small = choose_size({}, {"n_layer": 2, "n_embd": 64, "n_head": 2})
    quiet = {"attn_pdrop": 0, "resid_pdrop": 0, "embd_pdrop": 0, "use_cache": False}
    mine = {"dropout": 0.0, "embed_dropout": 0.0, "attention_dropout": 0.0} | choose_size(
        {}, {"layers": 2, "dim": 64, "heads": 2}
    )
    return TrainingCase(
        "GPT-2 124M train 32×1024", rows * columns,
        lambda: GPT2LMHeadModel(GPT2Config(vocab_size=50304, n_positions=columns, **small, **quiet)),
        {"input_ids": ids, "labels": ids}, build_on_device("gpt2", vocab=50304, context=columns, **mine), "lm",
        make_causal_batch(ids),
    )  # fmt: skip


def build_bert_case(ragged: bool) -> TrainingCase:
    from transformers import BertConfig, BertForMaskedLM

    rows, columns = choose_size(64, 2), choose_size(512, 32)
    small = choose_size(
        {}, {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128}
    )
    rates = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.0}
    mine = {"dropout": 0.1, "attention_dropout": 0.0, "vocab": 30528} | choose_size(
        {}, {"layers": 2, "dim": 64, "heads": 2, "ff": 128}
    )
    g = torch.Generator().manual_seed(0)
    lengths = (torch.rand(rows, generator=g) * 2 * choose_size(180, 20)).long().clamp(8, columns)
    ids = torch.randint(5, 30000, (rows, columns))
    real = torch.arange(columns)[None] < (lengths[:, None] if ragged else columns)
    real = real.expand(rows, columns)
    labels = torch.where((torch.rand(rows, columns) < 0.15) & real, ids, IGNORE_INDEX)
    return TrainingCase(
        f"BERT-base MLM train 64×512 {'ragged' if ragged else 'full'}", int(real.sum()),
        lambda: BertForMaskedLM(BertConfig(vocab_size=30528, **small, **rates)),
        {"input_ids": ids, "labels": labels} | ({"attention_mask": real.long()} if ragged else {}),
        build_on_device("bert", head="mlm", **mine), "mlm", make_packed_batch(ids, real, labels),
    )  # fmt: skip


def make_packed_batch(ids: torch.Tensor, keep: torch.Tensor, labels: torch.Tensor) -> Batch:
    """Rows packed to a multiple of 128 tokens (the rest is a dummy document), places to a multiple of 64."""
    whole = bool(keep.all())
    batch = Batch.from_padded(ids, None if whole else keep)
    flat = labels[keep]
    chosen = (flat != IGNORE_INDEX).nonzero().flatten()
    rest = -len(chosen) % 64
    chosen, answers = (
        torch.cat((chosen, chosen.new_zeros(rest))),
        torch.cat((flat[chosen], flat.new_full((rest,), IGNORE_INDEX))),
    )
    fill = -len(batch.ids) % 128
    if fill:
        starts = torch.cat((batch.starts, batch.starts[-1:] + fill))
        ids = torch.cat((batch.ids, batch.ids.new_zeros(fill)))
        batch = batch.replace(ids=ids, starts=starts, longest=max(batch.longest, fill))
    return batch.replace(chosen=chosen, labels=answers, keep=None)


SOURCE_SHAPE, TARGET_SHAPE = choose_size((32, 512), (2, 32)), choose_size((32, 128), (2, 16))


# Training needs no keys and values of earlier steps, and each layer's own place in their cache makes torch compile a
# layer of Switch anew, until its limit of eight.
UNCACHED = {"use_cache": False}


def build_seq2seq_case(name: str, peer: Callable[[], Any], mine: Callable[[], Any], start: int) -> TrainingCase:
    """Random source and target; the decoder reads the target after its start mark."""
    ids, labels = torch.randint(5, 30000, SOURCE_SHAPE), torch.randint(5, 30000, TARGET_SHAPE)
    shifted = torch.cat((torch.full_like(labels[:, :1], start), labels[:, :-1]), 1)
    batch = Batch.from_padded(shifted, source=Batch.from_padded(ids)).replace(
        chosen=torch.arange(labels.numel()), labels=labels.flatten()
    )
    name = f"{name} train 32×(512+128)"
    return TrainingCase(
        name, ids.numel() + labels.numel(), peer, {"input_ids": ids, "labels": labels}, mine, "lm", batch
    )


def build_t5_case() -> TrainingCase:
    from transformers import T5Config, T5ForConditionalGeneration

    big = {"num_layers": 12, "d_model": 768, "d_ff": 3072, "num_heads": 12}
    small = {"num_layers": 2, "d_model": 64, "d_ff": 128, "num_heads": 2, "d_kv": 32}
    mine = choose_size({"preset": "t5-base"}, {"layers": 2, "dim": 64, "ff": 128, "heads": 2, "head_dim": 32})
    settings = choose_size(big, small) | {"vocab_size": 32128, "decoder_start_token_id": 0, "dropout_rate": 0.1}
    settings |= UNCACHED
    return build_seq2seq_case(
        "T5-base", lambda: T5ForConditionalGeneration(T5Config(**settings)), build_on_device("t5", **mine), 0
    )


def build_bart_case() -> TrainingCase:
    from transformers import BartConfig, BartForConditionalGeneration

    sizes = choose_size(
        {"dim": 768, "layers": 6, "heads": 12, "ff": 3072}, {"dim": 64, "layers": 2, "heads": 2, "ff": 128}
    )
    sides = {"layers": "layers", "attention_heads": "heads", "ffn_dim": "ff"}
    theirs = {f"{side}_{k}": sizes[v] for k, v in sides.items() for side in ("encoder", "decoder")}
    return build_seq2seq_case(
        "BART-base",
        lambda: BartForConditionalGeneration(BartConfig(vocab_size=50265, d_model=sizes["dim"], **theirs, **UNCACHED)),
        build_on_device("bart", vocab=50265, **sizes), 2,
    )  # fmt: skip


def build_switch_case() -> TrainingCase:
    """transformers' default shape: 8 experts in 3 + 3 of 12 + 12 layers, 64 tokens of a document for each."""
    from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration

    small = {"num_layers": 2, "num_decoder_layers": 2, "d_model": 64, "d_ff": 128, "num_heads": 2, "d_kv": 32}
    settings = choose_size({}, small) | {"vocab_size": 32128, "num_experts": 8, "decoder_start_token_id": 0} | UNCACHED
    mine = {"layers": 12, "dim": 768, "ff": 2048, "heads": 12, "head_dim": 64, "sparse": 3}
    less = {"layers": 2, "dim": 64, "ff": 128, "heads": 2, "head_dim": 32, "sparse": 1}
    return build_seq2seq_case(
        "Switch", lambda: SwitchTransformersForConditionalGeneration(SwitchTransformersConfig(**settings)),
        build_on_device("switch", vocab=32128, experts=8, capacity=64, **choose_size(mine, less)), 0,
    )  # fmt: skip


def build_xlnet_case() -> TrainingCase:
    """The last 80 tokens of a row are predicted, one after the other (the peer: each from the rest alone)."""
    from transformers import XLNetConfig, XLNetLMHeadModel

    (rows, columns), few = SOURCE_SHAPE, choose_size(80, 5)
    ids = torch.randint(5, 31000, SOURCE_SHAPE)
    hidden, asked = torch.zeros(rows, columns, columns), torch.zeros(rows, few, columns)
    hidden[:, :, -few:] = 1.0
    asked[:, torch.arange(few), torch.arange(columns - few, columns)] = 1.0
    labels = ids[:, -few:].contiguous()
    order = (torch.arange(columns) - (columns - few - 1)).clamp(min=0).repeat(rows)
    batch = Batch.from_padded(ids).replace(order=order, chosen=(order > 0).nonzero().flatten(), labels=labels.flatten())
    sizes = choose_size({"n_layer": 12, "d_model": 768, "n_head": 12, "d_inner": 3072},
                 {"n_layer": 2, "d_model": 64, "n_head": 2, "d_inner": 128})  # fmt: skip
    return TrainingCase(
        "XLNet-base PLM train 32×512, 80 targets", ids.numel(),
        lambda: XLNetLMHeadModel(XLNetConfig(vocab_size=32000, **sizes)),
        {"input_ids": ids, "perm_mask": hidden, "target_mapping": asked, "labels": labels},
        build_on_device("xlnet", **choose_size({}, {"dim": 64, "layers": 2, "heads": 2, "ff": 128})), "lm", batch,
    )  # fmt: skip


def build_albert_case() -> TrainingCase:
    from transformers import AlbertConfig, AlbertForMaskedLM

    ids = torch.randint(5, 29000, SOURCE_SHAPE)
    labels = torch.where(torch.rand(SOURCE_SHAPE) < 0.15, ids, IGNORE_INDEX)
    big = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
    small = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128, "num_hidden_layers": 2}
    mine = choose_size({}, {"dim": 64, "layers": 2, "heads": 2, "ff": 128})
    return TrainingCase(
        "ALBERT-base MLM train 32×512", ids.numel(),
        lambda: AlbertForMaskedLM(AlbertConfig(vocab_size=30000, embedding_size=128, **choose_size(big, small))),
        {"input_ids": ids, "labels": labels}, build_on_device("albert", head="mlm", vocab=30000, **mine), "mlm",
        make_packed_batch(ids, torch.ones(SOURCE_SHAPE, dtype=torch.bool), labels),
    )  # fmt: skip


def build_bloom_case() -> TrainingCase:
    from transformers import BloomConfig, BloomForCausalLM

    ids = torch.randint(5, 31000, (choose_size(32, 2), choose_size(1024, 32)))
    dim, layers, heads = choose_size(768, 64), choose_size(12, 2), choose_size(12, 2)
    sizes = {"hidden_size": dim, "n_layer": layers, "n_head": heads}
    return TrainingCase(
        "BLOOM 12×768 train 32×1024", ids.numel(),
        lambda: BloomForCausalLM(BloomConfig(vocab_size=32000, use_cache=False, **sizes)),
        {"input_ids": ids, "labels": ids},
        build_on_device("bloom", vocab=32000, dim=dim, layers=layers, heads=heads), "lm", make_causal_batch(ids),
    )  # fmt: skip


TRAINING_CASES: dict[str, Callable[[], TrainingCase]] = {
    "gpt2": build_gpt2_case, "bert": lambda: build_bert_case(True), "bert-full": lambda: build_bert_case(False),
    "t5": build_t5_case, "bart": build_bart_case, "switch": build_switch_case,
    "xlnet": build_xlnet_case, "albert": build_albert_case, "bloom": build_bloom_case,
}  # fmt: skip
