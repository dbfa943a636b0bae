"""A whole step of GRPO: ours against TRL's, in an environment of its own, and against a loop without a framework."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import turns
from report import Row, compared

STEP = Path(__file__).parent / "step"
sys.path.append(str(STEP))
SIZES = (4096, 32000)


def measure(trl: Path, threads: int, rounds: int) -> Iterator[Row]:
    """`trl`: the Python of an environment that has it."""
    for vocabulary in SIZES:
        for entropy in (False, True):
            named = f"vocabulary {vocabulary}" + (", entropy" if entropy else "")
            costs = _costs(trl, vocabulary, entropy, threads, rounds if vocabulary == SIZES[-1] else 3 * rounds)
            seconds, peaks = _column(costs, "seconds"), _column(costs, "peak_mb")
            yield compared(f"step, TRL, {named}", "s", seconds["relax"], seconds["trl"], 0.5)
            if vocabulary == SIZES[-1]:
                yield compared(f"peak memory, TRL, {named}", "MB", peaks["relax"], peaks["trl"], 0.5)
            for half in ("train", "generate"):
                parts = _column({name: costs[name] for name in ("relax", "bare")}, half)
                yield compared(f"{half}, bare loop, {named}", "s", parts["relax"], parts["bare"], 1.05)


def _column(costs: dict[str, list[turns.Cost]], key: str) -> dict[str, list[float]]:
    return {name: [each[key] for each in found] for name, found in costs.items()}


def _costs(trl: Path, vocabulary: int, entropy: bool, threads: int, rounds: int) -> dict[str, list[turns.Cost]]:
    import task

    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        task.build(directory, vocabulary)
        arguments = [str(directory), str(threads), *(["entropy"] if entropy else [])]
        commands = {
            "relax": [sys.executable, str(STEP / "with_relax.py"), *arguments],
            "bare": [sys.executable, str(STEP / "bare_loop.py"), *arguments],
            "trl": [str(trl), str(STEP / "with_trl.py"), *arguments],
        }
        return turns.in_turns(commands, rounds, threads)
