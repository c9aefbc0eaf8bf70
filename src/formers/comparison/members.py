"""What a family becomes in a comparison: the size of its model, its operations, its steps under each budget."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import torch

from ..config import JSONObject, Settings, get_schema
from ..data.loader import pack_examples, plan_epoch
from ..errors import Error
from ..former import build_empty, count_trainable
from ..model import Model, estimate_flops_per_token
from ..nn.attention.segment_memory import SegmentMemory
from ..nn.block import BlockStack
from ..nn.experts import Experts
from ..registry import find_family
from ..training.config_merge import PretrainConfig, build_model_config, configure_pretraining
from ..training.distributed.process_group import ProcessGroup, connect_processes
from ..training.hardware import describe_hardware, get_peak_memory
from ..training.optimizer import WARMUP_SCALED_SCHEDULES
from ..training.runs.prepare_data import prepare_data
from ..training.runs.pretrain import PretrainRun
from ..training.runs.run import time_steps
from .settings import Budget, CompareConfig, choose_text_form, classify_family

WIDTH_STEP = 32  # widths are multiples of it, so that heads have widths that kernels like,
FINE_WIDTH_STEP = 4  # or of this, where no such width has the size
MAX_WIDTH = 16_384
INNER_STEP = 8  # the width of the feed-forward layer or of the cell, which brings the size to its target
INNER_SETTINGS = ("ff", "cell")  # where they are numbers
WARMUP_SHARE = 0.06  # of the steps
EVALUATIONS, SAVES = 20, 8  # of a run, about
PROBED_BATCHES = 4  # batches that the operations of a step are measured on


def count_unrolled(model: Model, vocab: int) -> tuple[int, int]:
    """Count the body's parameters without tables of tokens: as they are stored, and as if no layer were shared and
    every layer of experts had one."""
    factors: dict[int, float] = {}
    for part in model.body.modules():
        factor = 1.0
        if isinstance(part, BlockStack) and len(part):
            factor = len(part.layer_order) / len(part)
        for parameter in part.parameters() if factor != 1.0 else ():
            factors[id(parameter)] = factors.get(id(parameter), 1.0) * factor
        if isinstance(part, Experts):
            for parameter in part.parameters(recurse=False):
                factors[id(parameter)] = factors.get(id(parameter), 1.0) / part.num_experts
    own = [p for p in model.body.parameters() if not (p.dim() == 2 and p.shape[0] == vocab)]
    return sum(p.numel() for p in own), round(sum(p.numel() * factors.get(id(p), 1.0) for p in own))


def choose_model(family: str, config: CompareConfig, vocab: int) -> Settings:
    """Choose a model of the wanted size: its depth and lengths are given, its width follows, and the width of the
    feed-forward layer (or cell) makes up for the rest. Returns dotted settings."""
    declared = find_family(family).definition
    known = get_schema(declared.config_class)
    layers = max(1, config.layers // 2) if declared.is_encoder_decoder else config.layers
    lengths = {"context": config.seq_length, "memory": config.seq_length, "window": max(1, config.seq_length // 2)}
    fixed: Settings = {"model.layers": layers}
    fixed |= {f"model.{name}": value for name, value in lengths.items() if name in known}

    def measure(settings: Settings) -> tuple[int, PretrainConfig]:
        chosen = configure_member(family, config, 100, {**fixed, **settings})
        sizes = build_model_config(chosen, vocab=vocab)
        return count_unrolled(build_empty(family, sizes, declared.pretraining_head).model, vocab)[1], chosen

    try:
        measure({"model.dim": WIDTH_STEP})
    except Error:  # a family may need another layer (GNMT: its first one has two directions)
        fixed["model.layers"] = layers + 1

    def fit_width(step: int) -> tuple[int, Settings]:
        low, high = 1, MAX_WIDTH // step
        while low < high:  # the smallest width that reaches the target
            middle = (low + high) // 2
            is_enough = measure({"model.dim": middle * step})[0] >= config.body_size
            low, high = (low, middle) if is_enough else (middle + 1, high)
        widths = [count * step for count in (low - 1, low) if count > 0]
        sizes = {width: measure({"model.dim": width}) for width in widths}
        width = min(widths, key=lambda one: abs(math.log(sizes[one][0] / config.body_size)))
        size, chosen = sizes[width]
        inner = next((name for name in INNER_SETTINGS if isinstance(chosen.model.get(name), int)), None)
        settings: Settings = {"model.dim": width}
        if inner is None:
            return size, settings
        before = chosen.model[inner]
        slope = (measure({**settings, f"model.{inner}": before + INNER_STEP})[0] - size) / INNER_STEP
        best = before + (config.body_size - size) / max(slope, 1e-9)
        settings[f"model.{inner}"] = max(INNER_STEP, round(best / INNER_STEP) * INNER_STEP)
        return measure(settings)[0], settings

    size, settings = fit_width(WIDTH_STEP)
    if abs(size / config.body_size - 1) > config.tolerance:
        settings = fit_width(FINE_WIDTH_STEP)[1]
    return {**fixed, **settings}


def configure_member(family: str, config: CompareConfig, steps: int, more: Settings) -> PretrainConfig:
    """Merge the settings of a run: the family's recipe, what all members have in common, what this one has, and what
    the caller gave for all."""
    common: Settings = {
        "train.steps": steps, "train.batch_tokens": config.batch_tokens, "train.seq_length": config.seq_length,
        "train.eval_every": max(1, steps // EVALUATIONS), "train.save_every": max(1, steps // SAVES),
        "train.samples": 0, "train.keep_last": 1, "train.keep_best": 1, "train.compile": False,
    }  # fmt: skip
    own = {f"train.{name}": value for name, value in config.train.items()}
    merged = configure_pretraining(family, None, {**common, **more, **own})
    if merged.train.schedule in WARMUP_SCALED_SCHEDULES or "train.warmup_steps" in own:
        return merged
    warmup = {"train.warmup_steps": max(1, round(WARMUP_SHARE * steps))}
    return configure_pretraining(family, None, {**common, **warmup, **more, **own})


def list_data_settings(family: str, folder: Path) -> Settings:
    """Return the settings that name a family's token stores in a comparison's folder."""
    where = folder / "data" / choose_text_form(family).name
    return {"data.source": [str(where / "store")], "data.valid": [str(where / "valid")]}


def build_run(family: str, config: CompareConfig, folder: Path, more: Settings, world: ProcessGroup) -> PretrainRun:
    """Build a run that is only measured."""
    merged = configure_member(family, config, 1000, {**list_data_settings(family, folder), **more})
    return PretrainRun(merged, prepare_data(family, merged.data, folder / "data"), world)


def plan_member(family: str, config: CompareConfig, folder: Path) -> JSONObject:
    """Choose a family's model and measure what a step of it takes: parameters, operations, steps of an epoch."""
    declared, form = find_family(family).definition, choose_text_form(family)
    where = folder / "data" / form.name
    vocab = prepare_vocab(where)
    model = choose_model(family, config, vocab)
    run = build_run(family, config, folder, model, ProcessGroup())
    stored, unrolled = count_unrolled(run.former.model, run.former.config.vocab)
    if abs(unrolled / config.body_size - 1) > config.tolerance:
        what = (
            f"no {family} of {config.layers} layers has {config.body_size:,} parameters: the nearest has {unrolled:,}"
        )
        raise Error(what, fix="choose another --body-size, fewer --layers or a larger --tolerance")
    source, s = run.get_source(1), run.config.train
    plan = plan_epoch(source, s.seed, 0)
    epoch_steps = sum(1 for _ in pack_examples(source, plan, source.choose_shape(s.batch_tokens, plan), 0))
    tokens, predicted, targets, squares, longest = [], 0, 0, 0.0, 0
    for batch, _ in itertools.islice(run.iter_batches(1, 0), PROBED_BATCHES):
        sides = [batch.ids] if batch.source is None else [batch.ids, batch.source.ids]
        tokens.append(sum(map(len, sides)))
        targets += len(batch.ids)
        predicted += len(batch.ids) if batch.chosen is None else len(batch.chosen)
        for starts in (batch.starts, *(() if batch.source is None else (batch.source.starts,))):
            lengths = np.diff(np.asarray(starts)).astype(float)
            squares += float((lengths**2).sum())
            longest = max(longest, int(lengths.max(initial=0)))
    total = sum(tokens)
    carries = declared.has_carried_state and issubclass(run.former.state_class, SegmentMemory)
    memory = (run.former.config.to_settings().get("memory") or 0) if carries and s.carry_memory else 0
    length = max(1, round(squares / total))
    flops = estimate_flops_per_token(run.former.model, length, predicted / total, targets / total, memory)
    step_tokens = total / len(tokens) * s.accumulate
    return {
        "model": model, "parameters": count_trainable(run.former.model), "body": stored, "unrolled": unrolled,
        "flops_per_token": flops, "step_tokens": step_tokens, "step_flops": flops * step_tokens,
        "epoch_steps": max(1, math.ceil(epoch_steps / s.accumulate)), "predicted_share": predicted / total,
        "target_share": targets / total if declared.is_encoder_decoder else None, "attention_length": length,
        "memory": memory, "lr": s.lr, "optimizer": s.optimizer, "schedule": s.schedule,
        "objective": run.config.objective["name"], "kind": classify_family(family), "tokenizer": form.tokenizer,
        "note": form.note, "vocab": vocab, "layers": run.former.config.layers, "dim": run.former.config.dim,
        "decoder_layers": run.former.config.num_decoder_layers if declared.is_encoder_decoder else 0,
        "inner": next((run.config.model[n] for n in INNER_SETTINGS if isinstance(run.config.model.get(n), int)), None),
    }  # fmt: skip


def prepare_vocab(where: Path) -> int:
    """Return the size of the vocabulary of a form of the corpus that was prepared."""
    from ..interop.tokenizer_files import load_tokenizer

    return len(load_tokenizer(where / "tokenizer"))


def count_steps(plan: JSONObject, budget: Budget, flops: float | None = None) -> int:
    """Return the steps that a budget allows; `flops` are those of the family that the budget names."""
    if budget.kind == "epochs":
        return max(1, math.ceil(budget.amount * plan["epoch_steps"]))
    return max(1, round((budget.amount if flops is None else flops) / plan["step_flops"]))


def measure_speed(family: str, config: CompareConfig, folder: Path, model: Settings, device: str | None) -> JSONObject:
    """Take a few training steps: tokens a second, seconds of a step and of the first one, and the peak of memory."""
    world = connect_processes(device)
    if world.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(world.device)
    run = build_run(family, config, folder, model, world)
    first, each = time_steps(run, 0, 1000)
    seconds = each * run.config.train.accumulate
    machine = describe_hardware(world)
    machine.pop("command")
    return {
        "seconds_per_step": seconds, "first_step": first, "memory": get_peak_memory(world.device),
        "device": world.device.type, "machine": machine,
    }  # fmt: skip
