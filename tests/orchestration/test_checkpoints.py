"""Checkpoints: whole or not at all, kept to a number, and looked over before they are used."""

from __future__ import annotations

import json

import pytest

from relax_core.errors import LoadError, RunError
from relax_core.orchestration.checkpoints import Checkpoints, damage_of, step_of


def fill(path):
    (path / "critic").mkdir()
    (path / "model.safetensors").write_bytes(b"weights")
    (path / "critic" / "state.pt").write_bytes(b"moments")


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path / "checkpoints")


def test_what_is_written_is_listed_with_its_size_and_checksum(checkpoints):
    path = checkpoints.write(7, fill)
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["step"] == step_of(path) == 7
    assert {name: each["bytes"] for name, each in manifest["files"].items()} == {
        "model.safetensors": 7,
        "critic/state.pt": 7,
    }
    # printf weights | sha256sum
    digest = "9a129038d9a00aed0cf6a7ea059ca50a813449061ab87848cf1a13eafdf33b2c"
    assert manifest["files"]["model.safetensors"]["sha256"] == digest
    assert damage_of(path) == ""


@pytest.mark.parametrize(
    ("break_", "damage"),
    [
        (lambda path: (path / "model.safetensors").write_bytes(b"weight"), "model.safetensors has 6 bytes of 7"),
        (
            lambda path: (path / "model.safetensors").write_bytes(b"Weights"),
            "model.safetensors is not what was written",
        ),
        (lambda path: (path / "critic" / "state.pt").unlink(), "critic/state.pt is missing"),
        (lambda path: (path / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda path: (path / "manifest.json").write_text("[]"), "its manifest.json cannot be read: list indices"),
        (lambda path: (path / "manifest.json").write_text("{"), "its manifest.json cannot be read: Expecting property"),
    ],
)
def test_a_damaged_one_is_named_and_passed_over(checkpoints, capsys, break_, damage):
    first, second = checkpoints.write(1, fill), checkpoints.write(2, fill)
    break_(second)
    assert damage_of(second).startswith(damage)
    assert checkpoints.newest() == first
    assert f"warning: checkpoint '{second}' is damaged and passed over: {damage}" in capsys.readouterr().err
    assert damage_of(checkpoints.write(2, fill)) == ""
    assert checkpoints.newest() == second


def test_none_is_whole(checkpoints, tmp_path):
    (checkpoints.write(1, fill) / "manifest.json").unlink()
    with pytest.raises(LoadError) as caught:
        checkpoints.newest()
    assert str(caught.value) == (
        f"--resume: '{tmp_path}' holds no whole checkpoint. Fix: name the run directory of a saved run"
    )


def test_only_the_newest_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 2, 3, 10):
        checkpoints.write(step, fill)
    assert [step_of(path) for path in checkpoints.all()] == [3, 10]


def test_one_that_cannot_be_written_leaves_the_others_and_nothing_of_itself(checkpoints):
    whole = checkpoints.write(1, fill)

    def full(path):
        fill(path)
        raise OSError(28, "No space left on device")

    with pytest.raises(RunError) as caught:
        checkpoints.write(2, full)
    assert str(caught.value) == (
        f"output.dir: checkpoint '{checkpoints.directory}/step_000002' cannot be written: No space left on device. "
        "Fix: make room there, and go on with --resume"
    )
    assert list(checkpoints.directory.iterdir()) == [whole]
    assert checkpoints.newest() == whole


def test_a_whole_one_of_the_same_step_stays(checkpoints):
    checkpoints.write(1, fill)
    checkpoints.write(1, lambda path: (path / "other").write_text("other"))
    assert not (checkpoints.newest() / "other").exists()
