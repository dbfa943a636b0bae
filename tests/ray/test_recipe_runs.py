"""The recipes of eight GPUs as they are but for their sizes: Ray, Megatron-core and vLLM on a CPU, two steps each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.recipes import RECIPES, tiny

MODEL = Path(__file__).parents[1] / "recipe_model.py:build"
ONE = {
    "topology.tensor-model-parallel-size": 1,
    "sequence-parallel": False,
    "data-parallel-size": 1,
    "rollout.tensor-parallel-size": 1,
    "topology.resources.rollout.actors": 1,
    "topology.resources.advantages.actors": 1,
    "topology.resources.actor.cpus": 0.25,
    "topology.resources.rollout.cpus": 0.25,
    "topology.resources.advantages.cpus": 0.25,
}
"""One process of each kind, on a quarter of a CPU."""
TWO = ONE | {"topology.tensor-model-parallel-size": 2, "sequence-parallel": True}


@pytest.fixture
def steps(relax, tmp_path, model_cache, cluster):
    """Train a recipe with these flags; the lines of its metrics without the evaluation before the first step."""

    def train(name: str, **changes: object) -> list[dict[str, Any]]:
        flags = tiny(tmp_path, model_cache, **{"address": cluster, "output.dir": tmp_path / "run"}, **changes)
        result = relax("train", RECIPES[name], *flags)
        assert result.code == 0, result.err
        before, *lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
        assert before["step"] == 0
        assert before["eval/reward_mean"] in (0, 1)
        assert [line["step"] for line in lines] == [1, 2]
        assert all(line["train/is_logprob_abs_diff"] < 1e-3 for line in lines)
        return lines

    return train


def learns(line: dict[str, Any]) -> bool:
    """Whether some responses of the step were right and others not, and the policy moved."""
    return 0 < line["rollout/reward_mean"] < 1 and line["train/grad_norm"] > 0


def test_grpo_takes_turns_with_its_engines(steps):
    lines = steps("qwen3_4b_grpo", **ONE)
    assert all(learns(line) and line["rollout/staleness_max"] == 0 for line in lines)


def test_m2po_takes_the_samplers_log_probs_within_its_bounds(steps):
    lines = steps("qwen3_4b_m2po_async", **ONE)
    assert any(learns(line) for line in lines)
    assert all(line["rollout/staleness_max"] <= 2 for line in lines)
    assert all(line["train/is_logprob_abs_diff"] == 0 for line in lines)
    assert all(line["train/ppo_kl_m2_after"] <= 0.04 for line in lines)


@pytest.mark.slow
def test_cispo_weighs_its_tokens_and_stays_near_its_reference(steps):
    lines = steps("qwen3_4b_cispo", **TWO, **{"ref-load": MODEL, "num-steps-per-rollout": 2})
    assert all(learns(line) and line["train/ref_kl"] > 0 for line in lines)
    assert all(line["train/is_clip_ratio"] == 0 for line in lines)


@pytest.mark.slow
def test_ppo_trains_its_critic_first(steps):
    sizes = {"rollout-batch-size": 32, "n-samples-per-prompt": 1, "global-batch-size": 16, "num-critic-only-steps": 1}
    first, second = steps("qwen3_4b_ppo", **TWO, **sizes)
    assert "train/grad_norm" not in first
    assert first["train/critic_grad_norm"] > 0
    assert learns(second)
    assert second["train/critic_grad_norm"] > 0
