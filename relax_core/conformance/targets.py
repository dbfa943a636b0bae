"""What a user names -> the plugin to check, and the others that are installed."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path

from relax_core.discovery import Plugin, discover
from relax_core.environments.loading import GROUP
from relax_core.errors import UsageError, nearest
from relax_core.registry import Registry


def everything() -> tuple[list[Plugin], Registry]:
    """Every plugin that is installed."""
    registry = Registry(discover())
    return registry.plugins, registry


def named(target: str) -> tuple[list[Plugin], Registry]:
    """An installed plugin by its name (all that claim it), or a plugin file by its path. Raises `UsageError`."""
    if target.endswith(".py") or "/" in target:
        return _in_file(Path(target))
    registry = Registry(discover())
    found = [plugin for plugin in registry.plugins if plugin.name == target]
    if not found:
        known = sorted({plugin.name for plugin in registry.plugins} | entry_points(group=GROUP).names)
        fix = nearest(target, known) or f"known: {', '.join(known)}; or a path that ends in .py"
        raise UsageError(f"unknown plugin '{target}'", who="relax plugins validate", fix=fix)
    return found, registry


def _in_file(path: Path) -> tuple[list[Plugin], Registry]:
    if not path.is_file():
        raise UsageError("no such file", who=str(path), fix="name a plugin file, or an installed plugin")
    registry = Registry(discover([path]))
    (plugin,) = (each for each in registry.plugins if each.distribution == str(path))
    if plugin.status == "shadowed":
        # Its author has it installed too; the file is what was asked for.
        plugin = replace(plugin, status="loaded", reason="")
    others = [each for each in registry.plugins if each.name != plugin.name]
    return [plugin], Registry([*others, plugin])
