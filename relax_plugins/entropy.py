"""Entropy bonus: keeps the policy from collapsing (R. Williams and J. Peng, "Function optimization using connectionist
reinforcement learning algorithms", 1991).

    loss term: − entropy_coef · H_t, the full-vocabulary entropy at the sampling temperature
"""

from __future__ import annotations

from relax_core import AlgorithmConfig, AlgorithmSpec, Component, LossBatch, LossTerm, hookimpl


class Config(AlgorithmConfig):
    entropy_coef: float = 0.0
    """Weight of the entropy bonus; 0 is off."""


@hookimpl
def algorithm() -> AlgorithmSpec:
    return AlgorithmSpec(
        "entropy",
        "Rewards an undecided policy",
        config=Config,
        component=Component(
            section="",
            enabled=lambda config: config.entropy_coef != 0,
            formula="− entropy_coef · H",
            requires_entropy=True,
            supports_context_parallel=True,
        ),
    )


@hookimpl
def loss_term(batch: LossBatch, config: Config) -> LossTerm:
    return LossTerm(-batch.entropy, config.entropy_coef)
