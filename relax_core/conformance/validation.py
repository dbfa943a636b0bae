"""Check a plugin: all findings, not the first."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from relax_core.conformance.catalogue import CHECKS
from relax_core.conformance.check import Check, Problem, Tier
from relax_core.conformance.report import Finding, Report
from relax_core.conformance.subject import Subject
from relax_core.discovery import Plugin
from relax_core.errors import FOREIGN
from relax_core.registry import Registry

DEFAULT_TIERS: tuple[Tier, ...] = ("static", "numeric")


def validate(
    plugin: Plugin,
    registry: Registry,
    *,
    tiers: Collection[Tier] = DEFAULT_TIERS,
    only: Collection[str] = (),
    seed: int = 0,
    config: Mapping[str, Any] | None = None,
    reproduce: str = "",
) -> Report:
    """Everything that the checks of these tiers find. `only` names ids, or how they begin.

    `config` is the `algorithm` section of a run file, whose fields take the place of the plugin's defaults; `reproduce`
    are further options of the command that findings name.
    """
    subject = Subject(plugin, registry, seed=seed, config=config)
    findings: list[Finding] = []
    checked: list[str] = []
    for check in selected(tiers, only):
        if not applies(check, subject):
            continue
        checked.append(check.id)
        findings += findings_of(check, subject, reproduce)
    return Report(plugin.name, tuple(findings), tuple(checked), subject.module is not None)


def selected(tiers: Collection[Tier], only: Collection[str] = ()) -> list[Check]:
    """The checks of these tiers, in the order of their ids; `only` chooses among all tiers where it names a whole id."""
    chosen = [check for check in CHECKS if check.id in only] if only else []
    begin = [check for check in CHECKS if check.tier in tiers and check.id.startswith(tuple(only) or "")]
    return sorted({check.id: check for check in (*chosen, *begin)}.values(), key=lambda check: check.id)


def applies(check: Check, subject: Subject) -> bool:
    """Whether there is anything for the check to look at; what cannot be asked is looked at."""
    if check.tier != "static" and not subject.runs:
        return False
    try:
        return check.applies(subject)
    except FOREIGN:
        return True


def findings_of(check: Check, subject: Subject, reproduce: str = "") -> list[Finding]:
    """What one check finds."""
    with nullcontext() if check.tier == "static" else _one_thread():
        return [_finding(check, problem, subject, reproduce) for problem in _problems(check, subject)]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Threads within an operation cost more than they gain on tensors this small."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _problems(check: Check, subject: Subject) -> Iterator[Problem]:
    try:
        yield from check.find(subject)
    except FOREIGN as error:
        yield Problem("it could not be checked", subject.described(error), "no exception")


def _finding(check: Check, problem: Problem, subject: Subject, reproduce: str) -> Finding:
    plugin = subject.plugin
    target = plugin.distribution if plugin.distribution.endswith(".py") else plugin.name
    tier = f" --tier {check.tier}" if check.tier == "distributed" else ""
    seed = f" --seed {subject.seed}" if subject.seed else ""
    command = f"relax plugins validate {shlex.quote(target)} --only {check.id}{tier}{seed}{reproduce}"
    return Finding(
        id=check.id,
        plugin=plugin.name,
        severity=check.severity,
        cause=problem.cause,
        observed=problem.observed,
        allowed=problem.allowed,
        fix=problem.fix or check.fix,
        reproduce=command,
    )
