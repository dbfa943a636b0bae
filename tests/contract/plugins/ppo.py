"""Proximal Policy Optimization (arXiv:1707.06347) with GAE (arXiv:1506.02438), over live tokens only.

δ_t = r_t + γ·V_next − V_t, with R at the last live token;  A_t = δ_t + γλ·A_next;  return = A + V
s = min(r·A, clip(r, 1 − ε_low, 1 + ε_high)·A);  where A < 0: s = max(s, c·A);  loss = −s
value loss = max((V − ret)², (V_old + clamp(V − V_old, ±value_clip) − ret)²)
"""

from __future__ import annotations

import torch

from relax_core import (
    Advantage,
    AlgorithmConfig,
    AlgorithmSpec,
    CriticBatch,
    Estimator,
    Loss,
    LossBatch,
    PolicyLoss,
    Rollout,
    TokenMean,
    ValueLoss,
    hookimpl,
)


class Critic(AlgorithmConfig):
    gamma: float = 1.0
    """Discount from one live token to the next."""
    lambd: float = 1.0
    """Decay of the trace: 1 is the Monte Carlo return, 0 the one-step error."""
    value_clip: float = 0.2
    """How far a value may move from the old one before its loss stops helping."""


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
        "ppo",
        "Generalised advantages from a critic, with a clipped ratio",
        paper="arXiv:1707.06347",
        estimator=Estimator(config=Critic, formula="GAE(γ, λ)", requires_critic=True),
        loss=Loss(
            config=ClippedRatio, formula="−min(r·A, clip(r)·A), dual clip c where A < 0", supports_context_parallel=True
        ),
    )


@hookimpl
def compute_advantage(rollout: Rollout, config: Critic) -> Advantage:
    values = rollout.values
    delta = rollout.at_last(rollout.rewards) + config.gamma * rollout.next_live(values) - values
    advantages = rollout.discounted_sum(delta, config.gamma * config.lambd)
    return Advantage(advantages, returns=advantages + values)


@hookimpl
def policy_loss(batch: LossBatch, config: ClippedRatio) -> PolicyLoss:
    ratio, advantages = batch.ratio(), batch.advantages
    clipped = ratio.clamp(1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
    gain = torch.minimum(ratio * advantages, clipped * advantages)
    if config.clip_ratio_c is not None:
        gain = torch.where(advantages < 0, torch.maximum(gain, config.clip_ratio_c * advantages), gain)
    return PolicyLoss(-gain, {"pg_clipfrac": TokenMean(clipped * advantages < ratio * advantages)})


@hookimpl
def value_loss(batch: CriticBatch, config: Critic) -> ValueLoss:
    move = (batch.values - batch.old_values).clamp(-config.value_clip, config.value_clip)
    free, held = (batch.values - batch.returns).square(), (batch.old_values + move - batch.returns).square()
    return ValueLoss(torch.maximum(free, held), {"value_clipfrac": TokenMean(held > free)})
