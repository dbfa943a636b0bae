"""How per-token losses become one number: an aggregation is data, a factor per token and a share of the denominator.

The loss is Σ factor·loss over the live tokens of a mini-batch, divided once by Σ count over its micro-batches and ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from relax_core.batch import LossBatch


@dataclass(frozen=True, slots=True)
class Aggregation:
    """`factor(batch)` gives [T]; `count(batch, length)` an integer scalar, this micro-batch's share of the denominator."""

    name: str
    summary: str
    factor: Callable[[LossBatch], Tensor]
    count: Callable[[LossBatch, int], Tensor]


def _ones(batch: LossBatch) -> Tensor:
    return batch.loss_mask.double()


def _one_over_length(batch: LossBatch) -> Tensor:
    return 1.0 / batch.to_tokens(batch.sequence_count(batch.loss_mask).clamp(min=1))


def _live_tokens(batch: LossBatch, length: int) -> Tensor:
    return batch.loss_mask.sum()


def _live_sequences(batch: LossBatch, length: int) -> Tensor:
    return (batch.sequence_count(batch.loss_mask) > 0).sum() * int(batch.owns_sequences)


def _sequences_times_length(batch: LossBatch, length: int) -> Tensor:
    return batch.sequence_ids.new_tensor(batch.size * length * int(batch.owns_sequences))


AGGREGATIONS = {
    each.name: each
    for each in (
        Aggregation("token-mean", "over all live tokens", _ones, _live_tokens),
        Aggregation(
            "seq-mean-token-mean",
            "over sequences, of the mean over their live tokens",
            _one_over_length,
            _live_sequences,
        ),
        Aggregation(
            "seq-mean-token-sum-norm",
            "the sum over live tokens, divided by sequences × loss_agg_length",
            _ones,
            _sequences_times_length,
        ),
    )
}
