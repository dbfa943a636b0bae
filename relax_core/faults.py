"""Where a number first stopped being finite: which pass or plugin gave it, what it is, and in which sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from relax_core.batch import Batch, CriticBatch, LossBatch
from relax_core.errors import RunError
from relax_core.runtime import Runtime

GIVERS = {
    "log_probs": "actor",
    "entropy": "actor",
    "candidate_log_probs": "actor",
    "old_log_probs": "actor",
    "ref_log_probs": "reference",
    "teacher_log_probs": "teacher",
    "teacher_candidate_log_probs": "teacher",
    "rollout_log_probs": "rollout engine",
    "values": "critic",
    "old_values": "critic",
}
"""Who fills a field of the batch; the others are the estimator's."""


FORWARD = ("log_probs", "entropy", "candidate_log_probs", "values")
"""The fields that an update's own forward pass gives."""

FIX = (
    "look for a learning rate that is too high, or an unguarded logarithm, root or division in a plugin; "
    "trainer.on_nonfinite: skip goes on without the update"
)


@dataclass(frozen=True, slots=True)
class Fault:
    """`count` values called `what`, given by `who`, are not finite; the first of them belongs to `sequence`."""

    who: str
    what: str
    sequence: int
    count: int

    def told(self, name: str) -> str:
        """In a sentence that calls the sequence `name`."""
        return f"{self.what} of {self.who}, {self.count} values, first in {name}"


class NotFinite(RunError):
    """A loss or gradient that is not finite, before anything was updated. `batch` is the mini-batch, where it is known.

    `parameters` are those whose gradients are not finite, in the order of the model.
    """

    def __init__(self, what: str, who: str, lr: float, parameters: Sequence[str] = ()) -> None:
        super().__init__(what, who=who, fix=FIX)
        self.lr, self.parameters = lr, parameters
        self.faults: tuple[Fault, ...] = ()
        self.batch: LossBatch | None = None

    def plain(self) -> dict[str, Any]:
        """Its arguments, for another process."""
        return {"what": self.what, "who": self.who, "lr": self.lr, "parameters": list(self.parameters)}


def locate(runtime: Runtime, batch: LossBatch, step: int) -> tuple[Fault, ...]:
    """The fields that are not finite where live; where all are, the hooks' values; none where the backward pass did it."""
    with torch.no_grad():
        return tuple(_of_fields(runtime, batch)) or tuple(_of_hooks(runtime, batch, step))


def _of_fields(runtime: Runtime, batch: LossBatch) -> Iterator[Fault]:
    estimator = f"plugin '{runtime.binding.estimator.name}'"
    for name, value in batch.tokens.items():
        if value.is_floating_point():
            yield from faults_in(GIVERS.get(name, estimator), name, value, batch.raw_mask, batch)


def _of_hooks(runtime: Runtime, batch: LossBatch, step: int) -> Iterator[Fault]:
    if isinstance(batch, CriticBatch):
        value = runtime.value(batch, step).per_token
        yield from faults_in(f"plugin '{runtime.binding.estimator.name}'", "value_loss", value, batch.loss_mask, batch)
        return
    for name, weight in runtime.weights(batch, step).items():
        yield from faults_in(f"plugin '{name}'", "post_loss_weight", weight.weight, batch.loss_mask, batch)
    loss = runtime.policy_loss(batch, step).per_token
    yield from faults_in(f"plugin '{runtime.binding.loss.name}'", "policy_loss", loss, batch.loss_mask, batch)
    for plugin, term in runtime.loss_terms(batch, step):
        yield from faults_in(f"plugin '{plugin.name}'", "loss_term", term.per_token, batch.loss_mask, batch)


def faults_in(who: str, what: str, value: Tensor, live: Tensor, batch: Batch) -> Iterator[Fault]:
    """The one of a value [T] or [T, K] of `batch`, where it is not finite at `live` [T] tokens; else none."""
    wrong = live & ~value.isfinite().reshape(len(live), -1).all(-1)
    if wrong.any():
        yield Fault(who, what, int(batch.sequence_ids[wrong][0]), int(wrong.sum()))
