"""What every tracker is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """A run as a tracker sees it: its id, its directory, and its resolved configuration, without secrets."""

    id: str
    directory: Path
    config: Mapping[str, Any]


class Tracker(Protocol):
    """Takes the numbers of one run. It may raise: at its beginning that refuses the run, later it switches the tracker off."""

    def begin(self, run: TrackedRun) -> None:
        """Before anything is loaded. A run that is gone on with has the id that it had."""

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Metrics and timings of a finished step by name; step 0 is an evaluation before the first."""

    def close(self, *, failed: bool) -> None:
        """At the end; `failed` where an error ended the run."""
