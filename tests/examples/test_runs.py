"""The run files of `examples/` for a CPU: all are accepted, and what they promise is what they do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ELSEWHERE = ("recipes", "scaling")
"""Run files for other machines than this one: test_recipes.py checks the ones, docs/scaling.md is made of the others."""
RUN_FILES = [path for path in sorted((ROOT / "examples").rglob("*.yaml")) if path.parent.name not in ELSEWHERE]


def rewards(directory: Path) -> list[float]:
    return [json.loads(line)["rollout/reward_mean"] for line in (directory / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("path", RUN_FILES, ids=[path.stem for path in RUN_FILES])
def test_a_run_file_has_no_findings(relax, path):
    result = relax("check", path)
    assert (result.code, result.out) == (0, f"{path}: 0 errors, 0 warnings\n")


def test_the_tiny_policy_reaches_eight_tenths(relax, tmp_path, model_cache):
    flags = ("--cache-dir", model_cache, "--output.dir", tmp_path / "run")
    assert relax("train", ROOT / "examples" / "tiny.yaml", *flags).code == 0
    found = rewards(tmp_path / "run")
    assert found[0] < 0.3
    assert sum(found[-5:]) / 5 > 0.8


@pytest.mark.slow
def test_the_demo_reaches_eight_tenths(relax, tmp_path):
    flags = ("--output.dir", tmp_path / "run")
    assert relax("train", ROOT / "examples" / "demo.yaml", *flags).code == 0
    found = rewards(tmp_path / "run")
    assert found[0] < 0.3
    assert sum(found[-3:]) / 3 > 0.9
