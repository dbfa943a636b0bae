"""From the chosen names to the fields of `algorithm`: the core's, the estimator's, the loss's, and a section a component."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import create_model
from pydantic.fields import FieldInfo

from relax_core.config import AlgorithmSection
from relax_core.discovery import Plugin
from relax_core.errors import LoadError, UsageError
from relax_core.registry import Registry, spec_of
from relax_core.spec import AlgorithmConfig, RoleName


@dataclass(frozen=True, slots=True)
class Choice:
    """The one estimator and the one loss of a run."""

    estimator: Plugin
    loss: Plugin

    def roles_of(self, plugin: Plugin) -> frozenset[RoleName]:
        """The roles that the choice gives a plugin."""
        roles: dict[RoleName, Plugin] = {"estimator": self.estimator, "loss": self.loss}
        return frozenset(role for role, chosen in roles.items() if chosen.name == plugin.name)


def choose(registry: Registry, raw: Mapping[str, Any]) -> Choice:
    """Resolve the names in a raw `algorithm` section.

    A loss left out is the estimator's own, or the one it names; a plugin that is all loss names its estimator.
    """
    name = str(raw.get("advantage_estimator") or registry.default_estimator())
    elsewhere = _estimator_of(registry, name)
    estimator = registry.get(elsewhere or name, "estimator", "algorithm.advantage_estimator")
    loss = raw.get("policy_loss") or (name if elsewhere else _loss_of(estimator))
    if not loss:
        losses = ", ".join(plugin.name for plugin in registry.with_role("loss"))
        raise UsageError(f"'{name}' brings no loss of its own", who="algorithm.policy_loss", fix=f"one of: {losses}")
    return Choice(estimator, registry.get(str(loss), "loss", "algorithm.policy_loss"))


def _estimator_of(registry: Registry, name: str) -> str:
    for plugin in registry.with_role("loss"):
        spec = spec_of(plugin)
        if plugin.name == name and spec.estimator is None and spec.loss is not None:
            return spec.loss.default_estimator
    return ""


def _loss_of(estimator: Plugin) -> str:
    spec = spec_of(estimator)
    return spec.name if spec.loss is not None else spec.estimator.default_loss if spec.estimator is not None else ""


def chosen_fields(plugin: Plugin, roles: frozenset[RoleName]) -> dict[str, FieldInfo]:
    """The fields that a plugin reads in the roles it was chosen for, and those that belong to no role in particular."""
    spec = spec_of(plugin)
    mine = {name: info for role in sorted(roles) for name, info in spec.config_of(role).model_fields.items()}
    elsewhere = {name for role in spec.roles for name in spec.config_of(role).model_fields}
    shared = (spec.config or AlgorithmConfig).model_fields
    return mine | {name: info for name, info in shared.items() if name not in elsewhere}


def compose(registry: Registry, choice: Choice) -> type[AlgorithmSection]:
    """The model of the `algorithm` section for this choice."""
    fields: dict[str, tuple[str, FieldInfo]] = {}
    for owner, name, info in _plugin_fields(registry, choice):
        _add(fields, owner, name, info)
    definitions: dict[str, Any] = {name: (info.annotation, info) for name, (_, info) in fields.items()}
    return create_model("Algorithm", __base__=AlgorithmSection, **definitions)


def _plugin_fields(registry: Registry, choice: Choice) -> Iterator[tuple[str, str, FieldInfo]]:
    for plugin in {chosen.name: chosen for chosen in (choice.estimator, choice.loss)}.values():
        for name, info in chosen_fields(plugin, choice.roles_of(plugin)).items():
            yield plugin.name, name, info
    for plugin in registry.with_role("component"):
        spec = spec_of(plugin)
        config = spec.config_of("component")
        if spec.section:
            info = FieldInfo(annotation=config, default_factory=config, description=spec.summary)
            yield plugin.name, spec.section, info
        elif not choice.roles_of(plugin):
            for name, info in config.model_fields.items():
                yield plugin.name, name, info


def _add(fields: dict[str, tuple[str, FieldInfo]], owner: str, name: str, info: FieldInfo) -> None:
    if name in AlgorithmSection.model_fields:
        raise LoadError(f"field '{name}' of '{owner}' is one of the core's", who=f"algorithm.{name}", fix="rename it")
    if name in fields and _facts(fields[name][1]) != _facts(info):
        raise LoadError(
            f"'{fields[name][0]}' and '{owner}' declare different fields of one name",
            who=f"algorithm.{name}",
            fix="choose one of the two, or give both the same type and default",
        )
    fields.setdefault(name, (owner, info))


def _facts(info: FieldInfo) -> tuple[Any, ...]:
    return info.annotation, info.default, info.default_factory


def fields_of(plugin: Plugin) -> dict[str, FieldInfo]:
    """Every field that a plugin reads in any role, by its dotted path."""
    spec = spec_of(plugin)
    return {f"{spec.prefix}{name}": info for name, info in chosen_fields(plugin, frozenset(spec.roles)).items()}


def owners_of(registry: Registry, name: str) -> list[str]:
    """The plugins that read `algorithm.<name>`, chosen or not."""
    return [
        plugin.name
        for plugin in registry.usable
        if name == spec_of(plugin).section or f"algorithm.{name}" in fields_of(plugin)
    ]
