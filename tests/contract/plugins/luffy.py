"""LUFFY: Learning to reason Under oFF-policY guidance (arXiv:2504.14945).

    A = (R − μ_group) / (σ_group + 1e-6), demonstrations and samples in one group
    a sample:        −min(r·A, clip(r, 1 − ε, 1 + ε)·A)
    a demonstration: −f(π)·A,  f(x) = x / (x + γ): no old policy, no clip, and the rare tokens weigh most

A sequence field says which sequences are demonstrations; the data layer fills it.
"""

from __future__ import annotations

import math

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
    SequenceField,
    SequenceMean,
    TokenMean,
    hookimpl,
)


class Config(AlgorithmConfig):
    clip_ratio: float = 0.2
    """Clip margin of the importance ratio of samples."""
    shaping_gamma: float = 0.1
    """γ of the policy shaping of demonstrations."""


@hookimpl
def algorithm() -> AlgorithmSpec:
    return AlgorithmSpec(
        "luffy",
        "Demonstrations beside samples, shaped towards their rare tokens",
        paper="arXiv:2504.14945",
        config=Config,
        estimator=Estimator(
            formula="(R − μ_group) / (σ_group + 1e-6)",
            min_group_size=2,
            requires_equal_groups=True,
            reward_scale_invariant=True,
        ),
        loss=Loss(
            formula="samples −min(r·A, clip(r)·A); demonstrations −π/(π + γ)·A",
            supports_context_parallel=True,
            policy_gradient=False,
        ),
        fields=(SequenceField("demonstration", "true for a sequence that another policy wrote"),),
    )


@hookimpl
def compute_advantage(rollout: Rollout) -> Advantage:
    centred = rollout.rewards - rollout.group_mean(rollout.rewards)
    advantages = rollout.to_tokens(centred / (rollout.group_std(rollout.rewards) + 1e-6))
    return Advantage(advantages, metrics={"demonstration_ratio": SequenceMean(rollout.read("demonstration"))})


@hookimpl
def policy_loss(batch: LossBatch, config: Config) -> PolicyLoss:
    ratio, demonstration = batch.ratio(), batch.to_tokens(batch.read("demonstration"))
    clipped = ratio.clamp(1 - config.clip_ratio, 1 + config.clip_ratio)
    on_policy = torch.minimum(ratio * batch.advantages, clipped * batch.advantages)
    # π / (π + γ), from log π
    shaped = torch.sigmoid(batch.log_probs - math.log(config.shaping_gamma))
    loss = -torch.where(demonstration, shaped * batch.advantages, on_policy)
    probability = TokenMean(batch.log_probs.exp(), mask=batch.live & demonstration)
    return PolicyLoss(loss, {"demonstration_probability": probability})
