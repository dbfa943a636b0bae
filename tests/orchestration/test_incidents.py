"""A number that goes wrong is found, told, kept as a case, and ends the run or costs one update."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest

from relax_core.rollout.hf import HFSampler
from tests.cli.test_train import metrics

LOSS = """
import torch
from relax_core import *

@hookimpl
def algorithm():
    return AlgorithmSpec("brittle", "Has a loss that breaks", estimator=Estimator(), loss=Loss(requires_entropy=ENTROPY))

@hookimpl
def compute_advantage(rollout):
    advantages = rollout.to_tokens(rollout.rewards + 1)
    return Advantage(ADVANTAGES)

@hookimpl
def policy_loss(batch, context):
    per_token = -batch.ratio() * batch.advantages
    return PolicyLoss(PER_TOKEN)
"""
THIRD = "torch.where((context.step == 1) & (batch.sequence_ids == 2), torch.nan, per_token)"


@pytest.fixture
def train(relax, run_file, plugin_file, tmp_path):
    """Train the plugin with these expressions in it, for three steps in one micro-batch."""

    def run(*flags, advantages="advantages", per_token="per_token", entropy="False"):
        source = LOSS.replace("ADVANTAGES", advantages).replace("PER_TOKEN", per_token).replace("ENTROPY", entropy)
        path = plugin_file(source, "brittle.py")
        chosen = ("--plugin", path, "--advantage-estimator", "brittle", "--num-rollout", 3)
        return relax("train", run_file(), *chosen, "--output.dir", tmp_path / "run", *flags)

    return run


def test_a_loss_that_is_not_finite_ends_the_run_and_names_plugin_sequence_and_case(train, tmp_path):
    result = train(per_token=THIRD)
    assert result.code == 4
    case = tmp_path / "run" / "incidents" / "step_000002.json"
    start = "error: torch engine: the loss of step 2 is not finite: policy_loss of plugin 'brittle', "
    assert start in result.err
    assert ", first in sequence 2 (" in result.err
    assert f"Its batch: relax plugins replay {case}" in result.err
    assert "trainer.on_nonfinite: skip goes on without the update" in result.err
    assert [each["step"] for each in metrics(tmp_path / "run")] == [1]


VALUED = """
import torch
from relax_core import *

@hookimpl
def algorithm():
    return AlgorithmSpec("valued", "Has a value loss that breaks", estimator=Estimator(requires_critic=True), loss=Loss())

@hookimpl
def compute_advantage(rollout):
    return Advantage(rollout.to_tokens(rollout.rewards) - rollout.values, returns=rollout.to_tokens(rollout.rewards))

@hookimpl
def policy_loss(batch):
    return PolicyLoss(-batch.ratio() * batch.advantages)

@hookimpl
def value_loss(batch, context):
    loss = (batch.values - batch.returns).square()
    return ValueLoss(torch.where((context.step == 1) & (batch.sequence_ids == 2), torch.nan, loss))
"""


def test_a_value_loss_that_is_not_finite_names_plugin_and_sequence(relax, run_file, plugin_file, tmp_path):
    path = plugin_file(VALUED, "valued.py")
    chosen = ("--plugin", path, "--advantage-estimator", "valued", "--num-rollout", 3)
    result = relax("train", run_file(), *chosen, "--output.dir", tmp_path / "run")
    assert result.code == 4
    assert "error: critic: the loss of step 2 is not finite: value_loss of plugin 'valued', " in result.err
    assert ", first in sequence 2 (" in result.err


def test_the_case_is_one_that_replay_reads(train, relax, tmp_path):
    train(per_token=THIRD)
    case = tmp_path / "run" / "incidents" / "step_000002.json"
    result = relax("plugins", "replay", case, "--plugin", tmp_path / "brittle.py")
    assert result.code == 0, result.err + result.out
    assert "nothing is expected; loss" in result.out
    sequences = json.loads(case.read_text())["sequences"]
    assert len(sequences) == 8
    assert set(sequences[0]) == {"group", "reward", "mask", "old_logp", "logp", "rollout_logp"}


def test_it_may_be_skipped_and_is_counted(train, tmp_path):
    result = train("--on-nonfinite", "skip", per_token=THIRD)
    assert result.code == 0, result.err
    assert "warning: torch engine: the loss of step 2 is not finite: policy_loss of plugin" in result.err
    found = metrics(tmp_path / "run")
    assert [each.get("train/nonfinite_updates") for each in found] == [None, 1.0, None]
    assert [each["train/skipped_updates"] for each in found] == [0.0, 1.0, 0.0]
    assert found[1]["train/lr"] == 1e-3


def test_a_reward_that_a_plugin_spoils_is_counted_and_located(train, tmp_path):
    """A NaN has no spread above 0 that would keep its group: dynamic sampling would drop it without a word."""
    source = """
