"""Estimators of the KL divergence from samples (J. Schulman, "Approximating KL divergence", 2020)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

KLType = Literal["k1", "k2", "k3"]
MAX_LOG_RATIO = 20.0
"""Log ratios are clamped to ± this before an exponential: e^20 is finite in every dtype, and no useful ratio is near it."""


def kl_estimate(log_probs: Tensor, other_log_probs: Tensor, kind: KLType) -> Tensor:
    """[T], [T] -> [T]: per-token estimate of KL(π‖other) from tokens of π, with d = log π − log other.

    k1: d. k2: d²/2. k3: e^{−d} − 1 + d, with d clamped to ±20 so that value and gradient stay finite.
    """
    d = log_probs - other_log_probs
    if kind == "k1":
        return d
    if kind == "k2":
        return d.square() / 2
    d = d.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return (-d).expm1() + d
