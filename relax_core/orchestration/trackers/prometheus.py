"""A Prometheus endpoint on this machine alone (extra `prometheus`)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from relax_core.errors import UsageError
from relax_core.orchestration.trackers.types import TrackedRun

HOST = "127.0.0.1"
GAUGES = {
    "relax_reward_mean": ("rollout/reward_mean", "Mean reward of the newest step's rollout."),
    "relax_tokens_per_second": ("perf/tokens_per_second", "Response tokens a second in the newest step."),
    "relax_staleness_max": ("rollout/staleness_max", "Weight versions between sampling and training, at most."),
    "relax_queue_depth": ("perf/queue_depth", "Groups that are sampled, or wait to be trained on."),
}
"""What a name is the newest value of, and its help."""


class Prometheus:
    """`http://127.0.0.1:PORT/metrics`: gauges with the run's id as their label `run`. Port 0 takes a free one."""

    _server: Any

    def __init__(self, port: int) -> None:
        self._port = port

    def begin(self, run: TrackedRun) -> None:
        """Serve, and say where on stderr. Raises UsageError where the port is taken."""
        from prometheus_client import CollectorRegistry, Gauge, start_http_server

        registry = CollectorRegistry()
        help_of = {"relax_step": "Steps that are finished."} | {name: text for name, (_, text) in GAUGES.items()}
        gauges = {name: Gauge(name, text, ["run"], registry=registry) for name, text in help_of.items()}
        self._gauges = {name: gauge.labels(run.id) for name, gauge in gauges.items()}
        try:
            self._server, _ = start_http_server(self._port, HOST, registry)
        except OSError as error:
            problem = f"{HOST}:{self._port} cannot be bound: {error.strerror}"
            raise UsageError(
                problem, who="output.prometheus_port", fix="give another port, or 0 for a free one"
            ) from None
        print(f"metrics: http://{HOST}:{self._server.server_port}/metrics", file=sys.stderr)

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """What a step did not measure keeps its value, 0 before the first."""
        self._gauges["relax_step"].set(step)
        for name, (metric, _) in GAUGES.items():
            if metric in values:
                self._gauges[name].set(values[metric])

    def close(self, *, failed: bool) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
