"""What a hook gives back, as the core reads it: values, metrics, and what is wrong with their types and shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from relax_core.batch import Batch
from relax_core.conformance.check import Problem
from relax_core.results import Advantage, LossTerm, Mask, Metric, PolicyLoss, SequenceMean, ValueLoss, Weight

KINDS: dict[str, type[Any]] = {
    "compute_advantage": Advantage,
    "pre_loss_mask": Mask,
    "post_loss_weight": Weight,
    "policy_loss": PolicyLoss,
    "loss_term": LossTerm,
    "value_loss": ValueLoss,
    "rollout_metrics": Mapping,
}
"""What a hook gives; a tensor where it is not named."""
VALUES = ("advantages", "per_token", "keep", "weight")


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a hook came to: `values` by name ([T] live, 0 elsewhere, or [S]), gradients of their weighted sum, metrics."""

    values: dict[str, Tensor]
    gradients: dict[str, Tensor] = field(default_factory=dict)
    metrics: Mapping[str, Metric] = field(default_factory=dict)


def values_of(hook: str, result: Any) -> dict[str, Tensor]:
    """The tensors that the core reads of a result, by name."""
    if result is None or isinstance(result, Mapping):
        return {}
    if isinstance(result, Tensor):
        return {hook: result}
    scale = result.coefficient if isinstance(result, LossTerm) else 1
    found = {name: getattr(result, name) for name in VALUES if hasattr(result, name)}
    found = {name: value * scale if scale != 1 else value for name, value in found.items()}
    return found | ({"returns": result.returns} if getattr(result, "returns", None) is not None else {})


def metrics_of(result: Any) -> Mapping[str, Metric]:
    """The metrics of a result."""
    return result if isinstance(result, Mapping) else getattr(result, "metrics", {})


def malformation(hook: str, result: Any, batch: Batch) -> Problem | None:
    """What is wrong with the type or the shape of a result."""
    kind = KINDS.get(hook, Tensor)
    if result is None and hook == "loss_term":
        return None
    if not isinstance(result, kind):
        return Problem("the result is of another type", type(result).__name__, kind.__name__)
    if not isinstance(metrics_of(result), Mapping):
        return Problem("the metrics have no names", type(metrics_of(result)).__name__, '{"pg_clipfrac": TokenMean(x)}')
    per_sequence = hook in ("shape_rewards", "keep_group")
    shape = [batch.size] if per_sequence else list(batch.sequence_ids.shape)
    for name, value in values_of(hook, result).items():
        if not isinstance(value, Tensor) or list(value.shape) != shape:
            given = f"{name} of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            return Problem("the result has another shape", given, f"{'[S]' if per_sequence else '[T]'} = {shape}")
    return None


def malformed_metrics(metrics: Mapping[str, Metric], batch: Batch) -> Iterator[Problem]:
    """What the core could not reduce."""
    for name, metric in metrics.items():
        if not isinstance(metric, Metric):
            yield Problem(
                "a metric has no reduction", f"{name} is a {type(metric).__name__}", "TokenMean(x) and the like"
            )
            continue
        by_sequence = isinstance(metric, SequenceMean) or getattr(metric, "over", "token") == "sequence"
        size = batch.size if by_sequence else len(batch.sequence_ids)
        for what, value in ((name, metric.value), (f"the mask of {name}", metric.mask)):
            shape = list(value.shape) if isinstance(value, Tensor) else None
            if value is not None and shape not in ([size], [] if what == name else [size]):
                given = f"{what} of shape {shape}" if shape is not None else f"{what} is a {type(value).__name__}"
                yield Problem("a metric has another shape", given, f"[{size}], one for each {_each(by_sequence)}")


def _each(by_sequence: bool) -> str:
    return "sequence" if by_sequence else "token"
