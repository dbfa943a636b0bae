"""Cases 13, 15, 16, 19a, 21, 23 and 26: advantages and losses of the built-in algorithms, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from relax_core.batch import CriticBatch, build
from tests.cases.build import as_batch, rollout, runtime

E = math.e


def prepare(algorithm: str, *, mask, rewards=(1.0,), config=None, **tokens):
    """The prepared rollout of these sequences under an algorithm."""
    old = tokens.pop("old", [[-1.0] * len(each) for each in mask])
    bound = runtime(algorithm, **(config or {}))
    prepared, _ = bound.prepare(rollout(old, rewards=list(rewards), mask=mask, **tokens))
    return prepared


def estimated(algorithm: str, batch, **config) -> list[float]:
    """What the estimator itself gives, before normalisation."""
    estimator = runtime(algorithm, **config).binding.estimator
    return estimator.call("compute_advantage", rollout=batch, context=None).advantages.tolist()


def losses(algorithm: str, ratios: list[float], advantages: list[float], **config) -> tuple[list[float], list[float]]:
    """Per-token losses of one sequence with log π = −1, and the gradient of their sum."""
    old = [-1.0 - math.log(ratio) for ratio in ratios]
    bound = runtime(algorithm, **config)
    prepared, _ = bound.prepare(rollout([old]))
    prepared = prepared.with_values(advantages=torch.tensor(advantages, dtype=torch.float64))
    batch = as_batch(prepared, torch.full((len(ratios),), -1.0, dtype=torch.float64))
    per_token = bound.policy_loss(batch).per_token
    (gradient,) = torch.autograd.grad(per_token.sum(), batch.log_probs)
    return per_token.tolist(), gradient.tolist()


@pytest.mark.parametrize(("reward", "advantage"), [(1.0, 0.7143), (0.0, -0.4286)])
def test_13_three_right_of_eight(reward, advantage):
    rewards = [1.0] * 3 + [0.0] * 5
    prepared = prepare("rloo", mask=[[1]] * 8, rewards=rewards)
    found = dict(zip(rewards, prepared.advantages.tolist(), strict=True))
    assert found[reward] == pytest.approx(advantage, abs=5e-5)


def test_13_rloo_is_the_reward_less_the_mean_of_the_others():
    prepared = prepare("rloo", mask=[[1]] * 5, rewards=[4.0, 1.0, 2.5, 7.0, 1.0], groups=[0, 0, 0, 1, 1])
    assert prepared.advantages.tolist() == pytest.approx([4 - 1.75, 1 - 3.25, 2.5 - 2.5, 6.0, -6.0])


@pytest.mark.parametrize("algorithm", ["rloo", "reinforce_plus_plus_baseline"])
@pytest.mark.parametrize(("reward", "size"), [(100.1, 7), (0.7, 3), (0.3, 1)])
def test_9_equal_rewards_and_a_group_of_one_have_no_signal(algorithm, reward, size):
    assert prepare(algorithm, mask=[[1]] * size, rewards=[reward] * size).advantages.tolist() == [0.0] * size


def test_baseline_keeps_the_spread_of_the_batch():
    batch = rollout([[-1.0]] * 4, rewards=[1.0, 0.0, 10.0, 2.0], groups=[0, 0, 1, 1])
    assert estimated("reinforce_plus_plus_baseline", batch) == [0.5, -0.5, 4.0, -4.0]
    spread = math.sqrt((0.5**2 + 4.0**2) / 2)
    prepared, _ = runtime("reinforce_plus_plus_baseline").prepare(batch)
    assert prepared.advantages.tolist() == pytest.approx([x / spread for x in (0.5, -0.5, 4.0, -4.0)])


def test_m2po_takes_the_reward_as_it_is():
    assert prepare("m2po", mask=[[1, 0, 1], [1]], rewards=[3.0, -0.5]).advantages.tolist() == [3.0, 0.0, 3.0, -0.5]


def test_15_a_tool_token_takes_no_discount():
    batch = rollout([[-1.0] * 3], rewards=[1.0], mask=[[1, 0, 1]])
    assert estimated("reinforce_plus_plus", batch, gamma=0.5) == [0.5, 0.0, 1.0]


def test_15_the_kl_stands_in_the_reward_of_each_live_token():
    batch = rollout([[-1.0] * 3], rewards=[1.0], mask=[[1, 0, 1]], ref_log_probs=[[-2.0, -50.0, -0.5]])
    assert estimated("reinforce_plus_plus", batch, kl_coef=0.1) == pytest.approx([1.05 - 0.1, 0.0, 1.05])


CASE_16 = {
    "mask": [[1, 1, 0, 1]],
    "values": [[0.5, 0.6, 9.0, 0.7]],
    "config": {"gamma": 1.0, "lambd": 0.95},
}


def test_16_value_and_trace_pass_over_tool_tokens():
    prepared = prepare("ppo", **CASE_16)
    assert prepared.advantages.tolist() == pytest.approx([0.46575, 0.385, 0.0, 0.3])
    assert prepared.read("returns").tolist() == pytest.approx([0.96575, 0.985, 0.0, 1.0])


def test_19a_a_token_dropped_by_a_mask_moves_no_reward_of_ppo():
    mask = {"is_correction": {"enable": True, "action": "mask", "lower_bound": 0.5, "upper_bound": 2.0}}
    sampled = [[-1.0, -1.0, -1.0, -6.0]]
    case = CASE_16 | {"config": CASE_16["config"] | mask, "rollout_log_probs": sampled}
    prepared = prepare("ppo", **case)
    assert prepared.loss_mask.tolist() == [True, True, False, False]
    assert prepared.advantages.tolist() == pytest.approx([0.46575, 0.385, 0.0, 0.3])
    assert prepared.read("returns").tolist() == pytest.approx([0.96575, 0.985, 0.0, 1.0])


def test_21_a_sequence_ratio_keeps_one_term_a_sequence():
    ratios = [math.exp(x) for x in (0.2, -0.1, 0.5)]
    per_token, gradient = losses("gspo", ratios, [1.0] * 3)
    assert per_token == pytest.approx([-1.2214] * 3, abs=5e-5)
    assert gradient == pytest.approx([-math.exp(0.2)] * 3)


@pytest.mark.parametrize(
    ("advantage", "mean", "gradient"),
    [(1.0, 0.3, 0.0), (1.0, -0.3, -math.exp(-0.3)), (-1.0, -0.3, 0.0), (-1.0, 0.3, math.exp(0.3))],
)
def test_21_a_sequence_is_clipped_as_one(advantage, mean, gradient):
    ratios = [math.exp(mean + x) for x in (0.5, -0.5)]
    per_token, found = losses("gspo", ratios, [advantage] * 2)
    bounded = min(advantage * math.exp(mean), advantage * min(max(math.exp(mean), 0.8), 1.28))
    assert per_token == pytest.approx([-bounded] * 2)
    assert found == pytest.approx([gradient] * 2)


@pytest.mark.parametrize(
    ("ratio", "advantage", "weight"), [(E, 1.0, E), (E, -1.0, E), (7.0, 1.0, 5.0), (1e-3, -1.0, 1e-3)]
)
def test_23_cispo_keeps_the_log_prob_factor(ratio, advantage, weight):
    """At r = e the loss is 2.718 and its gradient −2.718; a clipped token keeps its gradient."""
    per_token, gradient = losses("cispo", [ratio], [advantage], clip_ratio_low=1.0, clip_ratio_high=4.0)
    assert per_token == pytest.approx([weight * advantage])
    assert gradient == pytest.approx([-weight * advantage])


def test_23_cispo_clips_both_sides():
    per_token, _ = losses("cispo", [0.5, 1.5, 0.5, 1.5], [1.0, 1.0, -1.0, -1.0])
    assert per_token == pytest.approx([0.8, 1.28, -0.8, -1.28])


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "slope"),
    [(1.0, 1.0, -2.0, -1.0), (1.0, -1.0, 1.90476, 1.0), (1.5, 1.0, -2.48984, None)],
)
def test_26_sapo(ratio, advantage, value, slope):
    per_token, gradient = losses("sapo", [ratio], [advantage])
    assert per_token == pytest.approx([value], abs=5e-6)
    if slope is not None:
        assert gradient == pytest.approx([slope])


def test_rloo_has_no_ratio_and_clips_nothing():
    per_token, gradient = losses("rloo", [1.0, 50.0], [2.0, -1.0])
    assert per_token == [2.0, -1.0]
    assert gradient == [-2.0, 1.0]
    bound = runtime("rloo")
    prepared, _ = bound.prepare(rollout([[-1.0, -9.0]]))
    output = bound.loss(as_batch(prepared, torch.tensor([-1.0, -1.0], dtype=torch.float64)))
    assert output.metrics.reduce(prepared.group)["train/pg_clipfrac"] == 0.0


@pytest.mark.parametrize(
    ("value", "loss", "clipped"),
    [
        (0.2, 0.64, 0.0),  # inside the clip: (V − ret)²
        (0.9, 0.49, 1.0),  # moved past +0.2 towards the return: held at 0.3
        (-0.5, 2.25, 0.0),  # moved away: its own, larger
    ],
)
def test_the_value_loss_is_the_larger_and_has_no_half(value, loss, clipped):
    tokens = {"raw_mask": [True], "loss_mask": [True], "values": [value], "old_values": [0.1], "returns": [1.0]}
    tokens = {name: torch.tensor(each) for name, each in tokens.items()}
    tokens = {name: each if each.dtype == torch.bool else each.double() for name, each in tokens.items()}
    batch = build(CriticBatch, torch.tensor([0]), tokens, {"rewards": torch.zeros(1)})
    output = runtime("ppo").value_loss(batch)
    assert output.sum.item() == pytest.approx(loss)
    assert output.metrics.reduce(batch.group)["train/value_clipfrac"] == clipped
