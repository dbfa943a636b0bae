"""Turn-level returns against their group, as in Group Turn Policy Optimization (arXiv:2511.14846).

    r_t = turn_reward_t, + R at the last live token;  G_t = r_t + γ·G of the next live token
    m, v = mean and variance of G over the sequence's live tokens; m = R, v = 0 where nothing is live
    A_t = (G_t − μ_group(m)) / (√(σ²_group(m) + μ_group(v)) + 1e-6)

`turn_reward` is a turn's own reward at its last live token, 0 elsewhere; R, the trajectory's reward, comes on top of it.
Each sequence of the group counts once, whatever its length: the spread is that between the sequences and, on average,
that within one. Without turn rewards and discount this is grpo's group_zscore. Tool tokens are no step. The policy loss
is grpo's clipped ratio, or any other.
"""

from __future__ import annotations

from relax_core import (
    Advantage,
    AlgorithmConfig,
    AlgorithmSpec,
    Estimator,
    Rollout,
    TokenField,
    Topology,
    Violation,
    hookimpl,
)

SPREAD_FLOOR = 1e-6


class Config(AlgorithmConfig):
    gamma: float = 1.0
    """Discount from one live token to the next."""


@hookimpl
def algorithm() -> AlgorithmSpec:
    return AlgorithmSpec(
        "turn_returns_group",
        "Turn-level returns, normalised within the group",
        paper="arXiv:2511.14846",
        config=Config,
        estimator=Estimator(
            formula="(G − μ_group) / (σ_group + 1e-6), G = Σ γ^i·r_{t+i}, r the turns' rewards and R at the end",
            min_group_size=2,
            requires_equal_groups=True,
            per_token=True,
            reward_shift_invariant=lambda config: config.gamma == 1,
            default_loss="grpo",
        ),
        kl="loss (ref_kl)",
        fields=(TokenField("turn_reward", "the turn's reward at its last live token, 0 elsewhere"),),
    )


@hookimpl
def compute_advantage(rollout: Rollout, config: Config) -> Advantage:
    rewards = rollout.read("turn_reward") + rollout.at_last(rollout.rewards)
    returns = rollout.discounted_sum(rewards, config.gamma)
    # The mean around R: what a sequence with nothing live has is its reward, and equal returns give exactly theirs.
    mean = rollout.rewards + rollout.sequence_mean(returns - rollout.to_tokens(rollout.rewards))
    within = rollout.sequence_mean((returns - rollout.to_tokens(mean)).square())
    spread = (rollout.group_std(mean).square() + rollout.group_mean(within)).sqrt()
    return Advantage((returns - rollout.to_tokens(rollout.group_mean(mean))) / rollout.to_tokens(spread + SPREAD_FLOOR))


@hookimpl
def validate_topology(topology: Topology, config: Config) -> list[Violation]:
    if 0 <= config.gamma <= 1:
        return []
    problem = f"{config.gamma} is not a discount"
    return [Violation("RLX621", "algorithm.gamma", problem, "write 0 to 1; 1 is no discount")]
