"""What a plan asks for and a cluster lacks, and the numbers that would fit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from math import ceil, floor
from typing import Literal

from relax_core.plan import TOLERANCE, Bundle, Cluster, Node, Plan, engine_ranks, placed
from relax_core.rules import Finding
from relax_core.topology import Topology

Kind = Literal["cpus", "gpus"]
PARTS = 10_000
"""Of one CPU or GPU, that Ray counts."""
HALVINGS = 40


def shortages(plan: Plan, cluster: Cluster, topology: Topology) -> Iterator[Finding]:
    """What keeps bundles from finding a node: GPUs, CPUs or both."""
    if _fits(plan, cluster):
        return
    gpus, cpus = _scaled(plan, 0, 1), _scaled(plan, 1, 0)
    if not _fits(gpus, cluster):
        yield _finding(gpus, cluster, "gpus", _gpu_fix(gpus, cluster, topology))
    if _fits(gpus, cluster):
        yield _finding(plan, cluster, "cpus", _cpu_fix(plan, cluster, topology))
    elif not _fits(cpus, cluster):
        yield _finding(cpus, cluster, "cpus", _cpu_fix(cpus, cluster, topology))


def _finding(plan: Plan, cluster: Cluster, kind: Kind, fix: str) -> Finding:
    who, total = _without_place(plan, cluster), sum(getattr(bundle, kind) for bundle in plan.bundles)
    homes = {i for role in plan.roles if role.name in who for i in role.bundles}
    asked, has = [getattr(plan.bundles[i], kind) for i in homes], [getattr(node, kind) for node in cluster.nodes]
    problem = (
        f"no room for {' and '.join(who)}: {sum(asked):g} {kind[:3].upper()}s in all, {max(asked):g} on one node, "
    )
    problem += f"{total:g} with the other roles; the cluster has {sum(has):g} in all, {max(has):g} on one node"
    return f"topology.resources.{who[0]}.{kind}", problem, fix


def _without_place(plan: Plan, cluster: Cluster) -> list[str]:
    """The role of the bundle that is furthest from finding a node, and those that live in its bundles too."""
    homeless = _homeless(plan, cluster)
    homes = next(set(role.bundles) for role in plan.roles if homeless in role.bundles)
    return [role.name for role in plan.roles if homes.intersection(role.bundles)]


def _homeless(plan: Plan, cluster: Cluster) -> int:
    """The largest bundle without a node, the first of them."""
    left = [i for i, node in enumerate(placed(plan, cluster)) if node is None]
    return max(left, key=lambda i: (plan.bundles[i].gpus, plan.bundles[i].cpus))


def _cpu_fix(plan: Plan, cluster: Cluster, topology: Topology) -> str:
    """The largest share of what every process asks at which all of them fit."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _fits(_scaled(plan, middle, 1), cluster) else (low, middle)
    asking = [role.name for role in plan.roles if role.actors]
    asked = {f"topology.resources.{name}.cpus": _cpus(topology, name) * low for name in asking}
    if min(asked.values()) < 1 / PARTS:
        return f"take a cluster of {sum(bundle.cpus for bundle in plan.bundles):g} CPUs"
    return f"write {', '.join(f'{name}: {_rounded(value):g}' for name, value in asked.items())} or less"


def _cpus(topology: Topology, role: str) -> float:
    return float(getattr(topology.run.topology.resources, role).cpus)


def _rounded(asked: float) -> float:
    return floor(asked * PARTS + TOLERANCE) / PARTS


def _gpu_fix(plan: Plan, cluster: Cluster, topology: Topology) -> str:
    role = _without_place(plan, cluster)[0]
    asked, most = plan.bundles[_homeless(plan, cluster)].gpus, max(node.gpus for node in cluster.nodes)
    if asked > most:
        return f"take nodes of {asked:g} GPUs{_or_smaller(role, most / asked, topology)}"
    least = ceil(sum(bundle.gpus for bundle in plan.bundles) / most)
    needed = next(n for n in count(least) if _fits(plan, Cluster((Node(0, most),) * n)))
    return f"take {needed} nodes of {most:g} GPUs{_or_fewer(role, plan, cluster, topology)}"


def _or_smaller(role: str, part: float, topology: Topology) -> str:
    """What makes a bundle of this role `part` of what it is."""
    setting, size = _size(role, topology)
    smaller = _rounded(size * part) if setting.endswith("gpus") else floor(size * part)
    if part == 0:
        return f", or write {setting}: 0" if setting.endswith("gpus") else ", or write trainer.device: auto"
    return f", or write {setting}: {smaller:g} or less" if smaller else ""


def _size(role: str, topology: Topology) -> tuple[str, float]:
    """The setting that makes a bundle of this role as large as it is, and its value."""
    resources, tensor = topology.run.topology.resources, topology.run.topology.tensor_model_parallel_size
    given, engine = getattr(resources, role).gpus, engine_ranks(topology)
    if given is not None:
        return f"topology.resources.{role}.gpus", given
    if role == "rollout" or (role == "actor" and resources.rollout.colocated and engine > tensor):
        return "rollout.tensor_parallel_size", engine
    return "topology.tensor_model_parallel_size", tensor


def _or_fewer(role: str, plan: Plan, cluster: Cluster, topology: Topology) -> str:
    """What there is room for beside the roles before it."""
    nodes = placed(plan, cluster)
    (actors,) = (each.actors for each in plan.roles if each.name == role)
    fitting = sum(nodes[actor.bundle] is not None for actor in actors)
    if role not in ("actor", "rollout", "advantages"):
        return f", or write topology.resources.{role}.colocated: true"
    replicas = fitting * topology.run.topology.data_parallel_size // len(actors)
    fewer, setting = (replicas, "data_parallel_size") if role == "actor" else (fitting, f"resources.{role}.actors")
    return f", or write topology.{setting}: {fewer} or less" if fewer else ""


def _scaled(plan: Plan, cpus: float, gpus: float) -> Plan:
    return Plan(tuple(Bundle(cpus * each.cpus, gpus * each.gpus) for each in plan.bundles), plan.roles)


def _fits(plan: Plan, cluster: Cluster) -> bool:
    return None not in placed(plan, cluster)
