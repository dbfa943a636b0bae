"""A and B in turns: each in a process of its own, which takes a step when it is told to and says what it cost.

Of the standard library alone, so that it also runs in the environment of what relax is compared with.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

Cost = dict[str, float]
"""`seconds` of a step, its parts where they are known, and `peak_mb`: the most memory that the process ever had."""


class Competitor:
    """A process that serves steps; it is told to take one, and says what it cost."""

    def __init__(self, command: Sequence[str], threads: int) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def step(self) -> Cost:
        """Have it take a step."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write("step\n")
            self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                found: Cost = json.loads(line)
                return found
        raise SystemExit(f"{self._process.args!r} ended")

    def __enter__(self) -> Competitor:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def in_turns(commands: Mapping[str, Sequence[str]], rounds: int, threads: int) -> dict[str, list[Cost]]:
    """What the steps of each cost, after one that is not counted."""
    found: dict[str, list[Cost]] = {name: [] for name in commands}
    with ExitStack() as stack:
        processes = {name: stack.enter_context(Competitor(command, threads)) for name, command in commands.items()}
        for each in range(rounds + 1):
            for name, process in processes.items():
                cost = process.step()
                if each:
                    found[name].append(cost)
    return found


def requests() -> Iterator[None]:
    """One item for each step that is asked for."""
    for _ in iter(sys.stdin.readline, ""):
        yield


def answer(started: float, **parts: float) -> None:
    """Say what a step cost that began at `started` (`time.perf_counter`)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": time.perf_counter() - started, "peak_mb": peak, **parts}), flush=True)


def serve(step: Callable[[], Mapping[str, Any]]) -> None:
    """Take a step for each request; `step` gives the parts of its cost."""
    for _ in requests():
        started = time.perf_counter()
        answer(started, **step())
