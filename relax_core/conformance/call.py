"""One hook of a plugin under one configuration, as a function from a batch to numbers."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from relax_core.batch import Batch, CriticBatch, LossBatch, Rollout
from relax_core.conformance.check import Problem
from relax_core.conformance.outcome import Outcome, malformation, metrics_of, values_of
from relax_core.conformance.samples import Recipe, sample
from relax_core.conformance.variants import Variant, needs, role_of, roles
from relax_core.context import Context
from relax_core.errors import FOREIGN
from relax_core.spec import capability

if TYPE_CHECKING:
    from relax_core.conformance.subject import Subject

BATCHES: dict[str, type[Any]] = {
    "policy_loss": LossBatch,
    "loss_term": LossBatch,
    "post_loss_weight": LossBatch,
    "value_loss": CriticBatch,
}
LEAVES = {
    "policy_loss": ("log_probs", "entropy", "candidate_log_probs"),
    "loss_term": ("log_probs", "entropy", "candidate_log_probs"),
    "value_loss": ("values",),
}
"""What carries the gradient."""


class Call:
    """A hook, and the configuration `variant` under which it is called."""

    def __init__(self, subject: Subject, variant: Variant, hook: str, long: bool = False) -> None:
        self.subject = subject
        self.variant = variant
        self.hook = hook
        self.long = long

    @property
    def harder(self) -> Call:
        """The same on longer sequences: to tell whether a claim is needed."""
        return Call(self.subject, self.variant, self.hook, long=True)

    @property
    def label(self) -> str:
        """The hook, and what differs from the plugin's defaults."""
        return f"{self.hook} ({self.variant.label})" if self.variant.label else self.hook

    @property
    def seeds(self) -> range:
        """Of the samples that a check is tried with."""
        return range(10 * self.subject.seed, 10 * self.subject.seed + 2)

    def declares(self, name: str, otherwise: Any = None) -> Any:
        """A capability of the role that speaks for this hook."""
        role = role_of(self.variant.bound.spec, self.hook)
        declaration = self.variant.bound.spec.roles[role]
        if not hasattr(declaration, name):
            return otherwise
        return capability(declaration, name, self.variant.bound.configs[role])

    # -- samples -----------------------------------------------------------------------------------------------------

    def recipe(self, seed: int, **changes: Any) -> Recipe:
        """The sample that suits this hook."""
        asked = Recipe(
            kind=BATCHES.get(self.hook, Rollout),
            seed=seed,
            group_size=max(3, self.declares("min_group_size", 1)),
            candidates=needs(self.variant, "candidates"),
            fields=self.variant.bound.spec.fields,
            long=self.long,
        )
        return replace(asked, **changes)

    def sample(self, seed: int | None = None, **changes: Any) -> Batch:
        """A random batch for this hook."""
        chosen = self.seeds[0] if seed is None else seed
        return sample(self.recipe(chosen, **{"flags": self._flags, **changes}))

    @cached_property
    def _flags(self) -> bool:
        """Whether the plugin's own fields are truth values: a spec does not say, so both are tried."""
        try:
            self.ask(sample(self.recipe(self.seeds[0])))
            return False
        except FOREIGN:
            return bool(self.variant.bound.spec.fields)

    # -- calls -------------------------------------------------------------------------------------------------------

    def arguments(self, batch: Batch) -> dict[str, Any]:
        """What the core passes beside the configuration."""
        given: dict[str, Any] = {"context": Context(0, 10, torch.Generator().manual_seed(7), {})}
        given["batch" if self.hook in BATCHES else "rollout"] = batch
        if self.hook == "adjust_advantage":
            given["advantages"] = batch.tokens["old_log_probs"] + 1  # not read: that would be the plugin's doing
        if self.hook == "rollout_metrics":
            given["roles"] = roles(self.variant)
        return given

    def ask(self, batch: Batch) -> Any:
        """What the hook gives, as it is."""
        return self.variant.bound.call(self.hook, **self.arguments(self._completed(batch)))

    def plain(self) -> Any:
        """The function itself, taking the batch alone: for what cannot look through pluggy."""
        function = getattr(self.subject.module, self.hook)
        names = inspect.signature(function).parameters
        given = {**self.arguments(self.sample()), "config": self._config}
        kind, rest = "batch" if "batch" in given else "rollout", [name for name in names if name in given]

        def call(batch: Batch) -> Any:
            return function(**{name: batch if name == kind else given[name] for name in rest})

        return call

    @property
    def _config(self) -> Any:
        for role, hooks in (("estimator", ("compute_advantage", "value_loss")), ("loss", ("policy_loss",))):
            if self.hook in hooks and role in self.variant.bound.configs:
                return self.variant.bound.configs[role]
        return self.variant.bound.config

    def _completed(self, batch: Batch) -> Batch:
        """A rollout's diagnostics come after its masks and advantages."""
        if self.hook != "rollout_metrics" or batch.has("advantages"):
            return batch
        return batch.with_values(loss_mask=batch.raw_mask, advantages=batch.to_tokens(batch.rewards))

    def evaluate(self, batch: Batch) -> Outcome:
        """Values, gradients with respect to what the forward pass gives, and metrics."""
        leaves = {
            name: batch.tokens[name].detach().clone().requires_grad_()
            for name in LEAVES.get(self.hook, ())
            if name in batch.tokens
        }
        batch = replace(batch, tokens={**batch.tokens, **leaves})
        result = self.ask(batch)
        values = {name: self._live(value, batch) for name, value in values_of(self.hook, result).items()}
        gradients: dict[str, Tensor] = {}
        if leaves and result is not None:
            (value,) = values.values()
            total = (value * batch.to_tokens(batch.read("kit_weight"))).sum()
            total = total + 0 * sum(leaf.sum() for leaf in leaves.values())
            found = torch.autograd.grad(total, list(leaves.values()))
            gradients = dict(zip(leaves, found, strict=True))
        return Outcome({name: value.detach() for name, value in values.items()}, gradients, metrics_of(result))

    def _live(self, value: Tensor, batch: Batch) -> Tensor:
        if value.shape != batch.sequence_ids.shape or self.hook in ("shape_rewards", "keep_group"):
            return value
        return torch.where(batch.live, value, torch.zeros((), dtype=value.dtype))

    # -- the least that is asked of it -------------------------------------------------------------------------------

    @cached_property
    def works(self) -> bool:
        """Whether the other checks can be made: on a plain sample it gives a result of the right type and shape, always."""
        return not self.failure and not self.malformation and not self.fickle

    @cached_property
    def failure(self) -> str:
        """The exception that it raises on a plain sample, forwards or backwards."""
        try:
            if malformation(self.hook, self.ask(self.sample()), self.sample()) is None:
                self.evaluate(self.sample())
            return ""
        except FOREIGN as error:
            return self.subject.described(error)

    @property
    def lacks_a_field(self) -> bool:
        """Whether it failed for a field that the run does not have, as it is not declared."""
        return "this batch has no '" in self.failure

    @cached_property
    def malformation(self) -> Problem | None:
        """What is wrong with the type or the shape of its result."""
        return None if self.failure else malformation(self.hook, self.ask(self.sample()), self.sample())

    @cached_property
    def fickle(self) -> list[Problem]:
        """How it differs from itself when it is called twice."""
        from relax_core.conformance.differences import different, same_values

        first, second = self.evaluate(self.sample()), self.evaluate(self.sample())
        found = list(same_values(second.values, first.values, "called twice on one batch, it gives another value", 0.0))
        for name, metric in first.metrics.items():
            before, after = (getattr(each, "value", None) for each in (metric, second.metrics.get(name)))
            if isinstance(before, Tensor) and isinstance(after, Tensor):
                found += different(name, after, before, "called twice on one batch, a metric changes", 0.0)
        return found
