"""`relax plugins validate`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from relax_core.cli.check import FINDINGS
from relax_core.conformance.catalogue import CHECKS
from relax_core.conformance.check import TIERS, Tier
from relax_core.conformance.environments import CHECKS as ENVIRONMENT_CHECKS
from relax_core.conformance.environments import validate_environment
from relax_core.conformance.report import Report
from relax_core.conformance.targets import everything, named
from relax_core.conformance.validation import DEFAULT_TIERS, validate
from relax_core.discovery import DISABLE
from relax_core.environments.loading import is_environment
from relax_core.errors import LoadError, UsageError, nearest
from relax_core.runfile import read

WHO = "relax plugins validate"
VERSION = 1
NOTHING_CHECKED = 5


def validate_plugins(
    target: str | None,
    every: bool,
    tiers: Sequence[str],
    only: Sequence[str],
    run: Path | None,
    seed: int,
    as_json: bool,
) -> None:
    """Check plugins and print every finding; the exit code says what it came to."""
    if (target is None) is not every:
        raise UsageError("name one plugin, or all", who=WHO, fix="give a NAME or a PATH, or --all")
    if target is not None and is_environment(target):
        _known_ids(only, [each.id for each in ENVIRONMENT_CHECKS])
        _finish([validate_environment(target, only, seed)], as_json)
    _known_ids(only, [check.id for check in CHECKS])
    chosen = [_tier(name) for name in tiers]
    found, registry = everything() if target is None else named(target)
    found = [plugin for plugin in found if plugin.status != "disabled" or target is not None]
    for plugin in found:
        if plugin.status == "disabled":
            raise LoadError(
                f"'{plugin.name}' is {plugin.status}", who=WHO, fix=f"take '{plugin.name}' out of {DISABLE}"
            )
    options: dict[str, Any] = {"tiers": chosen or DEFAULT_TIERS, "only": only, "seed": seed}
    options |= {"config": _algorithm(run), "reproduce": f" --config {shlex.quote(str(run))}" if run else ""}
    _finish([validate(plugin, registry, **options) for plugin in found], as_json)


def _finish(reports: Sequence[Report], as_json: bool) -> NoReturn:
    _print_json(reports) if as_json else _print(reports)
    sys.exit(_exit_code(reports))


def _exit_code(reports: Sequence[Report]) -> int:
    if not any(report.checked for report in reports):
        return NOTHING_CHECKED
    if len(reports) == 1 and not reports[0].loaded:
        return LoadError.exit_code
    return 0 if all(report.ok for report in reports) else FINDINGS


def _tier(name: str) -> Tier:
    for tier in TIERS:
        if tier == name:
            return tier
    raise UsageError(
        f"no tier is called '{name}'", who=WHO, fix=nearest(name, [*TIERS]) or f"one of: {', '.join(TIERS)}"
    )


def _known_ids(only: Sequence[str], known: list[str]) -> None:
    for name in only:
        if not any(each.startswith(name) for each in known):
            raise UsageError(
                f"no check is called '{name}'", who=WHO, fix=nearest(name, known) or "see docs/conformance.md"
            )


def _algorithm(run: Path | None) -> Mapping[str, Any] | None:
    if run is None:
        return None
    section = read(run).values.get("algorithm") or {}
    if not isinstance(section, Mapping):
        raise UsageError("algorithm: not a section", who=str(run), fix="write fields under 'algorithm:'")
    return section


def _print(reports: Sequence[Report]) -> None:
    for report in reports:
        for finding in report.findings:
            print("\n".join(finding.lines()), end="\n\n")
    for report in reports:
        errors = sum(finding.severity == "error" for finding in report.findings)
        print(
            f"{report.plugin}: {len(report.checked)} checks, {errors} errors, {len(report.findings) - errors} warnings"
        )
    if not any(report.checked for report in reports):
        print("nothing was checked: no check of these tiers applies", file=sys.stderr)


def _print_json(reports: Sequence[Report]) -> None:
    ok = all(report.ok for report in reports)
    print(json.dumps({"version": VERSION, "ok": ok, "reports": [each.to_json() for each in reports]}, indent=2))
