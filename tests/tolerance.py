"""How far two correct computations may lie apart on any processor, and how clear a decision must be for both to take
the same one.

Processors add in different orders, and the same one does where memory is aligned otherwise: only the same call on the
same tensors is bit-equal. A difference that rounding may make follows from the arithmetic: for a sum of n terms it is
about √n·ε of their size (Higham and Mary 2019, "A new approach to probabilistic rounding error analysis"), and the
products of a model that follow one another add theirs up in the same way.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

CERTAIN = 4.0  # standard deviations: a test compares some thousand numbers
MARGIN = 1e-5  # of a decision in fp32: ten times what rounding moves the small models of these tests


def bound_rounding(model: nn.Module, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> float:
    """Return the largest difference that rounding explains between two passes of a model whose numbers are of a
    `scale`: each of its matrices is a sum of as many terms as it has columns."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    terms = max((p.shape[-1] for p in matrices), default=1)
    return CERTAIN * torch.finfo(dtype).eps * scale * math.sqrt(max(1, len(matrices)) * terms)


def assert_near(got: Tensor, want: Tensor, model: nn.Module, scale: float = 1.0) -> None:
    """Check that two results of a model differ by rounding alone (whole numbers: not at all). Their scale is their
    largest number, or `scale` if that is larger."""
    if not want.is_floating_point():
        assert torch.equal(got, want)
        return
    largest = float(want.detach().abs().max()) if want.numel() else 0.0
    bound = bound_rounding(model, max(scale, largest), want.dtype)
    torch.testing.assert_close(got, want, atol=bound, rtol=0)


def assert_equal_weights(got: Any, want: Any) -> None:
    """Check that two Formers have the same weights, bit for bit."""
    ours, theirs = got.model.state_dict(), want.model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], weight) for name, weight in theirs.items())


class Margins(TorchFunctionMode):
    """Inside, torch's calls are watched for decisions: `smallest` is how far the nearest one was from going the other
    way, be it the sign of a ReLU's input or which scores are the best (over the last dimension) and in which order."""

    def __init__(self) -> None:
        super().__init__()
        self.smallest = math.inf

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        x = args[0] if args else None
        if isinstance(x, Tensor) and x.is_floating_point() and x.numel():
            if name in ("relu", "relu_"):
                self.note(x.abs())
            elif name in ("argmax", "max", "topk") and (len(args) > 1 or kwargs):
                taken = (args[1] if len(args) > 1 else kwargs["k"]) if name == "topk" else 1
                best = x.detach().topk(min(taken + 1, x.shape[-1]), dim=-1).values
                self.note(best[..., :-1] - best[..., 1:])
        return function(*args, **kwargs)

    def is_clear(self) -> bool:
        """Whether there were decisions, and rounding can turn none of them."""
        return MARGIN < self.smallest < math.inf

    def note(self, distance: Tensor) -> None:
        """Keep the smallest distance; a 0 is the same 0 everywhere (a padded place), or a tie by design."""
        distance = distance.detach()[(distance > 0) & distance.isfinite()]
        if distance.numel():
            self.smallest = min(self.smallest, float(distance.min()))
