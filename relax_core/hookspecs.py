"""The contract, whole: every hook that a plugin may implement, by the phase of a step in which it is called.

A hook names only the arguments that it wants. `config` is the plugin's own section, `context` holds `step`,
`total_steps`, a seeded `generator`, and a `state` dictionary that is checkpointed; `context.keep(name, make)` keeps an
object there that has `state_dict()` and `load_state_dict()`. "Chosen" hooks belong to the one estimator or loss of the
run; the others are called for every active plugin, in the order of their names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from torch import Tensor

    from relax_core.batch import CriticBatch, LossBatch, Rollout
    from relax_core.context import Context
    from relax_core.results import Advantage, LossTerm, Mask, Metrics, PolicyLoss, ValueLoss, Weight
    from relax_core.spec import AlgorithmSpec
    from relax_core.topology import Topology, Violation

PROJECT = "relax"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


# ---------------------------------------------------------------------------------------------------------------------
# Declaration and start-up
# ---------------------------------------------------------------------------------------------------------------------


@hookspec
def algorithm() -> AlgorithmSpec:  # type: ignore[empty-body]
    """Declare the plugin: its name, fields, roles and capabilities. Called once, when the plugin is loaded.

    @hookimpl
    def algorithm():
        return AlgorithmSpec("centred", "Group-centred rewards", estimator=Estimator(min_group_size=2))
    """


@hookspec
def validate_topology(topology: Topology, config: Any, roles: frozenset[str]) -> Iterable[Violation]:  # type: ignore[empty-body]
    """Say what of the resolved run this plugin cannot work with. Called once for every active plugin, before anything starts.

    `topology` is the run as it will be: parallel sizes, roles, mode, staleness, batch sizes, and all of the
    configuration as `topology.run`. `roles` are the roles in which this plugin was chosen.
    Gives violations, each with a stable code, the setting at fault and what to write instead.

        @hookimpl
        def validate_topology(topology, config):
            if topology.n_samples_per_prompt % 2:
                yield Violation("PAIRS01", "rollout.n_samples_per_prompt", "pairs need an even group", "write an even number")
    """


# ---------------------------------------------------------------------------------------------------------------------
# Once a rollout: whole sequences, in the order in which they are called
# ---------------------------------------------------------------------------------------------------------------------


@hookspec
def shape_rewards(rollout: Rollout, config: Any, context: Context) -> Tensor:  # type: ignore[empty-body]
    """Change the rewards before anything else sees them (length penalties). Every active plugin, each on the last one's result.

    Gives rewards [S], finite.

        @hookimpl
        def shape_rewards(rollout, config):
            return rollout.rewards - config.penalty * (rollout.finish_reasons == FinishReason.LENGTH)
    """


@hookspec
def keep_group(rollout: Rollout, config: Any, context: Context) -> Tensor:  # type: ignore[empty-body]
    """Say which groups are worth training on (dynamic sampling). Every active plugin; a group stays if all keep it.

    Gives [S] bool, equal within a group. Dropped groups are replaced by new ones, up to a bound, and counted.

        @hookimpl
        def keep_group(rollout):
            return rollout.group_std(rollout.rewards) > 0
    """


@hookspec
def pre_loss_mask(rollout: Rollout, config: Any, context: Context) -> Mask:  # type: ignore[empty-body]
    """Drop tokens from the loss and from its denominators. Every active plugin; the masks are intersected.

    Gives `Mask(keep [T] bool, metrics)`. It moves no reward and skips no action: advantages look at the raw mask.

        @hookimpl
        def pre_loss_mask(rollout, config):
            return Mask(rollout.staleness <= config.max_age)
    """


@hookspec
def compute_advantage(rollout: Rollout, config: Any, context: Context) -> Advantage:  # type: ignore[empty-body]
    """Estimate the advantage of every token. The chosen estimator alone.

    Gives `Advantage(advantages [T], returns [T] or None, metrics)`, not normalised over the batch.

        @hookimpl
        def compute_advantage(rollout, config):
            return Advantage(rollout.to_tokens(rollout.rewards - rollout.group_mean(rollout.rewards)))
    """


@hookspec
def adjust_advantage(rollout: Rollout, advantages: Tensor, config: Any, context: Context) -> Tensor:  # type: ignore[empty-body]
    """Change the advantages after the estimator and before normalisation. Every active plugin, each on the last one's result.

    Gives advantages [T]. A rollout has old log-probs where something declares `requires_old_log_probs`.

        @hookimpl
        def adjust_advantage(rollout, advantages, config):
            return advantages - config.coef * (rollout.old_log_probs - rollout.teacher_log_probs)
    """


@hookspec
def rollout_metrics(rollout: Rollout, config: Any, context: Context, roles: frozenset[str]) -> Metrics:  # type: ignore[empty-body]
    """Observe a training rollout, advantages included; change nothing. Every active plugin.

    `roles` are those in which this plugin was chosen. An estimator is not called when a component replaces its signal.
    Gives metrics by name, each with its reduction.

        @hookimpl
        def rollout_metrics(rollout):
            return {"reward_max": Max(rollout.rewards, over="sequence")}
    """


# ---------------------------------------------------------------------------------------------------------------------
# Once a micro-batch: perhaps a context-parallel part of each sequence
# ---------------------------------------------------------------------------------------------------------------------


@hookspec
def post_loss_weight(batch: LossBatch, config: Any, context: Context) -> Weight:  # type: ignore[empty-body]
    """Weigh the per-token policy loss. Every active plugin; the weights are multiplied, detached; denominators stay.

    Gives `Weight(weight [T], metrics)`.

        @hookimpl
        def post_loss_weight(batch, config):
            log_rho = batch.old_log_probs - batch.rollout_log_probs
            return Weight(log_rho.clamp(-20, 20).exp().clamp(max=config.upper_bound))
    """


@hookspec
def policy_loss(batch: LossBatch, config: Any, context: Context) -> PolicyLoss:  # type: ignore[empty-body]
    """Give the policy loss of every token. The chosen loss alone.

    Gives `PolicyLoss(per_token [T], metrics)`, never reduced: the core knows all micro-batches and ranks, a plugin does not.

        @hookimpl
        def policy_loss(batch, config):
            ratio = batch.ratio()
            clipped = ratio.clamp(1 - config.clip_ratio, 1 + config.clip_ratio)
            loss = -torch.minimum(ratio * batch.advantages, clipped * batch.advantages)
            return PolicyLoss(loss, {"pg_clipfrac": TokenMean(ratio != clipped)})
    """


@hookspec
def loss_term(batch: LossBatch, config: Any, context: Context) -> LossTerm | None:
    """Add a term to the loss (entropy, reference KL). Every active plugin; reduced like the policy loss, not weighted.

    Gives `LossTerm(per_token [T], coefficient, metrics)`, or None where the configuration adds nothing.

        @hookimpl
        def loss_term(batch, config):
            return LossTerm(-batch.entropy, config.entropy_coef)
    """


@hookspec
def value_loss(batch: CriticBatch, config: Any, context: Context) -> ValueLoss:  # type: ignore[empty-body]
    """Give the critic's loss of every token. The chosen estimator, when it requires a critic.

    Gives `ValueLoss(per_token [T], metrics)`.

        @hookimpl
        def value_loss(batch, config):
            return ValueLoss((batch.values - batch.returns).square())
    """
