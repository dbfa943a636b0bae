"""MLflow (extra `mlflow`), by its client alone, which gathers nothing that it is not given."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from relax_core.orchestration.trackers.types import TrackedRun

EXPERIMENT, TAG = "relax", "relax.run"
PARAMS, LENGTH = 100, 6000
"""The most that MLflow takes: parameters in one call, characters of one."""


class MLflow:
    """A run of the experiment `relax` at a tracking URI, found by its id when it is gone on with."""

    _client: Any
    _run: str

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def begin(self, run: TrackedRun) -> None:
        """The run's own id is a tag of MLflow's run, the configuration are its parameters."""
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=self._uri)
        known = self._client.get_experiment_by_name(EXPERIMENT)
        experiment = known.experiment_id if known else self._client.create_experiment(EXPERIMENT)
        found = self._client.search_runs([experiment], f"tags.`{TAG}` = '{run.id}'", max_results=1)
        self._run = found[0].info.run_id if found else self._create(experiment, run)
        self._client.set_terminated(self._run, status="RUNNING")

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """One call for all of them."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._run, metrics=[Metric(name, each, now, step) for name, each in values.items()])

    def close(self, *, failed: bool) -> None:
        """A run that failed is shown as such."""
        self._client.set_terminated(self._run, status="FAILED" if failed else "FINISHED")

    def _create(self, experiment: str, run: TrackedRun) -> str:
        from mlflow.entities import Param

        made = self._client.create_run(experiment, tags={TAG: run.id}, run_name=run.id).info.run_id
        params = [Param(name, str(value)[:LENGTH]) for name, value in _flat(run.config)]
        for start in range(0, len(params), PARAMS):
            self._client.log_batch(made, params=params[start : start + PARAMS])
        return str(made)


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
