"""Soft Adaptive Policy Optimization (arXiv:2511.20347).

    loss = −(4/τ)·σ(τ(r − 1))·A,  τ = τ_pos where A > 0, else τ_neg

A smooth gate in place of the clip: its slope is −A at r = 1 and fades on both sides, faster for bad tokens, whose gradient
spreads over the whole vocabulary. The advantage is grpo's, or that of any other estimator.
"""

from __future__ import annotations

import torch

from relax_core import AlgorithmConfig, AlgorithmSpec, Loss, LossBatch, PolicyLoss, Topology, Violation, hookimpl


class Config(AlgorithmConfig):
    sapo_tau_pos: float = 1.0
    """Steepness of the gate where the advantage is positive."""
    sapo_tau_neg: float = 1.05
    """Steepness of the gate elsewhere."""


@hookimpl
def algorithm() -> AlgorithmSpec:
    return AlgorithmSpec(
        "sapo",
        "A smooth gate on the importance ratio in place of the clip",
        paper="arXiv:2511.20347",
        config=Config,
        loss=Loss(
            formula="−(4/τ)·σ(τ(r − 1))·A, τ by the sign of A",
            supports_context_parallel=True,
            default_estimator="grpo",
        ),
        kl="loss (ref_kl)",
    )


@hookimpl
def policy_loss(batch: LossBatch, config: Config) -> PolicyLoss:
    advantages = batch.advantages
    tau = torch.full_like(advantages, config.sapo_tau_neg).masked_fill(advantages > 0, config.sapo_tau_pos)
    gate = 4 / tau * torch.sigmoid(tau * (batch.ratio() - 1))
    return PolicyLoss(-gate * advantages)


@hookimpl
def validate_topology(topology: Topology, config: Config) -> list[Violation]:
    return [
        Violation(
            "RLX598", f"algorithm.{name}", "a gate needs a steepness above 0", "write more than 0, 1.0 for example"
        )
        for name in ("sapo_tau_pos", "sapo_tau_neg")
        if not getattr(config, name) > 0
    ]
