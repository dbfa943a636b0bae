"""Geometric-Mean Policy Optimization (arXiv:2507.20673).

    A = (R − μ_group) / (σ_group + 1e-6)
    δ_t = Δ_t clipped on the side that A favours: min(Δ, ε) where A > 0, max(Δ, −ε) where A < 0;  Δ = log π − log π_old
    loss of a sequence = −A·exp(mean over its tokens of δ_t), the geometric mean of its clipped ratios

One outlying token moves a geometric mean far less than an arithmetic one, so the margin can be wide: the paper clips
the ratio to (e^−0.4, e^0.4), and averages over sequences. The mean is differentiable and is exact where a sequence is
spread over context-parallel ranks.
"""

from __future__ import annotations

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

SPREAD_FLOOR = 1e-6


class Config(AlgorithmConfig):
    clip_log_ratio: float = 0.4
    """Clip margin of a token's log ratio, in nats."""


@hookimpl
def algorithm() -> AlgorithmSpec:
    return AlgorithmSpec(
        "gmpo",
        "The geometric mean of a sequence's clipped ratios",
        paper="arXiv:2507.20673",
        config=Config,
        estimator=Estimator(
            formula="(R − μ_group) / (σ_group + 1e-6)",
            min_group_size=2,
            requires_equal_groups=True,
            reward_scale_invariant=True,
        ),
        loss=Loss(
            formula="−A·(Π clip(r_t))^(1/length)",
            scope="sequence",
            supports_context_parallel=True,
            aggregations=frozenset({"seq-mean-token-mean"}),
        ),
    )


@hookimpl
def compute_advantage(rollout: Rollout) -> Advantage:
    centred = rollout.rewards - rollout.group_mean(rollout.rewards)
    return Advantage(rollout.to_tokens(centred / (rollout.group_std(rollout.rewards) + SPREAD_FLOOR)))


@hookimpl
def policy_loss(batch: LossBatch, config: Config) -> PolicyLoss:
    sign = batch.advantages.sign()
    favoured = sign * batch.log_ratio()
    clipped = sign * favoured.clamp(max=config.clip_log_ratio)
    ratio = batch.to_tokens(batch.sequence_mean(clipped).exp())
    return PolicyLoss(-batch.advantages * ratio, {"pg_clipfrac": TokenMean(favoured > config.clip_log_ratio)})
