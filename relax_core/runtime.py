"""The bound algorithm: typed calls to its plugins, the order within a step, and the one reduction there is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from relax_core.aggregation import AGGREGATIONS
from relax_core.batch import CriticBatch, LossBatch, Rollout
from relax_core.binding import Binding, BoundPlugin
from relax_core.config import RunConfig
from relax_core.context import Context
from relax_core.errors import PluginError
from relax_core.normalization import normalize
from relax_core.numerics.kl import MAX_LOG_RATIO, kl_estimate
from relax_core.reductions import Metrics, ratio
from relax_core.results import (
    Advantage,
    LossTerm,
    Mask,
    PolicyLoss,
    SequenceMean,
    TokenMean,
    ValueLoss,
    Weight,
)
from relax_core.spec import Estimator, NormalizationName, capability

R = TypeVar("R")


@dataclass(frozen=True, slots=True, eq=False)
class LossOutput:
    """What the engine gets for a micro-batch: a loss `sum` with a graph, an integer `count`, and partial metrics.

    The gradient of a mini-batch is Σ grad(sum) / Σ count over its micro-batches and ranks.
    """

    sum: Tensor
    count: Tensor
    metrics: Metrics


class Runtime:
    """One algorithm, ready to run. `length` is the constant of `seq-mean-token-sum-norm`."""

    def __init__(
        self,
        binding: Binding,
        *,
        aggregation: str,
        length: int,
        normalize_advantages: bool = False,
        seed: int = 0,
        total_steps: int = 1,
    ) -> None:
        self.binding = binding
        self.aggregation = AGGREGATIONS[aggregation]
        self.length = length
        self.normalization = self._normalization(normalize_advantages)
        self.policy_weight = self._policy_weight()
        self._seed = seed
        self._total_steps = total_steps

    @classmethod
    def of(cls, config: RunConfig, binding: Binding) -> Runtime:
        """The bound algorithm as a run's configuration wants it reduced."""
        algorithm, trainer = config.algorithm, config.trainer
        return cls(
            binding,
            aggregation=algorithm.loss_agg_mode,
            length=algorithm.loss_agg_length or config.rollout.max_new_tokens,
            normalize_advantages=algorithm.normalize_advantages,
            seed=trainer.seed,
            total_steps=trainer.num_rollout,
        )

    # -- once a rollout ----------------------------------------------------------------------------------------------

    def shape_rewards(self, rollout: Rollout, step: int = 0) -> Rollout:
        """The rollout with the rewards as every active plugin left them; `unshaped_rewards` are what they were before."""
        rollout = rollout.with_values(unshaped_rewards=rollout.rewards)
        for plugin in self.binding.implementing("shape_rewards"):
            rewards = self._tensor(plugin, "shape_rewards", rollout.rewards, rollout=rollout, step=step)
            whose = torch.arange(rollout.size, device=rewards.device)
            rollout = rollout.with_values(rewards=_finite(plugin, "shape_rewards", "rewards", rewards, whose))
        return rollout

    def kept_groups(self, rollout: Rollout, step: int = 0) -> Tensor:
        """[S] bool: the sequences of groups that every active plugin keeps."""
        keep = torch.ones_like(rollout.rewards, dtype=torch.bool)
        for plugin in self.binding.implementing("keep_group"):
            keep = keep & self._tensor(plugin, "keep_group", keep, rollout=rollout, step=step)
        return rollout.group_sum((~keep).double()) == 0

    def prepare(self, rollout: Rollout, step: int = 0) -> tuple[Rollout, Metrics]:
        """Masks, then advantages: the rollout with `loss_mask`, `advantages` and `returns`, and what to report.

        Without a policy loss (pure distillation) there is nothing to mask or to estimate.
        """
        metrics = Metrics()
        if not self.policy_weight:
            silent = torch.zeros_like(rollout.raw_mask, dtype=torch.get_default_dtype())
            return rollout.with_values(loss_mask=rollout.raw_mask, advantages=silent), metrics
        rollout = self._mask(rollout, step, metrics)
        rollout = self._estimate(rollout, step, metrics)
        silent = rollout.sequence_sum(rollout.advantages.abs()) == 0
        metrics.add("rollout", {"adv_zero_ratio": SequenceMean(silent)}, rollout)
        replaced = self.binding.needs("replaces_advantage")
        for plugin in self.binding.implementing("rollout_metrics"):
            if replaced and plugin is self.binding.estimator:
                continue
            context, roles = self._context(plugin, step), frozenset(plugin.configs)
            metrics.add(
                "rollout", plugin.call("rollout_metrics", rollout=rollout, context=context, roles=roles), rollout
            )
        return rollout, metrics

    def _mask(self, rollout: Rollout, step: int, metrics: Metrics) -> Rollout:
        keep = rollout.raw_mask
        for plugin in self.binding.implementing("pre_loss_mask"):
            mask = self._ask(plugin, "pre_loss_mask", Mask, rollout=rollout, step=step)
            self._expect(plugin, "Mask.keep", mask.keep, rollout.raw_mask)
            keep = keep & mask.keep
            metrics.add("train", mask.metrics, rollout)
        return rollout.with_values(loss_mask=keep)

    def _estimate(self, rollout: Rollout, step: int, metrics: Metrics) -> Rollout:
        plugin = self.binding.estimator
        result = self._ask(plugin, "compute_advantage", Advantage, rollout=rollout, step=step)
        metrics.add("rollout", result.metrics, rollout)
        given = self._live(plugin, "Advantage.advantages", result.advantages, rollout)
        advantages = torch.where(given.isfinite(), given, 0.0)
        for other in self.binding.implementing("adjust_advantage"):
            adjusted = self._tensor(
                other, "adjust_advantage", advantages, rollout=rollout, advantages=advantages, step=step
            )
            advantages = self._live(other, "adjust_advantage", adjusted, rollout)
            _finite(other, "adjust_advantage", "advantages", advantages, rollout.sequence_ids)
        if self.normalization != "none":
            advantages = normalize(rollout, advantages, self.normalization)
        # What the estimator gave that is no number stays where it is: the update finds it there, and nowhere else.
        rollout = rollout.with_values(advantages=torch.where(given.isfinite(), advantages, given))
        if result.returns is None:
            return rollout
        return rollout.with_values(returns=self._live(plugin, "Advantage.returns", result.returns, rollout))

    # -- once a micro-batch ------------------------------------------------------------------------------------------

    def loss(self, batch: LossBatch, step: int = 0) -> LossOutput:
        """The loss of a micro-batch: weights, policy loss, loss terms, reduced to a sum and a count."""
        metrics = Metrics()
        factor, count = self.aggregation.factor(batch), self.aggregation.count(batch, self.length)
        total = _anchor(batch.log_probs)
        if self.policy_weight:
            policy = self.policy_weight * _sum(self._policy(batch, step, metrics), factor, batch)
            metrics.put("train/pg_loss", ratio(policy, count))
            total = total + policy
        for _, term in self.loss_terms(batch, step):
            metrics.add("train", term.metrics, batch)
            total = total + term.coefficient * _sum(term.per_token, factor, batch)
        metrics.put("train/loss", ratio(total, count))
        _watch(batch, metrics, bool(self.policy_weight))
        return LossOutput(total, count, metrics)

    def value_loss(self, batch: CriticBatch, step: int = 0) -> LossOutput:
        """The critic's loss of a micro-batch: a token mean, by the same protocol."""
        metrics, aggregation = Metrics(), AGGREGATIONS["token-mean"]
        result = self.value(batch, step)
        metrics.add("train", result.metrics, batch)
        total = _anchor(batch.values) + _sum(result.per_token, aggregation.factor(batch), batch)
        count = aggregation.count(batch, self.length)
        metrics.put("train/value_loss", ratio(total, count))
        return LossOutput(total, count, metrics)

    def value(self, batch: CriticBatch, step: int = 0) -> ValueLoss:
        """The estimator's loss of every value."""
        result = self._ask(self.binding.estimator, "value_loss", ValueLoss, batch=batch, step=step)
        self._expect(self.binding.estimator, "ValueLoss.per_token", result.per_token, batch.loss_mask)
        return result

    def weights(self, batch: LossBatch, step: int = 0) -> dict[str, Weight]:
        """What each active plugin weighs the policy loss by."""
        found = {}
        for plugin in self.binding.implementing("post_loss_weight"):
            found[plugin.name] = self._ask(plugin, "post_loss_weight", Weight, batch=batch, step=step)
            self._expect(plugin, "Weight.weight", found[plugin.name].weight, batch.loss_mask)
        return found

    def loss_terms(self, batch: LossBatch, step: int = 0) -> Iterator[tuple[BoundPlugin, LossTerm]]:
        """What each active plugin adds to the policy loss, with its name; those that add nothing this time are left out."""
        for plugin in self.binding.implementing("loss_term"):
            term = plugin.call("loss_term", batch=batch, context=self._context(plugin, step))
            if term is not None:
                term = self._checked(plugin, "loss_term", LossTerm, term)
                self._expect(plugin, "LossTerm.per_token", term.per_token, batch.loss_mask)
                yield plugin, term

    def policy_loss(self, batch: LossBatch, step: int = 0) -> PolicyLoss:
        """The chosen loss of every token, before weights."""
        result = self._ask(self.binding.loss, "policy_loss", PolicyLoss, batch=batch, step=step)
        self._expect(self.binding.loss, "PolicyLoss.per_token", result.per_token, batch.loss_mask)
        return result

    def _policy(self, batch: LossBatch, step: int, metrics: Metrics) -> Tensor:
        weight = torch.ones_like(batch.log_probs)
        for each in self.weights(batch, step).values():
            weight = weight * each.weight.detach()
            metrics.add("train", each.metrics, batch)
        result = self.policy_loss(batch, step)
        metrics.add("train", result.metrics, batch)
        # Masked before the product: what is not finite where the loss is masked must not meet a gradient.
        return torch.where(batch.loss_mask, result.per_token, 0.0) * weight

    # -- calls -------------------------------------------------------------------------------------------------------

    def _ask(self, plugin: BoundPlugin, hook: str, kind: type[R], *, step: int, **arguments: Any) -> R:
        return self._checked(plugin, hook, kind, plugin.call(hook, context=self._context(plugin, step), **arguments))

    def _checked(self, plugin: BoundPlugin, hook: str, kind: type[R], result: Any) -> R:
        if not isinstance(result, kind):
            given = type(result).__name__
            raise PluginError(
                f"{hook} returned {given}", who=f"plugin '{plugin.name}'", fix=f"return {kind.__name__}(…)"
            )
        return result

    def _tensor(self, plugin: BoundPlugin, hook: str, like: Tensor, **arguments: Any) -> Tensor:
        result: Tensor = self._ask(plugin, hook, Tensor, **arguments)
        return self._expect(plugin, hook, result, like)

    def _expect(self, plugin: BoundPlugin, what: str, value: Tensor, like: Tensor) -> Tensor:
        if value.shape != like.shape:
            problem = f"{what} has shape {list(value.shape)}, not {list(like.shape)}"
            raise PluginError(problem, who=f"plugin '{plugin.name}'", fix="cross with to_tokens() or sequence_sum()")
        return value

    def _live(self, plugin: BoundPlugin, what: str, value: Tensor, rollout: Rollout) -> Tensor:
        return torch.where(rollout.raw_mask, self._expect(plugin, what, value, rollout.raw_mask), 0.0).detach()

    def _context(self, plugin: BoundPlugin, step: int) -> Context:
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + step)
        return Context(step, self._total_steps, generator, plugin.state)

    def _normalization(self, switched_on: bool) -> NormalizationName:
        plugin = self.binding.estimator
        role, config = plugin.spec.roles["estimator"], plugin.configs["estimator"]
        assert isinstance(role, Estimator)
        required = capability(role, "normalization_use", config) == "required"
        kind: NormalizationName = capability(role, "normalization", config)
        return kind if required or switched_on else "none"

    def _policy_weight(self) -> float:
        product = 1.0
        for _, name, role, config in self.binding.roles():
            product *= capability(role, "policy_weight", config) if name == "component" else 1.0
        return product


