"""What this machine's GPU offers: triton, and the generation of the chip. Kernels of attention and of the loss ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

Check = TypeVar("Check", bound=Callable[[], bool])


def mark_constant(function: Check) -> Check:
    """Mark a function as constant for torch.compile. torch's own decorator does the same and no more, but imports
    the compiler for it: more than a second at every start."""
    function.__dict__["_dynamo_marked_constant"] = True
    return function


@mark_constant
def has_triton() -> bool:
    """Return whether triton can compile for this machine's GPU."""
    from torch.utils._triton import has_triton

    return bool(has_triton())


@mark_constant
def is_ampere_or_newer() -> bool:
    """Return whether the GPU runs flash attention in half precision."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)


@mark_constant
def is_hopper() -> bool:
    """Return whether the GPU is of the generation for which cuDNN's attention was measured."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
