"""Every algorithm learns: the tiny task, from `examples/algorithms`, to a mean reward of 0.8 within its own budget."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ALGORITHMS = sorted((Path(__file__).parents[2] / "examples" / "algorithms").glob("*.yaml"))
SEEDS = (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("path", ALGORITHMS, ids=[path.stem for path in ALGORITHMS])
def test_it_reaches_eight_tenths(relax, tmp_path, model_cache, path, seed):
    flags = ("--seed", seed, "--cache-dir", model_cache, "--output.dir", tmp_path / "run")
    assert relax("train", path, *flags).code == 0
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rewards = [json.loads(line)["rollout/reward_mean"] for line in lines]
    assert rewards[0] < 0.3
    assert max(rewards) >= 0.8
