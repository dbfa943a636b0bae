"""Where the processes of a Ray run go: its roles, the bundles that they live in, and the nodes that hold the bundles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from relax_core.config import AdvantagesResources, RoleResources, RolloutResources, TrainedResources
from relax_core.topology import Topology

ROLES = ("actor", "critic", "reference", "teacher", "rollout", "advantages")
TOLERANCE = 1e-6
"""Ray counts in ten-thousandths; ten tenths of a CPU are one, whatever their sum in floating point."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """CPU cores and GPUs that one node gives."""

    cpus: float
    gpus: float


@dataclass(frozen=True, slots=True)
class Actor:
    """A Ray actor: what it asks of the bundle with this index."""

    bundle: int
    cpus: float
    gpus: float


@dataclass(frozen=True, slots=True)
class PlannedRole:
    """A role with its actors by rank; `within` is the role in whose processes it lives, where it has none of its own."""

    name: str
    actors: tuple[Actor, ...]
    within: str = ""

    @property
    def bundles(self) -> list[int]:
        """Those that it lives in, each once."""
        return sorted({actor.bundle for actor in self.actors})

    @property
    def cpus(self) -> float:
        """Of all its actors."""
        return sum((actor.cpus for actor in self.actors), 0.0)

    @property
    def gpus(self) -> float:
        """Of all its actors; 0 where they take turns on another role's."""
        return sum((actor.gpus for actor in self.actors), 0.0)


@dataclass(frozen=True, slots=True)
class Plan:
    """One placement group: its bundles in order, and who lives in which."""

    bundles: tuple[Bundle, ...]
    roles: tuple[PlannedRole, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """CPU cores and GPUs that one node has."""

    cpus: float
    gpus: float


@dataclass(frozen=True, slots=True)
class Cluster:
    """What there is to place a run on."""

    nodes: tuple[Node, ...]

    @property
    def has_gpus(self) -> bool:
        return any(node.gpus > 0 for node in self.nodes)


def trained_processes(topology: Topology) -> int:
    """Of the actor, and of every trained role that is apart from it."""
    return topology.run.topology.ranks if topology.run.trainer.engine == "megatron" else 1


def engine_ranks(topology: Topology) -> int:
    """Processes of one engine that samples."""
    return topology.run.rollout.tensor_parallel_size if topology.run.rollout.engine == "vllm" else 1


def can_share(topology: Topology) -> bool:
    """Whether the engines can share the actor's processes: one size divides the other, and there are enough."""
    tensor, engine = topology.run.topology.tensor_model_parallel_size, engine_ranks(topology)
    engines = topology.run.topology.resources.rollout.actors
    return max(tensor, engine) % min(tensor, engine) == 0 and engines * engine <= trained_processes(topology)


def plan_of(topology: Topology, gpus: bool) -> Plan | None:
    """The placement of a run on a cluster that has `gpus` or has none; None where colocated engines find no processes.

    What shares layers shares a node: a bundle holds the actor's tensor-parallel ranks, and those of a colocated engine.
    """
    if topology.run.topology.resources.rollout.colocated and not can_share(topology):
        return None
    on_gpus = {"auto": gpus, "cpu": False, "cuda": True}[topology.run.trainer.device]
    roles: list[PlannedRole] = []
    for name in ROLES:
        if name in topology.roles or name == "advantages":
            resources: RoleResources = getattr(topology.run.topology.resources, name)
            free = 1 + max((actor.bundle for role in roles for actor in role.actors), default=-1)
            actors = tuple(_actors(topology, resources, on_gpus, free))
            roles.append(PlannedRole(name, actors, "" if actors else "actor"))
    return Plan(_bundles([actor for role in roles for actor in role.actors]), tuple(roles))


def _actors(topology: Topology, resources: RoleResources, on_gpus: bool, free: int) -> Iterator[Actor]:
    """Of one role, in bundles from `free` on or, where it is colocated, in the actor's, which begin at 0."""
    gpus = float(on_gpus) if resources.gpus is None else resources.gpus
    if isinstance(resources, AdvantagesResources):
        yield from (Actor(free + i, resources.cpus, gpus) for i in range(resources.actors))
    elif isinstance(resources, RolloutResources):
        yield from _engines(topology, resources, gpus, free)
    elif not isinstance(resources, TrainedResources):
        yield from _trainers(topology, resources, gpus, free, _actor_bundle(topology))
    elif not resources.colocated:
        yield from _trainers(topology, resources, gpus, free, topology.run.topology.tensor_model_parallel_size)


def _trainers(topology: Topology, resources: RoleResources, gpus: float, free: int, size: int) -> Iterator[Actor]:
    yield from (Actor(free + rank // size, resources.cpus, gpus) for rank in range(trained_processes(topology)))


def _engines(topology: Topology, resources: RolloutResources, gpus: float, free: int) -> Iterator[Actor]:
    """A colocated engine takes turns on the actor's GPUs, and asks for none of its own."""
    ranks, size = engine_ranks(topology), _actor_bundle(topology)
    for i in range(resources.actors):
        bundle, own = (i * ranks // size, 0.0) if resources.colocated else (free + i, ranks * gpus)
        yield Actor(bundle, ranks * resources.cpus, own)


def _actor_bundle(topology: Topology) -> int:
    """Of the actor's processes, those that share a bundle."""
    tensor = topology.run.topology.tensor_model_parallel_size
    return max(tensor, engine_ranks(topology)) if topology.run.topology.resources.rollout.colocated else tensor


def _bundles(actors: Sequence[Actor]) -> tuple[Bundle, ...]:
    cpus, gpus = ([0.0] * (1 + max(actor.bundle for actor in actors)) for _ in range(2))
    for actor in actors:
        cpus[actor.bundle] += actor.cpus
        gpus[actor.bundle] += actor.gpus
    return tuple(map(Bundle, cpus, gpus))


def placed(plan: Plan, cluster: Cluster) -> tuple[int | None, ...]:
    """The node of each bundle, the first that has room left; None for a bundle that finds no place."""
    cpus, gpus = [node.cpus for node in cluster.nodes], [node.gpus for node in cluster.nodes]
    nodes: list[int | None] = []
    for bundle, alike in groupby(plan.bundles):
        node = 0
        for _ in alike:
            while node < len(cpus) and (bundle.cpus > cpus[node] + TOLERANCE or bundle.gpus > gpus[node] + TOLERANCE):
                node += 1  # what one bundle does not fit into, the next like it does not either
            if node < len(cpus):
                cpus[node] -= bundle.cpus
                gpus[node] -= bundle.gpus
            nodes.append(node if node < len(cpus) else None)
    return tuple(nodes)


def spread(nodes: Iterable[int]) -> str:
    """`0`, `0–5`, or `0, 3`."""
    runs = [
        [node for _, node in run] for _, run in groupby(enumerate(sorted(set(nodes))), lambda each: each[1] - each[0])
    ]
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
