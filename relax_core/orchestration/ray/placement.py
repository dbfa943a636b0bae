"""Where Ray puts a run's processes: one placement group, made by the plan that `relax check` shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from relax_core.errors import RunError
from relax_core.plan import Actor, Plan, plan_of
from relax_core.topology import Topology

SHARED_GPUS = "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"


class Placement:
    """The bundles of a run, held until `close`. Raises RunError where the cluster does not give them in time."""

    def __init__(self, topology: Topology) -> None:
        self.settings = topology.run.topology
        plan = plan_of(topology, gpus=ray.cluster_resources().get("GPU", 0) > 0)
        assert plan is not None, "the start-up check refuses a plan that cannot be"
        self.plan: Plan = plan
        self._group = placement_group([_asked(each.cpus, each.gpus) for each in plan.bundles], strategy="PACK")
        if not self._group.wait(self.settings.start_timeout):
            remove_placement_group(self._group)
            raise RunError(self._shortage(), who="ray", fix="make room in the cluster, or raise topology.start_timeout")

    def options(self, role: str, env: Sequence[Mapping[str, str]] = ()) -> list[dict[str, Any]]:
        """What Ray is asked for, for each actor of a role; nothing for a role that has none of its own.

        `env` are variables of each actor, beside those of the role.
        """
        actors = [actor for each in self.plan.roles if each.name == role for actor in each.actors]
        return [self._option(actor, role, own) for actor, own in zip(actors, env or [{}] * len(actors), strict=True)]

    def close(self) -> None:
        """Give the bundles back."""
        with suppress(Exception):  # the cluster may be gone before the run is
            remove_placement_group(self._group)

    def _option(self, actor: Actor, role: str, env: Mapping[str, str]) -> dict[str, Any]:
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=actor.bundle)
        given = getattr(self.settings.resources, role).env
        variables = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "HF_HUB_OFFLINE": "1", **self._interface(), **env, **given}
        return {
            "num_cpus": actor.cpus,
            "num_gpus": actor.gpus,
            "scheduling_strategy": strategy,
            "runtime_env": {"env_vars": variables},
        }

    def _interface(self) -> dict[str, str]:
        """Where the cluster is this machine alone, its ranks speak on the loopback interface alone."""
        is_local = self.settings.address is None and self.settings.host == "127.0.0.1"
        return {"GLOO_SOCKET_IFNAME": "lo"} if is_local else {}

    def _shortage(self) -> str:
        has, wanted = ray.available_resources(), self.plan.bundles
        cpus, gpus = sum(each.cpus for each in wanted), sum(each.gpus for each in wanted)
        free = f"{has.get('CPU', 0):g} CPUs and {has.get('GPU', 0):g} GPUs are free"
        return f"{cpus:g} CPUs and {gpus:g} GPUs were not given in {self.settings.start_timeout:g} s; {free}"


def shared_gpus(gpus: Sequence[str]) -> dict[str, str]:
    """The variables with which an engine finds the GPUs that it shares with ranks of the actor."""
    named = ",".join(gpus)
    return {SHARED_GPUS: "1", "CUDA_VISIBLE_DEVICES": named} if named else {}


def _asked(cpus: float, gpus: float) -> dict[str, float]:
    return {name: amount for name, amount in (("CPU", cpus), ("GPU", gpus)) if amount > 0}
