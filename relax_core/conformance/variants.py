"""The configurations under which a plugin is checked: its defaults, switched on, and one field at a time otherwise."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from relax_core.binding import HOOK_ROLES, Binding, BoundPlugin, bind
from relax_core.compose import choose, compose
from relax_core.config import DataSection, ModelSection, RolloutSection, RunConfig, TrainerSection
from relax_core.conformance.partner import NAME, partner
from relax_core.discovery import Plugin
from relax_core.errors import FOREIGN, RelaxError
from relax_core.registry import Registry, spec_of
from relax_core.spec import AlgorithmConfig, AlgorithmSpec, RoleName, capability
from relax_core.startup import topology_of

Fields = dict[tuple[str, ...], Any]
"""Values of the `algorithm` section, by their path in it."""


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """One configuration: what differs from the defaults (`label`), and the plugin bound with it.

    `roles` are those whose fields differ; None for the first, which is checked in all of them.
    """

    label: str
    binding: Binding
    bound: BoundPlugin
    run: RunConfig
    roles: frozenset[RoleName] | None = None

    def concerns(self, hook: str) -> bool:
        """Whether this configuration is another one for the hook than the first."""
        return self.roles is None or not self.roles or role_of(self.bound.spec, hook) in self.roles


@dataclass(frozen=True, slots=True)
class _Field:
    path: tuple[str, ...]
    annotation: Any
    default: Any
    roles: frozenset[RoleName]


def role_of(spec: AlgorithmSpec, hook: str) -> RoleName:
    """The role whose declaration speaks for a hook."""
    own = HOOK_ROLES.get(hook)
    if own in spec.roles:
        return own
    return next(role for role in ("component", "loss", "estimator") if role in spec.roles)


def variants(plugin: Plugin, config: Mapping[str, Any] | None = None) -> Iterator[Variant]:
    """The configurations to check. Those that the plugin's own topology rule refuses are left out."""
    spec = spec_of(plugin)
    fields = list(_fields(spec))
    given = {each.path: value for each in fields if (value := _dig(config or {}, each.path)) is not _MISSING}
    switched_on: Fields = given | {each.path: True for each in fields if each.path[-1] == "enable"}
    base = _variant(plugin, switched_on, "", None)
    if base is None:
        changes = ((_assigned(each, value), each, value) for each in fields for value in _others(each, switched_on))
        base = next((found for new, *_ in changes if (found := _variant(plugin, switched_on | new, "", None))), None)
        if base is None:
            return
    yield base
    values = switched_on | {each.path: _dig(base.run.algorithm.model_dump(), each.path) for each in fields}
    for each in fields:
        for value in _others(each, values):
            label = f"{'.'.join(each.path)}={value}"
            found = _variant(plugin, switched_on | _assigned(each, value), label, each.roles)
            if found is not None and not refusals(found):
                yield found


_MISSING = object()


def _fields(spec: AlgorithmSpec) -> Iterator[_Field]:
    found: dict[tuple[str, ...], _Field] = {}
    sources: list[tuple[frozenset[RoleName], type[AlgorithmConfig]]] = [
        (frozenset({role}), spec.config_of(role)) for role in spec.roles
    ]
    for roles, kind in sources:
        prefix = (spec.section,) if "component" in roles and spec.section else ()
        for name, info in kind.model_fields.items():
            path = (*prefix, name)
            before = found[path].roles if path in found else frozenset()
            found[path] = _Field(path, info.annotation, info.get_default(call_default_factory=True), before | roles)
    yield from found.values()


def _others(field: _Field, values: Fields) -> list[Any]:
    """Further values of a field that are worth a try."""
    now = values.get(field.path, field.default)
    if field.path[-1] == "enable":
        return []
    if typing.get_origin(field.annotation) is typing.Literal:
        return [value for value in typing.get_args(field.annotation) if value != now]
    if isinstance(now, bool):
        return [not now]
    return [0.1] if isinstance(now, float) and now == 0 else []


def _assigned(field: _Field, value: Any) -> Fields:
    return {field.path: value}


def _variant(plugin: Plugin, fields: Fields, label: str, roles: frozenset[RoleName] | None) -> Variant | None:
    """The plugin bound with these values; None where they are not allowed or leave it switched off."""
    try:
        binding, run = bound_run(plugin, fields)
    except (ValueError, RelaxError):
        return None
    bound = next((each for each in binding.active if each.name == plugin.name), None)
    if bound is None or set(bound.configs) != set(bound.spec.roles) or not _declarations_work(bound):
        return None
    return Variant(label, binding, bound, run, roles)


def _declarations_work(bound: BoundPlugin) -> bool:
    """Whether every capability has a value under this configuration; RLX737 says where one has not."""
    try:
        for name, config in bound.configs.items():
            for each in dataclasses.fields(bound.spec.roles[name]):
                if each.name not in ("config", "enabled"):
                    capability(bound.spec.roles[name], each.name, config)
    except FOREIGN:
        return False
    return True


def bound_run(plugin: Plugin, fields: Fields) -> tuple[Binding, RunConfig]:
    """The plugin with the stand-in, bound in a run like any other. Raises what an unsuitable configuration raises."""
    spec, registry = spec_of(plugin), Registry([replace(plugin, status="loaded"), partner()])
    raw: dict[str, Any] = {
        "advantage_estimator": plugin.name if spec.estimator else NAME,
        "policy_loss": plugin.name if spec.loss else NAME,
    }
    for (*parents, name), value in fields.items():
        home = raw
        for parent in parents:
            home = home.setdefault(parent, {})
        home[name] = value
    choice = choose(registry, raw)
    algorithm = compose(registry, choice).model_validate(raw)
    return bind(registry, choice, algorithm), a_run(algorithm=algorithm)


def a_run(**sections: Any) -> RunConfig:
    """A plausible run; what `sections` does not name is ordinary."""
    ordinary: dict[str, Any] = {
        "model": ModelSection(path="model", ref_hf_model_path="reference", teacher_path="teacher"),
        "data": DataSection(task="a_task"),
        "rollout": RolloutSection(rollout_batch_size=4, n_samples_per_prompt=4),
        "trainer": TrainerSection(),
    }
    return RunConfig(**{**ordinary, **sections})


def refusals(variant: Variant) -> list[Any]:
    """What the plugin's topology rule says against its own configuration in an ordinary run; warnings do not count."""
    if "validate_topology" not in variant.bound.hooks:
        return []
    try:
        given = variant.bound.call(
            "validate_topology", topology=topology_of(variant.run, variant.binding), roles=roles(variant)
        )
        return [each for each in given or () if each.severity == "error"]
    except FOREIGN:
        return []


def roles(variant: Variant) -> frozenset[RoleName]:
    """The roles that the plugin plays."""
    return frozenset(variant.bound.configs)


def needs(variant: Variant, name: str) -> Any:
    """The largest value of a capability over the plugin's own roles."""
    found = [
        capability(variant.bound.spec.roles[role], name, config)
        for role, config in variant.bound.configs.items()
        if hasattr(variant.bound.spec.roles[role], name)
    ]
    return max(found, default=0)


def _dig(values: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    found: Any = values
    for part in path:
        if not isinstance(found, Mapping) or part not in found:
            return _MISSING
        found = found[part]
    return found
