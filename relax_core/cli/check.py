"""`relax check`, and the same check before `relax train`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from relax_core.binding import Binding, bind
from relax_core.cli.placement import OPTION, cluster_of, plan_as_json, plan_lines, plan_on
from relax_core.registry import Registry
from relax_core.runfile import ResolvedRun, read, resolve
from relax_core.startup import check as start_up_check
from relax_core.startup import topology_of
from relax_core.topology import Violation

FINDINGS = 1


def prepare(
    run: Path, overrides: Mapping[str, Any], plugins: Sequence[Path], assumed: str | None = None
) -> tuple[ResolvedRun, Binding, list[Violation]]:
    """Read, resolve, bind and check a run; plugins that cannot be used are named on stderr.

    A Ray run is checked against the cluster `assumed`, as `--assume-cluster` describes it, or the one that is known.
    """
    resolved = resolve(read(run), overrides, plugins)
    binding = bind(resolved.registry, resolved.choice, resolved.config.algorithm)
    warn_of_unusable(resolved.registry)
    return resolved, binding, start_up_check(resolved, binding, cluster_of(resolved.config, assumed))


def warn_of_unusable(registry: Registry) -> None:
    """Name the plugins that are installed and cannot be used, on stderr."""
    for plugin in registry.plugins:
        if plugin.status in ("broken", "incompatible", "shadowed"):
            print(
                f"warning: plugin '{plugin.name}' ({plugin.origin}) is {plugin.status}: {plugin.reason}",
                file=sys.stderr,
            )


def report(violations: Sequence[Violation], file: Any) -> bool:
    """Print violations, one line each; True when one of them is an error."""
    for violation in violations:
        print(f"{violation.severity}: {violation.message}", file=file)
    return refused(violations)


def refused(violations: Sequence[Violation]) -> bool:
    """Whether one of them stops a run."""
    return any(violation.severity == "error" for violation in violations)


def check(run: Path, overrides: Mapping[str, Any], plugins: Sequence[Path], as_json: bool, assumed: str | None) -> None:
    """Print what is wrong with a run on stdout, and where Ray would place it; exit 1 when it would not start."""
    resolved, binding, violations = prepare(run, overrides, plugins, assumed)
    failed, cluster = refused(violations), cluster_of(resolved.config, assumed)
    plan = plan_on(topology_of(resolved.config, binding), cluster)
    if assumed and resolved.config.topology.orchestrator == "local":
        print(f"warning: {OPTION}: the local orchestrator does not read it", file=sys.stderr)
    if as_json:
        keys = ("code", "severity", "plugin", "setting", "problem", "fix")
        findings = [{key: getattr(violation, key) for key in keys} for violation in violations]
        told = {"version": 1, "ok": not failed, "findings": findings, "plan": plan_as_json(plan, cluster)}
        print(json.dumps(told, indent=2))
    else:
        report(violations, sys.stdout)
        print("".join(f"{line}\n" for line in plan_lines(plan, cluster)), end="")
        errors = sum(violation.severity == "error" for violation in violations)
        print(f"{run}: {errors} errors, {len(violations) - errors} warnings")
    sys.exit(FINDINGS if failed else 0)
