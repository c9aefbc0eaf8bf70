"""The machine under a run: what it is, how fast it can be, and how much of that is used."""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from .. import __version__
from ..config import JSONObject
from ..errors import Error, is_out_of_memory
from ..model import Model
from ..nn.attention.attention import Attention
from ..nn.block import BlockStack
from ..nn.encoder_decoder import EncoderDecoder
from ..nn.experts import Experts
from ..nn.layers import OutputLayer
from .distributed.process_group import ProcessGroup
from .train_config import LoopConfig


@dataclass
class MemoryUse:
    """What the memory of a run is used for, as far as it is known."""

    train: LoopConfig | None = None  # None before the run is built


@contextmanager
def explain_out_of_memory(device: torch.device, parameters: int | None = None) -> Iterator[MemoryUse]:
    """Turn an allocation that fails within the block into one error with sizes and what to change."""
    use = MemoryUse()
    try:
        yield use
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        request = re.search(r"allocate ([\d.,]+ ?[KMGT]?i?(B|bytes))", " ".join(str(error).split()))
        more = f", {request[1]} more were asked for" if request else ""
        size = "the model"
        if parameters is not None:
            size = f"about {parameters:,} parameters ({16 * parameters:,} bytes to train)"
        beside, fix = ("its data", "take a smaller model") if use.train is None else use.train.explain_memory()
        used = f"{get_peak_memory(device) / 2**30:.1f} GiB in use at most{more}"
        raise Error(f"out of memory on {device}: {size} and {beside}; {used}", fix=fix) from None


@contextmanager
def use_deterministic(wanted: bool) -> Iterator[None]:
    """Make torch deterministic within the block if `wanted`; its earlier settings are restored."""
    before = torch.are_deterministic_algorithms_enabled()
    if wanted:  # torch reads this at its first product on a GPU, and refuses to continue without
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        if not before:  # the call takes torch seconds, so none is made that changes nothing
            torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as error:
        if not wanted or "deterministic" not in str(error):
            raise
        said = " ".join(str(error).split())[:120]
        late = "CuBLAS" in str(error)
        what = "this process has used the GPU before" if late else "not every operation gives the same bits here"
        fix = "begin a new one, or set CUBLAS_WORKSPACE_CONFIG=:4096:8 for it" if late else "leave deterministic out"
        raise Error(f"{what} ({said})", fix=fix) from None
    finally:
        if torch.are_deterministic_algorithms_enabled() != before:
            torch.use_deterministic_algorithms(before)


def describe_hardware(world: ProcessGroup) -> JSONObject:
    """Describe machine and software for run.json and the report."""
    device = world.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "formers": __version__, "torch": torch.__version__, "python": platform.python_version(),
        "system": platform.platform(), "device": str(device.type), "name": name, "processes": world.size,
        "threads": torch.get_num_threads(), "command": sys.argv[1:],
    }  # fmt: skip


def get_peak_memory(device: torch.device) -> int:
    """Return the most bytes that were in use so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure_peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Measure for about a tenth of a second how many operations a second a large product takes."""
    size = 8192 if device.type == "cuda" else 1024
    a = torch.ones(size, size, device=device, dtype=dtype)
    a @ a  # the first one also sets things up
    best, until = 0.0, time.perf_counter() + 0.1
    while not best or time.perf_counter() < until:
        synchronize_device(device)
        began = time.perf_counter()
        a @ a
        synchronize_device(device)
        best = max(best, 2 * size**3 / (time.perf_counter() - began))
    return best


def synchronize_device(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def estimate_flops_per_token(
    model: Model, length: int, predicted_share: float = 1.0, target_share: float = 0.5
) -> float:
    """Estimate the operations of training on one token: six for each weight of a matrix that it meets, and attention
    to `length` tokens. A token meets one of several experts, a shared block as often as there are layers, and the
    output layer if it is predicted; of an encoder-decoder's tokens, `target_share` meet the decoder."""
    uses = {id(part): 1.0 for part in model.modules()}
    for part in model.modules():
        if isinstance(part, BlockStack) and len(part):
            for inner in part.modules():
                uses[id(inner)] *= len(part.layer_order) / len(part)
    if isinstance(model.body, EncoderDecoder):
        for side, share in ((model.body.encoder, 1 - target_share), (model.body.decoder, target_share)):
            for inner in side.modules() if side is not None else ():
                uses[id(inner)] *= share
    flops = 0.0
    for part in model.modules():
        own: float = sum(p.numel() for p in part.parameters(recurse=False) if p.dim() > 1)
        if isinstance(part, OutputLayer):
            if part.weight is None:  # tied to a table, or to several (Transformer-XL)
                table = model.body.embedding_table
                own = sum(p.numel() for p in table.parameters()) if isinstance(table, nn.Module) else table.numel()
            own *= predicted_share
        elif isinstance(part, Experts):
            own /= part.num_experts
        elif isinstance(part, nn.Embedding):
            own = 0
        attention = 12.0 * part.heads * part.head_dim * length if isinstance(part, Attention) else 0.0
        flops += uses[id(part)] * (6.0 * own + attention)
    return flops
