"""Going on with a run: which one, from which checkpoint, and with which configuration."""

from __future__ import annotations

import json

import pytest

from relax_core.config import OutputSection
from relax_core.orchestration.record import claim
from tests.cli.test_train import metrics
from tests.conftest import RUN


@pytest.fixture
def begun(relax, run_file, tmp_path, monkeypatch):
    """A run of two steps under `runs/` of the current directory, and how to train again."""
    monkeypatch.chdir(tmp_path)
    path = run_file(RUN)

    def train(*flags):
        return relax("train", path, "--save-interval", 1, *flags)

    assert train().code == 0
    (directory,) = (tmp_path / "runs").iterdir()
    return train, directory


def test_resume_alone_goes_on_with_the_newest_run_of_the_file(begun):
    train, directory = begun
    result = train("--num-rollout", 3, "--resume")
    assert result.code == 0, result.err
    assert [each["step"] for each in metrics(directory)] == [1, 2, 3]
    assert "warning: changed since the run was begun: trainer.num_rollout was 2, is 3" in result.err
    described = json.loads((directory / "run.json").read_text())
    assert described["changes"] == [{"step": 2, "setting": "trainer.num_rollout", "was": 2, "is": 3}]
    again = train("--num-rollout", 3, "--resume", "--samples-per-step", 4)
    assert "changed since" not in again.err


def test_a_file_without_a_run(relax, run_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = relax("train", run_file(RUN), "--resume")
    assert result.code == 2
    assert result.err.endswith(
        "error: --resume: no run of 'run' under runs/ has a checkpoint. "
        "Fix: name the run directory: --resume RUN_DIR, or start one: relax train run.yaml\n"
    )


def test_another_objective_is_refused_with_all_that_differs(begun):
    train, directory = begun
    before = metrics(directory)
    changed = ("--num-rollout", 3, "--lr", 0.5, "--eps-clip-high", 0.5, "--resume")
    result = train(*changed)
    assert result.code == 2
    assert result.err == (
        "error: --resume: the run was begun with another objective: algorithm.clip_ratio_high was 0.28, is 0.5; "
        "trainer.lr was 0.001, is 0.5. Fix: write what it was begun with, or give --allow-changes\n"
    )
    assert metrics(directory) == before
    result = train(*changed, "--allow-changes")
    assert result.code == 0, result.err
    assert "warning: changed since the run was begun: trainer.lr was 0.001, is 0.5" in result.err
    assert metrics(directory)[2]["train/lr"] == 0.5


def test_a_damaged_checkpoint_costs_its_steps_and_nothing_else(begun):
    train, directory = begun
    whole = metrics(directory)
    (directory / "checkpoints" / "step_000002" / "trainer.pt").write_bytes(b"")
    result = train("--resume")
    assert result.code == 0, result.err
    assert "step_000002' is damaged and passed over: trainer.pt has 0 bytes of" in result.err
    assert metrics(directory) == whole


@pytest.mark.parametrize("name", ["config.yaml", "run.json"])
@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_damaged_description_of_the_run_is_told(begun, name, text):
    train, directory = begun
    (directory / name).write_text(text)
    result = train("--resume", directory)
    assert result.code == 2
    assert result.err.startswith(f"error: RUN_DIR: '{directory}' is not a run directory: ")


def test_a_line_that_was_cut_off_is_taken_back(begun, relax):
    train, directory = begun
    whole = metrics(directory)
    for name in ("metrics.jsonl", "samples.jsonl", "timings.jsonl"):
        with (directory / name).open("a") as file:
            file.write('{"step": 3, "rollout/rew')
    assert relax("plot", directory).code == 0
    assert train("--resume").code == 0
    assert metrics(directory) == whole


def test_runs_that_begin_in_one_second_have_directories_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {claim(OutputSection(), "run").name for _ in range(3)}
    assert names == {path.name for path in (tmp_path / "runs").iterdir()}
    assert len(names) == 3
