"""A plugin whose loss and metrics are numbers that a test gives: what is left is the core's own arithmetic."""

from __future__ import annotations

from relax_core import (
    Advantage,
    AlgorithmSpec,
    Component,
    ComponentConfig,
    Estimator,
    Loss,
    LossBatch,
    Mask,
    Max,
    Min,
    PolicyLoss,
    Rollout,
    Sum,
    TokenField,
    TokenMean,
    hookimpl,
)


class Config(ComponentConfig):
    pass


@hookimpl
def algorithm() -> AlgorithmSpec:
    return AlgorithmSpec(
        "given",
        "Losses as they are given",
        estimator=Estimator(),
        loss=Loss(supports_context_parallel=True),
        component=Component(section="given", config=Config),
        fields=(TokenField("given"), TokenField("keep")),
    )


@hookimpl
def compute_advantage(rollout: Rollout) -> Advantage:
    return Advantage(rollout.to_tokens(rollout.rewards))


@hookimpl
def pre_loss_mask(rollout: Rollout) -> Mask:
    return Mask(rollout.read("keep"))


@hookimpl
def policy_loss(batch: LossBatch) -> PolicyLoss:
    value = batch.read("given")
    metrics = {"mean": TokenMean(value), "max": Max(value), "min": Min(value), "sum": Sum(value)}
    return PolicyLoss(value + 0 * batch.log_probs, metrics)
