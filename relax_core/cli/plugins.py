"""`relax plugins list | info`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from relax_core.cli.table import aligned
from relax_core.compose import fields_of
from relax_core.discovery import Plugin
from relax_core.errors import LoadError, UsageError, nearest
from relax_core.registry import Registry, spec_of
from relax_core.spec import Role

VERSION = 1


def list_plugins(files: Sequence[Path], as_json: bool) -> None:
    """One line a plugin: name, status, roles, from where, and what it is or why it cannot be used."""
    found = Registry.load(files).plugins
    if as_json:
        print(json.dumps({"version": VERSION, "plugins": [_summary(plugin) for plugin in found]}, indent=2))
        return
    rows = [("NAME", "STATUS", "ROLES", "FROM", "WHAT")]
    rows += [(plugin.name, plugin.status, _roles(plugin), plugin.origin, _what(plugin)) for plugin in found]
    print("\n".join(aligned(rows)))


def show_plugin(name: str, files: Sequence[Path], as_json: bool) -> None:
    """Everything that a plugin declares."""
    found = Registry.load(files).plugins
    plugin = next((each for each in found if each.name == name), None)
    if plugin is None:
        known = [each.name for each in found]
        raise UsageError(
            f"unknown plugin '{name}'", who="relax plugins info", fix=nearest(name, known) or ", ".join(known)
        )
    if plugin.status != "loaded":
        raise LoadError(f"'{name}' ({plugin.origin}) is {plugin.status}: {plugin.reason}", who="relax plugins info")
    if as_json:
        print(json.dumps({"version": VERSION, **_details(plugin)}, indent=2, default=str))
        return
    for line in describe(plugin):
        print(line)


def _summary(plugin: Plugin) -> dict[str, Any]:
    return {
        "name": plugin.name,
        "status": plugin.status,
        "roles": _roles(plugin).split("+") if plugin.spec else [],
        "distribution": plugin.distribution,
        "version": plugin.version,
        "summary": plugin.spec.summary if plugin.spec else "",
        "reason": plugin.reason,
    }


def _details(plugin: Plugin) -> dict[str, Any]:
    spec = spec_of(plugin)
    return {
        **_summary(plugin),
        "paper": spec.paper,
        "kl": spec.kl,
        "capabilities": {name: dict(_capabilities(role)) for name, role in spec.roles.items()},
        "fields": [
            {"name": path, "type": kind, "default": default, "summary": summary}
            for path, kind, default, summary in describe_fields(plugin)
        ],
        "flags": {flag.name: list(flag.fields) or dict(flag.sets) for flag in spec.flags},
    }


def describe(plugin: Plugin) -> Iterator[str]:
    """Everything that a plugin declares, as lines of text."""
    spec = spec_of(plugin)
    yield f"{spec.name}: {spec.summary}"
    yield f"  from    {plugin.origin}"
    yield from (f"  {name:<7} {value}" for name, value in (("paper", spec.paper), ("kl", spec.kl)) if value)
    for name, role in spec.roles.items():
        yield f"{name}: {role.formula}"
        yield from (f"  {key} = {value}" for key, value in _capabilities(role))
    for path, kind, default, summary in describe_fields(plugin):
        yield f"{path}: {kind} = {default}"
        yield f"  {summary}"
    for flag in spec.flags:
        means = ", ".join(flag.fields) or ", ".join(f"{key}={value}" for key, value in flag.sets.items())
        yield f"{flag.name}  ({means})"


def _roles(plugin: Plugin) -> str:
    return "+".join(plugin.spec.roles) if plugin.spec else "-"


def _what(plugin: Plugin) -> str:
    return plugin.reason or spec_of(plugin).summary


def _capabilities(role: Role) -> Iterator[tuple[str, Any]]:
    """What differs from the role's defaults."""
    for each in fields(role):
        value = getattr(role, each.name)
        if each.name in ("formula", "config", "section", "enabled") or value == each.default:
            continue
        shown = sorted(value) if isinstance(value, frozenset) else value
        yield each.name, "depends on the configuration" if callable(value) else shown


def describe_fields(plugin: Plugin) -> Iterator[tuple[str, str, Any, str]]:
    """Path, type, default and documentation of each of its fields."""
    for path, info in fields_of(plugin).items():
        kind = getattr(info.annotation, "__name__", None) if isinstance(info.annotation, type) else str(info.annotation)
        yield path, str(kind).replace("typing.", ""), info.default, info.description or ""
