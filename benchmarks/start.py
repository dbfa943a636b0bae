"""How long a user waits: for the help, for the list of plugins, for a check, and from a command to its first step."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from report import Row, alone

EXAMPLE = Path(__file__).parents[1] / "examples" / "tiny.yaml"
RELAX = [sys.executable, "-c", "from relax_core.cli.app import main; main()"]
CLUSTER = ["--orchestrator", "ray", "--assume-cluster", "nodes=8,gpus=8"]
ACTORS = [
    *("--trainer.engine", "megatron", "--data-parallel-size", "8", "--tensor-model-parallel-size", "8"),
    *("--topology.resources.rollout.colocated", "--topology.resources.rollout.actors", "8"),
]


def measure(threads: int, rounds: int) -> Iterator[Row]:
    items = [
        ("relax --help", ["--help"], 0.5),
        ("relax plugins list", ["plugins", "list"], 2.5),
        ("relax check of 64 actors on 64 GPUs", ["check", str(EXAMPLE), *CLUSTER, *ACTORS], 2.0),
    ]
    for name, command, target in items:
        yield alone(name, "s", [_seconds(command) for _ in range(rounds + 1)][1:], target)
    yield alone("relax train, until the first step", "s", [_first_step() for _ in range(3)][1:], 8.0)


def _seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run([*RELAX, *command], check=True, capture_output=True)
    return time.perf_counter() - started


def _first_step() -> float:
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place) / "run"
        command = [*RELAX, "train", str(EXAMPLE), "--num-rollout", "1000", "--output.dir", str(directory)]
        started = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            lines = directory / "metrics.jsonl"
            while not (lines.exists() and lines.stat().st_size):
                time.sleep(0.01)
            elapsed = time.perf_counter() - started
            process.kill()
    return elapsed
