"""Credit for turns: returns and their normalisation within the group, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from tests.cases.build import rollout, runtime

SPREAD_FLOOR = 1e-6


def estimated(algorithm: str, *, mask, turn_reward, rewards, groups=None, **config) -> list[float]:
    """The advantages, a number for each token; 0 where masked."""
    old = [[-1.0] * len(each) for each in mask]
    batch = rollout(old, rewards=rewards, groups=groups, mask=mask, turn_reward=turn_reward)
    prepared, _ = runtime(algorithm, **config).prepare(batch)
    return prepared.advantages.tolist()


TWO_TURNS = {"mask": [[1, 1, 0, 1, 1]], "turn_reward": [[0, 2, 9, 0, -1]], "rewards": [3.0]}
"""A turn that earns 2, a tool token, and a last turn that earns −1 and the trajectory's 3."""


@pytest.mark.parametrize(
    ("gamma", "returns"),
    [
        (1.0, [4, 4, 0, 2, 2]),  # 2 = −1 + 3; 4 = 2 + 2
        (0.5, [1.25, 2.5, 0, 1, 2]),  # 1 = 0.5·2; 2.5 = 2 + 0.5·1: the tool token takes no discount
        (0.0, [0, 2, 0, 0, 2]),
    ],
)
def test_a_turn_earns_its_reward_and_what_comes_after(gamma, returns):
    assert estimated("turn_returns", **TWO_TURNS, gamma=gamma) == returns


def test_a_turn_earns_nothing_of_those_before_it_and_of_other_sequences():
    found = estimated("turn_returns", mask=[[1, 0, 1], [1]], turn_reward=[[5, 0, 0], [0]], rewards=[1.0, 7.0])
    assert found == [6, 0, 1, 7]


GROUP = {"mask": [[1, 0, 1], [1, 1]], "turn_reward": [[1, 9, 0], [0, 0]], "rewards": [1.0, 0.5]}
"""Returns 2, 1 and 0.5, 0.5: means 1.5 and 0.5 around 1, variances 0.25 and 0."""


def test_returns_are_measured_against_the_group():
    spread = math.sqrt(0.5**2 + 0.5**2 + (0.25 + 0) / 2)  # (1.5 − 1)² + (0.5 − 1)² over G − 1 = 1, and 0.125 within
    found = estimated("turn_returns_group", **GROUP)
    assert found == pytest.approx([x / (spread + SPREAD_FLOOR) for x in (1, 0, 0, -0.5, -0.5)])


def test_the_discount_is_in_the_returns_that_are_compared():
    # Returns 1.5, 1 and 0.25, 0.5: means 1.25 and 0.375 around 0.8125, variances 0.25² and 0.125².
    spread = math.sqrt(2 * 0.4375**2 + (0.0625 + 0.015625) / 2)
    found = estimated("turn_returns_group", **GROUP, gamma=0.5)
    centred = (1.5 - 0.8125, 0, 1 - 0.8125, 0.25 - 0.8125, 0.5 - 0.8125)
    assert found == pytest.approx([x / (spread + SPREAD_FLOOR) for x in centred])


def test_a_longer_sequence_weighs_no_more():
    longer = GROUP | {"mask": [[1, 0, 1], [1] * 9], "turn_reward": [[1, 9, 0], [0] * 9]}
    assert estimated("turn_returns_group", **longer)[:4] == estimated("turn_returns_group", **GROUP)[:4]


def test_a_sequence_with_nothing_live_counts_with_its_reward():
    found = estimated("turn_returns_group", mask=[[1], [0, 0]], turn_reward=[[1], [9, 9]], rewards=[1.0, 0.0])
    assert found == pytest.approx([1 / (math.sqrt(2) + SPREAD_FLOOR), 0, 0])  # means 2 and 0


def test_each_group_is_measured_alone():
    other = {"mask": [[1], [1, 1]], "turn_reward": [[0], [3, 0]], "rewards": [-7.0, 40.0]}
    both = {name: GROUP[name] + other[name] for name in GROUP}
    found = estimated("turn_returns_group", **both, groups=[0, 0, 1, 1])
    assert found == estimated("turn_returns_group", **GROUP) + estimated("turn_returns_group", **other)


def test_without_turns_and_discount_it_is_grpo():
    generator = torch.Generator().manual_seed(0)
    mask = [[1, 0, 1], [1] * 7, [0], [1, 1], [1], [0, 1]]
    given = {
        "mask": mask,
        "turn_reward": [[0] * len(each) for each in mask],
        "rewards": torch.rand(6, generator=generator).tolist(),
        "groups": [0, 0, 0, 1, 1, 1],
    }
    assert estimated("turn_returns_group", **given) == pytest.approx(estimated("grpo", **given), abs=1e-12)


@pytest.mark.parametrize(("reward", "size"), [(100.1, 7), (0.7, 3), (0.3, 1)])
def test_equal_trajectories_without_turns_have_no_signal(reward, size):
    given = {"mask": [[1, 1]] * size, "turn_reward": [[0, 0]] * size, "rewards": [reward] * size}
    assert estimated("turn_returns_group", **given) == [0.0] * 2 * size
