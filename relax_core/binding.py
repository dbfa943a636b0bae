"""The plugins of one run, each with its config and its hooks, resolved once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from relax_core.compose import Choice
from relax_core.config import AlgorithmSection
from relax_core.discovery import HOOKS, Plugin, plugin_manager
from relax_core.errors import FOREIGN, PluginError, RelaxError, describe
from relax_core.registry import Registry, spec_of
from relax_core.spec import AlgorithmConfig, AlgorithmSpec, Role, RoleName, capability


@dataclass(frozen=True, eq=False)
class BoundPlugin:
    """An active plugin: the roles it was chosen for, its config in each, its hooks, and its checkpointed state."""

    plugin: Plugin
    spec: AlgorithmSpec
    configs: dict[RoleName, AlgorithmConfig]
    config: AlgorithmConfig
    hooks: dict[str, Any]
    state: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.plugin.name

    def call(self, hook: str, **arguments: Any) -> Any:
        """Call the plugin's own implementation of a hook; pluggy passes on the arguments that it names.

        None when it returned None.
        """
        role = HOOK_ROLES.get(hook)
        config = self.config if role is None else self.configs.get(role, self.config)
        try:
            results = self.hooks[hook](config=config, **arguments)
        except RelaxError:
            raise
        except FOREIGN as error:
            raise PluginError(f"{hook} raised {describe(error)}", who=f"plugin '{self.name}'") from error
        return results[0] if results else None


HOOK_ROLES: dict[str, RoleName] = {"compute_advantage": "estimator", "value_loss": "estimator", "policy_loss": "loss"}
"""The hooks that belong to one role; the others see the config that all roles share."""


@dataclass(frozen=True, eq=False)
class Binding:
    """The chosen estimator and loss, and every active plugin by name."""

    estimator: BoundPlugin
    loss: BoundPlugin
    active: tuple[BoundPlugin, ...]

    def implementing(self, hook: str) -> tuple[BoundPlugin, ...]:
        """The active plugins that implement a hook."""
        return tuple(bound for bound in self.active if hook in bound.hooks)

    def roles(self) -> Iterator[tuple[BoundPlugin, RoleName, Role, AlgorithmConfig]]:
        """Every role that is played, with its player and the config it reads."""
        for bound in self.active:
            for name, config in bound.configs.items():
                yield bound, name, bound.spec.roles[name], config

    def needs(self, name: str) -> bool:
        """Whether any role that is played declares this capability."""
        return any(self._declared(name))

    def most(self, name: str) -> int:
        """The largest value that any role that is played declares for this capability; 0 when none does."""
        return max([0, *(int(value) for value in self._declared(name))])

    def _declared(self, name: str) -> list[Any]:
        return [capability(role, name, config) for _, _, role, config in self.roles() if hasattr(role, name)]


def bind(registry: Registry, choice: Choice, algorithm: AlgorithmSection) -> Binding:
    """Resolve the hooks of the chosen estimator and loss and of the components that are enabled."""
    active = {
        plugin.name: _bind(plugin, roles, algorithm)
        for plugin in registry.usable
        if (roles := choice.roles_of(plugin) | _component_role(plugin, algorithm))
    }
    return Binding(
        active[choice.estimator.name], active[choice.loss.name], tuple(active[name] for name in sorted(active))
    )


def _component_role(plugin: Plugin, algorithm: AlgorithmSection) -> frozenset[RoleName]:
    spec = spec_of(plugin)
    if spec.component is None:
        return frozenset()
    config = _read(spec.config_of("component"), _home(spec, algorithm))
    enabled = spec.component.enabled or (lambda config: getattr(config, "enable", True))
    return frozenset({"component"}) if enabled(config) else frozenset()


def _bind(plugin: Plugin, roles: frozenset[RoleName], algorithm: AlgorithmSection) -> BoundPlugin:
    spec = spec_of(plugin)
    homes = {role: _home(spec, algorithm) if role == "component" else algorithm for role in sorted(roles)}
    configs = {role: _read(spec.config_of(role), home) for role, home in homes.items()}
    shared = spec.config or next(type(config) for config in configs.values())
    manager = plugin_manager()
    manager.register(plugin.module, plugin.name)
    implemented = {caller.name for caller in manager.get_hookcallers(plugin.module) or ()}
    hooks = {name: getattr(manager.hook, name) for name in HOOKS if name in implemented}
    return BoundPlugin(plugin, spec, configs, _read(shared, next(iter(homes.values()))), hooks)


def _home(spec: AlgorithmSpec, algorithm: AlgorithmSection) -> Any:
    return getattr(algorithm, spec.section) if spec.section else algorithm


def _read(kind: type[AlgorithmConfig], home: Any) -> AlgorithmConfig:
    """The fields of `kind` as `home` has them; the default for those that were left to a role nobody chose."""
    return kind(**{name: getattr(home, name) for name in kind.model_fields if hasattr(home, name)})
