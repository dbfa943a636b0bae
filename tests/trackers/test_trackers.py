"""Who is told the numbers of a run: what cannot begin refuses it, and what breaks later never stops it."""

from __future__ import annotations

import json
import re

import pytest

from relax_core.config import OutputSection
from relax_core.errors import UsageError
from relax_core.orchestration.trackers import Trackers, tracking
from relax_core.orchestration.trackers.tensorboard import TensorBoard
from relax_core.orchestration.trackers.types import TrackedRun


class Remembering:
    """Remembers what it is told, and raises at the calls that it is to raise at."""

    def __init__(self, *broken: str) -> None:
        self.told, self._broken = [], broken

    def begin(self, run):
        self._note("begin", run.id)

    def step(self, step, values):
        self._note("step", step, dict(values))

    def close(self, *, failed):
        self._note("close", failed)

    def _note(self, call, *what):
        self.told.append((call, *what))
        if call in self._broken:
            raise OSError(28, "No space left on device")


def without_line(text):
    return re.sub(r"test_trackers\.py:\d+", "HERE", text)


@pytest.fixture
def run(tmp_path):
    return TrackedRun("run-1234", tmp_path, {"trainer": {"seed": 0}})


def test_every_tracker_hears_of_every_step(run):
    first, second = Remembering(), Remembering()
    trackers = Trackers({"a": first, "b": second})
    trackers.begin(run)
    trackers.step(0, {"eval/reward_mean": 0.5})
    trackers.step(1, {"train/loss": 0.25})
    trackers.close(failed=False)
    expected = [
        *(("begin", "run-1234"), ("step", 0, {"eval/reward_mean": 0.5}), ("step", 1, {"train/loss": 0.25})),
        ("close", False),
    ]
    assert first.told == second.told == expected


def test_a_tracker_that_raises_is_named_once_and_off_then(run, capsys):
    broken, other = Remembering("step"), Remembering()
    trackers = Trackers({"output.wandb": broken, "output.mlflow": other})
    trackers.begin(run)
    for step in (1, 2, 3):
        trackers.step(step, {})
    trackers.close(failed=False)
    told = "warning: output.wandb: OSError: [Errno 28] No space left on device (HERE); the run goes on without it"
    assert without_line(capsys.readouterr().err) == f"{told}\n"
    assert [call for call, *_ in broken.told] == ["begin", "step"]
    assert [call for call, *_ in other.told] == ["begin", "step", "step", "step", "close"]


def test_one_that_raises_at_the_end_stops_nothing(run, capsys):
    trackers = Trackers({"output.wandb": Remembering("close")})
    trackers.begin(run)
    trackers.close(failed=True)
    assert capsys.readouterr().err.count("the run goes on without it") == 1


def test_one_that_cannot_begin_refuses_the_run_and_the_others_are_closed(run):
    fine, broken, last = Remembering(), Remembering("begin"), Remembering()
    trackers = Trackers({"output.tensorboard": fine, "output.mlflow": broken, "output.wandb": last})
    with pytest.raises(UsageError) as raised:
        trackers.begin(run)
    trackers.close(failed=True)
    assert without_line(raised.value.message) == (
        "output.mlflow: cannot begin: OSError: [Errno 28] No space left on device (HERE). "
        "Fix: set up what it needs, or leave it out"
    )
    assert fine.told[-1] == ("close", True)
    assert broken.told == [("begin", "run-1234")]
    assert last.told == []


def test_a_run_that_ends_with_an_error_closes_them_as_failed(run, monkeypatch):
    closed = []
    monkeypatch.setattr(TensorBoard, "close", lambda _, failed: closed.append(failed))
    with pytest.raises(KeyError, match="lost"), tracking(run, OutputSection()):
        raise KeyError("lost")
    with tracking(run, OutputSection()):
        pass
    assert closed == [True, False]


def test_a_run_goes_on_where_tensorboard_breaks(relax, run_file, tmp_path, monkeypatch):
    def broken(*_):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(TensorBoard, "step", broken)
    result = relax("train", run_file(), "--tensorboard", "--output.dir", "run")
    assert result.code == 0, result.err
    (warning,) = [line for line in result.err.splitlines() if line.startswith("warning")]
    assert warning.startswith("warning: output.tensorboard: RuntimeError: out of luck (test_trackers.py:")
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2]
