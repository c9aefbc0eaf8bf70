"""Optimizers that skip a step on the device, as torch's fused AdamW does."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class SkipMask(NamedTuple):
    """What a step that the device may skip is computed with: tensors on the device, so that the host need not wait."""

    is_skipped: Tensor  # bool
    counted: Tensor  # by which the number of steps grows: 1, or 0 if this one is skipped
    zero: Tensor

    def drop(self, values: Tensor) -> Tensor:
        """Return zeros in place of the values of a skipped step. Multiplying by 0 would leave NaN as it is."""
        return torch.where(self.is_skipped, self.zero, values)


class SkippingOptimizer(torch.optim.Optimizer):
    """An optimizer whose step leaves weights and state as they are if `found_inf`, a number on their device, is not 0.
    Who calls `step` sets it beforehand, as for torch's fused optimizers; None: every step is taken."""

    found_inf: Tensor | None = None

    def build_skip_mask(self) -> SkipMask | None:
        """Build the mask of the next step; None if it is taken in any case."""
        if self.found_inf is None:
            return None
        is_skipped = self.found_inf.bool()
        return SkipMask(is_skipped, (~is_skipped).float(), torch.zeros_like(is_skipped, dtype=torch.float32))
