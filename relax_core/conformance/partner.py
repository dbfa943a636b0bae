"""An estimator and a loss that do next to nothing: they stand in where the plugin under check brings none of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relax_core.discovery import Plugin
from relax_core.hookspecs import hookimpl
from relax_core.spec import AlgorithmSpec, Estimator, Loss

if TYPE_CHECKING:
    from relax_core.batch import LossBatch, Rollout
    from relax_core.results import Advantage, PolicyLoss

NAME = "conformance_partner"


class Partner:
    """A plugin object."""

    @hookimpl
    def algorithm(self) -> AlgorithmSpec:
        return AlgorithmSpec(
            NAME,
            "Stands in for an estimator or a loss",
            estimator=Estimator(formula="R"),
            loss=Loss(formula="−A·log π", supports_context_parallel=True),
        )

    @hookimpl
    def compute_advantage(self, rollout: Rollout) -> Advantage:
        from relax_core.results import Advantage

        return Advantage(rollout.to_tokens(rollout.rewards))

    @hookimpl
    def policy_loss(self, batch: LossBatch) -> PolicyLoss:
        from relax_core.results import PolicyLoss

        return PolicyLoss(-batch.advantages * batch.log_probs)


def partner() -> Plugin:
    """The stand-in as a plugin that loaded."""
    module = Partner()
    return Plugin(NAME, "loaded", "relax_core.conformance", module=module, spec=module.algorithm())
