"""Flags of a run, generated from the fields of the configuration and of every plugin that is there."""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from relax_core.compose import fields_of
from relax_core.config import FLAGS, RunConfig
from relax_core.errors import UsageError, nearest
from relax_core.registry import Registry, spec_of
from relax_core.spec import Flag

APART = ("evaluation.", "rollout.environment.")
"""Paths of sections whose fields have the names of others: no last name stands for one, nor is less unique for it."""


@dataclass(frozen=True, slots=True)
class RunFlag:
    """A flag: the dotted paths that its value goes to, or the constants that it sets; `summary` is its help."""

    name: str
    paths: tuple[str, ...]
    info: FieldInfo | None = None
    sets: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""

    @property
    def help(self) -> str:
        """What it is, and its default where it has one."""
        known = self.info is not None and not self.info.is_required() and self.info.default not in (None, "")
        return f"{self.summary} Default: {self.info.default}." if known and self.info is not None else self.summary

    @property
    def is_switch(self) -> bool:
        """Whether it stands alone: constants, or a yes-or-no field."""
        return self.info is None or self.info.annotation is bool


def normalized(name: str) -> str:
    """One spelling: `--clip_ratio_low` is `--clip-ratio-low`."""
    return name.replace("_", "-")


def flag_table(registry: Registry) -> dict[str, RunFlag]:
    """Every flag by its normalised name: by path, by a last name that is unique, and the declared aliases."""
    core = dict(_leaves(RunConfig, ""))
    plugins = {path: info for path, info in _plugin_leaves(registry) if path not in core}
    leaves = core | plugins
    named = {normalized(f"--{path}"): (path, info) for path, info in leaves.items()}
    common = {path: info for path, info in core.items() if not path.startswith(APART)}
    short = _short(common, set()) | _short(plugins, {path.split(".")[-1] for path in common})
    flags = {
        name: RunFlag(name, (path,), info, summary=info.description or "")
        for name, (path, info) in (short | named).items()
    }
    for flag, prefix in [(flag, "") for flag in FLAGS] + list(_plugin_flags(registry)):
        flags[normalized(flag.name)] = _alias(flag, prefix, leaves)
    return flags


def parse(
    arguments: list[str], table: Mapping[str, RunFlag], own: Mapping[str, bool]
) -> tuple[dict[str, Any], list[str]]:
    """The values of generated flags by dotted path, and the arguments that are none.

    `own` are the command's own options, and whether each takes a value. Raises `UsageError` for an unknown flag or a
    value that is missing.
    """
    overrides: dict[str, Any] = {}
    others: list[str] = []
    rest = list(arguments)
    while rest:
        token = rest.pop(0)
        name, equals, attached = token.partition("=")
        if not token.startswith("--") or name in own:
            others += [token, rest.pop(0)] if own.get(name) and not equals and rest else [token]
            continue
        flag, negated = _find(normalized(name), table)
        if flag.is_switch and not equals:
            value = _switch(rest, negated)
        elif equals or rest:
            value = attached if equals else rest.pop(0)
        else:
            raise UsageError("needs a value", who=name, fix=f"write {name} VALUE")
        overrides |= flag.sets if flag.info is None else {path: _typed(value, flag.info) for path in flag.paths}
    return overrides, others


def _leaves(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, info in model.model_fields.items():
        yield from _expanded(f"{prefix}{name}", info)


def _expanded(path: str, info: FieldInfo) -> Iterator[tuple[str, FieldInfo]]:
    if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
        yield from _leaves(info.annotation, f"{path}.")
    else:
        yield path, info


def _plugin_leaves(registry: Registry) -> Iterator[tuple[str, FieldInfo]]:
    for plugin in registry.usable:
        for path, info in fields_of(plugin).items():
            yield from _expanded(path, info)


def _plugin_flags(registry: Registry) -> Iterator[tuple[Flag, str]]:
    for plugin in registry.usable:
        spec = spec_of(plugin)
        for flag in spec.flags:
            yield flag, spec.prefix


def _short(leaves: Mapping[str, FieldInfo], taken: set[str]) -> dict[str, tuple[str, FieldInfo]]:
    count = Counter(path.split(".")[-1] for path in leaves)
    return {
        normalized(f"--{last}"): (path, info)
        for path, info in leaves.items()
        if count[last := path.split(".")[-1]] == 1 and last not in taken
    }


def _alias(flag: Flag, prefix: str, leaves: Mapping[str, FieldInfo]) -> RunFlag:
    paths = tuple(f"{prefix}{name}" for name in flag.fields)
    sets = {f"{prefix}{name}": value for name, value in flag.sets.items()}
    first = leaves.get(paths[0]) if paths else None
    means = ", ".join(f"{path.removeprefix('algorithm.')}={value}" for path, value in sets.items())
    default = means or (first.description if first and first.description else "")
    return RunFlag(flag.name, paths, first, sets, flag.summary or default)


def _find(name: str, table: Mapping[str, RunFlag]) -> tuple[RunFlag, bool]:
    if name in table:
        return table[name], False
    positive = "--" + name.removeprefix("--no-")
    if positive in table and table[positive].is_switch and table[positive].info is not None:
        return table[positive], True
    fix = nearest(name, list(table)) or "relax train --help lists them"
    raise UsageError(f"unknown flag '{name}'", who="relax", fix=fix)


def _switch(rest: list[str], negated: bool) -> str:
    value = rest.pop(0).lower() if rest and rest[0].lower() in ("true", "false") else "true"
    return value if not negated else "false" if value == "true" else "true"


def _typed(text: str, info: FieldInfo) -> Any:
    try:
        value = YAML(typ="safe").load(text)
    except YAMLError:
        return text
    kinds = _kinds(info.annotation)
    if kinds <= {str, type(None)} and not (value is None and type(None) in kinds):
        return text
    return [value] if list in kinds and not isinstance(value, list) else value


def _kinds(annotation: Any) -> set[Any]:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return {kind for each in get_args(annotation) for kind in _kinds(each)}
    if origin is not None and not isinstance(origin, type):
        return {type(each) for each in get_args(annotation)}
    return {origin or annotation}
