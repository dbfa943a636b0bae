"""REINFORCE++ (arXiv:2501.03262): no critic and no group; the KL stands in the reward, the batch is the baseline.

    r_t = −kl_coef·(log π_old − log π_ref), + R at the last live token
    G_t = r_t + γ·G of the next live token;  A = (G − μ_batch) / σ_batch

The policy loss is grpo's clipped ratio, or any other. Tool tokens are no step: no reward, no discount.
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
    gamma: float = 1.0
    """Discount from one live token to the next."""


@hookimpl
def algorithm() -> AlgorithmSpec:
    return AlgorithmSpec(
        "reinforce_plus_plus",
        "Discounted token rewards with the KL in them, whitened over the batch",
        paper="arXiv:2501.03262",
        config=Config,
        estimator=Estimator(
            formula="Σ γ^i·r_{t+i}, whitened over the batch",
            requires_reference=lambda config: config.kl_coef != 0,
            requires_old_log_probs=lambda config: config.kl_coef != 0,
            normalization="population",
            normalization_use="required",
            per_token=lambda config: config.gamma != 1 or config.kl_coef != 0,
            kl_modes=frozenset(),
            default_loss="grpo",
        ),
        kl="reward (k1, kl_coef)",
    )


@hookimpl
def compute_advantage(rollout: Rollout, config: Config) -> Advantage:
    rewards = rollout.at_last(rollout.rewards)
    if config.kl_coef:
        rewards = rewards - config.kl_coef * (rollout.old_log_probs - rollout.ref_log_probs)
    return Advantage(rollout.discounted_sum(rewards, config.gamma))


@hookimpl
def validate_topology(topology: Topology, config: Config) -> list[Violation]:
    problems = []
    if config.kl_coef < 0:
        problem = "a negative weight rewards leaving the reference"
        problems.append(Violation("RLX561", "algorithm.kl_coef", problem, "write 0 or more"))
    if not 0 <= config.gamma <= 1:
        problem = f"{config.gamma} is not a discount"
        problems.append(Violation("RLX562", "algorithm.gamma", problem, "write 0 to 1; 1 is no discount"))
    return problems
