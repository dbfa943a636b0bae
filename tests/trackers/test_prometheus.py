"""The Prometheus endpoint, asked over HTTP while a run goes on."""

from __future__ import annotations

import json
import re
import socket
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from relax_core.orchestration.trackers.prometheus import Prometheus
from relax_core.orchestration.trackers.types import TrackedRun
from tests.conftest import RUN

REWARD = """
import urllib.request

def reward(sample):
    calls.append(sample)
    if len(calls) == 9:  # the second step's first
        text = urllib.request.urlopen("http://127.0.0.1:PORT/metrics", timeout=60).read().decode()
        open("scraped.txt", "w").write(text)
    return float(len(calls) % 2)

calls = []
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def gauges(text: str) -> dict[str, tuple[dict, float]]:
    """The one sample of each family: its labels and its value."""
    samples = {each.name: each.samples for each in text_string_to_metric_families(text)}
    assert all(len(found) == 1 for found in samples.values())
    return {name: (found.labels, found.value) for name, (found,) in samples.items()}


@pytest.fixture
def endpoint(tmp_path, capsys):
    """Begin one on a free port; gives the tracker and a function that asks it."""
    tracker = Prometheus(0)
    tracker.begin(TrackedRun("run-1234", tmp_path, {}))
    (url,) = re.findall(r"^metrics: (http://127\.0\.0\.1:\d+/metrics)$", capsys.readouterr().err, re.MULTILINE)
    yield tracker, lambda: gauges(urllib.request.urlopen(url, timeout=60).read().decode())
    tracker.close(failed=False)


def test_a_run_is_asked_while_it_goes_on(relax, run_file, tmp_path):
    port = free_port()
    (tmp_path / "reward.py").write_text(REWARD.replace("PORT", str(port)))
    arguments = ("--data.reward", "reward.py:reward", "--prometheus-port", port, "--output.dir", "run")
    result = relax("train", run_file(RUN), *arguments)
    assert result.code == 0, result.err
    assert f"metrics: http://127.0.0.1:{port}/metrics" in result.err.splitlines()
    found = gauges((tmp_path / "scraped.txt").read_text())
    label = {"run": json.loads((tmp_path / "run" / "run.json").read_text())["id"]}
    timings = json.loads((tmp_path / "run" / "timings.jsonl").read_text().splitlines()[0])
    assert found == {
        "relax_step": (label, 1.0),
        "relax_reward_mean": (label, 0.5),
        "relax_tokens_per_second": (label, timings["perf/tokens_per_second"]),
        "relax_staleness_max": (label, 0.0),
        "relax_queue_depth": (label, 0.0),
    }


def test_the_endpoint_is_gone_when_the_run_is_over(relax, run_file):
    port = free_port()
    assert relax("train", run_file(), "--prometheus-port", port, "--output.dir", "run").code == 0
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_its_socket_is_closed(tmp_path):
    tracker = Prometheus(0)
    tracker.begin(TrackedRun("run-1234", tmp_path, {}))
    tracker.close(failed=False)
    assert tracker._server.socket.fileno() == -1


def test_the_gauges_are_the_newest_values(endpoint):
    tracker, ask = endpoint
    label = {"run": "run-1234"}
    assert [value for _, value in ask().values()] == [0.0] * 5
    tracker.step(3, {"rollout/reward_mean": 0.25, "rollout/staleness_max": 2.0, "perf/queue_depth": 7.0, "other": 1.0})
    assert ask()["relax_queue_depth"] == (label, 7.0)
    tracker.step(4, {"rollout/reward_mean": 0.75, "perf/tokens_per_second": 1500.5})
    assert {name: value for name, (_, value) in ask().items()} == {
        "relax_step": 4.0,
        "relax_reward_mean": 0.75,
        "relax_tokens_per_second": 1500.5,
        "relax_staleness_max": 2.0,
        "relax_queue_depth": 7.0,
    }


def test_it_is_served_on_this_machine_alone(endpoint):
    tracker, _ = endpoint
    assert tracker._server.server_address[0] == "127.0.0.1"
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.2", tracker._server.server_port)) != 0


def test_a_port_that_is_taken_is_refused_before_anything_is_loaded(relax, run_file, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = relax("train", run_file(), "--prometheus-port", port, "--model.path", "none", "--output.dir", "run")
    assert result.code == 2
    expected = f"error: output.prometheus_port: 127.0.0.1:{port} cannot be bound: Address already in use. "
    assert result.err == expected + "Fix: give another port, or 0 for a free one\n"
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_port_that_is_none(relax, run_file):
    result = relax("check", run_file(), "--prometheus-port", 65536)
    assert result.code == 2
    assert "output.prometheus_port: should be less than or equal to 65535, not 65536" in result.err
