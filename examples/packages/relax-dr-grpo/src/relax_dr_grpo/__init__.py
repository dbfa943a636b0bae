"""GRPO done right, Dr. GRPO (arXiv:2503.20783): no division by the spread or by the length.

    A = R − μ_group
    loss = −min(r·A, clip(r, 1 − ε, 1 + ε)·A), summed over tokens, divided by sequences × a constant length

GRPO's division by a response's own length makes the tokens of a long wrong answer cheap, and its division by the
group's spread makes too easy and too hard prompts heavy. Here a token's gradient depends on neither. The constant is
the run file's `loss_agg_length`; left out, `rollout.max_new_tokens`.
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
    """Clip margin of the importance ratio, on both sides."""


@hookimpl
def algorithm() -> AlgorithmSpec:
    return AlgorithmSpec(
        "dr_grpo",
        "Group-centred rewards and a constant denominator",
        paper="arXiv:2503.20783",
        config=Config,
        estimator=Estimator(formula="R − μ_group", min_group_size=2),
        loss=Loss(
            formula="−min(r·A, clip(r)·A), over sequences × a constant",
            supports_context_parallel=True,
            aggregations=frozenset({"seq-mean-token-sum-norm"}),
        ),
    )


@hookimpl
def compute_advantage(rollout: Rollout) -> Advantage:
    return Advantage(rollout.to_tokens(rollout.rewards - rollout.group_mean(rollout.rewards)))


@hookimpl
def policy_loss(batch: LossBatch, config: Config) -> PolicyLoss:
    ratio, advantages = batch.ratio(), batch.advantages
    clipped = ratio.clamp(1 - config.clip_ratio, 1 + config.clip_ratio)
    gain, clipped_gain = ratio * advantages, clipped * advantages
    return PolicyLoss(-torch.minimum(gain, clipped_gain), {"pg_clipfrac": TokenMean(clipped_gain < gain)})
