"""Group Relative Policy Optimization: DeepSeekMath (arXiv:2402.03300), with the dual clip of arXiv:1912.09729.

    A = (R − μ_group) / (σ_group + 1e-6)
    s = min(r·A, clip(r, 1 − ε_low, 1 + ε_high)·A);  where A < 0: s = max(s, c·A);  loss = −s

Group means without the division are Dr. GRPO's (arXiv:2503.20783), the wider upper margin is DAPO's (arXiv:2503.14476).
"""

from __future__ import annotations

from typing import Literal

import torch

from relax_core import (
    Advantage,
    AlgorithmConfig,
    AlgorithmSpec,
    Estimator,
    Flag,
    Loss,
    LossBatch,
    PolicyLoss,
    Rollout,
    TokenMean,
    Topology,
    Violation,
    hookimpl,
)

SPREAD_FLOOR = 1e-6


class GroupAdvantage(AlgorithmConfig):
    advantage_norm_mode: Literal["group_zscore", "group_mean", "batch_zscore", "batch_mean", "none"] = "group_zscore"
    """What the reward is measured against: its group or the batch, divided by the spread or not; or nothing."""
    normalize_rewards: bool = True
    """False is `advantage_norm_mode: none`."""


class ClippedRatio(AlgorithmConfig):
    clip_ratio_low: float = 0.2
    """Lower clip margin of the importance ratio."""
    clip_ratio_high: float = 0.28
    """Upper clip margin of the importance ratio."""
    clip_ratio_c: float | None = 10.0
    """Dual clip: bounds the loss of a bad token at c·|A|; null switches it off."""


class Config(GroupAdvantage, ClippedRatio):
    pass


def compares(config: GroupAdvantage) -> bool:
    return config.normalize_rewards and config.advantage_norm_mode != "none"


def against_group(config: GroupAdvantage) -> bool:
    return compares(config) and config.advantage_norm_mode.startswith("group")


@hookimpl
def algorithm() -> AlgorithmSpec:
    return AlgorithmSpec(
        "grpo",
        "Rewards relative to their group, with a clipped ratio",
        paper="arXiv:2402.03300",
        config=Config,
        estimator=Estimator(
            config=GroupAdvantage,
            formula="(R − μ_group) / (σ_group + 1e-6); or group_mean, batch_zscore, batch_mean, none",
            requires_equal_groups=against_group,
            reward_shift_invariant=compares,
            reward_scale_invariant=lambda config: compares(config) and config.advantage_norm_mode.endswith("zscore"),
            default=True,
        ),
        loss=Loss(
            config=ClippedRatio,
            formula="−min(r·A, clip(r)·A), dual clip c where A < 0",
            supports_context_parallel=True,
        ),
        kl="loss (ref_kl)",
        flags=(
            Flag("--eps-clip", ("clip_ratio_low", "clip_ratio_high"), summary="Both clip margins."),
            Flag("--eps-clip-high", ("clip_ratio_high",), summary="The upper clip margin alone."),
            Flag("--eps-clip-c", ("clip_ratio_c",), summary="The dual clip."),
            Flag("--disable-rewards-normalization", sets={"normalize_rewards": False}),
        ),
    )


@hookimpl
def compute_advantage(rollout: Rollout, config: GroupAdvantage) -> Advantage:
    rewards = rollout.rewards
    mean, std = {
        "group": (rollout.group_mean, rollout.group_std),
        "batch": (rollout.batch_mean, rollout.batch_std),
        "none": (torch.zeros_like, torch.ones_like),
    }[config.advantage_norm_mode.split("_")[0] if config.normalize_rewards else "none"]
    centred = rewards - mean(rewards)
    if config.normalize_rewards and config.advantage_norm_mode.endswith("zscore"):
        centred = centred / (std(rewards) + SPREAD_FLOOR)
    return Advantage(rollout.to_tokens(centred))


@hookimpl
def policy_loss(batch: LossBatch, config: ClippedRatio) -> PolicyLoss:
    ratio, advantages = batch.ratio(), batch.advantages
    clipped = ratio.clamp(1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
    surrogate = torch.minimum(ratio * advantages, clipped * advantages)
    metrics = {"pg_clipfrac": TokenMean(clipped * advantages < ratio * advantages)}
    if config.clip_ratio_c is not None:
        bounded = torch.maximum(surrogate, config.clip_ratio_c * advantages)
        metrics["dual_clip_ratio"] = TokenMean((advantages < 0) & (bounded > surrogate))
        surrogate = torch.where(advantages < 0, bounded, surrogate)
    return PolicyLoss(-surrogate, metrics)


@hookimpl
def validate_topology(topology: Topology, config: Config, roles: frozenset[str]) -> list[Violation]:
    problems = []
    if "estimator" in roles and against_group(config) and topology.n_samples_per_prompt == 1:
        problems.append(
            Violation(
                "RLX501",
                "rollout.n_samples_per_prompt",
                f"a group of one has no signal under {config.advantage_norm_mode}: every advantage is 0",
                "write 2 or more, or advantage_norm_mode: batch_mean",
            )
        )
    if "loss" in roles and config.clip_ratio_low >= 1:
        problems.append(
            Violation("RLX502", "algorithm.clip_ratio_low", "the lower clip margin reaches 0", "write less than 1")
        )
    if "loss" in roles and config.clip_ratio_c is not None and config.clip_ratio_c <= 1:
        problems.append(
            Violation(
                "RLX503",
                "algorithm.clip_ratio_c",
                "a dual clip of 1 or less clips every token",
                "write more than 1, or null",
            )
        )
    return problems
