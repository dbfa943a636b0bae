"""Batch-wide normalisation of advantages (MATH: "Normalisation")."""

from __future__ import annotations

import torch
from torch import Tensor

from relax_core.batch import Rollout
from relax_core.spec import NormalizationName

VARIANCE_FLOOR = 1e-8


def normalize(rollout: Rollout, advantages: Tensor, kind: NormalizationName) -> Tensor:
    """[T] -> [T]: mean 0, spread 1 over the live tokens of all ranks; 0 at masked tokens and where fewer than two live.

    `population` divides by √max(σ², 1e-8); `unbiased` by √(σ² + 1e-8) with n − 1.
    """
    variance = rollout.token_std(advantages.double(), unbiased=kind == "unbiased").square()
    spread = (variance + VARIANCE_FLOOR if kind == "unbiased" else variance.clamp(min=VARIANCE_FLOOR)).sqrt()
    enough = rollout.group.all_reduce(rollout.live.sum(), "sum") >= 2
    centred = (advantages.double() - rollout.token_mean(advantages.double())) / spread
    return torch.where(rollout.live & enough, centred, 0.0).to(advantages.dtype)
