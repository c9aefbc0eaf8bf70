"""As much of triton as the kernels in nn/ need, in numpy, one program after the other: its sums can be checked on any
machine. With TRITON_INTERPRET=1 and triton (200 MB, no part of the extras) its own interpreter runs them in its place:

    pip install triton
    TRITON_INTERPRET=1 python -m pytest tests/nn/attention/kernels tests/nn/test_linear_cross_entropy.py

That takes the kernels as they are, by triton's rules for types and shapes. benchmarks/kernel_builds.py tells without a
GPU whether they compile, tests/gpu on one whether they are right then."""

from __future__ import annotations

import importlib
import itertools
import os
import sys
import types

import numpy as np
import torch


class Array(np.ndarray):
    def to(self, dtype):
        return self.astype(dtype)

    def __index__(self):
        return int(self.item())


def to_array(x):
    return np.atleast_1d(np.asarray(x)).view(Array)


class Pointer:
    """A tensor's memory from its first number on, and places in it."""

    def __init__(self, memory, at=0):
        self.memory, self.at = memory, at
        self.dtype = types.SimpleNamespace(element_ty=memory.dtype)

    def __add__(self, more):
        return Pointer(self.memory, self.at + more)

    def __getitem__(self, index):
        return Pointer(self.memory, self.at[index])


def make_pointer(tensor):
    tensor = tensor.detach()
    size = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    return Pointer(tensor.as_strided((size,), (1,)).numpy())


def load(p, mask=None, other=0):
    if mask is None:
        return to_array(p.memory[p.at])
    at, mask = np.broadcast_arrays(p.at, mask)
    assert ((at >= 0) & (at < len(p.memory)))[mask].all(), "a read outside"
    return to_array(np.where(mask, p.memory[np.where(mask, at, 0)], np.array(other, p.memory.dtype)))


def store(p, value, mask=True):
    at, mask, value = np.broadcast_arrays(p.at, mask, value)
    assert ((at >= 0) & (at < len(p.memory)))[mask].all(), "a write outside"
    p.memory[at[mask]] = value[mask]


class Kernel:
    def __init__(self, function, where):
        self.function, self.where = function, where
        function.__globals__["range"] = lambda *ends: range(*(int(np.asarray(e).item()) for e in ends))

    def __call__(self, *given, **named):
        return self.function(*given, **named)

    def __getitem__(self, grid):
        def launch(*given, num_warps, num_stages, **named):
            given = [make_pointer(g) if isinstance(g, torch.Tensor) else g for g in given]
            with np.errstate(all="ignore"):
                for place in itertools.product(*(range(size) for size in grid)):
                    self.where[:] = place
                    self.function(*given, **named)

        return launch


def load_kernels(module="attention.kernels.biased_flash_triton"):
    """A module of kernels, made with this in place of triton, or with triton itself, which interprets them."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return importlib.import_module(f"formers.nn.{module}")
    where = []
    tl = types.ModuleType("triton.language")
    tl.constexpr, tl.load, tl.store = float, load, store
    tl.int32, tl.int64, tl.uint32, tl.float32 = np.int32, np.int64, np.uint32, np.float32
    tl.program_id = lambda axis: to_array(where[axis])
    tl.arange, tl.zeros = lambda a, b: to_array(np.arange(a, b)), lambda shape, t: to_array(np.zeros(shape, t))
    tl.full = lambda shape, value, t: to_array(np.full(shape, value, t))
    tl.dot = lambda a, b, c=0: a @ b + c
    tl.gather = lambda x, at, axis: to_array(np.take_along_axis(x, at, axis))
    tl.trans, tl.where = (lambda x: x.T), (lambda c, a, b: to_array(np.where(c, a, b)))
    tl.max, tl.sum, tl.maximum = (lambda x, axis: x.max(axis)), (lambda x, axis: x.sum(axis)), np.maximum
    tl.minimum = np.minimum
    tl.exp2, tl.log2, tl.sqrt, tl.exp, tl.log = np.exp2, np.log2, np.sqrt, np.exp, np.log
    triton = types.ModuleType("triton")
    triton.language, triton.jit = tl, lambda function: Kernel(function, where)
    name, mine = f"formers.nn.{module}", {"triton": triton, "triton.language": tl}
    replaced = [*mine, *(key for key in sys.modules if is_kernel_module(key))]
    before = {key: sys.modules.pop(key) for key in replaced if key in sys.modules}
    sys.modules.update(mine)
    try:
        return importlib.import_module(name)
    finally:  # torch looks whether there is a triton, too
        for key in [*mine, *(key for key in sys.modules if is_kernel_module(key))]:
            sys.modules.pop(key, None)
        sys.modules.update(before)


def is_kernel_module(name):
    return name.startswith("formers.nn.") and name.endswith("_triton")
