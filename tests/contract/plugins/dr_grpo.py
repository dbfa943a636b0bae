"""GRPO done right (arXiv:2503.20783): no division by the spread or by the length.

A = R − μ_group
loss = −min(r·A, clip(r, 1 − ε, 1 + ε)·A), summed over tokens, divided by sequences × a constant length
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
    clip_ratio: float = 0.2
    """Clip margin of the importance ratio."""


@hookimpl
def algorithm() -> AlgorithmSpec:
    return AlgorithmSpec(
        "dr_grpo",
        "Group-centred rewards and a constant denominator",
        paper="arXiv:2503.20783",
        config=Config,
        estimator=Estimator(formula="R − μ_group", min_group_size=2, requires_equal_groups=True),
        loss=Loss(
            formula="−min(r·A, clip(r)·A)",
            supports_context_parallel=True,
            aggregations=frozenset({"seq-mean-token-sum-norm"}),
        ),
    )


@hookimpl
def compute_advantage(rollout: Rollout) -> Advantage:
    return Advantage(rollout.to_tokens(rollout.rewards - rollout.group_mean(rollout.rewards)))


@hookimpl
def policy_loss(batch: LossBatch, config: Config) -> PolicyLoss:
    ratio = batch.ratio()
    clipped = ratio.clamp(1 - config.clip_ratio, 1 + config.clip_ratio)
    loss = -torch.minimum(ratio * batch.advantages, clipped * batch.advantages)
    return PolicyLoss(loss, {"pg_clipfrac": TokenMean(clipped * batch.advantages < ratio * batch.advantages)})
