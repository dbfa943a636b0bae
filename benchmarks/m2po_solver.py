"""What M2PO's solver costs: a million harmful tokens, against one `torch.sort` of their squared log ratios.

python benchmarks/m2po_solver.py [--tokens N] [--rounds N] [--device cpu|cuda]

Prints one JSON object: for the solver and the sort the fastest and the median seconds, and the ratio of each. The two are
timed in turns, so that a change of the machine's speed meets both. The target is a ratio of 3 at most.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

from relax_plugins.m2po import solve

BUDGET = 0.01
TARGET = 3.0


def seconds(work: Callable[[], object], device: str) -> float:
    """How long one call takes, the device's work included."""
    started = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def measure(tokens: int, rounds: int, device: str) -> dict[str, object]:
    """Time the solver and the sort in turns."""
    generator = torch.Generator().manual_seed(0)
    log_ratio = (torch.randn(tokens, generator=generator, dtype=torch.float64) * 0.3).to(device)
    advantages, live = log_ratio.sign(), torch.ones(tokens, dtype=torch.bool, device=device)
    squared = log_ratio.square()
    work = {"solver": lambda: solve(log_ratio, advantages, live, BUDGET), "sort": lambda: torch.sort(squared)}
    times: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(-2, rounds):  # two to warm up
        for name, each in work.items():
            elapsed = seconds(each, device)
            if turn >= 0:
                times[name].append(elapsed)
    minima = {name: min(each) for name, each in times.items()}
    medians = {name: statistics.median(each) for name, each in times.items()}
    return {
        "tokens": tokens,
        "rounds": rounds,
        "device": device,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "min_seconds": {name: round(value, 6) for name, value in minima.items()},
        "median_seconds": {name: round(value, 6) for name, value in medians.items()},
        "min_ratio": round(minima["solver"] / minima["sort"], 3),
        "median_ratio": round(medians["solver"] / medians["sort"], 3),
        "target": TARGET,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.tokens, arguments.rounds, arguments.device), indent=1))


if __name__ == "__main__":
    main()
