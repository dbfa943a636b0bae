"""Group Sequence Policy Optimization (arXiv:2507.18071), in its token form (§4.3).

    A = (R − μ_group) / (σ_group + 1e-6)
    s_t = exp(sg(mean over the sequence of Δ) + log π_t − sg(log π_t)),  Δ = log π − log π_old
    loss = −min(s·A, clip(s, 1 − ε_low, 1 + ε_high)·A)

One ratio a sequence; each token carries its own gradient.
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
    clip_ratio_low: float = 0.2
    """Lower clip margin of the sequence ratio."""
    clip_ratio_high: float = 0.28
    """Upper clip margin of the sequence ratio."""


@hookimpl
def algorithm() -> AlgorithmSpec:
    return AlgorithmSpec(
        "gspo",
        "One importance ratio for each sequence",
        paper="arXiv:2507.18071",
        config=Config,
        estimator=Estimator(formula="(R − μ_group) / (σ_group + 1e-6)", requires_equal_groups=True),
        loss=Loss(
            formula="−min(s·A, clip(s)·A), s = (π/π_old)^(1/length)",
            scope="sequence",
            supports_context_parallel=True,
            surrogate_gradient="the ratio's sequence part is a constant to autograd",
        ),
    )


@hookimpl
def compute_advantage(rollout: Rollout) -> Advantage:
    centred = rollout.rewards - rollout.group_mean(rollout.rewards)
    return Advantage(rollout.to_tokens(centred / (rollout.group_std(rollout.rewards) + 1e-6)))


@hookimpl
def policy_loss(batch: LossBatch, config: Config) -> PolicyLoss:
    log_ratio = batch.to_tokens(batch.sequence_mean(batch.log_ratio().detach()))
    ratio = (log_ratio + batch.log_probs - batch.log_probs.detach()).exp()
    clipped = ratio.clamp(1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
    unclipped_gain, clipped_gain = ratio * batch.advantages, clipped * batch.advantages
    metrics = {"pg_clipfrac": TokenMean(clipped_gain < unclipped_gain)}
    return PolicyLoss(-torch.minimum(unclipped_gain, clipped_gain), metrics)