from relax_core import *
import torch

@hookimpl
def algorithm():
    return AlgorithmSpec("spoils", "Spoils rewards", component=Component(config=ComponentConfig))

@hookimpl
def shape_rewards(rollout):
    return torch.where(torch.arange(rollout.size) % 4 == 2, torch.nan, rollout.rewards)

@hookimpl
def keep_group(rollout):
    return rollout.group_std(rollout.rewards) > 0
"""
    (tmp_path / "spoils.py").write_text(source)
    result = train("--plugin", tmp_path / "spoils.py", "--algorithm.spoils.enable")
    assert result.code == 4
    assert result.err.endswith(
        "error: plugin 'spoils': shape_rewards gave 2 rewards that are not finite, first that of sequence 2. "
        "Fix: guard its logarithms, roots and divisions\n"
    )


def test_an_advantage_is_the_estimators(train):
    result = train(advantages="torch.where(rollout.sequence_ids == 5, torch.inf, advantages)")
    assert "advantages of plugin 'brittle', " in result.err
    assert "first in sequence 5 (" in result.err


@pytest.mark.parametrize("flags", [(), ("--normalize-advantages",)], ids=["plain", "normalised"])
def test_an_advantage_is_found_where_it_was_given(train, tmp_path, flags):
    """Not in every sequence that shares a mean with it."""
    result = train(*flags, advantages="torch.where(rollout.sequence_ids == 5, torch.nan, advantages)")
    case = json.loads((tmp_path / "run" / "incidents" / "step_000001.json").read_text())
    length = len(case["sequences"][5]["mask"])
    assert f": advantages of plugin 'brittle', {length} values, first in sequence 5 (" in result.err


def test_an_advantage_that_another_plugin_spoils_is_that_plugins(train, tmp_path):
    source = """
from relax_core import *
import torch

@hookimpl
def algorithm():
    return AlgorithmSpec("spoils", "Spoils advantages", component=Component(config=ComponentConfig))

@hookimpl
def adjust_advantage(rollout, advantages):
    return torch.where(rollout.sequence_ids == 5, -torch.inf, advantages)
"""
    (tmp_path / "spoils.py").write_text(source)
    result = train("--plugin", tmp_path / "spoils.py", "--algorithm.spoils.enable")
    assert result.code == 4
    said = r"error: plugin 'spoils': adjust_advantage gave \d advantages that are not finite, first that of sequence 5\. Fix: "
    assert re.search(said, result.err)


def spoiled(completions):
    """The second group with a log-prob in its third response that is no number."""
    third = completions[1][2]
    completions[1][2] = replace(third, log_probs=[math.nan, *third.log_probs[1:]])
    return completions


def test_a_log_prob_that_the_rollout_engine_gave_ends_the_run(train, tmp_path, monkeypatch):
    generate = HFSampler.generate
    monkeypatch.setattr(HFSampler, "generate", lambda *given: spoiled(generate(*given)))
    result = train()
    assert result.code == 4
    said = (
        "rollout engine 'hf': sampled log-probs are not finite: rollout_log_probs of rollout engine, 1 values, first in "
        "sequence 6 ("
    )
    assert f"error: {said}" in result.err
    result = train("--on-nonfinite", "skip", "--output.dir", tmp_path / "other")
    assert result.code == 0
    assert f"warning: {said}" in result.err
    assert [each["rollout/nonfinite_log_probs"] for each in metrics(tmp_path / "other")] == [1.0, 1.0, 1.0]


def test_the_backward_pass_alone(train):
    result = train(per_token="per_token + 0 * (batch.log_probs - batch.log_probs.detach()).abs().sqrt()")
    assert (
        "the gradient of step 1 is not finite: every value is finite before the backward pass; the gradients of 25 "
        "parameters are not, that of lm_head.weight nearest to the loss. Its batch: " in result.err
    )
