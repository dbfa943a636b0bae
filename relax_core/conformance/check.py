"""A check: an id, a title, the likely fix, and a function that gives what is wrong. Declared once, read everywhere.

Neither this module nor those that declare checks import torch: their ids are known before a test or a tensor is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from relax_core.conformance.report import Severity
from relax_core.errors import FOREIGN

if TYPE_CHECKING:
    from relax_core.conformance.call import Call
    from relax_core.conformance.subject import Subject

Tier = Literal["static", "numeric", "distributed"]
TIERS: tuple[Tier, ...] = ("static", "numeric", "distributed")


@dataclass(frozen=True, slots=True)
class Problem:
    """What a check saw: the cause in a line, what was observed, and what is allowed. `fix` where it is not the usual one."""

    cause: str
    observed: str = ""
    allowed: str = ""
    fix: str = ""


Find = Callable[["Subject"], Iterable[Problem]]
Inspect = Callable[["Call"], Iterable[Problem]]
Exempt = Callable[["Call"], bool]


@dataclass(frozen=True, slots=True)
class Check:
    """`id` is stable; `find` gives the problems of a plugin; `applies` says whether there is anything to look at.

    A check of hooks has `inspect` instead, called for every implementation under every configuration that it is tried
    with. `exempt` says which of them the plugin's declaration excuses; `honesty.py` runs those all the same.
    """

    id: str
    title: str
    fix: str
    tier: Tier
    find: Find
    severity: Severity = "error"
    applies: Callable[[Subject], bool] = lambda subject: True
    inspect: Inspect | None = None
    exempt: Exempt | None = None


def static(id: str, title: str, fix: str, severity: Severity = "error") -> Callable[[Find], Check]:
    """Declare a check that needs no tensors."""
    return lambda find: Check(id, title, fix, "static", find, severity)


def numeric(
    id: str, title: str, fix: str, severity: Severity = "error", *, applies: Callable[[Subject], bool]
) -> Callable[[Find], Check]:
    """Declare a check of a plugin as a whole, on numbers."""
    return lambda find: Check(id, title, fix, "numeric", find, severity, applies)


def on_hooks(
    id: str, title: str, fix: str, hooks: tuple[str, ...], exempt: Exempt | None = None, severity: Severity = "error"
) -> Callable[[Inspect], Check]:
    """Declare a check of these hooks, on numbers."""

    def declare(inspect: Inspect) -> Check:
        def find(subject: Subject) -> Iterator[Problem]:
            for hook in hooks:
                yield from first_failure(subject, hook, inspect, exempt)

        def applies(subject: Subject) -> bool:
            return any(exempt is None or not exempt(call) for hook in hooks for call in subject.calls(hook))

        return Check(id, title, fix, "numeric", find, severity, applies, inspect, exempt)

    return declare


def first_failure(subject: Subject, hook: str, inspect: Inspect, exempt: Exempt | None) -> list[Problem]:
    """The problems of one hook under the first configuration that has any."""
    for call in subject.calls(hook):
        if exempt is not None and exempt(call):
            continue
        if problems := list(attempt(inspect, call)):
            distinct = {each.cause: each for each in reversed(problems)}
            return [replace(each, cause=f"{call.label}: {each.cause}") for each in reversed(distinct.values())]
    return []


def attempt(inspect: Inspect, call: Call) -> Iterator[Problem]:
    """The problems of one call; an exception of the plugin is one, with its line."""
    try:
        yield from inspect(call)
    except FOREIGN as error:
        yield Problem("it raised an exception", call.subject.described(error), "a result")


def passes(call: Call, *checks: Check) -> bool:
    """Whether a call that is excused passes all the same, on plain samples and on those that bring out what is rare."""
    asked = [(check.inspect, each) for check in checks if check.inspect for each in (call, call.harder)]
    return not any(True for inspect, each in asked for _ in attempt(inspect, each))


def checks_in(names: Mapping[str, Any]) -> tuple[Check, ...]:
    """The checks among a module's names, in the order in which it defines them."""
    return tuple(value for value in names.values() if isinstance(value, Check))
