"""The plan of a Ray run, as a table and as JSON, and the cluster that it is checked against."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any

from relax_core.cli.table import aligned
from relax_core.config import RunConfig, TopologySection
from relax_core.errors import UsageError
from relax_core.plan import Cluster, Node, Plan, PlannedRole, placed, plan_of, spread
from relax_core.rules.engine_facts import this_machine
from relax_core.topology import Topology

OPTION = "--assume-cluster"
FORM = re.compile(r"nodes=([1-9]\d{0,4}),gpus=(\d{1,4})(?:,cpus=([1-9]\d{0,4}))?", re.ASCII)
CPUS = 64
"""Of a node, where they are left out."""


def parse(text: str) -> Cluster:
    """`nodes=8,gpus=8,cpus=96` -> 8 nodes, each with 8 GPUs and 96 CPUs; raises `UsageError` for anything else."""
    match = FORM.fullmatch(text)
    if match is None:
        fix = "write nodes=8,gpus=8 or nodes=8,gpus=8,cpus=96, GPUs and CPUs those of each node"
        raise UsageError(f"'{text}' does not describe a cluster", who=OPTION, fix=fix)
    nodes, gpus, cpus = match.groups()
    return Cluster((Node(float(cpus or CPUS), float(gpus)),) * int(nodes))


def cluster_of(config: RunConfig, assumed: str | None) -> Cluster | None:
    """Where Ray would place the run: on this machine, or on the cluster that it joins; None for a local run."""
    given = None if assumed is None else parse(assumed)
    if config.topology.orchestrator != "ray" or given is not None:
        return given if config.topology.orchestrator == "ray" else None
    return this_machine() if config.topology.address is None else _there(config.topology)


@cache
def _asked_at(address: str) -> Cluster | None:
    from relax_core.orchestration.ray.cluster import nodes_at

    return Cluster(tuple(Node(cpus, gpus) for cpus, gpus in nodes_at(address)))


def _there(topology: TopologySection) -> Cluster | None:
    """The cluster that exists; None where Ray, which alone can ask it, is not installed (RLX170 says so)."""
    return _asked_at(str(topology.address)) if find_spec("ray") is not None else None


def plan_on(topology: Topology, cluster: Cluster | None) -> Plan | None:
    """The plan of a Ray run; None for a local run, and for one without a plan. An unknown cluster has GPUs."""
    is_ray = topology.run.topology.orchestrator == "ray"
    return plan_of(topology, cluster is None or cluster.has_gpus) if is_ray else None


def plan_lines(plan: Plan | None, cluster: Cluster | None) -> Iterator[str]:
    """A line a role, none without a plan; the column of nodes is there where the cluster is known."""
    if plan is None:
        return
    nodes = None if cluster is None else placed(plan, cluster)
    rows = [("ROLE", "ACTORS", "GPUS", "CPUS", "NODES")]
    rows += [(role.name, *_asked(role, plan.roles[0]), _spread(role, nodes)) for role in plan.roles]
    yield from aligned(rows if nodes else [row[:-1] for row in rows])


def _asked(role: PlannedRole, first: PlannedRole) -> tuple[str, str, str]:
    if role.within:
        return f"in {role.within}", "-", "-"
    takes_turns = role is not first and set(role.bundles) <= set(first.bundles)
    return str(len(role.actors)), f"{first.name}'s" if takes_turns else f"{role.gpus:g}", f"{role.cpus:g}"


def _spread(role: PlannedRole, nodes: tuple[int | None, ...] | None) -> str:
    if role.within or nodes is None:
        return "-"
    found = [nodes[bundle] for bundle in role.bundles]
    known = spread(node for node in found if node is not None)
    return ", ".join(part for part in (known, "no place" if None in found else "") if part)


def plan_as_json(plan: Plan | None, cluster: Cluster | None) -> dict[str, Any] | None:
    """Bundles with the index of their node, null where it finds none or none is known; roles with their bundles."""
    if plan is None:
        return None
    nodes = (None,) * len(plan.bundles) if cluster is None else placed(plan, cluster)
    bundles = [
        {"cpus": bundle.cpus, "gpus": bundle.gpus, "node": node}
        for bundle, node in zip(plan.bundles, nodes, strict=True)
    ]
    roles = [
        {
            "role": role.name,
            "in": role.within or None,
            "actors": len(role.actors),
            "gpus": role.gpus,
            "cpus": role.cpus,
            "bundles": [actor.bundle for actor in role.actors],
        }
        for role in plan.roles
    ]
    known = None if cluster is None else [{"cpus": node.cpus, "gpus": node.gpus} for node in cluster.nodes]
    return {"cluster": known, "bundles": bundles, "roles": roles}
