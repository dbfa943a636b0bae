"""The run as plain data, from the driver to a rank, which loads every plugin by name for itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from relax_core.binding import Binding, bind
from relax_core.config import RunConfig
from relax_core.errors import LoadError
from relax_core.runfile import ResolvedRun, RunFile, resolve


def described(resolved: ResolvedRun, binding: Binding) -> dict[str, Any]:
    """What `bound` makes the same run of, in another process."""
    return {
        "values": resolved.config.model_dump(mode="json"),
        "base": str(resolved.base),
        "plugins": _origins(binding),
    }


def bound(run: dict[str, Any], rank: int) -> tuple[RunConfig, Binding]:
    """The run in a rank. Raises LoadError where a plugin is missing here, or is another than the driver's."""
    resolved = resolve(RunFile(Path(run["base"]) / "run.yaml", run["values"], {}))
    binding = bind(resolved.registry, resolved.choice, resolved.config.algorithm)
    found = _origins(binding)
    for name in sorted(run["plugins"].keys() | found.keys()):
        ours, theirs = found.get(name), run["plugins"].get(name)
        if ours != theirs:
            problem = f"rank {rank} has plugin '{name}' from {_origin(ours)}, the driver from {_origin(theirs)}"
            raise LoadError(problem, who="megatron engine", fix="install one version everywhere")
    return resolved.config, binding


def _origins(binding: Binding) -> dict[str, list[str]]:
    """Distribution and version by name; a file by its whole path, however it was named."""
    found = {}
    for each in binding.active:
        place = each.plugin.distribution
        is_file = place.endswith(".py")
        found[each.name] = [str(Path(place).resolve()) if is_file else place, each.plugin.version]
    return found


def _origin(found: list[str] | None) -> str:
    return " ".join(str(part) for part in found if part) if found else "nowhere"
