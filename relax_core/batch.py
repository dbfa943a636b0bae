"""What a plugin sees: response tokens packed in one dimension, and the only ways from a token to its sequence and back.

Per-token values are [T], all tokens of all sequences one after another; per-sequence values are [S]. Prompt tokens never
get here. At masked positions a batch holds finite values without meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Self

import torch
from torch import Tensor

from relax_core.errors import PluginError
from relax_core.groups import Group, Solo, summed
from relax_core.numerics.kl import MAX_LOG_RATIO
from relax_core.numerics.segments import (
    discounted_sum,
    next_live_index,
    segment_mean,
    segment_std,
    segment_sum,
)
from relax_core.spec import how_to_get


class FinishReason(IntEnum):
    """Why a sequence ended, as `finish_reasons` [S] holds it."""

    STOP = 0
    LENGTH = 1
    ABORT = 2


MASKS = ("raw_mask", "loss_mask")


class TokenValue:
    """A [T] (or [T, K]) value of the batch, read by the attribute's name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, batch: Batch | None, owner: type) -> Tensor:
        if batch is None:
            return self  # type: ignore[return-value]
        return batch.read(self.name)


class SequenceValue(TokenValue):
    """A [S] value of the batch, read by the attribute's name."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Packed sequences. `tokens` and `sequences` hold the values by name; declared extra fields stand beside the others.

    `sequence_ids` [T] int64, each in [0, S); `raw_mask` [T]: the policy wrote the token and may be trained on it;
    `loss_mask` [T]: the raw mask less what `pre_loss_mask` plugins dropped.
    """

    sequence_ids: Tensor
    tokens: Mapping[str, Tensor]
    sequences: Mapping[str, Tensor]
    group: Group = field(default_factory=Solo)
    _counts: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)

    raw_mask = TokenValue()
    loss_mask = TokenValue()
    old_log_probs = TokenValue()
    rollout_log_probs = TokenValue()
    ref_log_probs = TokenValue()
    teacher_log_probs = TokenValue()
    values = TokenValue()
    staleness = TokenValue()
    candidate_ids = TokenValue()
    teacher_candidate_log_probs = TokenValue()
    rewards = SequenceValue()
    unshaped_rewards = SequenceValue()
    group_ids = SequenceValue()
    lengths = SequenceValue()
    finish_reasons = SequenceValue()

    def read(self, name: str) -> Tensor:
        """The value called `name`. Raises `PluginError` when the run has none."""
        if name in self.tokens:
            return self.tokens[name]
        if name in self.sequences:
            return self.sequences[name]
        raise PluginError(f"this batch has no '{name}'", who=type(self).__name__, fix=how_to_get(name))

    def has(self, name: str) -> bool:
        """Whether the run has a value of that name."""
        return name in self.tokens or name in self.sequences

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.read(name)

    @property
    def live(self) -> Tensor:
        """[T] bool: the mask that primitives use when none is given."""
        raise NotImplementedError

    @property
    def size(self) -> int:
        """S, the number of sequences."""
        return self.sequences["rewards"].shape[0]

    def with_values(self, **values: Tensor) -> Self:
        """A copy with these values: per sequence where the name is known as such, per token otherwise.

        NaN and inf at masked positions are replaced, as in `build`.
        """
        names = {name for name, kind in vars(Batch).items() if isinstance(kind, SequenceValue)} | set(self.sequences)
        sequences = {name: value for name, value in values.items() if name in names}
        raw = values.get("raw_mask", self.raw_mask)
        tokens = {name: _finite(value, raw) for name, value in values.items() if name not in names}
        return replace(self, tokens={**self.tokens, **tokens}, sequences={**self.sequences, **sequences})

    def to_tokens(self, x: Tensor) -> Tensor:
        """[S] -> [T]: a value per sequence, seen from each of its tokens."""
        # index_select, whose backward adds in one order: indexing adds in whatever order its threads come.
        return x.index_select(0, self.sequence_ids)

    def sequence_sum(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """[T] -> [S]: the sum over live tokens, whole even where a sequence is spread over ranks. Differentiable."""
        return self._sequence_sum(x, self.live if mask is None else mask).to(x.dtype)

    def sequence_mean(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """[T] -> [S]: the mean over live tokens; 0 for a sequence with nothing live. Differentiable."""
        live = self.live if mask is None else mask
        return (self._sequence_sum(x, live) / self.sequence_count(live).clamp(min=1)).to(x.dtype)

    def sequence_count(self, mask: Tensor) -> Tensor:
        """[S] float64: how many tokens are in the mask; those of the batch's own masks are counted once."""
        name = next((name for name in MASKS if self.tokens.get(name) is mask), "")
        if name not in self._counts:
            count = summed(segment_sum(mask.double(), self.sequence_ids, self.size), self._token_group)
            if not name:
                return count
            self._counts[name] = count
        return self._counts[name]

    def _sequence_sum(self, x: Tensor, mask: Tensor) -> Tensor:
        return summed(segment_sum(_where(mask, x).double(), self.sequence_ids, self.size), self._token_group)

    @property
    def owns_sequences(self) -> bool:
        """Whether this rank speaks for its sequences: each counts once, though every context-parallel rank has it."""
        return True

    @property
    def _token_group(self) -> Group:
        return Solo()


class Rollout(Batch):
    """One round of generation: whole sequences, and in a data-parallel shard whole groups. Primitives use the raw mask.

    `group` is the data-parallel group. Statistics are two-pass in float64.
    """

    @property
    def live(self) -> Tensor:
        return self.raw_mask

    def group_sum(self, x: Tensor) -> Tensor:
        """[S] -> [S]: the sum over the sequence's group."""
        return segment_sum(x.double(), self.group_ids, self.size)[self.group_ids].to(x.dtype)

    def group_mean(self, x: Tensor) -> Tensor:
        """[S] -> [S]: the mean over the sequence's group; equal values give exactly their value."""
        return segment_mean(x.double(), self.group_ids, self.size)[self.group_ids].to(x.dtype)

    def group_std(self, x: Tensor, *, unbiased: bool = True) -> Tensor:
        """[S] -> [S]: the standard deviation over the sequence's group; 0 in a group of one."""
        return segment_std(x.double(), self.group_ids, self.size, unbiased=unbiased)[self.group_ids].to(x.dtype)

    def batch_mean(self, x: Tensor) -> Tensor:
        """[S] -> scalar: the mean over all sequences of all ranks."""
        return self._mean(x, torch.ones_like(x, dtype=torch.bool)).to(x.dtype)

    def batch_std(self, x: Tensor, *, unbiased: bool = True) -> Tensor:
        """[S] -> scalar: the standard deviation over all sequences of all ranks."""
        return self._std(x, torch.ones_like(x, dtype=torch.bool), unbiased).to(x.dtype)

    def batch_max(self, x: Tensor) -> Tensor:
        """[S] -> scalar: the largest over all sequences of all ranks; −inf when there are none."""
        padded = torch.cat([x.double(), x.new_full((1,), -torch.inf, dtype=torch.float64)])
        return self.group.all_reduce(padded.max(), "max").to(x.dtype)

    def token_mean(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """[T] -> scalar: the mean over the live tokens of all ranks; 0 when nothing is live."""
        return self._mean(x, self.live if mask is None else mask).to(x.dtype)

    def token_std(self, x: Tensor, *, unbiased: bool = True, mask: Tensor | None = None) -> Tensor:
        """[T] -> scalar: the standard deviation over the live tokens of all ranks."""
        return self._std(x, self.live if mask is None else mask, unbiased).to(x.dtype)

    def next_live(self, x: Tensor) -> Tensor:
        """[T] -> [T]: the value at the sequence's next live token; 0 after the last."""
        return torch.cat([_where(self.live, x), x.new_zeros(1)])[self._following]

    def discounted_sum(self, x: Tensor, decay: float | Tensor) -> Tensor:
        """[T] -> [T]: y_t = x_t + decay·y at the sequence's next live token (returns, GAE); 0 at masked tokens."""
        decays = torch.as_tensor(decay, dtype=torch.float64, device=x.device)
        return _where(self.live, discounted_sum(_where(self.live, x).double(), decays, self._following)).to(x.dtype)

    def at_last(self, x: Tensor) -> Tensor:
        """[S] -> [T]: the sequence's value on its last live token, 0 elsewhere."""
        last = self.live & (self._following == self.live.shape[0])
        return _where(last, self.to_tokens(x))

    def all_live(self, x: Tensor) -> Tensor:
        """[T] -> [N]: every rank's live values, detached, in the order of ranks: for what no reduction can say."""
        return torch.cat(self.group.all_gather(x.detach()[self.live]))

    @property
    def _following(self) -> Tensor:
        return next_live_index(self.live, self.sequence_ids)

    def _mean(self, x: Tensor, mask: Tensor) -> Tensor:
        kept, count = _where(mask, x.double()), self._total(mask.double())
        smallest = torch.cat([torch.where(mask, kept, torch.inf), kept.new_full((1,), torch.inf)]).min()
        pivot = self.group.all_reduce(smallest, "min").nan_to_num(posinf=0.0)
        return pivot + self._total(_where(mask, kept - pivot)) / count.clamp(min=1)

    def _std(self, x: Tensor, mask: Tensor, unbiased: bool) -> Tensor:
        deviation = _where(mask, x.double() - self._mean(x, mask))
        count = (self._total(mask.double()) - int(unbiased)).clamp(min=1)
        return (self._total(deviation * deviation) / count).sqrt()

    def _total(self, x: Tensor) -> Tensor:
        return self.group.all_reduce(x.sum(), "sum")


class LossBatch(Batch):
    """What one forward and backward consumes; it may hold a context-parallel part of each sequence. Final mask by default.

    `log_probs` [T] carries the gradient; `entropy` [T] too, where the run computes it. `group` is the context-parallel
    group. There is no collective over data-parallel ranks: their micro-batch counts differ, and it would hang.
    """

    log_probs = TokenValue()
    entropy = TokenValue()
    advantages = TokenValue()
    candidate_log_probs = TokenValue()

    @property
    def live(self) -> Tensor:
        return self.loss_mask

    @property
    def _token_group(self) -> Group:
        return self.group

    def log_ratio(self) -> Tensor:
        """[T]: Δ = log π − log π_old, clamped to ±20; 0 where masked."""
        return _where(self.live, self.log_probs - self.old_log_probs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)

    def ratio(self) -> Tensor:
        """[T]: the importance ratio e^Δ; 1 where masked."""
        return self.log_ratio().exp()

    def local_mean(self, x: Tensor) -> Tensor:
        """[T] -> scalar: the mean over this micro-batch alone; only for a loss that declares `scope="microbatch"`."""
        return _where(self.live, x).sum() / self.live.sum().clamp(min=1)

    def local_std(self, x: Tensor) -> Tensor:
        """[T] -> scalar: the unbiased standard deviation over this micro-batch alone (see `local_mean`)."""
        deviation = _where(self.live, x - self.local_mean(x))
        return (deviation.square().sum() / (self.live.sum() - 1).clamp(min=1)).sqrt()

    @property
    def owns_sequences(self) -> bool:
        return self.group.rank == 0


class CriticBatch(LossBatch):
    """What the critic's forward and backward consumes: `values` [T] with gradient, `old_values` [T], `returns` [T]."""

    old_values = TokenValue()
    returns = TokenValue()


def _where(mask: Tensor, x: Tensor) -> Tensor:
    return torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device))


def build(
    kind: type[Any],
    sequence_ids: Tensor,
    tokens: Mapping[str, Tensor],
    sequences: Mapping[str, Tensor],
    group: Group | None = None,
) -> Any:
    """A batch whose values are finite at masked positions: NaN and inf there are replaced before anything reads them."""
    live = tokens["raw_mask"]
    return kind(
        sequence_ids, {name: _clean(value, live) for name, value in tokens.items()}, dict(sequences), group or Solo()
    )


def _clean(value: Tensor, live: Tensor) -> Tensor:
    return value if value.dtype == torch.bool else _where(_beside(live, value), value)


def _finite(value: Tensor, live: Tensor) -> Tensor:
    return _where(_beside(live, value) | value.isfinite(), value) if value.is_floating_point() else value


def _beside(live: Tensor, value: Tensor) -> Tensor:
    """[T] -> [T, 1, …]: with as many dimensions as the value."""
    return live.reshape(-1, *[1] * (value.dim() - 1))
