"""Pickles of plain data (Transformer-XL's vocab.pkl, Paddle's .pdparams), read without importing what they name.

A pickle is a program that names functions and calls them. Here every name is looked up in a table of stand-ins: tables,
tuples, and NumPy's arrays as a shape, a type and bytes. Any other name becomes an object that keeps nothing, so that a
file may hold more than is read of it. This runs in the confined process of sandbox.py all the same."""

from __future__ import annotations

import io
import math
import pickle
from typing import Any

import numpy as np

from ..errors import Error

MAX_AXES = 8
FLOAT_TYPES, INTEGER_TYPES = ("f2", "f4", "f8"), ("i4", "i8")


class IgnoredObject:
    """Stand-in for an object of any other class: it can be made and filled, and keeps nothing."""

    def __init__(self, *arguments: object, **more: object):
        pass

    def __setstate__(self, state: object) -> None:
        pass

    def __setitem__(self, key: object, value: object) -> None:
        pass

    def append(self, value: object) -> None:
        """Take no item."""

    def extend(self, values: object) -> None:
        """Take no items."""


class ArrayType:
    """The type of an array, as a pickle describes it."""

    def __init__(self, code: object = "", *flags: object):
        self.code, self.byte_order = code, "<"

    def __setstate__(self, state: Any) -> None:  # dynamic: whatever the pickle says
        self.byte_order = state[1]


class ArrayContent:
    """The content of an array, as a pickle describes it: nothing of it is trusted before `to_numpy`."""

    def __init__(self, *arguments: object):
        self.state: Any = None  # dynamic: whatever the pickle says

    def __setstate__(self, state: object) -> None:
        self.state = state

    def to_numpy(self, name: str) -> np.ndarray:
        """Return the array, if its bytes are those of plain numbers."""
        refused = Error(f"array {name[:60]!r} is not made of plain numbers")
        try:
            _, shape, kind, is_fortran, data = self.state
            code, order = kind.code, kind.byte_order
        except (TypeError, ValueError, AttributeError):
            raise refused from None
        data = data.encode("latin1") if isinstance(data, str) else data  # as Python 2 wrote bytes
        if code not in (*FLOAT_TYPES, *INTEGER_TYPES) or order not in ("<", "|", "=") or not isinstance(data, bytes):
            raise refused
        is_shape = isinstance(shape, tuple) and len(shape) <= MAX_AXES and all(type(n) is int and n >= 0 for n in shape)
        if not is_shape or math.prod(shape) * int(code[1]) != len(data):
            raise Error(f"array {name[:60]!r} of shape {shape!r:.60} does not have {len(data):,} bytes")
        return np.frombuffer(data, f"<{code}").reshape(shape, order="F" if is_fortran is True else "C")


def encode_latin1(text: object, encoding: object = "latin1") -> bytes:
    """Return bytes that a pickle of protocol 2 holds as text."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise Error("it encodes text in another way than pickles do")
    return text.encode("latin1")


def build_array(*arguments: object) -> ArrayContent:
    """Return an array to be filled."""
    return ArrayContent()


NUMPY_ROOTS = ("numpy.core", "numpy._core")  # of NumPy 1 and 2
STAND_INS: dict[tuple[str, str], Any] = {  # dynamic: classes and functions
    ("collections", "OrderedDict"): dict, ("collections", "Counter"): dict,
    ("_codecs", "encode"): encode_latin1, ("numpy", "ndarray"): ArrayContent, ("numpy", "dtype"): ArrayType,
    **{(root, name): kind for root in ("builtins", "__builtin__") for name, kind in (("dict", dict), ("tuple", tuple))},
    **{(f"{root}.multiarray", "_reconstruct"): build_array for root in NUMPY_ROOTS},
}  # fmt: skip


class PlainUnpickler(pickle.Unpickler):
    """An unpickler that imports nothing: a name is one of the stand-ins, or an object that keeps nothing."""

    def find_class(self, module: str, name: str) -> Any:  # dynamic: classes and functions
        """Return the stand-in for a name."""
        return STAND_INS.get((module, name), IgnoredObject)


def read_plain_table(data: bytes) -> dict[Any, Any]:  # dynamic: checked by who reads it
    """Return the table that a pickle holds."""
    table = PlainUnpickler(io.BytesIO(data), encoding="latin1").load()
    if type(table) is not dict:
        raise Error("it does not hold a table")
    return table


def extract_arrays(table: dict[Any, Any]) -> dict[str, np.ndarray]:  # dynamic: as the pickle has it
    """Return the arrays of Paddle's table by name. Its own notes, whose names end in @@, are left out; a parameter may
    stand beside its inner name."""
    arrays: dict[str, np.ndarray] = {}
    for name, value in table.items():
        if not isinstance(name, str):
            raise Error("a name in it is not text")
        if name.endswith("@@"):
            continue
        if isinstance(value, tuple) and len(value) == 2:
            value = value[1]
        if not isinstance(value, ArrayContent):
            raise Error(f"{name[:60]!r} is not an array")
        arrays[name] = value.to_numpy(name)
    return arrays


def extract_symbols(table: dict[Any, Any]) -> list[str]:  # dynamic: as the pickle has it
    """Return the words of Transformer-XL's vocabulary in the order of their numbers."""
    symbols, numbers = table.get("idx2sym"), table.get("sym2idx")
    if not isinstance(symbols, list) or not symbols or not all(isinstance(word, str) and word for word in symbols):
        raise Error("idx2sym is not a list of words")
    if numbers != {word: number for number, word in enumerate(symbols)} or len(numbers) < len(symbols):
        raise Error("sym2idx does not number the words of idx2sym")
    return symbols
