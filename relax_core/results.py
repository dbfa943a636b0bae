"""What hooks give back: small frozen values, and metrics that say how they are to be reduced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

Scope = Literal["token", "sequence"]


@dataclass(frozen=True, slots=True, eq=False)
class TokenMean:
    """The mean over live tokens of a value per token ([T]; a scalar counts once for each live token)."""

    value: Tensor
    mask: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SequenceMean:
    """The mean over sequences of a value per sequence ([S]); `mask` [S] leaves sequences out."""

    value: Tensor
    mask: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Sum:
    """The sum over live tokens ([T]), or over sequences ([S]) with `over="sequence"`."""

    value: Tensor
    mask: Tensor | None = None
    over: Scope = "token"


@dataclass(frozen=True, slots=True, eq=False)
class Max:
    """The largest over live tokens ([T]), or over sequences ([S]) with `over="sequence"`."""

    value: Tensor
    mask: Tensor | None = None
    over: Scope = "token"


@dataclass(frozen=True, slots=True, eq=False)
class Min:
    """The smallest over live tokens ([T]), or over sequences ([S]) with `over="sequence"`."""

    value: Tensor
    mask: Tensor | None = None
    over: Scope = "token"


Metric = TokenMean | SequenceMean | Sum | Max | Min
Metrics = Mapping[str, Metric]


@dataclass(frozen=True, slots=True, eq=False)
class Advantage:
    """Of `compute_advantage`: `advantages` [T], not normalised over the batch; `returns` [T] where there is a critic."""

    advantages: Tensor
    returns: Tensor | None = None
    metrics: Metrics = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class PolicyLoss:
    """Of `policy_loss`: `per_token` [T], never reduced."""

    per_token: Tensor
    metrics: Metrics = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """Of `pre_loss_mask`: `keep` [T] bool; tokens where it is false leave the loss and its denominators."""

    keep: Tensor
    metrics: Metrics = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """Of `post_loss_weight`: `weight` [T], a constant to autograd; it multiplies the policy loss, not its denominator."""

    weight: Tensor
    metrics: Metrics = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class LossTerm:
    """Of `loss_term`: `coefficient` · `per_token` [T], reduced like the policy loss."""

    per_token: Tensor
    coefficient: float
    metrics: Metrics = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class ValueLoss:
    """Of `value_loss`: `per_token` [T], never reduced."""

    per_token: Tensor
    metrics: Metrics = field(default_factory=dict)