def _finite(plugin: BoundPlugin, hook: str, what: str, values: Tensor, sequences: Tensor) -> Tensor:
    """As they are: a reward that is no number would take its group out of the run, an advantage spread to the others.

    `sequences` says which sequence each belongs to.
    """
    wrong = sequences[~values.isfinite()]
    if len(wrong):
        problem = f"{hook} gave {len(wrong)} {what} that are not finite, first that of sequence {int(wrong[0])}"
        raise PluginError(problem, who=f"plugin '{plugin.name}'", fix="guard its logarithms, roots and divisions")
    return values


def _sum(per_token: Tensor, factor: Tensor, batch: LossBatch) -> Tensor:
    kept = torch.where(batch.loss_mask, per_token, 0.0)
    return (kept * factor.to(kept.dtype)).sum()


def _anchor(x: Tensor) -> Tensor:
    """A zero with a graph, so that a batch with nothing live still has a backward, with zero gradients."""
    return torch.where(torch.zeros_like(x, dtype=torch.bool), x, 0.0).sum()


def _watch(batch: LossBatch, metrics: Metrics, has_policy_loss: bool) -> None:
    found: dict[str, TokenMean] = {}
    if has_policy_loss and batch.has("old_log_probs"):
        gap = batch.log_probs.detach() - batch.old_log_probs
        found["approx_kl"] = TokenMean(-gap.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
        found["nan_ratio"] = TokenMean(~(gap.abs() <= MAX_LOG_RATIO))
    if has_policy_loss and batch.has("rollout_log_probs") and batch.has("old_log_probs"):
        found |= _mismatch(batch)
    if batch.has("entropy"):
        found["entropy"] = TokenMean(batch.entropy)
    metrics.add("train", found, batch)


def _mismatch(batch: LossBatch) -> dict[str, TokenMean]:
    """How far the engine that sampled is from the one that trains, over the raw mask; `fresh`: with the same weights."""
    k3 = kl_estimate(batch.rollout_log_probs, batch.old_log_probs, "k3")
    gap = (batch.old_log_probs - batch.rollout_log_probs).abs()
    fresh = batch.raw_mask & (batch.staleness == 0) if batch.has("staleness") else batch.raw_mask
    return {
        "is_approx_k3_kl": TokenMean(k3, batch.raw_mask),
        "is_logprob_abs_diff": TokenMean(gap, batch.raw_mask),
        "is_logprob_abs_diff_fresh": TokenMean(gap, fresh),
    }
