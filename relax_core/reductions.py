"""Metrics over micro-batches and ranks, each by the reduction that it declares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from relax_core.batch import Batch
from relax_core.groups import Group, Operation
from relax_core.results import Max, Metric, Min, SequenceMean, TokenMean


@dataclass(frozen=True, slots=True, eq=False)
class Partial:
    """What one micro-batch adds to a metric: a total and, for means, how many values it is over (float64 scalars)."""

    operation: Operation
    total: Tensor
    count: Tensor
    mean: bool = False

    def merge(self, other: Partial) -> Partial:
        """This and another micro-batch's."""
        return Partial(
            self.operation, _COMBINE[self.operation](self.total, other.total), self.count + other.count, self.mean
        )


_COMBINE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}
_EMPTY = {"max": -torch.inf, "min": torch.inf}


def partial_of(metric: Metric, batch: Batch) -> Partial:
    """One batch's share of a metric."""
    by_sequence = isinstance(metric, SequenceMean) or getattr(metric, "over", "token") == "sequence"
    live = _live(metric, batch, by_sequence)
    value, operation = metric.value.detach().expand_as(live), _operation(metric)
    total = _sum(value, live) if operation == "sum" else _extreme(value.double(), live, operation)
    return Partial(operation, total, live.sum().double(), isinstance(metric, TokenMean | SequenceMean))


def _live(metric: Metric, batch: Batch, by_sequence: bool) -> Tensor:
    if not by_sequence:
        return batch.live if metric.mask is None else metric.mask
    every = torch.full_like(batch.rewards, batch.owns_sequences, dtype=torch.bool)
    return every if metric.mask is None else metric.mask & every


def _operation(metric: Metric) -> Operation:
    return "max" if isinstance(metric, Max) else "min" if isinstance(metric, Min) else "sum"


def _sum(value: Tensor, live: Tensor) -> Tensor:
    """Added in float64, without a copy of all values in it."""
    if value.dtype == torch.bool:
        return (value & live).sum().double()
    return torch.where(live, value, torch.zeros((), dtype=value.dtype, device=value.device)).sum(dtype=torch.float64)


def _extreme(value: Tensor, live: Tensor, operation: Operation) -> Tensor:
    kept = torch.where(live, value, _EMPTY[operation])
    padded = torch.cat([kept, kept.new_full((1,), _EMPTY[operation])])
    return padded.max() if operation == "max" else padded.min()


@dataclass
class Metrics:
    """Metrics of a step, gathered from micro-batches; every rank adds the same names."""

    partials: dict[str, Partial] = field(default_factory=dict)

    def add(self, prefix: str, metrics: Mapping[str, Metric], batch: Batch) -> None:
        """Take a hook's metrics; a name without a slash gets the phase's prefix."""
        for name, metric in metrics.items():
            self.put(name if "/" in name else f"{prefix}/{name}", partial_of(metric, batch))

    def put(self, name: str, partial: Partial) -> None:
        """Take one partial, merged with what is there."""
        self.partials[name] = self.partials[name].merge(partial) if name in self.partials else partial

    def update(self, others: Iterable[tuple[str, Partial]]) -> None:
        """Take all of another's."""
        for name, partial in others:
            self.put(name, partial)

    def over(self, group: Group) -> Metrics:
        """What all ranks of `group` have together; each has the same names, one without a batch those of an empty one."""
        partials = {}
        for name, mine in sorted(self.partials.items()):
            total = group.all_reduce(mine.total, mine.operation)
            partials[name] = Partial(mine.operation, total, group.all_reduce(mine.count, "sum"), mine.mean)
        return Metrics(partials)

    def reduce(self, group: Group) -> dict[str, float]:
        """The values over all ranks of `group`.

        What was seen on rollouts goes over the data-parallel ranks, what was seen on loss batches over the
        context-parallel ones too. A mean or an extreme over nothing is left out.
        """
        values = {}
        for name, partial in self.over(group).partials.items():
            if partial.count > 0 or (partial.operation == "sum" and not partial.mean):
                values[name] = float(partial.total / partial.count if partial.mean else partial.total)
        return values

    def plain(self) -> dict[str, list[Any]]:
        """As plain values, for another process; `of` makes metrics of them again."""
        return {
            name: [each.operation, each.total, each.count, each.mean] for name, each in sorted(self.partials.items())
        }

    @classmethod
    def of(cls, plain: Mapping[str, list[Any]]) -> Metrics:
        """The metrics that `plain` described."""
        return cls({name: Partial(*each) for name, each in plain.items()})


def mean_of(value: float) -> Partial:
    """A plain number, averaged over updates."""
    return Partial("sum", torch.tensor(value, dtype=torch.float64), torch.ones((), dtype=torch.float64), mean=True)


def ratio(numerator: Tensor, denominator: Tensor) -> Partial:
    """A quotient whose two parts are summed over micro-batches and ranks before the division."""
    return Partial("sum", numerator.detach().double(), denominator.detach().double(), mean=True)
