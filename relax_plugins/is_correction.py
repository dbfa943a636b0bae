"""Importance-sampling correction of the gap between the engine that sampled and the one that trains.

Truncated importance sampling: "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (F. Yao et al.,
2025); masking and the sequence and geometric levels: "When Speed Kills Stability" (Y. Liu et al., 2025).

    ρ_t = π_old(t) / π_rollout(t), log ρ_t clamped to ±20
    token: w = ρ_t      sequence: w = e^{Σ log ρ}      geometric: w = e^{mean log ρ}
    clip: w into [lower, upper]      mask: drop what is outside, weigh the rest by w
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from relax_core import (
    MAX_LOG_RATIO,
    AlgorithmSpec,
    Component,
    ComponentConfig,
    Flag,
    LossBatch,
    Mask,
    Rollout,
    TokenMean,
    Topology,
    Violation,
    Weight,
    hookimpl,
)


class Config(ComponentConfig):
    level: Literal["token", "sequence", "geometric"] = "token"
    """Whose ratio: each token's, the sequence's product, or the sequence's geometric mean."""
    action: Literal["clip", "mask"] = "clip"
    """Outside the bounds: clip the weight, or drop the token or sequence."""
    lower_bound: float = 0.5
    """Smallest weight."""
    upper_bound: float = 2.0
    """Largest weight."""


@hookimpl
def algorithm() -> AlgorithmSpec:
    return AlgorithmSpec(
        "is_correction",
        "Weighs or drops tokens by π_old / π_rollout",
        paper="https://fengyao.notion.site/off-policy-rl",
        config=Config,
        component=Component(
            formula="w = π_old / π_rollout per token, sequence or geometric mean; clipped or masked",
            requires_rollout_log_probs=True,
            requires_old_log_probs=True,
            supports_context_parallel=True,
        ),
        flags=(
            Flag(
                "--use-tis",
                sets={"enable": True, "level": "token", "action": "clip", "lower_bound": 0.0, "upper_bound": 2.0},
                summary="Truncated importance sampling: token weights clipped to [0, 2].",
            ),
        ),
    )


def raw_log_ratio(batch: Rollout | LossBatch) -> Tensor:
    return batch.old_log_probs - batch.rollout_log_probs


def importance_weight(batch: Rollout | LossBatch, config: Config) -> Tensor:
    """[T]: the weight before its bounds. Over the raw mask, so that no other mask moves it."""
    log_ratio = raw_log_ratio(batch).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if config.level == "sequence":
        total = batch.sequence_sum(log_ratio, mask=batch.raw_mask)
        log_ratio = batch.to_tokens(total.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    elif config.level == "geometric":
        log_ratio = batch.to_tokens(batch.sequence_mean(log_ratio, mask=batch.raw_mask))
    return log_ratio.exp()


def inside(weight: Tensor, config: Config) -> Tensor:
    return (weight >= config.lower_bound) & (weight <= config.upper_bound)


@hookimpl
def pre_loss_mask(rollout: Rollout, config: Config) -> Mask:
    weight = importance_weight(rollout, config)
    keep = inside(weight, config) if config.action == "mask" else rollout.raw_mask
    gap = raw_log_ratio(rollout)
    return Mask(
        keep,
        {
            "is_clip_ratio": TokenMean(~inside(weight, config)),
            "is_nan_ratio": TokenMean(~(gap.abs() <= MAX_LOG_RATIO)),
        },
    )


@hookimpl
def post_loss_weight(batch: LossBatch, config: Config) -> Weight:
    weight = importance_weight(batch, config)
    return Weight(weight.clamp(config.lower_bound, config.upper_bound) if config.action == "clip" else weight)


@hookimpl
def validate_topology(topology: Topology, config: Config) -> list[Violation]:
    problems = []
    if topology.run.trainer.use_rollout_log_probs:
        problems.append(
            Violation(
                "RLX511",
                "algorithm.is_correction.enable",
                "with use_rollout_log_probs the old policy is the sampler's, so every weight is 1",
                "write trainer.use_rollout_log_probs: false, or is_correction.enable: false",
            )
        )
    if not 0 <= config.lower_bound <= config.upper_bound:
        problems.append(
            Violation(
                "RLX512",
                "algorithm.is_correction.lower_bound",
                f"bounds out of order: [{config.lower_bound}, {config.upper_bound}]",
                "write 0 ≤ lower_bound ≤ upper_bound",
            )
        )
    return problems
