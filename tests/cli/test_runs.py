"""`relax runs`: what lies in the output folder."""

from __future__ import annotations

import json

import pytest

from tests.cli.test_train import metrics
from tests.conftest import RUN


@pytest.fixture
def folder(relax, run_file, tmp_path, monkeypatch):
    """Two runs of two steps under `runs/`: a and b, which differ in the learning rate."""
    monkeypatch.chdir(tmp_path)
    path = run_file(RUN)
    for name, lr in (("a", 1e-3), ("b", 2e-3)):
        assert relax("train", path, "--lr", lr, "--save-interval", 1, "--output.dir", f"runs/{name}").code == 0
    return tmp_path / "runs"


def test_list_has_a_line_for_each_the_newest_last(folder, relax):
    lines = [line.split() for line in relax("runs", "list").out.splitlines()]
    assert lines[0] == ["RUN", "STEPS", "REWARD", "ALGORITHM", "LAST", "STEP"]
    reward = metrics(folder / "a")[-1]["rollout/reward_mean"]
    assert lines[1][:4] == ["runs/a", "2/2", f"{reward:.6g}", "grpo"]
    assert lines[2][0] == "runs/b"
    found = json.loads(relax("runs", "list", "--json").out)
    assert found["version"] == 1
    assert found["runs"][0] == {"directory": "runs/a", "algorithm": "grpo", "steps": 2, "total": 2, "reward": reward}


def test_show_names_checkpoints_changes_and_incidents(folder, relax, tmp_path):
    (folder / "a" / "checkpoints" / "step_000001" / "trainer.pt").unlink()
    relax("train", tmp_path / "run.yaml", "--num-rollout", 3, "--resume", "runs/a")
    (folder / "a" / "incidents").mkdir()
    (folder / "a" / "incidents" / "step_000002.json").write_text("{}")
    lines = relax("runs", "show", "runs/a").out.splitlines()
    assert lines[0] == "runs/a: grpo, 3 of 3 steps, seed 0"
    assert "checkpoint after step 1: trainer.pt is missing" in lines
    assert "checkpoint after step 2: whole" in lines
    assert "changed after step 2: trainer.num_rollout was 2, is 3" in lines
    assert lines[-1] == "not finite: relax plugins replay runs/a/incidents/step_000002.json"
    found = json.loads(relax("runs", "show", "runs/a", "--json").out)
    assert found["checkpoints"][0] == {"step": 1, "damage": "trainer.pt is missing"}
    assert found["metrics"] == metrics(folder / "a")[-1]


def test_diff_shows_settings_and_the_last_step_that_both_have(folder, relax):
    found = json.loads(relax("runs", "diff", "runs/a", "runs/b", "--json").out)
    assert {each["name"]: (each["first"], each["second"]) for each in found["settings"]} == {
        "output.dir": ("runs/a", "runs/b"),
        "trainer.lr": (1e-3, 2e-3),
    }
    assert found["step"] == 2
    assert {"name": "train/lr", "first": 1e-3, "second": 2e-3} in found["metrics"]
    text = relax("runs", "diff", "runs/a", "runs/b").out
    assert "trainer.lr  0.001   0.002" in text
    assert "METRIC OF STEP 2" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("list", "nowhere"), "error: DIR: 'nowhere' is no directory. Fix: name the folder that holds run directories"),
        (
            ("show", "."),
            "error: RUN_DIR: '.' is not a run directory: [Errno 2] No such file or directory: 'config.yaml'",
        ),
        (
            ("diff", ".", "."),
            "error: RUN_DIR: '.' is not a run directory: [Errno 2] No such file or directory: 'config.yaml'",
        ),
    ],
)
def test_what_is_no_run(relax, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    result = relax("runs", *arguments)
    assert (result.code, result.err) == (2, f"{message}\n")


@pytest.mark.parametrize("text", ["[1]", "{", "a: [", ""])
def test_a_damaged_configuration(folder, relax, text):
    (folder / "a" / "config.yaml").write_text(text)
    result = relax("runs", "show", "runs/a")
    assert result.code == 2
    assert result.err.startswith("error: RUN_DIR: 'runs/a' is not a run directory: ")
