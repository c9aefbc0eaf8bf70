"""Compile the kernels of attention, decoding and the loss for a Hopper GPU on a machine without one, in the variants
that models use. Strides count as multiples of 16, as a launch finds them: loads are copied in pipelines only then.

    python -m benchmarks.kernel_builds                  # needs triton; no GPU and no driver
    python -m benchmarks.kernel_builds relative_flash

Prints a line for each variant: the shared memory of a program, what it keeps in registers and what it spills. A variant
that triton cannot compile, or that needs more shared memory than the chip has, is an error, and the exit status is 1.
"""

from __future__ import annotations

import importlib
import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

SHARED_MEMORY = 227 * 1024  # bytes that a program may have on Hopper
TYPES = {  # of arguments by name; others in capitals are bf16 tensors, the rest numbers of 32 bits
    "SEG_Q": "*i32", "SEG_K": "*i32", "PLACES": "*i32", "RANK_Q": "*i32", "RANK_K": "*i32", "SEED": "*i64",
    "Q_STARTS": "*i32", "K_STARTS": "*i32", "LOG": "*fp32", "DELTA": "*fp32", "D_EXTRA": "*fp32", "EXTRA": "*fp32",
    "D_R": "*fp32", "LABELS": "*i64", "LOSSES": "*fp32", "scale": "fp32", "grow": "fp32", "plain": "fp32",
    "smoothing": "fp32", "inverse_width": "fp32", "LENGTHS": "*i64", "HELD": "*i64", "W": "*fp32", "eps": "fp32",
}  # fmt: skip
TYPES_OF_DECODE = {"BIAS": "*fp32", "B": "*fp32"}
COUNTS = ("q_blocks",)  # numbers named like strides


def list_biased_variants() -> Iterator[tuple[str, dict[str, Any], tuple[int, ...]]]:
    """Yield kernel, flags and tile sizes of biased_flash: T5's table, scores by distance, dropout alone."""
    from formers.nn.attention.kernels import biased_flash

    plain = dict.fromkeys(("BIASED", "SHIFTED", "PLACED", "SEGMENTED"), False)
    kinds: list[dict[str, Any]] = [
        plain, plain | {"BIASED": True}, plain | {"BIASED": True, "SHIFTED": True, "SEGMENTED": True},
        plain | {"BIASED": True, "SHIFTED": True, "PLACED": True, "SEGMENTED": True},
    ]  # fmt: skip
    for kind, ranked, drop, even in itertools.product(kinds, (False, True), (False, True), (False, True)):
        flags = kind | {"RANKED": ranked, "DROP": drop, "EVEN": even, "SURE": even and not ranked, "D": 64}
        forward = biased_flash.SHIFTED_TILES if kind["SHIFTED"] else biased_flash.FORWARD_TILES
        yield "forward", flags, forward
        yield "backward_queries", flags, biased_flash.QUERY_GRAD_TILES
        yield "backward_keys", flags, biased_flash.KEY_GRAD_TILES
    for name, tiles in (("forward", biased_flash.WIDE_TILES), ("backward_keys", biased_flash.KEY_GRAD_TILES)):
        yield name, kinds[1] | {"RANKED": True, "DROP": True, "EVEN": False, "SURE": False, "D": 128}, tiles


def list_relative_variants() -> Iterator[tuple[str, dict[str, Any], tuple[int, ...]]]:
    """Yield kernel, flags and tile sizes of relative_flash."""
    from benchmarks.kernels import RELATIVE_TILES
    from formers.nn.attention.kernels import relative_flash as relative

    tiles = {
        "forward": relative.FORWARD_TILES, "backward_queries": relative.QUERY_GRAD_TILES,
        "backward_keys": relative.KEY_GRAD_TILES,
    }  # fmt: skip
    for segmented, ranked, drop, even in itertools.product((True, False), (True, False), (True, False), (True, False)):
        flags = {"SEGMENTED": segmented, "RANKED": ranked, "DROP": drop, "EVEN": even, "SURE": even and not ranked}
        for name, size in tiles.items():
            yield name, flags | {"WIDE": even, "D": 64}, size
    yield "sum_products", {"D": 64, "ROWS": relative.SUMMED_ROWS}, (4, 1)
    yield "backward_encodings", {"D": 64}, (relative.QUERY_GRAD_TILES[0], *relative.ENCODING_GRAD_TILES[1:])
    stream = dict.fromkeys(("SEGMENTED", "RANKED", "DROP", "EVEN", "WIDE"), True) | {"SURE": False, "D": 64}
    for name, others in RELATIVE_TILES.items():  # what benchmarks/kernels.py times
        for size in others[1:]:
            yield name, stream, size


