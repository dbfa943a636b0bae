"""TensorBoard files in the run directory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relax_core.orchestration.trackers.types import TrackedRun


class TensorBoard:
    """One scalar a metric."""

    _writer: Any

    def begin(self, run: TrackedRun) -> None:
        """Open a file of events."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run.directory))

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Written at once."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, *, failed: bool) -> None:
        """The file has no place for how a run ended."""
        self._writer.close()
