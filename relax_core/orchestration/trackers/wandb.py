"""Weights & Biases (extra `wandb`); its own variables (`WANDB_PROJECT`, `WANDB_API_KEY`, …) say where to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from relax_core.orchestration.trackers.types import TrackedRun


class WeightsAndBiases:
    """`online` sends every step; `offline` writes into the run directory, for `wandb sync`."""

    _run: Any

    def __init__(self, mode: str) -> None:
        self._mode = mode

    def begin(self, run: TrackedRun) -> None:
        """A run of the same id; one that is gone on with online goes on there too."""
        import wandb

        # What it would gather by itself, such as arguments, code and the terminal, may hold what is nobody's business.
        settings = wandb.Settings(
            console="off", silent=True, disable_git=True, disable_code=True, x_disable_meta=True, x_disable_stats=True
        )
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "relax"),
            id=run.id,
            name=run.id,
            dir=str(run.directory.resolve()),  # its own process has another working directory
            mode=self._mode,
            resume="allow" if self._mode == "online" else None,
            config=dict(run.config),
            settings=settings,
        )

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """One row."""
        self._run.log(dict(values), step=step)

    def close(self, *, failed: bool) -> None:
        """A run that failed is shown as such."""
        self._run.finish(exit_code=int(failed))