def list_loss_variants() -> Iterator[tuple[str, dict[str, Any], tuple[int, ...]]]:
    """Yield the kernel of the loss over the vocabulary."""
    from formers.nn.linear_cross_entropy import COLUMNS, GROUP, WARPS

    for smoothed in (False, True):
        yield "overwrite_logits", {"SMOOTHED": smoothed, "COLUMNS": COLUMNS, "GROUP": GROUP}, (WARPS, 2)


def list_decode_variants() -> Iterator[tuple[str, dict[str, Any], tuple[int, ...]]]:
    """Yield the kernels of single steps: over a cache's rows or a table of slots, with ALiBi, a window, new keys."""
    from formers.nn.attention.kernels.decode import KEY_BLOCK

    plain = dict.fromkeys(("TABLE", "BIASED", "WINDOW", "FRESH"), False)
    kinds = ("TABLE",), ("TABLE", "FRESH"), ("TABLE", "FRESH", "BIASED"), ("TABLE", "FRESH", "WINDOW")
    for dim in (64, 128):
        for on in ((), *kinds):
            yield "attend_chunk", plain | dict.fromkeys(on, True) | {"D": dim, "BN": KEY_BLOCK}, (4, 2)
        yield "merge_chunks", {"D": dim, "P": 16}, (4, 1)
    for mean in (True, False):
        yield "add_norm", {"MEAN": mean, "BIASED": mean, "D": 1024}, (4, 1)


KERNELS = {
    "biased_flash": ("formers.nn.attention.kernels.biased_flash_triton", list_biased_variants),
    "relative_flash": ("formers.nn.attention.kernels.relative_flash_triton", list_relative_variants),
    "decode": ("formers.nn.attention.kernels.decode_triton", list_decode_variants),
    "linear_cross_entropy": ("formers.nn.linear_cross_entropy_triton", list_loss_variants),
}


def compile_variant(kernel: Any, flags: dict[str, Any], tiles: tuple[int, ...]) -> dict[str, Any]:
    """Compile one variant for compute capability 9.0; return what it needs."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = TYPES | (TYPES_OF_DECODE if kernel.__module__.endswith("decode_triton") else {})
    *sizes, warps, stages = tiles
    names = ("B",) if "B" in kernel.arg_names else ("BM", "BN")
    constants = dict(flags) | dict(zip(names, sizes, strict=False))
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    signature = {}
    for name in kernel.arg_names:
        kind = types.get(name, "*bf16" if name.isupper() else "i32")
        signature[name] = "constexpr" if name in constants else kind
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(kernel.arg_names) if is_aligned(name, types)}
    aligned = {place: hint for place, hint in aligned.items() if kernel.arg_names[place[0]] not in constants}
    source = ASTSource(kernel, signature, {(kernel.arg_names.index(k),): v for k, v in constants.items()}, aligned)
    options = {"num_warps": warps, "num_stages": stages}
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    found: dict[str, Any] = {"shared_bytes": made.metadata.shared, **read_usage(made)}
    if made.metadata.shared > SHARED_MEMORY:
        found["error"] = f"needs {made.metadata.shared} bytes of shared memory, there are {SHARED_MEMORY}"
    return found


def is_aligned(name: str, types: Mapping[str, str]) -> bool:
    """Return whether an argument is a multiple of 16 in a launch: tensors, their strides, the number of tokens."""
    is_stride = "_" in name and name not in types and name not in COUNTS
    return name.isupper() or is_stride or name in ("total", "stride")


def read_usage(made: Any) -> dict[str, int]:
    """Assemble once more, and return the registers of a thread and the bytes that it spills."""
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.ptx"
        file.write_text(made.asm["ptx"])
        command = [knobs.nvidia.ptxas.path, "-v", "--gpu-name=sm_90a", str(file), "-o", f"{folder}/out"]
        told = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    registers, spilled = re.search(r"Used (\d+) registers", told), re.findall(r"(\d+) bytes spill stores", told)
    return {"registers": int(registers[1]) if registers else -1, "spilled_bytes": sum(map(int, spilled))}


def main() -> None:
    """Compile what is named, or all."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print((__doc__ or "").strip())
        return
    names, failed = sys.argv[1:] or list(KERNELS), 0
    if unknown := set(names) - set(KERNELS):
        sys.exit(f"there is no kernel {unknown.pop()}: choose of {', '.join(KERNELS)}")
    for name in names:
        module, list_variants = KERNELS[name]
        for kernel, flags, tiles in list_variants():
            began = time.perf_counter()
            try:
                found = compile_variant(vars(importlib.import_module(module))[kernel], flags, tiles)
            except Exception as error:
                found = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"}
            failed += "error" in found
            on = [flag for flag, value in flags.items() if value is True]
            row = {"kernels": name, "kernel": kernel, "flags": on, "head_dim": flags.get("D"), "tiles": tiles, **found}
            print(json.dumps(row | {"seconds": round(time.perf_counter() - began, 1)}), flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
