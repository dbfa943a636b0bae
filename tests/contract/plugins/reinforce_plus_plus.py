"""REINFORCE++ (arXiv:2501.03262): no critic, no group; the KL stands in the reward, the batch is the baseline.

r_t = −kl_coef·(log π_old − log π_ref), + R at the last live token
G_t = r_t + γ·G of the next live token;  A = G, whitened over the batch
s = min(r·A, clip(r, 1 − ε_low, 1 + ε_high)·A);  where A < 0: s = max(s, c·A);  loss = −s
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


class Returns(AlgorithmConfig):
    kl_coef: float = 0.0
    """Weight of the KL in the reward; 0 needs no reference."""
    gamma: float = 1.0
    """Discount from one live token to the next."""


class ClippedRatio(AlgorithmConfig):
    clip_ratio_low: float = 0.2
    """Lower clip margin of the importance ratio."""
    clip_ratio_high: float = 0.28
    """Upper clip margin of the importance ratio."""
    clip_ratio_c: float | None = 10.0
    """Dual clip: bounds the loss of a bad token at c·|A|; null switches it off."""


@hookimpl
def algorithm() -> AlgorithmSpec:
    return AlgorithmSpec(
        "reinforce_plus_plus",
        "Discounted token rewards, whitened over the batch",
        paper="arXiv:2501.03262",
        estimator=Estimator(
            config=Returns,
            formula="Σ γ^i r_{t+i}, whitened",
            requires_reference=lambda config: config.kl_coef != 0,
            normalization="population",
            normalization_use="required",
        ),
        loss=Loss(
            config=ClippedRatio, formula="−min(r·A, clip(r)·A), dual clip c where A < 0", supports_context_parallel=True
        ),
        kl="reward (k1)",
    )


@hookimpl
def compute_advantage(rollout: Rollout, config: Returns) -> Advantage:
    rewards = rollout.at_last(rollout.rewards)
    if config.kl_coef:
        rewards = rewards - config.kl_coef * (rollout.old_log_probs - rollout.ref_log_probs)
    return Advantage(rollout.discounted_sum(rewards, config.gamma))


@hookimpl
def policy_loss(batch: LossBatch, config: ClippedRatio) -> PolicyLoss:
    ratio, advantages = batch.ratio(), batch.advantages
    clipped = ratio.clamp(1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
    gain = torch.minimum(ratio * advantages, clipped * advantages)
    if config.clip_ratio_c is not None:
        gain = torch.where(advantages < 0, torch.maximum(gain, config.clip_ratio_c * advantages), gain)
    return PolicyLoss(-gain, {"pg_clipfrac": TokenMean(clipped * advantages < ratio * advantages)})
