"""Proximal Policy Optimization (arXiv:1707.06347) with generalised advantages from a critic (arXiv:1506.02438).

    δ_t = r_t + γ·V_next − V_t, R at the last live token;  A_t = δ_t + γλ·A_next;  return = A + V
    value loss = max((V − ret)², (V_old + clamp(V − V_old, ±value_clip) − ret)²)

"Next" is the next live token: value and trace pass over tool tokens, and the value after the last is 0. The policy loss is
grpo's clipped ratio, or any other.
"""

from __future__ import annotations

import torch

from relax_core import (
    Advantage,
    AlgorithmConfig,
    AlgorithmSpec,
    CriticBatch,
    Estimator,
    Rollout,
    TokenMean,
    Topology,
    ValueLoss,
    Violation,
    hookimpl,
)


class Config(AlgorithmConfig):
    gamma: float = 1.0
    """Discount from one live token to the next."""
    lambd: float = 1.0
    """Decay of the trace: 1 is the Monte Carlo return, 0 the one-step error."""
    value_clip: float = 0.2
    """How far a value may move from the old one before its loss stops falling."""


@hookimpl
def algorithm() -> AlgorithmSpec:
    return AlgorithmSpec(
        "ppo",
        "Generalised advantages from a critic",
        paper="arXiv:1707.06347",
        config=Config,
        estimator=Estimator(
            formula="GAE(γ, λ) from a critic",
            requires_critic=True,
            supports_async=False,
            per_token=True,
            kl_modes=frozenset(),
            default_loss="grpo",
        ),
        kl="none",
    )


@hookimpl
def compute_advantage(rollout: Rollout, config: Config) -> Advantage:
    values = rollout.values
    delta = rollout.at_last(rollout.rewards) + config.gamma * rollout.next_live(values) - values
    advantages = rollout.discounted_sum(delta, config.gamma * config.lambd)
    return Advantage(advantages, returns=advantages + values)


@hookimpl
def value_loss(batch: CriticBatch, config: Config) -> ValueLoss:
    move = (batch.values - batch.old_values).clamp(-config.value_clip, config.value_clip)
    free, held = (batch.values - batch.returns).square(), (batch.old_values + move - batch.returns).square()
    return ValueLoss(torch.maximum(free, held), {"value_clipfrac": TokenMean(held > free)})


@hookimpl
def validate_topology(topology: Topology, config: Config) -> list[Violation]:
    problems = []
    if not 0 <= config.gamma <= 1:
        problem = f"{config.gamma} is not a discount"
        problems.append(Violation("RLX581", "algorithm.gamma", problem, "write 0 to 1; 1 is no discount"))
    if not 0 <= config.lambd <= 1:
        problem = f"{config.lambd} is not a decay"
        problems.append(Violation("RLX582", "algorithm.lambd", problem, "write 0 to 1; 1 is the Monte Carlo return"))
    if not config.value_clip > 0:
        problem = "values could not move"
        problems.append(Violation("RLX583", "algorithm.value_clip", problem, "write more than 0, 0.2 for example"))
    return problems
