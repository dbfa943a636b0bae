"""REINFORCE leave-one-out: "Back to Basics" (arXiv:2402.14740).

    A = R − mean of the others' R = G/(G − 1)·(R − μ_group)
    loss = −A·log π

Unbiased on what the current policy sampled: no ratio, no clip, one update a rollout.
"""

from __future__ import annotations

import torch
from torch import Tensor

from relax_core import (
    Advantage,
    AlgorithmConfig,
    AlgorithmSpec,
    Estimator,
    Loss,
    LossBatch,
    PolicyLoss,
    Rollout,
    SequenceMean,
    TokenMean,
    Topology,
    Violation,
    hookimpl,
)


class Config(AlgorithmConfig):
    kl_coef: float = 0.0
    """Weight of the KL in the reward."""
    normalize_rewards: bool = True
    """Measure the reward against the group."""


@hookimpl
def algorithm() -> AlgorithmSpec:
    return AlgorithmSpec(
        "rloo",
        "Rewards less the mean of the others in the group",
        paper="arXiv:2402.14740",
        estimator=Estimator(
            config=Config,
            formula="G/(G − 1)·(R − μ_group)",
            min_group_size=2,
            requires_equal_groups=True,
            normalization_use="forbidden",
        ),
        loss=Loss(
            formula="−A·log π",
            supports_context_parallel=True,
            requires_on_policy=True,
            aggregations=frozenset({"token-mean"}),
        ),
        kl="loss (ref_kl)",
    )


@hookimpl
def compute_advantage(rollout: Rollout) -> Advantage:
    return Advantage(rollout.to_tokens(leave_one_out(rollout)))


def group_size(rollout: Rollout) -> Tensor:
    """[S]: the sequences in each one's group."""
    return rollout.group_sum(torch.ones_like(rollout.rewards))


def leave_one_out(rollout: Rollout) -> Tensor:
    """[S]: the reward less the mean of the others'; 0 in a group of one."""
    size = group_size(rollout)
    return size / (size - 1).clamp(min=1) * (rollout.rewards - rollout.group_mean(rollout.rewards))


@hookimpl
def policy_loss(batch: LossBatch) -> PolicyLoss:
    return PolicyLoss(
        -batch.advantages * batch.log_probs, {"pg_clipfrac": TokenMean(torch.zeros_like(batch.log_probs))}
    )


@hookimpl
def rollout_metrics(rollout: Rollout, roles: frozenset[str]) -> dict[str, SequenceMean | TokenMean]:
    """Diagnostics of the group signal; a group smaller than the batch's largest is incomplete and counts in none but the last."""
    if "estimator" not in roles:
        return {}
    advantages, size = leave_one_out(rollout), group_size(rollout)
    complete = size == rollout.batch_max(size)
    silent, whole = advantages == 0, rollout.live & rollout.to_tokens(complete)
    diagnostics: dict[str, SequenceMean | TokenMean] = {
        "baseline_mean": SequenceMean(rollout.rewards - advantages, mask=complete),
        "adv_abs_mean": SequenceMean(advantages.abs(), mask=complete),
        "no_signal_frac": TokenMean(rollout.to_tokens(silent), mask=whole),
        "empty_response_frac": SequenceMean(rollout.lengths == 0),
        "zero_adv_group_frac": SequenceMean(rollout.group_sum(advantages.abs()) == 0, mask=complete),
        "dropped_group_frac": SequenceMean(~complete, mask=first_of_group(rollout)),
    }
    return {f"rollout/rloo/{name}": metric for name, metric in diagnostics.items()}


def first_of_group(rollout: Rollout) -> Tensor:
    """[S] bool: one sequence of each group."""
    position = torch.arange(rollout.size, device=rollout.group_ids.device)
    first = torch.full_like(position, rollout.size).scatter_reduce(0, rollout.group_ids, position, "amin")
    return first[rollout.group_ids] == position


@hookimpl
def validate_topology(topology: Topology, config: Config, roles: frozenset[str]) -> list[Violation]:
    problems = []
    if "estimator" in roles and config.kl_coef != 0:
        problems.append(
            Violation(
                "RLX551",
                "algorithm.kl_coef",
                "there is no KL in the reward of a whole sequence",
                "write kl_coef: 0, and the direct KL loss: ref_kl.enable: true",
            )
        )
    if "estimator" in roles and not config.normalize_rewards:
        problems.append(
            Violation(
                "RLX552",
                "algorithm.normalize_rewards",
                "the reward less the mean of the others is the estimator itself",
                "write normalize_rewards: true, or advantage_estimator: grpo",
            )
        )
    return problems
