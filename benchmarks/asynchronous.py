"""What staleness buys and costs: seconds a step of an asynchronous run over a synchronous one, and what each learns.

python benchmarks/asynchronous.py [--steps N] [--rounds N] [--seeds N] [--learning-steps N]

Prints one JSON object. `speed`: for both modes the fastest and the median seconds from one step's end to the next, in
turns on one machine and over one seed, start-up and the first two steps left out, and the ratio. `learning`: for each
algorithm the mean reward of the last five steps, over the seeds, at equal samples: synchronous, and with staleness 2.
Every run has one vLLM engine and one trainer in actors of a Ray cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from contextlib import closing
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

from relax_core.binding import bind
from relax_core.orchestration.record import RunDirectory, claim
from relax_core.orchestration.run import StepReport
from relax_core.orchestration.start import start
from relax_core.runfile import read, resolve

EXAMPLE = Path(__file__).parents[1] / "examples" / "tiny.yaml"
ROLES = ("actor", "rollout", "advantages")
RAY = {
    "topology.orchestrator": "ray",
    "rollout.engine": "vllm",
    "output.tensorboard": False,
    **{f"topology.resources.{role}.cpus": 0.5 for role in ROLES},
}
SYNC: dict[str, Any] = {"trainer.mode": "sync"}
ASYNC = {"trainer.mode": "async", "trainer.max_staleness": 2}
M2PO = {"algorithm.policy_loss": "m2po", "trainer.use_rollout_log_probs": True}
ALGORITHMS = {"grpo": {}, "grpo with IS correction": {"algorithm.is_correction.enable": True}, "m2po": M2PO}


def run(settings: dict[str, Any]) -> tuple[list[float], list[dict[str, float]]]:
    """The time at the end of each step, and its metrics."""
    with tempfile.TemporaryDirectory() as place:
        resolved = resolve(read(EXAMPLE), {**RAY, **settings, "output.dir": f"{place}/run"})
        binding = bind(resolved.registry, resolved.choice, resolved.config.algorithm)
        ends, metrics = list[float](), list[dict[str, float]]()

        def stepped(report: StepReport) -> None:
            ends.append(time.perf_counter())
            metrics.append(dict(report.metrics))

        opened = RunDirectory.open(claim(resolved.config.output, "run"), resolved)
        with opened as directory, closing(start(resolved, binding)) as job:
            directory.begin(binding)
            job.run(directory, stepped, lambda: False)
    return ends, metrics


def speed(steps: int, rounds: int) -> dict[str, Any]:
    """Seconds a step of both modes, in turns."""
    seconds: dict[str, list[float]] = {"sync": [], "async": []}
    for _ in range(rounds):
        for name, mode in (("sync", SYNC), ("async", ASYNC)):
            ends, _ = run({**mode, "trainer.num_rollout": steps})
            seconds[name] += [late - early for early, late in pairwise(ends[2:])]
    found: dict[str, Any] = {
        name: {"min": round(min(each), 4), "median": round(statistics.median(each), 4)}
        for name, each in seconds.items()
    }
    ratio = statistics.median(seconds["async"]) / statistics.median(seconds["sync"])
    return {
        **found,
        "async/sync": {"min": round(min(seconds["async"]) / min(seconds["sync"]), 2), "median": round(ratio, 2)},
    }


def learning(steps: int, seeds: int) -> dict[str, Any]:
    """The reward of the last five steps of each algorithm, in both modes."""
    table: dict[str, Any] = {}
    for name, algorithm in ALGORITHMS.items():
        for title, mode in (("sync", SYNC), ("staleness 2", ASYNC)):
            last = [
                reward({**algorithm, **mode, "trainer.num_rollout": steps, "trainer.seed": seed})
                for seed in range(seeds)
            ]
            table[f"{name}, {title}"] = {
                "mean": round(statistics.mean(last), 3),
                "of seeds": [round(each, 3) for each in last],
            }
    return table


def reward(settings: dict[str, Any]) -> float:
    """The mean of the last five steps."""
    return statistics.mean(each["rollout/reward_mean"] for each in run(settings)[1][-5:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("--steps", 12), ("--rounds", 3), ("--seeds", 3), ("--learning-steps", 40)):
        parser.add_argument(name, type=int, default=default)
    given = parser.parse_args()
    machine = {
        "cores": os.cpu_count(),
        "processor": platform.machine(),
        "ray": version("ray"),
        "python": sys.version.split()[0],
    }
    found = {"machine": machine, "speed": speed(given.steps, given.rounds)}
    if given.seeds:
        found["learning"] = learning(given.learning_steps, given.seeds)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
