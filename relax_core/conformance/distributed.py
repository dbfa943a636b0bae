"""Checks on two real processes: what threads cannot show is a plugin that speaks to process groups by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from relax_core.conformance.check import Check, Problem, checks_in
from relax_core.conformance.numeric.basics import MICRO, ROLLOUT

if TYPE_CHECKING:
    from relax_core.conformance.ranks import Ranks
    from relax_core.conformance.subject import Subject

WAITING = ("timed out", "timeout", "connection closed", "connection reset")


def distributed(
    id: str, title: str, fix: str, hooks: tuple[str, ...]
) -> Callable[[Callable[[Subject], Iterable[Problem]]], Check]:
    """Declare a check on two processes."""

    def applies(subject: Subject) -> bool:
        return any(subject.implementations(hook) for hook in hooks)

    return lambda find: Check(id, title, fix, "distributed", find, applies=applies)


def waits(reason: str) -> bool:
    """Whether a rank was stopped by the silence of another."""
    return any(word in reason.lower() for word in WAITING)


def compared(subject: Subject, ranks: Ranks, hooks: tuple[str, ...], where: str) -> Iterator[Problem]:
    """How two processes differ from one."""
    from relax_core.conformance.differences import same
    from relax_core.conformance.ranks import cases, put_together

    for case in cases(subject, hooks):
        _, call, batch, _ = case
        found = put_together(ranks, case)
        if found is None:
            if not any(waits(reason) for reason in ranks.stopped):
                reason = next((each for each in ranks.stopped if each), "a rank was never there")
                yield Problem(f"{call.label}: {where}, it raised an exception", reason, "a result")
                return
            continue
        yield from same(found, call.evaluate(batch), f"{call.label}: {where}, the result is another")


@distributed(
    "RLX901",
    "On two data-parallel processes, one of them perhaps empty, the result is that of one process",
    "use the primitives of the rollout instead of torch.distributed: they know the right group",
    ROLLOUT,
)
def data_parallel(subject: Subject) -> Iterator[Problem]:
    yield from compared(subject, subject.ranks, ROLLOUT, "on two data-parallel processes")


@distributed(
    "RLX902",
    "On two context-parallel processes, one of them perhaps empty, value and gradient are those of one process",
    "use sequence_sum() and sequence_mean() instead of torch.distributed: their backward sums over the ranks",
    MICRO,
)
def context_parallel(subject: Subject) -> Iterator[Problem]:
    yield from compared(subject, subject.ranks, MICRO, "on two context-parallel processes")


@distributed(
    "RLX903",
    "No rank waits for another that never comes",
    "call every primitive on every rank, whatever the rank holds; no collective under an if that depends on data",
    (*ROLLOUT, *MICRO),
)
def nobody_waits(subject: Subject) -> Iterator[Problem]:
    for rank, reason in enumerate(subject.ranks.stopped):
        if waits(reason):
            yield Problem(f"rank {rank} waits for the other", reason, "the same collectives on every rank")
            return


CHECKS: tuple[Check, ...] = checks_in(globals())
