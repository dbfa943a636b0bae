"""The start-up rules of the core. A rule is a code, a title and a function that gives what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from relax_core.binding import Binding
from relax_core.plan import Cluster
from relax_core.topology import Topology, Violation

Finding = tuple[str, str, str]
"""The setting at fault, the problem, and what to write instead."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a rule looks at: the resolved run, its plugins, and the options that were set but belong to no chosen plugin.

    `base` is where the run file's relative paths start.
    `shapes` are the configurations of its models by setting, of those that are known before anything is loaded.
    `cluster` is where Ray would place it; None where that is not known, or not used.
    """

    topology: Topology
    binding: Binding
    ignored: tuple[tuple[str, str], ...] = ()
    base: Path = Path()
    shapes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    cluster: Cluster | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """A start-up rule; `code` is stable, `title` is its line in the documentation."""

    code: str
    title: str
    severity: Literal["error", "warning"]
    find: Callable[[Run], Iterable[Finding]]

    def violations(self, run: Run) -> Iterator[Violation]:
        """What is wrong with the run."""
        for setting, problem, fix in self.find(run):
            yield Violation(self.code, setting, problem, fix, self.severity)


def rule(
    code: str, title: str, severity: Literal["error", "warning"] = "error"
) -> Callable[[Callable[[Run], Iterable[Finding]]], Rule]:
    """Make a rule of a function."""
    return lambda find: Rule(code, title, severity, find)


def rules_in(names: Mapping[str, Any]) -> tuple[Rule, ...]:
    """The rules among a module's names, in the order in which it defines them."""
    return tuple(value for value in names.values() if isinstance(value, Rule))
