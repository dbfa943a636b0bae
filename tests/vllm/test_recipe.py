"""The recipe of one GPU as it is but for its sizes, in a process of its own: here the engine shares it with the trainer."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.recipes import RECIPES, tiny


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["rloo", "grpo"])
def test_an_arm_of_one_gpus_run(tmp_path, model_cache, algorithm):
    flags = tiny(tmp_path, model_cache, **{"output.dir": tmp_path / "run", "advantage-estimator": algorithm})
    program = "from relax_core.cli.app import main; main()"
    arguments = [sys.executable, "-c", program, "train", RECIPES["qwen3_0_6b_gsm8k"], *flags]
    result = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    before, *lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert [before["step"], *(line["step"] for line in lines)] == [0, 1, 2]
    assert all(0 < line["rollout/reward_mean"] < 1 and line["train/grad_norm"] > 0 for line in lines)
    assert all(line["train/is_logprob_abs_diff"] < 1e-3 for line in lines)
