"""Geometric-Mean Policy Optimization (arXiv:2507.20673).

    A = (R − μ_group) / (σ_group + 1e-6)
    δ_t = Δ_t clipped on the side that A favours: min(Δ, ε) where A > 0, max(Δ, −ε) where A < 0
    loss of a sequence = −A · exp(mean_t δ_t), the geometric mean of its clipped ratios

The paper clips to (e^−0.4, e^0.4) and averages over sequences.
"""

from __future__ import annotations

import torch

from relax_core import (
    Advantage,
    AlgorithmConfig,
    AlgorithmSpec,
    Estimator,
    Loss,
    LossBatch,
    PolicyLoss,
    Rollout,
    TokenMean,
    hookimpl,
)


class Config(AlgorithmConfig):
    clip_log_ratio: float = 0.4
    """Clip margin of the log ratio, in nats."""


@hookimpl
def algorithm() -> AlgorithmSpec:
    return AlgorithmSpec(
        "gmpo",
        "The geometric mean of a sequence's clipped ratios",
        paper="arXiv:2507.20673",
        config=Config,
        estimator=Estimator(formula="(R − μ_group) / (σ_group + 1e-6)", requires_equal_groups=True),
        loss=Loss(
            formula="−A · (Π clip(r_t))^(1/length)",
            scope="sequence",
            supports_context_parallel=True,
            aggregations=frozenset({"seq-mean-token-mean"}),
        ),
    )


@hookimpl
def compute_advantage(rollout: Rollout) -> Advantage:
    centred = rollout.rewards - rollout.group_mean(rollout.rewards)
    return Advantage(rollout.to_tokens(centred / (rollout.group_std(rollout.rewards) + 1e-6)))


@hookimpl
def policy_loss(batch: LossBatch, config: Config) -> PolicyLoss:
    log_ratio, sign = batch.log_ratio(), batch.advantages.sign()
    clipped = sign * torch.minimum(sign * log_ratio, (sign * log_ratio).clamp(max=config.clip_log_ratio))
    ratio = batch.to_tokens(batch.sequence_mean(clipped).exp())
    return PolicyLoss(-batch.advantages * ratio, {"pg_clipfrac": TokenMean(sign * log_ratio > config.clip_log_ratio)})
