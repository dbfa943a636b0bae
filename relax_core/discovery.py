"""From entry points and files to plugins. What cannot be loaded is kept as data, with its reason; it takes nothing down."""

from __future__ import annotations

import gc
import importlib.metadata
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pluggy

from relax_core import hookspecs
from relax_core.errors import FOREIGN, describe, nearest
from relax_core.sources import load_source
from relax_core.spec import HOOK_API, SUPPORTED_HOOK_APIS, AlgorithmSpec

GROUP = "relax.plugins"
DISABLE = "RELAX_DISABLE_PLUGINS"
HOOKS = sorted(name for name, value in vars(hookspecs).items() if hasattr(value, f"{hookspecs.PROJECT}_spec"))

Status = Literal["loaded", "broken", "disabled", "incompatible", "shadowed"]


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plugin as it was found: by which `name`, from where (`distribution` `version`, or a file), and whether it works."""

    name: str
    status: Status
    distribution: str
    version: str = ""
    reason: str = ""
    module: Any = None
    spec: AlgorithmSpec | None = None

    @property
    def origin(self) -> str:
        """`distribution version`, or the file."""
        return f"{self.distribution} {self.version}".strip()


def discover(files: Sequence[Path] = ()) -> list[Plugin]:
    """Every installed plugin and every file, by name. Entry points of disabled plugins are not imported."""
    disabled = {name.strip() for name in os.environ.get(DISABLE, "").split(",") if name.strip()}
    with _nothing_collected():
        found = [_from_entry_point(entry, disabled) for entry in importlib.metadata.entry_points(group=GROUP)]
        found += [_from_file(path) for path in files]
    return sorted((_shadow(plugin, found) for plugin in found), key=lambda plugin: (plugin.name, plugin.origin))


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """What an import makes lives on, and a search for garbage in it is a sixth of the time that torch takes."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _from_entry_point(entry: importlib.metadata.EntryPoint, disabled: set[str]) -> Plugin:
    distribution = entry.dist.name if entry.dist else "unknown"
    plugin = Plugin(entry.name, "disabled", distribution, entry.dist.version if entry.dist else "")
    if entry.name in disabled:
        return replace(plugin, reason=f"named in {DISABLE}")
    try:
        return _inspect(plugin, entry.load())
    except FOREIGN as error:
        return replace(plugin, status="broken", reason=describe(error))


def _from_file(path: Path) -> Plugin:
    name = path.parent.name if path.stem == "__init__" else path.stem
    plugin = Plugin(name, "broken", str(path))
    if not path.is_file() or path.suffix != ".py":
        return replace(plugin, reason=f"no such Python file: {path}")
    try:
        return _inspect(plugin, load_source(path, f"relax_plugin_{name}"), by_file=True)
    except FOREIGN as error:
        return replace(plugin, reason=describe(error))


def _inspect(plugin: Plugin, module: Any, by_file: bool = False) -> Plugin:
    plugin = replace(plugin, module=module)
    if problem := _hook_problem(module):
        return replace(plugin, status="broken", reason=problem)
    spec = module.algorithm()
    if not isinstance(spec, AlgorithmSpec):
        return replace(plugin, status="broken", reason="algorithm() does not return an AlgorithmSpec")
    plugin = replace(plugin, name=spec.name if by_file else plugin.name, spec=spec)
    if spec.hook_api not in SUPPORTED_HOOK_APIS:
        return replace(plugin, status="incompatible", reason=f"hook_api {spec.hook_api}, this is {HOOK_API}")
    if spec.name != plugin.name:
        return replace(
            plugin, status="broken", reason=f"its spec is named '{spec.name}', its entry point '{plugin.name}'"
        )
    return replace(plugin, status="loaded")


def _hook_problem(module: Any) -> str:
    """Why pluggy would not take the module as it is: no declaration, a misspelt hook, an argument that no hook has."""
    manager = plugin_manager()
    try:
        manager.register(module)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        marked = [name for name, value in vars(module).items() if hasattr(value, f"{hookspecs.PROJECT}_impl")]
        unknown = [name for name in marked if name not in HOOKS]
        if unknown:
            return f"'{unknown[0]}' is not a hook {nearest(unknown[0], HOOKS)}".strip()
        return str(error).splitlines()[-1].strip()
    implemented = {caller.name for caller in manager.get_hookcallers(module) or ()}
    return "" if "algorithm" in implemented else "it has no algorithm() marked with @hookimpl"


def plugin_manager() -> pluggy.PluginManager:
    """A pluggy manager that knows the contract and no plugin."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def _shadow(plugin: Plugin, found: list[Plugin]) -> Plugin:
    rivals = [other for other in found if other.name == plugin.name and other.status != "disabled"]
    if len(rivals) < 2 or plugin.status == "disabled":
        return plugin
    claims = " and ".join(sorted(other.origin for other in rivals))
    return replace(plugin, status="shadowed", reason=f"'{plugin.name}' is claimed by {claims}")
