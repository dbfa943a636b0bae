"""Who is told the numbers of a run, beside its directory. None of them can stop it once it goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from relax_core.config import OutputSection
from relax_core.errors import FOREIGN, RelaxError, UsageError, describe
from relax_core.orchestration.log import warn
from relax_core.orchestration.trackers.mlflow import MLflow
from relax_core.orchestration.trackers.prometheus import Prometheus
from relax_core.orchestration.trackers.tensorboard import TensorBoard
from relax_core.orchestration.trackers.types import TrackedRun, Tracker
from relax_core.orchestration.trackers.wandb import WeightsAndBiases


class Trackers:
    """Those of one run, by the setting that asks for each. One that raises is named once, and is off from then on."""

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self._asked, self._active = trackers, dict[str, Tracker]()

    def begin(self, run: TrackedRun) -> None:
        """All of them. Raises UsageError for the first that cannot."""
        for setting, tracker in self._asked.items():
            try:
                tracker.begin(run)
            except RelaxError:
                raise
            except FOREIGN as error:
                problem = f"cannot begin: {describe(error)}"
                raise UsageError(problem, who=setting, fix="set up what it needs, or leave it out") from None
            self._active[setting] = tracker

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """What a finished step measured."""
        self._each(lambda tracker: tracker.step(step, values))

    def close(self, *, failed: bool) -> None:
        """Write out what is left."""
        self._each(lambda tracker: tracker.close(failed=failed))

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for setting, tracker in list(self._active.items()):
            try:
                call(tracker)
            except FOREIGN as error:
                del self._active[setting]
                warn(f"{setting}: {describe(error)}; the run goes on without it")


@contextmanager
def tracking(run: TrackedRun, output: OutputSection) -> Iterator[Trackers]:
    """The trackers that `output` asks for, from the start of a run to its end."""
    trackers, failed = Trackers(_chosen(output)), True
    try:
        trackers.begin(run)
        yield trackers
        failed = False
    finally:
        trackers.close(failed=failed)


def _chosen(output: OutputSection) -> dict[str, Tracker]:
    found: dict[str, Tracker] = {}
    if output.tensorboard:
        found["output.tensorboard"] = TensorBoard()
    if output.wandb is not None:
        found["output.wandb"] = WeightsAndBiases(output.wandb)
    if output.mlflow is not None:
        found["output.mlflow"] = MLflow(output.mlflow)
    if output.prometheus_port is not None:
        found["output.prometheus_port"] = Prometheus(output.prometheus_port)
    return found
