"""The paper's formula on numbers worked out by hand."""

from __future__ import annotations

from math import log
from typing import Any

import pytest
from relax_core.conformance.case import replay
from relax_core.registry import Registry


def sequence(reward: float, *ratios: float) -> dict[str, Any]:
    """A response whose tokens have these ratios."""
    old = [-1.0 - i for i in range(len(ratios))]
    logp = [value + log(ratio) for value, ratio in zip(old, ratios, strict=True)]
    return {"group": 0, "reward": reward, "mask": [1] * len(ratios), "old_logp": old, "logp": logp}


def case(*sequences: dict[str, Any]) -> dict[str, Any]:
    config = {"loss_agg_mode": "seq-mean-token-sum-norm", "loss_agg_length": 4}
    return {"algorithm": "dr_grpo", "config": {"algorithm": config}, "sequences": list(sequences)}


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    """Rewards 1, 0, 0, so that the advantages are 2/3, −1/3, −1/3; lengths 1, 3, 2."""
    return replay(case(sequence(1.0, 1.5), sequence(0.0, 1.0, 1.1, 0.5), sequence(0.0, 2.0, 1.0)), Registry.load())


def test_the_advantage_is_the_reward_less_the_mean_not_divided_by_the_spread(result: dict[str, Any]) -> None:
    assert [pytest.approx(each) for each in result["advantages"]] == [[2 / 3], [-1 / 3] * 3, [-1 / 3] * 2]


def test_the_ratio_is_clipped_on_the_side_that_the_advantage_favours(result: dict[str, Any]) -> None:
    first, second, third = result["per_token_loss"]
    assert first == pytest.approx([-1.2 * 2 / 3])
    assert second == pytest.approx([1 / 3, 1.1 / 3, 0.8 / 3])
    assert third == pytest.approx([2 / 3, 1 / 3])
    assert result["metrics"]["pg_clipfrac"] == pytest.approx(2 / 6)


def test_the_denominator_is_three_sequences_of_four_tokens(result: dict[str, Any]) -> None:
    assert result["denominator"] == 12
    assert result["loss"] == pytest.approx((-0.8 + 2.9 / 3 + 3 / 3) / 12)


def test_the_gradient_is_that_of_the_unclipped_tokens(result: dict[str, Any]) -> None:
    first, second, third = result["grad_logp"]
    assert first == pytest.approx([0.0])
    assert second == pytest.approx([1 / 3 / 12, 1.1 / 3 / 12, 0.0])
    assert third == pytest.approx([2 / 3 / 12, 1 / 3 / 12])


def test_a_token_of_a_long_answer_weighs_as_much_as_one_of_a_short_answer() -> None:
    short, long = replay(case(sequence(1.0, 1.0), sequence(0.0, *[1.0] * 9)), Registry.load())["grad_logp"]
    assert short == pytest.approx([-0.5 / 8])
    assert long == pytest.approx([0.5 / 8] * 9)
