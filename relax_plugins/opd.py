"""On-policy distillation: learn from a teacher on the policy's own samples (R. Agarwal et al., arXiv:2306.13649).

advantage:  A ← A − coef·(log π_old − log π_teacher), before normalisation; `only` drops the reward's advantage first
loss:       a divergence on the teacher's top-k candidates, both distributions renormalised over them (q the teacher):
            forward Σ q log(q/p);  reverse Σ p log(p/q);  jsd β·KL(q‖m) + (1−β)·KL(p‖m), m = β·q + (1−β)·p
            total = (1 − loss_weight)·policy loss + loss_coef·divergence; loss_weight 1 is pure distillation
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from relax_core import (
    AlgorithmSpec,
    Component,
    ComponentConfig,
    LossBatch,
    LossTerm,
    Rollout,
    TokenMean,
    Topology,
    Violation,
    hookimpl,
)


class Config(ComponentConfig):
    mode: Literal["advantage", "loss"] = "advantage"
    """Where the teacher acts: in the advantage of the sampled tokens, or as a loss on its likeliest candidates."""
    coef: float = 1.0
    """Weight of the teacher in the advantage."""
    only: bool = False
    """Drop the reward's advantage; the teacher's is all there is."""
    top_k: int = 256
    """Candidates a token in the loss."""
    divergence: Literal["forward", "reverse", "jsd"] = "reverse"
    """What the loss measures between the teacher and the policy."""
    jsd_beta: float = 0.5
    """β of the generalised Jensen-Shannon divergence."""
    loss_coef: float = 1.0
    """Weight of the divergence in the loss."""
    loss_weight: float = 1.0
    """1 − this is the weight of the policy loss beside it; at 1 the policy loss, its masks and weights are skipped."""


def in_loss(config: Config) -> bool:
    return config.mode == "loss"


@hookimpl
def algorithm() -> AlgorithmSpec:
    return AlgorithmSpec(
        "opd",
        "Distils a teacher on the policy's own samples",
        paper="arXiv:2306.13649",
        config=Config,
        component=Component(
            formula="A − coef·(log π_old − log π_teacher), or a divergence on the teacher's top-k candidates",
            requires_teacher=True,
            requires_old_log_probs=lambda config: not in_loss(config),
            supports_context_parallel=True,
            candidates=lambda config: config.top_k if in_loss(config) else 0,
            policy_weight=lambda config: 1 - config.loss_weight if in_loss(config) else 1.0,
            replaces_advantage=lambda config: config.only and not in_loss(config),
        ),
    )


@hookimpl
def adjust_advantage(rollout: Rollout, advantages: Tensor, config: Config) -> Tensor:
    if in_loss(config):
        return advantages
    kept = torch.zeros_like(advantages) if config.only else advantages
    return kept - config.coef * (rollout.old_log_probs - rollout.teacher_log_probs)


@hookimpl
def loss_term(batch: LossBatch, config: Config) -> LossTerm | None:
    if not in_loss(config):
        return None
    divergence = divergence_on(batch.candidate_log_probs, batch.teacher_candidate_log_probs, config)
    return LossTerm(divergence, config.loss_coef, {"opd_divergence": TokenMean(divergence)})


def divergence_on(log_probs: Tensor, teacher_log_probs: Tensor, config: Config) -> Tensor:
    """[T, K], [T, K] -> [T]: the divergence between the two distributions renormalised over the K candidates."""
    log_p, log_q = log_probs.log_softmax(-1), teacher_log_probs.log_softmax(-1)
    if config.divergence == "forward":
        return kl(log_q, log_p)
    if config.divergence == "reverse":
        return kl(log_p, log_q)
    beta = config.jsd_beta
    log_m = (beta * log_q.exp() + (1 - beta) * log_p.exp()).log()
    return beta * kl(log_q, log_m) + (1 - beta) * kl(log_p, log_m)


def kl(log_a: Tensor, log_b: Tensor) -> Tensor:
    return (log_a.exp() * (log_a - log_b)).sum(-1)


@hookimpl
def validate_topology(topology: Topology, config: Config) -> list[Violation]:
    problems = []
    if not 0 <= config.loss_weight <= 1:
        fix = "write a number from 0 to 1"
        problems.append(Violation("RLX601", "algorithm.opd.loss_weight", f"{config.loss_weight} is no share", fix))
    if not 0 < config.jsd_beta < 1:
        fix = "write a number between 0 and 1"
        problems.append(Violation("RLX602", "algorithm.opd.jsd_beta", f"{config.jsd_beta} leaves one side out", fix))
    if config.top_k < 2:
        problem = "one candidate renormalised has probability 1 under any policy"
        problems.append(Violation("RLX603", "algorithm.opd.top_k", problem, "write 2 or more"))
    return problems
