"""The checks as tests of a third party, in a process of their own."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
from sources import CLIPPED, loss


@pytest.fixture
def run_suite(tmp_path):
    """Run pytest on a one-line test file beside a plugin."""

    def run(source, line, *arguments):
        (tmp_path / "mine.py").write_text(textwrap.dedent(source))
        (tmp_path / "test_mine.py").write_text(f"from relax_core.conformance import suite\n\n{line}\n")
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rsf", *arguments, "test_mine.py"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    return run


ENVIRONMENT = """
    from relax_core import Trajectory

    async def generate(prompt, sampler):
        trajectory = Trajectory(prompt)
        turn = await sampler.sample(trajectory)
        trajectory.reward = {reward}
        return trajectory
"""
LINE = 'test_conformance = suite("mine.py")'


def test_a_good_plugin_passes(run_suite):
    result = run_suite(loss(), LINE)
    assert result.returncode == 0, result.stdout
    assert "failed" not in result.stdout
    assert "nothing for RLX881 to look at" in result.stdout


def test_a_broken_one_fails_in_the_check_that_it_breaks(run_suite):
    result = run_suite(loss(CLIPPED + "return PolicyLoss(-per_token)"), LINE)
    assert result.returncode == 1
    assert "FAILED test_mine.py::test_conformance[RLX831]" in result.stdout
    assert "1 failed" in result.stdout
    assert "on policy it is not the policy gradient" in result.stdout


def test_tiers_and_fields_can_be_chosen(run_suite):
    result = run_suite(loss(), 'test_conformance = suite("mine.py", tiers=["static"])', "-v")
    assert "RLX701" in result.stdout
    assert "RLX801" not in result.stdout


def test_collecting_imports_no_torch(run_suite):
    probe = (
        "\nimport sys\n\ndef test_it():\n    assert 'torch' not in sys.modules\n    assert 'mine' not in sys.modules"
    )
    assert run_suite(loss(), LINE + probe, "-k", "test_it").returncode == 0


def test_an_environment_gets_the_checks_of_environments(run_suite):
    result = run_suite(ENVIRONMENT.format(reward="1.0"), LINE, "-v")
    assert result.returncode == 0, result.stdout
    assert [f"RLX{number}" for number in range(911, 916) if f"[RLX{number}] PASSED" in result.stdout] == [
        "RLX911", "RLX912", "RLX913", "RLX914", "RLX915"
    ]  # fmt: skip
    assert "5 passed" in result.stdout


def test_a_broken_environment_fails_in_the_check_that_it_breaks(run_suite):
    result = run_suite(ENVIRONMENT.format(reward="float(turn.text)"), LINE)
    assert result.returncode == 1
    assert "FAILED test_mine.py::test_conformance[RLX911]" in result.stdout
    assert "a trajectory did not end as the contract asks" in result.stdout
    assert 'mine.py", line 7' in result.stdout


def test_an_environment_is_not_imported_when_it_is_collected(run_suite):
    line = LINE + "\nimport sys\n\ndef test_it():\n    assert not {'torch', 'mine'} & set(sys.modules)"
    assert run_suite("import torch\n" + textwrap.dedent(ENVIRONMENT), line, "-k", "test_it").returncode == 0
