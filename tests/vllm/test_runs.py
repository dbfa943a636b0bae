"""Whole runs with `rollout.engine: vllm`, in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.conftest import EXAMPLES

TINY = EXAMPLES / "tiny.yaml"
SEEDS = (0, 1, 2)
PARTIAL = (
    *("--rollout.engine", "vllm", "--partial-rollout", "--token-budget", 3, "--use-dynamic-global-batch-size"),
    *("--rollout-batch-size", 8, "--n-samples-per-prompt", 2, "--stop-token-ids", str(list(range(4, 70)))),
)
"""Responses end at any token with a probability of a quarter, so that some groups end within the budget."""


@pytest.fixture
def train(relax, tmp_path, model_cache):
    """Train the tiny task with these flags; gives the lines of the metrics and what was said."""

    def run(*flags: object, name: str = "run") -> tuple[list[dict], str]:
        place = ("--cache-dir", model_cache, "--output.dir", tmp_path / name)
        result = relax("train", TINY, *flags, *place)
        assert result.code == 0, result.err
        return metrics(tmp_path / name), result.err

    return run


def metrics(directory: Path) -> list[dict]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def test_the_tiny_policy_learns(train):
    found, said = train("--rollout.engine", "vllm", "--num-rollout", 25, "--n-samples-per-prompt", 32)
    rewards = [each["rollout/reward_mean"] for each in found]
    assert rewards[0] < 0.2
    assert sum(rewards[-3:]) / 3 > 0.5
    assert all(each["train/is_logprob_abs_diff"] < 1e-4 for each in found)
    assert all(each["train/is_approx_k3_kl"] < 1e-8 for each in found)
    assert all(each["rollout/staleness_max"] == 0 for each in found)
    assert "warning" not in said


def test_two_runs_of_one_seed_and_a_resumed_one_give_the_same_metrics(train, relax, tmp_path):
    flags = ("--rollout.engine", "vllm", "--rollout-batch-size", 2, "--n-samples-per-prompt", 8)
    whole, _ = train(*flags, "--num-rollout", 4, name="whole")
    train(*flags, "--num-rollout", 2, name="parts")
    resumed, _ = train(*flags, "--num-rollout", 4, "--resume", tmp_path / "parts", name="parts")
    assert resumed == whole


def test_a_partial_rollout_trains_on_tokens_of_several_versions_and_resumes(train, tmp_path):
    flags = (*PARTIAL, "--mismatch-warn", "null")
    whole, _ = train(*flags, "--num-rollout", 5, name="whole")
    assert max(each["rollout/staleness_max"] for each in whole) == 2
    assert max(each["train/is_logprob_abs_diff"] for each in whole) > 1e-3
    train(*flags, "--num-rollout", 2, name="parts")
    state = torch.load(next((tmp_path / "parts" / "checkpoints").glob("*2")) / "loop.pt", weights_only=True)
    assert state["generation"]["unfinished"]
    resumed, _ = train(*flags, "--num-rollout", 5, "--resume", tmp_path / "parts", name="parts")
    assert resumed == whole


def test_masked_stale_tokens_do_not_count(train):
    found, said = train(*PARTIAL, "--mask-offpolicy-in-partial-rollout", "--num-rollout", 5)
    assert all(each["rollout/staleness_mean"] == 0 for each in found)
    assert all(each["train/is_logprob_abs_diff"] < 1e-4 for each in found)
    assert "warning" not in said


@pytest.mark.parametrize("engine", ["hf", "vllm"])
def test_a_mismatch_warns_and_another_stops(relax, run_file, tmp_path, engine):
    truncated = ("--rollout.engine", engine, "--top-k", 2, "--output.dir", tmp_path / "run")
    warned = relax("train", run_file(), *truncated, "--num-threads", 1)
    assert warned.code == 0, warned.err
    gap = metrics(tmp_path / "run")[0]["train/is_logprob_abs_diff"]
    assert gap > 1
    line = f"warning: step 1: train/is_logprob_abs_diff is {gap:.3g}, above rollout.mismatch_warn = 0.1"
    assert line in warned.err.splitlines()
    stopped = relax("train", run_file(), *truncated[:-1], tmp_path / "stopped", "--mismatch-stop", 0.5)
    assert stopped.code == 4
    problem = f"train/is_logprob_abs_diff is {gap:.3g}, above rollout.mismatch_stop = 0.5"
    fix = "look for stale weights, another dtype or truncated sampling; rollout.verify_weights compares each update"
    assert f"error: rollout engine '{engine}': {problem}. Fix: {fix}" in stopped.err.splitlines()
    assert metrics(tmp_path / "stopped") == []


@pytest.mark.slow
def test_both_engines_reach_the_same_reward(train):
    """Over three seeds: the means differ by no more than the spread of the seeds, and a little for equal ones."""
    last = {}
    for engine in ("hf", "vllm"):
        runs = [train("--rollout.engine", engine, "--seed", seed, name=f"{engine}-{seed}")[0] for seed in SEEDS]
        last[engine] = [sum(each["rollout/reward_mean"] for each in run[-5:]) / 5 for run in runs]
    means = {engine: sum(values) / len(values) for engine, values in last.items()}
    spread = max(max(values) - min(values) for values in last.values())
    assert min(means.values()) > 0.9
    assert abs(means["hf"] - means["vllm"]) <= max(spread, 0.02)


@pytest.mark.slow
def test_the_pretrained_example_runs(relax, tmp_path):
    flags = ("--rollout.engine", "vllm", "--num-rollout", 2, "--output.dir", tmp_path / "run")
    result = relax("train", EXAMPLES / "demo.yaml", *flags)
    assert result.code == 0, result.err
    found = metrics(tmp_path / "run")
    assert len(found) == 2
    assert all(each["train/is_logprob_abs_diff"] < 1e-4 for each in found)


def test_evaluations_fit_into_the_engine_and_change_nothing_in_training(train):
    flags = ("--rollout.engine", "vllm", "--num-rollout", 2, "--rollout-batch-size", 2, "--n-samples-per-prompt", 8)
    source = (EXAMPLES / "tiny_task.py").as_posix()
    held_out = ("--eval-interval", 1, "--evaluation.source", f"{source}:examples", "--eval-max-response-len", 40)
    plain, _ = train(*flags, name="plain")
    found, _ = train(*flags, *held_out, name="evaluated")
    assert [each["step"] for each in found] == [0, 1, 2]
    hf, _ = train(*flags[2:], *held_out, name="hf")
    assert found[0] == hf[0]
    assert found[0]["eval/response_length_mean"] > 30
    trained = [{name: each[name] for name in each if not name.startswith("eval/")} for each in found]
    assert trained[1:] == plain
