"""Clip-Cov, from "The entropy mechanism of reinforcement learning for reasoning language models" (arXiv:2505.22617).

    cov_t = (log π(y_t) − mean log π)·(A_t − mean A), means over all tokens of the batch
    the `ratio` of tokens with the largest cov inside [low, high] give no gradient

Tokens that are likely and good use up the entropy. The covariance is one of the whole batch, so it is taken on the
rollout, with log π_old; an advantage of 0 silences a token and leaves the denominator alone. The paper draws among the
eligible tokens; the largest are taken here, so that no two ways of cutting the batch differ.
"""

from __future__ import annotations

import torch
from torch import Tensor

from relax_core import (
    AlgorithmSpec,
    Component,
    ComponentConfig,
    Rollout,
    Topology,
    Violation,
    hookimpl,
)


class Config(ComponentConfig):
    ratio: float = 2e-4
    """Share of the live tokens that is silenced."""
    low: float = 1.0
    """Least covariance of a silenced token."""
    high: float = 5.0
    """Largest covariance of a silenced token."""


@hookimpl
def algorithm() -> AlgorithmSpec:
    return AlgorithmSpec(
        "clip_cov",
        "Silences the tokens that use up the entropy",
        paper="arXiv:2505.22617",
        config=Config,
        component=Component(
            formula="A = 0 where cov(log π, A) is largest",
            requires_old_log_probs=True,
            supports_context_parallel=True,
        ),
    )


@hookimpl
def adjust_advantage(rollout: Rollout, advantages: Tensor, config: Config) -> Tensor:
    return advantages.masked_fill(silenced(rollout, advantages, config), 0.0)


def silenced(rollout: Rollout, advantages: Tensor, config: Config) -> Tensor:
    log_probs = rollout.old_log_probs
    covariance = (log_probs - rollout.token_mean(log_probs)) * (advantages - rollout.token_mean(advantages))
    eligible = rollout.raw_mask & (covariance >= config.low) & (covariance <= config.high)
    every = rollout.all_live(torch.where(eligible, covariance, -torch.inf))
    count = int(config.ratio * len(every))
    if count == 0:
        return torch.zeros_like(eligible)
    return eligible & (covariance >= every.topk(count).values[-1])


@hookimpl
def validate_topology(topology: Topology, config: Config) -> list[Violation]:
    if not topology.run.algorithm.normalize_advantages:
        return []
    problem = "normalisation comes after and moves an advantage of 0 away from 0"
    return [Violation("COV01", "algorithm.normalize_advantages", problem, "write false")]
