"""The golden vectors on one of two real processes: `python -m tests.runtime.spread DIRECTORY RANK`."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from relax_core.conformance.case import declared_fields, rollout_of, runtime_for
from relax_core.conformance.cuts import Layout, actor_on_rank, cut
from relax_core.conformance.threads import Grid
from relax_core.groups import DistributedGroup, Solo
from relax_core.registry import Registry
from relax_core.spec import capability
from tests.conftest import load_cases

LAYOUTS = {"context": Layout(context_parallel=2), "data": Layout(data_parallel=2)}
REGISTRY = Registry.load()


def cases() -> list[dict]:
    """Every vector but the critic's."""
    return load_cases(lambda case: "new_values" not in case["sequences"][0])


def supports(case: dict, layout: str) -> bool:
    """A loss over a micro-batch sees the sequences of its rank alone, and declares that."""
    declared = {"context": ("supports_context_parallel", True), "data": ("scope", "microbatch")}[layout]
    found = [
        capability(role, declared[0], config)
        for _, _, role, config in runtime_for(case, REGISTRY).binding.roles()
        if hasattr(role, declared[0])
    ]
    return all(found) if layout == "context" else declared[1] not in found


def work(directory: Path, rank: int) -> None:
    torch.set_num_threads(1)
    store = f"file://{directory}/meeting"
    dist.init_process_group("gloo", store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    world = DistributedGroup(dist.group.WORLD)
    grids = {"context": Grid(Solo(), world, world), "data": Grid(world, Solo(), world)}
    found = {}
    for case in cases():
        for name, layout in LAYOUTS.items():
            if supports(case, name):
                rollout = rollout_of(case, torch.float64, declared_fields(case, REGISTRY))
                cuts = cut(rollout, layout, seed=1)
                outcome = actor_on_rank(runtime_for(case, REGISTRY), rollout, forward_of(case), cuts, grids[name])
                found[f"{case['name']} {name}"] = {each: getattr(outcome, each) for each in outcome.__slots__}
    torch.save(found, directory / f"{rank}.pt")
    dist.barrier()
    os._exit(0)


def forward_of(case: dict) -> dict[str, torch.Tensor]:
    keys = {"log_probs": "logp", "entropy": "entropy"}
    return {
        name: torch.tensor([x for each in case["sequences"] for x in each[key]], dtype=torch.float64)
        for name, key in keys.items()
        if key in case["sequences"][0]
    }


if __name__ == "__main__":
    work(Path(sys.argv[1]), int(sys.argv[2]))
