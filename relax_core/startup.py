"""The start-up check: capabilities x topology x configuration -> everything that is wrong, at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from relax_core.binding import Binding, BoundPlugin
from relax_core.config import RunConfig
from relax_core.errors import FOREIGN, PluginError, describe
from relax_core.plan import Cluster
from relax_core.rules import Run, capabilities, environments, generation, megatron, output, run
from relax_core.rules.cluster import RULES as CLUSTER_RULES
from relax_core.rules.engine_facts import model_place, read_json
from relax_core.runfile import ResolvedRun
from relax_core.topology import Topology, Violation

RULES = (
    *run.RULES,
    *output.RULES,
    *generation.RULES,
    *environments.RULES,
    *megatron.RULES,
    *CLUSTER_RULES,
    *capabilities.RULES,
)


def topology_of(config: RunConfig, binding: Binding) -> Topology:
    """The run as it will be: which roles there are."""
    roles = {"actor", "rollout"}
    if binding.needs("requires_reference"):
        roles.add("reference")
    if binding.needs("requires_critic"):
        roles.add("critic")
    if config.model.teacher_path is not None:
        roles.add("teacher")
    return Topology(config, frozenset(roles))


def check(resolved: ResolvedRun, binding: Binding, cluster: Cluster | None = None) -> list[Violation]:
    """Every violation of the core's rules and of the active plugins', by code; of a Ray run on `cluster`, where known."""
    topology = topology_of(resolved.config, binding)
    return violations(Run(topology, binding, resolved.ignored, resolved.base, _shapes(resolved), cluster))


def violations(subject: Run) -> list[Violation]:
    """As `check`, of a run that no file may have described."""
    found = [violation for each in RULES for violation in each.violations(subject)]
    found += [replace(each, plugin=plugin.name) for plugin, each in _of_plugins(subject.topology, subject.binding)]
    return sorted(found, key=lambda violation: (violation.severity, violation.code, violation.setting))


def _shapes(resolved: ResolvedRun) -> dict[str, Mapping[str, Any]]:
    """The configurations of the models that are directories; a builder's model is not there before the run."""
    names = ("path", "ref_hf_model_path", "critic_path", "teacher_path")
    given = {name: value for name, value in resolved.config.model if name in names and value is not None}
    places = {f"model.{name}": model_place(resolved.base, value) for name, value in given.items()}
    return {setting: read_json(place / "config.json") for setting, place in places.items() if place is not None}


def _of_plugins(topology: Topology, binding: Binding) -> Iterator[tuple[BoundPlugin, Violation]]:
    for plugin in binding.implementing("validate_topology"):
        given = plugin.call("validate_topology", topology=topology, roles=frozenset(plugin.configs)) or ()
        try:
            found = list(given) if isinstance(given, Iterable) else [given]
        except FOREIGN as error:
            raise PluginError(f"validate_topology raised {describe(error)}", who=f"plugin '{plugin.name}'") from error
        if wrong := [each for each in found if not isinstance(each, Violation)]:
            problem = f"validate_topology gave {wrong[0]!r}"
            raise PluginError(problem, who=f"plugin '{plugin.name}'", fix="give nothing but Violation(…)")
        yield from ((plugin, each) for each in found)
