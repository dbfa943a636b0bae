"""Whether the fields and capabilities that a plugin declares can be used by the core."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any, get_args

from relax_core.aggregation import AGGREGATIONS
from relax_core.compose import choose, compose
from relax_core.conformance.check import Check, Problem, checks_in, static
from relax_core.conformance.partner import NAME, partner
from relax_core.errors import FOREIGN, RelaxError, describe, nearest
from relax_core.registry import Registry
from relax_core.spec import BATCH_FIELDS, AlgorithmConfig, NormalizationName, capability

if TYPE_CHECKING:
    from relax_core.conformance.subject import Subject

STRICT = {"extra": "forbid", "strict": True, "frozen": True}
KL_KINDS = frozenset(f"{place}:{kind}" for place in ("loss", "reward") for kind in ("k1", "k2", "k3"))


def configs(subject: Subject) -> list[type[Any]]:
    """Every class of fields that the declaration names."""
    spec = subject.spec
    if spec is None:
        return []
    named = [spec.config, *(role.config for role in spec.roles.values())]
    return list(dict.fromkeys(each for each in named if each is not None))


def usable_configs(subject: Subject) -> Iterator[type[AlgorithmConfig]]:
    """Those that the core can read."""
    return (each for each in configs(subject) if isinstance(each, type) and issubclass(each, AlgorithmConfig))


@static(
    "RLX731",
    "Fields are strict: an unknown key or a wrong type is an error",
    "derive the class from AlgorithmConfig, or ComponentConfig, and leave its model_config alone",
)
def strict(subject: Subject) -> Iterator[Problem]:
    for each in configs(subject):
        name = getattr(each, "__name__", repr(each))
        if each not in list(usable_configs(subject)):
            yield Problem(f"{name} is no AlgorithmConfig", repr(each), "class Config(AlgorithmConfig)")
            continue
        loose = {
            key: each.model_config.get(key) for key, value in STRICT.items() if each.model_config.get(key) != value
        }
        if loose:
            yield Problem(f"{name} is not strict", str(loose), str({key: STRICT[key] for key in loose}))


@static("RLX732", "Every field has a default", "give the field a default: the setting that you recommend")
def has_defaults(subject: Subject) -> Iterator[Problem]:
    for each in usable_configs(subject):
        for name, info in each.model_fields.items():
            if info.is_required():
                yield Problem(f"{each.__name__}.{name} has no default", f"{name}: {info.annotation}", f"{name} = …")


@static("RLX733", "The defaults are valid values of their fields", "give a default of the field's type")
def constructible(subject: Subject) -> Iterator[Problem]:
    for each in usable_configs(subject):
        if any(info.is_required() for info in each.model_fields.values()):
            continue
        try:
            each()
        except FOREIGN as error:
            yield Problem(f"{each.__name__}() raises", " ".join(str(error).split()), "an instance")


@static("RLX734", "Every field is documented", "write a docstring under the field")
def documented(subject: Subject) -> Iterator[Problem]:
    for each in usable_configs(subject):
        for name, info in each.model_fields.items():
            if not (info.description or "").strip():
                yield Problem(f"{each.__name__}.{name} says not what it is", "no docstring", "a docstring under it")


@static(
    "RLX735",
    "The fields can stand in a run file beside the core's and the other plugins'",
    "rename the field or the section",
)
def fits(subject: Subject) -> Iterator[Problem]:
    if not subject.runs or subject.spec is None:
        return
    mine = Registry([subject.plugin_as_loaded, partner()])
    raw = {
        "advantage_estimator": subject.plugin.name if subject.spec.estimator else NAME,
        "policy_loss": subject.plugin.name if subject.spec.loss else NAME,
    }
    components = [each for each in subject.registry.with_role("component") if each.name != subject.plugin.name]
    for registry in (mine, Registry([*mine.plugins, *components])):
        try:
            compose(registry, choose(registry, raw))
        except RelaxError as error:
            yield Problem("the fields cannot stand together", str(error), "fields of their own names")
            return


@static("RLX736", "Flags begin with -- and name fields that there are", "correct the name")
def flags(subject: Subject) -> Iterator[Problem]:
    known = sorted({name for each in usable_configs(subject) for name in each.model_fields})
    for flag in subject.spec.flags if subject.spec is not None else ():
        if not flag.name.startswith("--"):
            yield Problem("a flag has no dashes", flag.name, f"--{flag.name.lstrip('-')}")
        for name in (*flag.fields, *flag.sets):
            if name not in known:
                yield Problem(f"{flag.name} sets no field", name, f"some of: {', '.join(known)}", nearest(name, known))


@static("RLX737", "A capability has a value that the core knows", "write a value that is allowed")
def capabilities(subject: Subject) -> Iterator[Problem]:
    spec = subject.spec
    for role_name, role in spec.roles.items() if spec is not None else ():
        try:
            config = spec.config_of(role_name)()  # type: ignore[union-attr]
        except FOREIGN:
            continue
        for each in fields(role):
            try:
                value = capability(role, each.name, config) if each.name not in ("config", "enabled") else None
            except FOREIGN as error:
                yield Problem(f"{role_name}.{each.name} raises", describe(error), "a value for the default config")
                continue
            if (allowed := _allowed(each.name)) is not None and (unknown := _unknown(value, allowed)):
                yield Problem(f"{role_name}.{each.name} is unknown", unknown, f"some of: {', '.join(sorted(allowed))}")


def _allowed(name: str) -> frozenset[str] | None:
    return {
        "aggregations": frozenset(AGGREGATIONS),
        "kl_modes": KL_KINDS,
        "normalization": frozenset(get_args(NormalizationName)),
        "normalization_use": frozenset({"required", "allowed", "forbidden"}),
        "scope": frozenset({"token", "sequence", "microbatch"}),
    }.get(name)


def _unknown(value: Any, allowed: frozenset[str]) -> str:
    given = [] if value is None else [value] if isinstance(value, str) else list(value)
    return ", ".join(sorted(str(each) for each in given if each not in allowed))


@static(
    "RLX738",
    "There is a configuration to check: the defaults, or for a component one that switches it on",
    "derive its fields from ComponentConfig, or declare `enabled`; or check it with --config",
)
def enabled(subject: Subject) -> Iterator[Problem]:
    spec = subject.spec
    others = any(list(check.find(subject)) for check in (strict, has_defaults, constructible, fits, capabilities))
    if subject.runs and spec is not None and not others and not subject.variants:
        yield Problem("no configuration that was tried switches it on", "defaults, and each field changed", "enabled")


@static("RLX739", "A field of the batch that the plugin declares is its own", "give it another name")
def own_fields(subject: Subject) -> Iterator[Problem]:
    declared = [each.name for each in subject.spec.fields] if subject.spec is not None else []
    for name in dict.fromkeys(declared):
        if name in BATCH_FIELDS:
            yield Problem(f"'{name}' is a field that a batch has by itself", name, "a name of its own")
        elif declared.count(name) > 1:
            yield Problem(f"'{name}' is declared twice", name, "one declaration")


CHECKS: tuple[Check, ...] = checks_in(globals())
