"""On-policy distillation on the teacher's top-k candidates (arXiv:2306.13649, whose eq. 1 is the Jensen–Shannon form).

q, p: teacher and policy, renormalised over the candidates;  m = βq + (1 − β)p
forward Σ q log(q/p);  reverse Σ p log(p/q);  jsd βKL(q‖m) + (1 − β)KL(p‖m)
loss term: + loss_coef · KL;  the policy loss is scaled by 1 − loss_weight
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from relax_core import (
    AlgorithmSpec,
    Component,
    ComponentConfig,
    LossBatch,
    LossTerm,
    TokenMean,
    hookimpl,
)


class Config(ComponentConfig):
    top_k: int = 256
    """Candidates of the teacher at each token."""
    divergence: Literal["forward", "reverse", "jsd"] = "reverse"
    """Which divergence."""
    jsd_beta: float = 0.5
    """β of `jsd`, between 0 and 1, both left out."""
    loss_coef: float = 1.0
    """Weight of the divergence."""
    loss_weight: float = 0.0
    """1 is pure distillation: the policy loss is skipped."""


@hookimpl
def algorithm() -> AlgorithmSpec:
    return AlgorithmSpec(
        "topk_distillation",
        "Moves the policy towards a teacher's best candidates",
        paper="arXiv:2306.13649",
        config=Config,
        component=Component(
            formula="+ loss_coef · KL over the teacher's top k",
            requires_teacher=True,
            candidates=lambda config: config.top_k,
            policy_weight=lambda config: 1.0 - config.loss_weight,
            supports_context_parallel=True,
        ),
    )


def kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """[T, K], [T, K] -> [T]: KL(p‖q)."""
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def divergence(log_p: Tensor, log_q: Tensor, config: Config) -> Tensor:
    """[T, K] of the policy, [T, K] of the teacher -> [T]."""
    if config.divergence == "forward":
        return kl(log_q, log_p)
    if config.divergence == "reverse":
        return kl(log_p, log_q)
    beta = config.jsd_beta
    log_m = torch.logaddexp(log_q + math.log(beta), log_p + math.log1p(-beta))
    return beta * kl(log_q, log_m) + (1 - beta) * kl(log_p, log_m)


@hookimpl
def loss_term(batch: LossBatch, config: Config) -> LossTerm:
    log_p = batch.candidate_log_probs.log_softmax(-1)
    log_q = batch.teacher_candidate_log_probs.log_softmax(-1)
    found = divergence(log_p, log_q, config)
    return LossTerm(found, config.loss_coef, {"distillation_kl": TokenMean(found)})
