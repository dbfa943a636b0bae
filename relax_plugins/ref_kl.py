"""KL divergence from a frozen reference as a loss term (J. Schulman, "Approximating KL divergence", 2020).

d = log π − log π_ref:  k1 = d;  k2 = d²/2;  k3 = e^{−d} − 1 + d
unbiased: times the live ratio r, gradient included (arXiv:2512.02556, §3.1)
loss term: + coef · KL
"""

from __future__ import annotations

from typing import Literal

from relax_core import (
    AlgorithmSpec,
    Component,
    ComponentConfig,
    Flag,
    LossBatch,
    LossTerm,
    TokenMean,
    Topology,
    Violation,
    hookimpl,
    kl_estimate,
)


class Config(ComponentConfig):
    coef: float = 0.001
    """Weight of the KL term."""
    kl_type: Literal["k1", "k2", "k3"] = "k3"
    """The estimator."""
    use_unbiased_kl: bool = False
    """Multiply by the importance ratio, which makes the gradient that of the true KL for k1 and k3."""
    update_interval: int = -1
    """Copy the policy into the reference after every N steps; −1 never."""


@hookimpl
def algorithm() -> AlgorithmSpec:
    return AlgorithmSpec(
        "ref_kl",
        "Keeps the policy near a frozen reference",
        paper="http://joschu.net/blog/kl-approx.html",
        config=Config,
        component=Component(
            formula="+ coef · KL(π‖π_ref), estimated by k1, k2 or k3",
            requires_reference=True,
            supports_context_parallel=True,
            kl=lambda config: f"loss:{config.kl_type}",
            reference_update_interval=lambda config: config.update_interval,
        ),
        flags=(
            Flag("--use-kl-loss", sets={"enable": True}, summary="Add the reference KL to the loss."),
            Flag("--kl-loss-coef", ("coef",)),
            Flag("--kl-loss-type", ("kl_type",)),
        ),
    )


@hookimpl
def loss_term(batch: LossBatch, config: Config) -> LossTerm:
    kl = kl_estimate(batch.log_probs, batch.ref_log_probs, config.kl_type)
    if config.use_unbiased_kl:
        kl = batch.ratio() * kl
    return LossTerm(kl, config.coef, {"ref_kl": TokenMean(kl)})


@hookimpl
def validate_topology(topology: Topology, config: Config) -> list[Violation]:
    problems = []
    if config.kl_type == "k1" and not config.use_unbiased_kl:
        problems.append(
            Violation(
                "RLX541",
                "algorithm.ref_kl.kl_type",
                "plain k1 as a loss has zero expected gradient",
                "write kl_type: k3, or use_unbiased_kl: true",
                severity="warning",
            )
        )
    if config.update_interval == 0 or config.update_interval < -1:
        problems.append(
            Violation(
                "RLX542",
                "algorithm.ref_kl.update_interval",
                "not a number of steps",
                "write 1 or more, or -1 for never",
            )
        )
    return problems
