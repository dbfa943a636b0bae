"""Rules about a run that Ray places: what it asks of the cluster, what can share devices, and what each mode allows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.util import find_spec

from relax_core.config import RoleResources, TopologySection
from relax_core.plan import can_share, engine_ranks, plan_of, trained_processes
from relax_core.rules import Finding, Run, rule, rules_in
from relax_core.rules.shortage import shortages

RAY_ONLY = ("address", "host", "dashboard", "resources", "max_restarts", "start_timeout", "timeout")
SHARED = ("critic", "reference", "teacher")
"""Roles that can live in the actor's processes."""


def _is_used(run: Run) -> bool:
    return run.topology.run.topology.orchestrator == "ray"


def _differs(section: TopologySection | RoleResources, name: str) -> bool:
    return bool(getattr(section, name) != type(section).model_fields[name].default)


@rule("RLX170", "Ray is installed where it orchestrates")
def installed(run: Run) -> Iterable[Finding]:
    if _is_used(run) and find_spec("ray") is None:
        yield "topology.orchestrator", "the extra 'ray' is not installed", "pip install 'relax-rl[ray]'"


@rule("RLX171", "The cluster has room for every process")
def cluster_has_room(run: Run) -> Iterable[Finding]:
    if _is_used(run) and run.cluster is not None and (plan := plan_of(run.topology, run.cluster.has_gpus)):
        yield from shortages(plan, run.cluster, run.topology)


@rule("RLX172", "Colocated engines have the actor's processes to share")
def engines_can_share(run: Run) -> Iterable[Finding]:
    topology, rollout = run.topology.run.topology, run.topology.run.topology.resources.rollout
    if not _is_used(run) or not rollout.colocated or can_share(run.topology):
        return
    tensor, size, ranks = (
        topology.tensor_model_parallel_size,
        engine_ranks(run.topology),
        trained_processes(run.topology),
    )
    if max(tensor, size) % min(tensor, size):
        problem = f"engines of {size} ranks cannot take turns with trainers of {tensor}: neither size divides the other"
        divisors = ", ".join(str(n) for n in range(1, tensor + 1) if tensor % n == 0)
        yield "rollout.tensor_parallel_size", problem, f"write one of {divisors}, or a multiple of {tensor}"
    if size > ranks:
        problem = f"an engine of {size} ranks does not fit into the actor's {ranks} processes"
        yield "rollout.tensor_parallel_size", problem, f"write {ranks} or less, or resources.rollout.colocated: false"
    elif rollout.actors * size > ranks:
        problem = f"{rollout.actors} engines of {size} ranks do not fit into the actor's {ranks} processes"
        yield "topology.resources.rollout.actors", problem, f"write {ranks // size} or less"


@rule("RLX173", "Generation that overlaps training has devices of its own")
def engines_are_apart(run: Run) -> Iterable[Finding]:
    mode = run.topology.mode
    if _is_used(run) and mode != "sync" and run.topology.run.topology.resources.rollout.colocated:
        problem = f"in mode '{mode}' the engines sample while the actor trains, and cannot take turns with it"
        yield "topology.resources.rollout.colocated", problem, "write colocated: false, or trainer.mode: sync"


@rule("RLX174", "A reference that moves lives with the actor")
def moving_reference_is_colocated(run: Run) -> Iterable[Finding]:
    moves = run.binding.most("reference_update_interval") > 0
    if _is_used(run) and moves and not run.topology.run.topology.resources.reference.colocated:
        problem = "a reference that follows the policy takes its weights within the actor's processes"
        yield "topology.resources.reference.colocated", problem, "write colocated: true"


@rule("RLX175", "Settings of a Ray run are read by it", "warning")
def settings_are_read(run: Run) -> Iterable[Finding]:
    topology = run.topology.run.topology
    if _is_used(run):
        yield from _unread(run)
        return
    for name in RAY_ONLY:
        if _differs(topology, name):
            fix = "leave it out, or write orchestrator: ray"
            yield f"topology.{name}", f"the {topology.orchestrator} orchestrator does not read it", fix


def _unread(run: Run) -> Iterator[Finding]:
    """Of what a role asks: where it has no processes of its own, or takes turns on another's GPUs."""
    resources = run.topology.run.topology.resources
    for role in SHARED:
        section = getattr(resources, role)
        asked = [f"topology.resources.{role}.{name}" for name in RoleResources.model_fields if _differs(section, name)]
        if role not in run.topology.roles:
            yield from ((setting, f"this run has no {role}", "leave it out") for setting in asked)
        elif section.colocated:
            fix = f"write it for topology.resources.actor, or write resources.{role}.colocated: false"
            yield from ((setting, f"the {role} lives in the actor's processes", fix) for setting in asked)
    if resources.rollout.colocated and resources.rollout.gpus is not None:
        problem = "colocated engines take turns on the actor's GPUs"
        yield "topology.resources.rollout.gpus", problem, "leave it out, or write colocated: false"


@rule("RLX176", "Ports and dashboard are those of a cluster of the run's own", "warning")
def cluster_has_bound(run: Run) -> Iterable[Finding]:
    topology = run.topology.run.topology
    for name in ("host", "dashboard") if _is_used(run) and topology.address is not None else ():
        if _differs(topology, name):
            problem = f"the cluster at {topology.address} has bound its ports already"
            yield f"topology.{name}", problem, "leave it out, or leave out topology.address"


@rule("RLX177", "A critic is trained in step with the policy")
def critic_is_synchronous(run: Run) -> Iterable[Finding]:
    if _is_used(run) and run.topology.mode != "sync" and run.binding.needs("requires_critic"):
        problem = f"'{run.binding.estimator.name}' has a critic, which is not trained in mode '{run.topology.mode}'"
        yield "trainer.mode", problem, "write trainer.mode: sync, or choose an estimator without one"


@rule("RLX178", "Mode hybrid is one rollout ahead")
def hybrid_is_one_ahead(run: Run) -> Iterable[Finding]:
    stale = run.topology.max_staleness
    if _is_used(run) and run.topology.mode == "hybrid" and stale != 1:
        problem = f"mode 'hybrid' generates one rollout ahead, whose samples are 1 version old, not {stale}"
        yield "trainer.max_staleness", problem, "write max_staleness: 1"


@rule("RLX179", "Partial rollouts are those of mode sync")
def partial_is_synchronous(run: Run) -> Iterable[Finding]:
    why = {
        "hybrid": "mode 'hybrid' finishes the responses of every rollout",
        "async": "mode 'async' goes on with responses while the weights change, by itself",
    }
    if _is_used(run) and run.topology.run.rollout.partial_rollout and run.topology.mode in why:
        fix = "write partial_rollout: false, or trainer.mode: sync"
        yield "rollout.partial_rollout", why[run.topology.mode], fix


RULES = rules_in(globals())
