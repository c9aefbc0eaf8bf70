"""The works of benchmarks/gpu.py: for each, the peer's model and input, and ours of the same sizes and dropout."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch

import formers
from formers.batch import Batch
from formers.objectives.tokens import IGNORED

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TINY = DEVICE == "cpu"  # a dry run of the script itself


def pick(big: Any, small: Any) -> Any:
    """Sizes on a GPU, and on a CPU."""
    return small if TINY else big


@dataclass
class Work:
    """One row of the table: `tokens` are the real ones; `given` is the peer's input, `batch` ours."""

    name: str
    tokens: int
    peer: Callable[[], Any]
    given: dict[str, torch.Tensor]
    mine: Callable[[], Any]
    part: str
    batch: Batch


def built(family: str, **settings: Any) -> Callable[[], Any]:
    """A model of ours on the device."""

    def make() -> Any:
        with torch.device(DEVICE):
            return formers.build(family, **settings)

    return make


def uniform(ids: torch.Tensor) -> Batch:
    """Rows of one length, each token predicted from those before it."""
    labels = torch.cat((ids[:, 1:], torch.full_like(ids[:, :1], IGNORED)), 1)
    return Batch.of(ids).replace(labels=labels.flatten())


def gpt2() -> Work:
    from transformers import GPT2Config, GPT2LMHeadModel

    rows, columns = pick(32, 2), pick(1024, 32)
    ids = torch.randint(5, 50000, (rows, columns))
    small = pick({}, {"n_layer": 2, "n_embd": 64, "n_head": 2})
    quiet = {"attn_pdrop": 0, "resid_pdrop": 0, "embd_pdrop": 0, "use_cache": False}
    mine = {"dropout": 0.0, "embed_dropout": 0.0, "attention_dropout": 0.0} | pick(
        {}, {"layers": 2, "dim": 64, "heads": 2}
    )
    return Work(
        "GPT-2 124M train 32×1024", rows * columns,
        lambda: GPT2LMHeadModel(GPT2Config(vocab_size=50304, n_positions=columns, **small, **quiet)),
        {"input_ids": ids, "labels": ids}, built("gpt2", vocab=50304, context=columns, **mine), "lm", uniform(ids),
    )  # fmt: skip


def bert(ragged: bool) -> Work:
    from transformers import BertConfig, BertForMaskedLM

    rows, columns = pick(64, 2), pick(512, 32)
    small = pick({}, {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128})
    rates = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.0}
    mine = {"dropout": 0.1, "attention_dropout": 0.0, "vocab": 30528} | pick(
        {}, {"layers": 2, "dim": 64, "heads": 2, "ff": 128}
    )
    g = torch.Generator().manual_seed(0)
    lengths = (torch.rand(rows, generator=g) * 2 * pick(180, 20)).long().clamp(8, columns)
    ids = torch.randint(5, 30000, (rows, columns))
    real = torch.arange(columns)[None] < (lengths[:, None] if ragged else columns)
    real = real.expand(rows, columns)
    labels = torch.where((torch.rand(rows, columns) < 0.15) & real, ids, IGNORED)
    return Work(
        f"BERT-base MLM train 64×512 {'ragged' if ragged else 'full'}", int(real.sum()),
        lambda: BertForMaskedLM(BertConfig(vocab_size=30528, **small, **rates)),
        {"input_ids": ids, "labels": labels} | ({"attention_mask": real.long()} if ragged else {}),
        built("bert", head="mlm", **mine), "mlm", packed(ids, real, labels),
    )  # fmt: skip


def packed(ids: torch.Tensor, keep: torch.Tensor, labels: torch.Tensor) -> Batch:
    """Rows packed to a multiple of 128 tokens (the rest is a dummy document), places to a multiple of 64."""
    whole = bool(keep.all())
    batch = Batch.of(ids, None if whole else keep)
    flat = labels[keep]
    chosen = (flat != IGNORED).nonzero().flatten()
    rest = -len(chosen) % 64
    chosen, answers = (
        torch.cat((chosen, chosen.new_zeros(rest))),
        torch.cat((flat[chosen], flat.new_full((rest,), IGNORED))),
    )
    fill = -len(batch.ids) % 128
    if fill:
        starts = torch.cat((batch.starts, batch.starts[-1:] + fill))
        ids = torch.cat((batch.ids, batch.ids.new_zeros(fill)))
        batch = batch.replace(ids=ids, starts=starts, longest=max(batch.longest, fill))
    return batch.replace(chosen=chosen, labels=answers, keep=None)


SOURCE, TARGET = pick((32, 512), (2, 32)), pick((32, 128), (2, 16))


def pair(name: str, peer: Callable[[], Any], mine: Callable[[], Any], start: int) -> Work:
    """Random source and target; the decoder reads the target behind its start mark."""
    ids, labels = torch.randint(5, 30000, SOURCE), torch.randint(5, 30000, TARGET)
    shifted = torch.cat((torch.full_like(labels[:, :1], start), labels[:, :-1]), 1)
    batch = Batch.of(shifted, source=Batch.of(ids)).replace(
        chosen=torch.arange(labels.numel()), labels=labels.flatten()
    )
    name = f"{name} train 32×(512+128)"
    return Work(name, ids.numel() + labels.numel(), peer, {"input_ids": ids, "labels": labels}, mine, "lm", batch)


