"""What a run that is gone on with has to have in common with the one that was begun."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from relax_core.binding import Binding
from relax_core.config import Operational
from relax_core.errors import UsageError
from relax_core.orchestration.disk import write_whole
from relax_core.orchestration.log import warn
from relax_core.orchestration.record import RUN, anchored, described_plugins, write_config
from relax_core.orchestration.runs import read_run
from relax_core.runfile import ResolvedRun

Change = tuple[str, Any, Any]
"""A dotted path, what stood there, and what stands there now."""


def settle_changes(path: Path, step: int, resolved: ResolvedRun, binding: Binding, *, allowed: bool) -> None:
    """Name on stderr what differs from the run in `path` and keep it there; raises UsageError where it is another objective.

    `allowed` lets that pass too. Versions of plugins are named, whatever they change.
    """
    before = read_run(path)
    found = list(differences(before.config, anchored(resolved)))
    operational = set(operational_fields(type(resolved.config)))
    serious = [each for each in found if not _within(each[0], operational)]
    if serious and not allowed:
        problem = "the run was begun with another objective: " + "; ".join(map(_told, serious))
        raise UsageError(problem, who="--resume", fix="write what it was begun with, or give --allow-changes")
    described = before.described
    found += differences(described["plugins"], described_plugins(binding), "plugins.")
    for change in found:
        warn(f"changed since the run was begun: {_told(change)}")
    if found:
        changes = [{"step": step, "setting": setting, "was": old, "is": new} for setting, old, new in found]
        described = described | {
            "plugins": described_plugins(binding),
            "changes": [*described.get("changes", []), *changes],
        }
        write_whole(path / RUN, json.dumps(described, indent=2, default=str) + "\n")
        write_config(path, resolved)


def operational_fields(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Dotted paths of the fields and sections that a resumed run may change."""
    for name, info in model.model_fields.items():
        if any(isinstance(each, Operational) for each in info.metadata):
            yield f"{prefix}{name}"
        elif isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from operational_fields(info.annotation, f"{prefix}{name}.")


def differences(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> Iterator[Change]:
    """Every path whose value differs; what is missing on one side is None there."""
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from differences(old, new, f"{prefix}{name}.")
        elif old != new:
            yield f"{prefix}{name}", old, new


def _within(path: str, places: set[str]) -> bool:
    return any(path == place or path.startswith(f"{place}.") for place in places)


def _told(change: Change) -> str:
    path, old, new = change
    return f"{path} was {old}, is {new}"
