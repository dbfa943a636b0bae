"""REINFORCE++ with the group's mean as baseline (arXiv:2501.03262).

    A = R − μ_group, then (A − μ_batch) / σ_batch

The spread is the batch's: a group whose rewards hardly differ is not blown up. The KL is a separate loss, k2; the policy
loss is grpo's clipped ratio, or any other.
"""

from __future__ import annotations

from relax_core import (
    Advantage,
    AlgorithmConfig,
    AlgorithmSpec,
    Estimator,
    Rollout,
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
        "reinforce_plus_plus_baseline",
        "Group-centred rewards, whitened over the batch",
        paper="arXiv:2501.03262",
        config=Config,
        estimator=Estimator(
            formula="R − μ_group, whitened over the batch",
            min_group_size=2,
            requires_equal_groups=True,
            normalization="population",
            normalization_use="required",
            kl_modes=frozenset({"loss:k2"}),
            default_loss="grpo",
        ),
        kl="loss (k2, ref_kl)",
    )


@hookimpl
def compute_advantage(rollout: Rollout) -> Advantage:
    return Advantage(rollout.to_tokens(rollout.rewards - rollout.group_mean(rollout.rewards)))


@hookimpl
def validate_topology(topology: Topology, config: Config) -> list[Violation]:
    problems = []
    if config.kl_coef != 0:
        problem = "its KL is a separate loss, not a part of the reward"
        fix = "write kl_coef: 0, and ref_kl.enable: true with ref_kl.kl_type: k2"
        problems.append(Violation("RLX571", "algorithm.kl_coef", problem, fix))
    if not config.normalize_rewards:
        problem = "without the group's mean nothing is left of the baseline"
        fix = "write normalize_rewards: true, or advantage_estimator: reinforce_plus_plus"
        problems.append(Violation("RLX572", "algorithm.normalize_rewards", problem, fix))
    return problems