def t5() -> Work:
    from transformers import T5Config, T5ForConditionalGeneration

    big = {"num_layers": 12, "d_model": 768, "d_ff": 3072, "num_heads": 12}
    small = {"num_layers": 2, "d_model": 64, "d_ff": 128, "num_heads": 2, "d_kv": 32}
    mine = pick({"preset": "t5-base"}, {"layers": 2, "dim": 64, "ff": 128, "heads": 2, "head_dim": 32})
    settings = pick(big, small) | {"vocab_size": 32128, "decoder_start_token_id": 0, "dropout_rate": 0.1}
    return pair("T5-base", lambda: T5ForConditionalGeneration(T5Config(**settings)), built("t5", **mine), 0)


def bart() -> Work:
    from transformers import BartConfig, BartForConditionalGeneration

    sizes = pick({"dim": 768, "layers": 6, "heads": 12, "ff": 3072}, {"dim": 64, "layers": 2, "heads": 2, "ff": 128})
    sides = {"layers": "layers", "attention_heads": "heads", "ffn_dim": "ff"}
    theirs = {f"{side}_{k}": sizes[v] for k, v in sides.items() for side in ("encoder", "decoder")}
    return pair(
        "BART-base",
        lambda: BartForConditionalGeneration(BartConfig(vocab_size=50265, d_model=sizes["dim"], **theirs)),
        built("bart", vocab=50265, **sizes), 2,
    )  # fmt: skip


def switch() -> Work:
    """transformers' default shape: 8 experts in 3 + 3 of 12 + 12 layers, 64 tokens of a document for each."""
    from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration

    small = {"num_layers": 2, "num_decoder_layers": 2, "d_model": 64, "d_ff": 128, "num_heads": 2, "d_kv": 32}
    settings = pick({}, small) | {"vocab_size": 32128, "num_experts": 8, "decoder_start_token_id": 0}
    mine = {"layers": 12, "dim": 768, "ff": 2048, "heads": 12, "head_dim": 64, "sparse": 3}
    less = {"layers": 2, "dim": 64, "ff": 128, "heads": 2, "head_dim": 32, "sparse": 1}
    return pair(
        "Switch", lambda: SwitchTransformersForConditionalGeneration(SwitchTransformersConfig(**settings)),
        built("switch", vocab=32128, experts=8, capacity=64, **pick(mine, less)), 0,
    )  # fmt: skip


def xlnet() -> Work:
    """The last 80 tokens of a row are foretold, one after the other (the peer: each from the rest alone)."""
    from transformers import XLNetConfig, XLNetLMHeadModel

    (rows, columns), few = SOURCE, pick(80, 5)
    ids = torch.randint(5, 31000, SOURCE)
    hidden, asked = torch.zeros(rows, columns, columns), torch.zeros(rows, few, columns)
    hidden[:, :, -few:] = 1.0
    asked[:, torch.arange(few), torch.arange(columns - few, columns)] = 1.0
    labels = ids[:, -few:].contiguous()
    order = (torch.arange(columns) - (columns - few - 1)).clamp(min=0).repeat(rows)
    batch = Batch.of(ids).replace(order=order, chosen=(order > 0).nonzero().flatten(), labels=labels.flatten())
    sizes = pick({"n_layer": 12, "d_model": 768, "n_head": 12, "d_inner": 3072},
                 {"n_layer": 2, "d_model": 64, "n_head": 2, "d_inner": 128})  # fmt: skip
    return Work(
        "XLNet-base PLM train 32×512, 80 targets", ids.numel(),
        lambda: XLNetLMHeadModel(XLNetConfig(vocab_size=32000, **sizes)),
        {"input_ids": ids, "perm_mask": hidden, "target_mapping": asked, "labels": labels},
        built("xlnet", **pick({}, {"dim": 64, "layers": 2, "heads": 2, "ff": 128})), "lm", batch,
    )  # fmt: skip


def albert() -> Work:
    from transformers import AlbertConfig, AlbertForMaskedLM

    ids = torch.randint(5, 29000, SOURCE)
    labels = torch.where(torch.rand(SOURCE) < 0.15, ids, IGNORED)
    big = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
    small = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128, "num_hidden_layers": 2}
    mine = pick({}, {"dim": 64, "layers": 2, "heads": 2, "ff": 128})
    return Work(
        "ALBERT-base MLM train 32×512", ids.numel(),
        lambda: AlbertForMaskedLM(AlbertConfig(vocab_size=30000, embedding_size=128, **pick(big, small))),
        {"input_ids": ids, "labels": labels}, built("albert", head="mlm", vocab=30000, **mine), "mlm",
        packed(ids, torch.ones(SOURCE, dtype=torch.bool), labels),
    )  # fmt: skip


def bloom() -> Work:
    from transformers import BloomConfig, BloomForCausalLM

    ids = torch.randint(5, 31000, (pick(32, 2), pick(1024, 32)))
    sizes = {"hidden_size": pick(768, 64), "n_layer": pick(12, 2), "n_head": pick(12, 2)}
    return Work(
        "BLOOM 12×768 train 32×1024", ids.numel(),
        lambda: BloomForCausalLM(BloomConfig(vocab_size=32000, use_cache=False, **sizes)),
        {"input_ids": ids, "labels": ids},
        built("bloom", vocab=32000, dim=pick(768, 64), layers=pick(12, 2), heads=pick(12, 2)), "lm", uniform(ids),
    )  # fmt: skip


WORKS: dict[str, Callable[[], Work]] = {
    "gpt2": gpt2, "bert": lambda: bert(True), "bert-full": lambda: bert(False), "t5": t5, "bart": bart,
    "switch": switch, "xlnet": xlnet, "albert": albert, "bloom": bloom,
}  # fmt: skip
