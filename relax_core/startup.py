"""The start-up check: capabilities x topology x configuration -> everything that is wrong, at once."""

from __future__ import annotations

from dataclasses import replace

from relax_core.binding import Binding
from relax_core.rules import Run, capabilities, generation, run
from relax_core.runfile import ResolvedRun
from relax_core.topology import Topology, Violation

RULES = (*run.RULES, *generation.RULES, *capabilities.RULES)


def topology_of(resolved: ResolvedRun, binding: Binding) -> Topology:
    """The run as it will be: which roles there are."""
    roles = {"actor", "rollout"}
    if binding.needs("requires_reference"):
        roles.add("reference")
    if binding.needs("requires_critic"):
        roles.add("critic")
    if resolved.config.model.teacher_path is not None:
        roles.add("teacher")
    return Topology(resolved.config, frozenset(roles))


def check(resolved: ResolvedRun, binding: Binding) -> list[Violation]:
    """Every violation of the core's rules and of the active plugins', by code."""
    topology = topology_of(resolved, binding)
    subject = Run(topology, binding, resolved.ignored, resolved.base)
    found = [violation for each in RULES for violation in each.violations(subject)]
    for plugin in binding.implementing("validate_topology"):
        given = plugin.call("validate_topology", topology=topology, roles=frozenset(plugin.configs)) or ()
        found += [replace(violation, plugin=plugin.name) for violation in given]
    return sorted(found, key=lambda violation: (violation.severity, violation.code, violation.setting))
