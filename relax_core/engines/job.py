"""The run as plain data, from the driver to another process, which loads every plugin by name for itself."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from relax_core.binding import Binding, BoundPlugin, bind
from relax_core.config import RunConfig
from relax_core.errors import LoadError
from relax_core.runfile import ResolvedRun, RunFile, resolve
from relax_core.spec import Role, capability

Origin = list[str]
"""A plugin's distribution (or file), its version (or a digest of the file), and a digest of what it declares."""


def described(resolved: ResolvedRun, binding: Binding) -> dict[str, Any]:
    """What `bound` makes the same run of, in another process: values, and the text of plugin files."""
    paths = [Path(each.plugin.distribution) for each in binding.active if _is_file(each)]
    return {
        "values": resolved.config.model_dump(mode="json"),
        "base": str(resolved.base),
        "files": {path.name: path.read_text(encoding="utf-8") for path in paths},
    }


def bound(run: Mapping[str, Any]) -> tuple[RunConfig, Binding]:
    """The run in this process. Raises LoadError where a plugin is missing here."""
    algorithm = run["values"]["algorithm"] | {"plugins": [str(path) for path in _written(run["files"])]}
    values = run["values"] | {"algorithm": algorithm}
    resolved = resolve(RunFile(Path(run["base"]) / "run.yaml", values, {}))
    return resolved.config, bind(resolved.registry, resolved.choice, resolved.config.algorithm)


def origins(binding: Binding) -> dict[str, Origin]:
    """Where each active plugin is from, by name."""
    return {each.name: _origin(each) for each in binding.active}


def compare(found: Mapping[str, Mapping[str, Origin]], ours: Mapping[str, Origin]) -> None:
    """Raise LoadError where a process, named by its key, has another plugin than this one; all differences at once."""
    told = [line for who, theirs in found.items() for line in _differences(who, theirs, ours)]
    if told:
        raise LoadError("; ".join(told), who="plugins", fix="install one version everywhere")


def _differences(who: str, theirs: Mapping[str, Origin], ours: Mapping[str, Origin]) -> Iterator[str]:
    for name in sorted(theirs.keys() | ours.keys()):
        there, here = theirs.get(name), ours.get(name)
        if there != here:
            yield f"{who} has plugin '{name}' from {_told(there, here)}, the driver from {_told(here, there)}"


def _told(origin: Origin | None, other: Origin | None) -> str:
    """Without the digest of the spec, where more than that tells the two apart."""
    if origin is None:
        return "nowhere"
    place = " ".join(part for part in origin[:2] if part)
    return f"{place} (spec {origin[2]})" if other is not None and origin[:2] == other[:2] else place


def _origin(plugin: BoundPlugin) -> Origin:
    place = plugin.plugin.distribution
    if _is_file(plugin):
        return [Path(place).name, _digest(Path(place).read_bytes()), _spec_digest(plugin)]
    return [place, plugin.plugin.version, _spec_digest(plugin)]


def _spec_digest(plugin: BoundPlugin) -> str:
    """Of everything that it declares, under this run's configuration, and of the hooks that it has."""
    spec = plugin.spec
    roles = {role: dict(_capabilities(spec.roles[role], config)) for role, config in plugin.configs.items()}
    schema = plugin.config.model_json_schema()
    facts = [spec.name, spec.summary, spec.paper, spec.kl, spec.hook_api, sorted(plugin.hooks), roles, schema]
    return _digest(json.dumps([*facts, [repr(each) for each in spec.fields]], sort_keys=True, default=str).encode())


def _capabilities(role: Role, config: Any) -> Iterator[tuple[str, Any]]:
    for each in fields(role):
        if each.name not in ("config", "enabled"):
            value = capability(role, each.name, config)
            yield each.name, sorted(map(str, value)) if isinstance(value, frozenset) else value


def _is_file(plugin: BoundPlugin) -> bool:
    return plugin.plugin.distribution.endswith(".py")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def _written(files: Mapping[str, str]) -> Iterator[Path]:
    """Files of these names and texts, in a directory that lives as long as this process may import from it."""
    directory = Path(tempfile.mkdtemp(prefix="relax-plugins-")) if files else Path()
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8")
        yield directory / name
