"""A rollout whole, and the same rollout cut over ranks and micro-batches: an algorithm must not tell the difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from relax_core.batch import CriticBatch, Rollout, build
from relax_core.conformance.threads import Grid, run_grid
from relax_core.packing import loss_batch, select_sequences, select_tokens
from relax_core.reductions import Metrics
from relax_core.runtime import LossOutput, Runtime


@dataclass(frozen=True, slots=True)
class Layout:
    """How many data-parallel ranks, context-parallel ranks, and micro-batches on each rank."""

    data_parallel: int = 1
    context_parallel: int = 1
    micro_batches: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """Which data-parallel rank has a sequence [S], in which micro-batch [S]; which context-parallel rank a token [T].

    A group is on one rank. Ranks and micro-batches may be empty, and a rank may have no token of a sequence.
    """

    layout: Layout
    shards: Tensor
    micro_batches: Tensor
    parts: Tensor


def cut(rollout: Rollout, layout: Layout, seed: int = 0) -> Cut:
    """An arbitrary cut of this layout."""
    generator = torch.Generator().manual_seed(seed)

    def draw(count: int, upper: int) -> Tensor:
        return torch.randint(upper, (count,), generator=generator)

    shards = draw(rollout.size, layout.data_parallel)[rollout.group_ids]
    sequences, tokens = rollout.size, len(rollout.sequence_ids)
    return Cut(layout, shards, draw(sequences, layout.micro_batches), draw(tokens, layout.context_parallel))


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What training on a rollout came to, tokens in the order of the whole rollout.

    `gradients` are of the loss with respect to each value of the forward pass; `loss_mask` and `advantages` [T] are
    False and 0 for the tokens of dropped groups.
    """

    loss: float
    gradients: dict[str, Tensor]
    advantages: Tensor
    loss_mask: Tensor
    metrics: dict[str, float]


Step = Callable[[Rollout, Mapping[str, Tensor], Grid], LossOutput]


def train_actor(runtime: Runtime, rollout: Rollout, forward: Mapping[str, Tensor], cuts: Cut | None = None) -> Outcome:
    """One update of the policy: `forward` is what its forward pass gives for every token, `log_probs` and the like."""
    return _train(runtime, rollout, forward, cuts, _actor_step(runtime))


def train_critic(runtime: Runtime, rollout: Rollout, forward: Mapping[str, Tensor], cuts: Cut | None = None) -> Outcome:
    """One update of the critic: `forward` is its new `values` for every token."""

    def step(prepared: Rollout, values: Mapping[str, Tensor], grid: Grid) -> LossOutput:
        tokens = {**prepared.tokens, "old_values": prepared.values, **values}
        batch: CriticBatch = build(CriticBatch, prepared.sequence_ids, tokens, prepared.sequences, grid.context)
        return runtime.value_loss(batch)

    return _train(runtime, rollout, forward, cuts, step)


def actor_on_rank(runtime: Runtime, rollout: Rollout, forward: Mapping[str, Tensor], cuts: Cut, grid: Grid) -> Outcome:
    """As `train_actor`, of one rank that the caller has started: what belongs to the tokens of other ranks is 0."""
    return _Rank(runtime, _labelled(rollout, cuts), forward, cuts.layout, _actor_step(runtime)).train(grid)


def _actor_step(runtime: Runtime) -> Step:
    def step(prepared: Rollout, values: Mapping[str, Tensor], grid: Grid) -> LossOutput:
        return runtime.loss(loss_batch(prepared, grid.context, **values))

    return step


def _train(runtime: Runtime, rollout: Rollout, forward: Mapping[str, Tensor], cuts: Cut | None, step: Step) -> Outcome:
    cuts = cuts or cut(rollout, Layout())
    rank = _Rank(runtime, _labelled(rollout, cuts), forward, cuts.layout, step)
    outcomes = run_grid(cuts.layout.data_parallel, cuts.layout.context_parallel, rank.train)
    shards = outcomes[:: cuts.layout.context_parallel]
    return replace(
        outcomes[0],
        gradients={name: _total([each.gradients[name] for each in outcomes]) for name in forward},
        advantages=_total([each.advantages for each in shards]),
        loss_mask=_total([each.loss_mask for each in shards]) > 0,
    )


def _labelled(rollout: Rollout, cuts: Cut) -> Rollout:
    """The rollout with where everything goes, and where each token came from, as fields that travel with the cuts."""
    position = torch.arange(len(rollout.sequence_ids))
    return replace(
        rollout,
        tokens={**rollout.tokens, "cut_position": position, "cut_part": cuts.parts},
        sequences={**rollout.sequences, "cut_shard": cuts.shards, "cut_micro_batch": cuts.micro_batches},
    )


def _total(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).sum(0)


@dataclass(frozen=True, slots=True, eq=False)
class _Rank:
    runtime: Runtime
    rollout: Rollout
    forward: Mapping[str, Tensor]
    layout: Layout
    step: Step

    def train(self, grid: Grid) -> Outcome:
        """This rank's part of the gradients and advantages; the loss and the metrics of all ranks."""
        prepared, observed = self._prepare(grid)
        gradients = {name: torch.zeros_like(value) for name, value in self.forward.items()}
        total, count, metrics = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.long), Metrics()
        for micro_batch in self._micro_batches(prepared, grid):
            output = self._accumulate(micro_batch, gradients, grid)
            total, count = total + output.sum.detach(), count + output.count
            metrics.update(output.metrics.partials.items())
        denominator = grid.world.all_reduce(count, "sum").clamp(min=1)
        return Outcome(
            float(grid.world.all_reduce(total, "sum") / denominator),
            {name: gradient / denominator for name, gradient in gradients.items()},
            self._uncut(prepared, prepared.read("advantages")),
            self._uncut(prepared, prepared.loss_mask),
            observed.reduce(grid.data) | metrics.reduce(grid.world),
        )

    def _prepare(self, grid: Grid) -> tuple[Rollout, Metrics]:
        shard = replace(_where(self.rollout, self.rollout.read("cut_shard") == grid.data.rank), group=grid.data)
        shard = self.runtime.shape_rewards(shard)
        return self.runtime.prepare(_where(shard, self.runtime.kept_groups(shard)))

    def _micro_batches(self, prepared: Rollout, grid: Grid) -> Iterator[Rollout]:
        """As many on every rank, empty ones too, so that all report the same metrics."""
        for index in range(self.layout.micro_batches):
            whole = _where(prepared, prepared.read("cut_micro_batch") == index)
            yield select_tokens(whole, whole.read("cut_part") == grid.context.rank)

    def _accumulate(self, micro_batch: Rollout, gradients: dict[str, Tensor], grid: Grid) -> LossOutput:
        position = micro_batch.read("cut_position")
        leaves = {name: value[position].detach().requires_grad_() for name, value in self.forward.items()}
        output = self.step(micro_batch, leaves, grid)
        found = torch.autograd.grad(output.sum, list(leaves.values()), allow_unused=True, materialize_grads=True)
        for name, gradient in zip(leaves, found, strict=True):
            gradients[name][position] += gradient
        return output

    def _uncut(self, prepared: Rollout, value: Tensor) -> Tensor:
        result = value.new_zeros(len(self.rollout.sequence_ids))
        result[prepared.read("cut_position")] = value
        return result


def _where(rollout: Rollout, keep: Tensor) -> Rollout:
    return select_sequences(rollout, keep.nonzero().flatten())
