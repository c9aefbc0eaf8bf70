"""formers doctor: what this machine has, and what to install for what."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from pathlib import Path

from rich.table import Table
from rich.text import Text

from .terminal import SafeConsole

EXTRAS = {
    "hub": (("huggingface_hub",), "models from the Hugging Face hub"),
    "data": (("pyarrow", "datasets", "zstandard"), "parquet and zst files, Hugging Face datasets"),
    "ko": (("kiwipiepy",), "Korean morphemes and sentences"),
    "eval": (("sacrebleu", "sklearn"), "BLEU, chrF, the TF-IDF baseline"),
    "elmo": (("h5py",), "ELMo's published weights"),
    "track": (("tensorboard", "wandb"), "TensorBoard and Weights & Biases"),
}


def doctor() -> None:
    """Report versions, kernels, compiler, threads, disk, and what to install for which feature.

    formers doctor
    """
    console = SafeConsole(wrap=True)
    for title, rows in (
        ("This machine", describe_machine()),
        ("Attention kernels", list_attention_kernels()),
        ("Features", list_extras()),
    ):
        table = Table(
            title=title, title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False
        )
        for row in rows:
            table.add_row(*row)
        console.print(table)
        console.print()


def describe_machine() -> list[tuple[str | Text, ...]]:
    """Versions, hardware, compiler, disk."""
    import torch

    names = ("formers", "torch", "numpy", "tokenizers", "safetensors")
    versions = ", ".join(f"{name} {get_package_version(name)}" for name in names)
    compiler = next((c for c in ("cc", "gcc", "clang", "cl") if shutil.which(c)), None)
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    capability, memory = torch.backends.cpu.get_cpu_capability(), ""
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = f", {os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB memory"
    return [
        ("versions", versions),
        ("python", f"{platform.python_version()} at {sys.executable}"),
        ("system", f"{platform.system()} {platform.machine()}"),
        ("cpu", f"{os.cpu_count()} cores, {torch.get_num_threads()} torch threads, {capability}{memory}"),
        ("cpu bf16", describe_cpu_bf16()),
        ("gpu", describe_gpu()),
        ("C++ compiler", compiler or "none: torch.compile does not work without one; everything runs uncompiled"),
        ("disk", f"{free:.0f} GB free here"),
    ]  # fmt: skip


def describe_cpu_bf16() -> str:
    """Half precision on the CPU: some virtual machines announce AMX and crash on it, and some processors lack bf16."""
    import torch

    from ..nn.cpu_inference import ISA_VARIABLE, ISA_WITHOUT_AMX, can_prepack, can_use_bf16, is_amx_broken

    if is_amx_broken():
        return f"works without the AMX that is announced: set {ISA_VARIABLE}={ISA_WITHOUT_AMX}"
    if can_use_bf16() and not can_prepack(torch.bfloat16):
        return "works, slower than fp32: this processor has no instructions for it"
    return "works"


def describe_gpu() -> str:
    """The accelerator, in words."""
    import torch

    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        half = "bf16" if torch.cuda.is_bf16_supported() else "no bf16: use fp32 or fp16"
        size = torch.cuda.get_device_properties(0).total_memory / 2**30
        return (
            f"{torch.cuda.device_count()} × {torch.cuda.get_device_name()}, {size:.0f} GiB, sm_{major}{minor}, {half}"
        )
    if torch.backends.mps.is_available():
        return "Apple MPS"
    return "none: models run on the CPU"


def list_attention_kernels() -> list[tuple[str | Text, ...]]:
    """List the kernels of nn/attention/dispatch.py, and whether they can be used here."""
    import torch

    from ..nn.attention.dispatch import list_available_kernels

    words = {True: Text("yes", "green"), False: Text("no", "dim")}
    dummy = torch.empty(1, 1, 64, device="cuda" if torch.cuda.is_available() else "cpu", dtype=torch.bfloat16)
    about = {
        "sdpa": "flash attention through SDPA, for whole grids",
        "cudnn": "attention of cuDNN for whole grids while training (Hopper GPUs, half precision)",
        "varlen": "flash attention over packed documents (GPU from Ampere on, half precision)",
        "flex": "FlexAttention over packed documents with any mask or bias (GPU with triton)",
        "biased_flash": "a bias by distance, an order, dropout over packed documents (GPU with triton, half precision)",
        "per_document": "one document after the other, no padding (CPU)",
        "dense": "SDPA with a dense mask, everywhere",
    }
    ready = list_available_kernels(dummy)
    return [(name, words[name in ready], text) for name, text in about.items()]


def list_extras() -> list[tuple[str | Text, ...]]:
    """Optional features, and how to get them."""
    rows: list[tuple[str | Text, ...]] = []
    for name, (modules, use) in EXTRAS.items():
        ready = all(importlib.util.find_spec(module) for module in modules)
        rows.append((name, Text("ready", "green") if ready else f"pip install 'formers[{name}]'", use))
    return rows


def get_package_version(name: str) -> str:
    """An installed version."""
    from importlib import metadata  # slow to import, and help must answer at once

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "?"
