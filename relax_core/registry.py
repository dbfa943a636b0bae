"""Plugins by name, with an error that helps when a name cannot be used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from relax_core.discovery import DISABLE, Plugin, discover
from relax_core.errors import LoadError, UsageError, nearest
from relax_core.spec import AlgorithmSpec, RoleName


class Registry:
    """What was discovered, by name."""

    def __init__(self, plugins: Iterable[Plugin]) -> None:
        self.plugins = list(plugins)

    @classmethod
    def load(cls, files: Sequence[Path] = ()) -> Registry:
        """Discover the installed plugins and the named files; a file that does not load is an error, as it was asked for."""
        registry = cls(discover(files))
        for plugin in registry.plugins:
            if plugin.status == "broken" and plugin.distribution in {str(path) for path in files}:
                raise LoadError(plugin.reason, who=f"plugin {plugin.distribution}", fix="correct the file")
        return registry

    @property
    def usable(self) -> list[Plugin]:
        """Those that loaded."""
        return [plugin for plugin in self.plugins if plugin.status == "loaded"]

    def with_role(self, role: RoleName) -> list[Plugin]:
        """Those that loaded and play the role."""
        return [plugin for plugin in self.usable if plugin.spec is not None and role in plugin.spec.roles]

    def default_estimator(self) -> str:
        """The name of the estimator for a run that names none."""
        for plugin in self.plugins:
            if plugin.spec is not None and plugin.spec.estimator is not None and plugin.spec.estimator.default:
                return plugin.name
        raise UsageError("no estimator is named", who="algorithm.advantage_estimator", fix="name one")

    def get(self, name: str, role: RoleName, setting: str) -> Plugin:
        """The plugin that plays `role` under `name`; `setting` is who asks."""
        claimants = [plugin for plugin in self.plugins if plugin.name == name]
        for plugin in claimants:
            if plugin.status == "loaded" and role in spec_of(plugin).roles:
                return plugin
        raise self._why_not(name, role, setting, claimants)

    def _choosable(self, role: RoleName) -> list[str]:
        """The names that may be given for a role: those that play it, and losses that bring their estimator with them."""
        roles = [(plugin.name, spec_of(plugin)) for plugin in self.usable]
        whole = {name for name, spec in roles if role == "estimator" and spec.loss and spec.loss.default_estimator}
        return [name for name, spec in roles if role in spec.roles or name in whole]

    def _why_not(self, name: str, role: RoleName, setting: str, claimants: list[Plugin]) -> UsageError | LoadError:
        known = self._choosable(role)
        if not claimants:
            hint = nearest(name, known) or f"known: {', '.join(known)}"
            return UsageError(f"unknown {role} '{name}'", who=setting, fix=hint)
        plugin = claimants[0]
        if plugin.status == "loaded":
            return UsageError(f"'{name}' has no {role}", who=setting, fix=f"one of: {', '.join(known)}")
        fixes = {
            "disabled": f"take '{name}' out of {DISABLE}",
            "shadowed": "uninstall one, or switch one off",
            "incompatible": f"install a version of {plugin.distribution} for this relax",
            "broken": f"repair or uninstall {plugin.origin}",
        }
        return LoadError(f"'{name}' is {plugin.status}: {plugin.reason}", who=setting, fix=fixes[plugin.status])


def spec_of(plugin: Plugin) -> AlgorithmSpec:
    """The declaration of a plugin that loaded."""
    if plugin.spec is None:
        raise LoadError(f"'{plugin.name}' is {plugin.status}: {plugin.reason}", who=plugin.origin)
    return plugin.spec
