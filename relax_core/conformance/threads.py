"""Ranks as threads of one process: a cluster's collectives on a laptop, and an error where a cluster would hang."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Condition
from typing import Any, TypeVar

import torch
from torch import Tensor

from relax_core.groups import Group, Operation

R = TypeVar("R")


class CollectiveError(RuntimeError):
    """The ranks of a group did not call the same collectives in the same order."""


class _Left(CollectiveError):
    """A rank waits for one that has left: the consequence of something else, unless nothing else went wrong."""


class _Meeting:
    """Where the ranks of one group exchange tensors, one round for each collective."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._rounds: dict[int, dict[int, tuple[Any, Tensor]]] = {}
        self._left: set[int] = set()
        self._changed = Condition()

    def exchange(self, round_: int, rank: int, call: Any, x: Tensor) -> list[Tensor]:
        """Every rank's `x`, once all of them are in the round; `call` must be the same on all."""
        with self._changed:
            present = self._rounds.setdefault(round_, {})
            present[rank] = (call, x)
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(present) == self.size or self._left - present.keys())
            if len(present) < self.size:
                raise _Left(f"rank {rank} waits in {call} for rank {min(self._left - present.keys())}, which has left")
        calls = {each: present[each][0] for each in range(self.size)}
        if len(set(calls.values())) > 1:
            raise CollectiveError(f"the ranks called different collectives: {calls}")
        return [present[each][1] for each in range(self.size)]

    def leave(self, rank: int) -> None:
        """The rank calls nothing more."""
        with self._changed:
            self._left.add(rank)
            self._changed.notify_all()


class ThreadGroup:
    """One thread's place in a group of threads."""

    def __init__(self, meeting: _Meeting, rank: int) -> None:
        self.rank = rank
        self.size = meeting.size
        self._meeting = meeting
        self._round = 0

    def all_reduce(self, x: Tensor, operation: Operation) -> Tensor:
        parts = torch.stack(self._exchange((operation, tuple(x.shape), x.dtype), x))
        return parts.sum(0) if operation == "sum" else parts.amax(0) if operation == "max" else parts.amin(0)

    def all_gather(self, x: Tensor) -> list[Tensor]:
        return self._exchange(("gather", tuple(x.shape[1:]), x.dtype), x)

    def leave(self) -> None:
        self._meeting.leave(self.rank)

    def _exchange(self, call: Any, x: Tensor) -> list[Tensor]:
        self._round += 1
        return self._meeting.exchange(self._round, self.rank, call, x.detach().clone())


@dataclass(frozen=True)
class Grid:
    """A rank's groups: those with its part of the tokens, those with its part of the sequences, and all."""

    data: Group
    context: Group
    world: Group


def run_ranks(size: int, function: Callable[[Group], R]) -> list[R]:
    """What `function(group)` gives on each of `size` ranks; raises what went wrong first, and never hangs."""
    meeting = _Meeting(size)
    return _run([(group, (group,)) for group in (ThreadGroup(meeting, rank) for rank in range(size))], function)


def run_grid(data_parallel: int, context_parallel: int, function: Callable[[Grid], R]) -> list[R]:
    """What `function(grid)` gives on each rank of DP × CP; context-parallel ranks of one shard stand together."""
    data = [_Meeting(data_parallel) for _ in range(context_parallel)]
    context = [_Meeting(context_parallel) for _ in range(data_parallel)]
    world = _Meeting(data_parallel * context_parallel)
    ranks = []
    for rank in range(world.size):
        d, c = divmod(rank, context_parallel)
        groups = (ThreadGroup(data[c], d), ThreadGroup(context[d], c), ThreadGroup(world, rank))
        ranks.append((Grid(*groups), groups))
    return _run(ranks, function)


def _run(ranks: Sequence[tuple[Any, tuple[ThreadGroup, ...]]], function: Callable[[Any], R]) -> list[R]:
    def work(argument: Any, groups: tuple[ThreadGroup, ...]) -> R:
        try:
            return function(argument)
        finally:
            for group in groups:
                group.leave()

    with ThreadPoolExecutor(len(ranks)) as pool:
        futures = [pool.submit(work, argument, groups) for argument, groups in ranks]
    _raise_cause(futures)
    return [future.result() for future in futures]


def _raise_cause(futures: list[Future[R]]) -> None:
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, _Left)):
        raise error
