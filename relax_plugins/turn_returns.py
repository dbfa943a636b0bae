"""Turn-level returns: the token rewards of multi-turn PPO (arXiv:2505.11821), discounted without a critic.

    r_t = turn_reward_t, + R at the last live token;  G_t = r_t + γ·G of the next live token;  A = G

`turn_reward` is a turn's own reward at its last live token, 0 elsewhere. R, the trajectory's reward, comes on top of it:
the last turn earns both. Tool tokens are no step: no reward, no discount. The policy loss is grpo's clipped ratio, or
any other.
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


class Config(AlgorithmConfig):
    gamma: float = 1.0
    """Discount from one live token to the next."""


@hookimpl
def algorithm() -> AlgorithmSpec:
    return AlgorithmSpec(
        "turn_returns",
        "What each token's turn and the turns after it earn",
        paper="arXiv:2505.11821",
        config=Config,
        estimator=Estimator(
            formula="Σ γ^i·r_{t+i}, r the turns' rewards and R at the end",
            per_token=True,
            default_loss="grpo",
        ),
        kl="loss (ref_kl)",
        fields=(TokenField("turn_reward", "the turn's reward at its last live token, 0 elsewhere"),),
    )


@hookimpl
def compute_advantage(rollout: Rollout, config: Config) -> Advantage:
    rewards = rollout.read("turn_reward") + rollout.at_last(rollout.rewards)
    return Advantage(rollout.discounted_sum(rewards, config.gamma))


@hookimpl
def validate_topology(topology: Topology, config: Config) -> list[Violation]:
    if 0 <= config.gamma <= 1:
        return []
    problem = f"{config.gamma} is not a discount"
    return [Violation("RLX611", "algorithm.gamma", problem, "write 0 to 1; 1 is no discount")]
