"""One run file, three ways: the tiny policy learns the calculator in this process, on Megatron and vLLM, and under Ray."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

from tests.conftest import EXAMPLES

ROLES = ("actor", "rollout", "advantages")
SHARES = [part for role in ROLES for part in (f"--topology.resources.{role}.cpus", 0.2)]
WAYS = {
    "embedded": ("torch", ()),
    "megatron": (
        "megatron",
        ("--rollout.engine", "vllm", "--trainer.engine", "megatron", "--tensor-model-parallel-size", 2),
    ),
    "ray": (
        "ray",
        ("--rollout.engine", "vllm", "--orchestrator", "ray", "--fully-async", "--max-staleness", 1, *SHARES),
    ),
}
HERE = [name for name, (module, _) in WAYS.items() if find_spec(module) and (name == "embedded" or find_spec("vllm"))]


@pytest.mark.slow
@pytest.mark.parametrize("way", HERE)
def test_the_calculator_is_learnt(relax, tmp_path, model_cache, way):
    flags = ("--cache-dir", model_cache, "--output.dir", tmp_path / "run", *WAYS[way][1])
    result = relax("train", EXAMPLES / "calculator.yaml", *flags)
    assert result.code == 0, result.err
    found = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    rewards = [each["rollout/reward_mean"] for each in found]
    assert rewards[0] < 0.3
    assert sum(rewards[-5:]) / 5 > 0.9
    assert all(each["rollout/turns_mean"] > 2.5 for each in found), "two or three calls, and an answer"
    fresh = [each["train/is_logprob_abs_diff"] for each in found if each["rollout/staleness_max"] == 0]
    assert max(fresh) < 1e-4, "two engines score what one of them sampled, observations as context"
