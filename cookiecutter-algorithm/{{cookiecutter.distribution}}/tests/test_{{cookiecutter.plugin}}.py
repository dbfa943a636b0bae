{% if cookiecutter.kind == "environment" %}
"""The tool on calls, and the loop on turns, written by hand."""

from __future__ import annotations

import pytest
from relax_core import Trajectory
from relax_core.conformance.playing import play

from {{ cookiecutter.module }} import EXAMPLES, count


def played(*turns: str, hint: str = "") -> Trajectory:
    """By a policy that writes these turns, and the last one again."""
    return play("{{ cookiecutter.plugin }}", turns, EXAMPLES[0], {"hint": hint})


def shown(trajectory: Trajectory) -> str:
    """What the policy reads and did not write. A token is a byte here."""
    rows = zip(trajectory.token_ids, trajectory.raw_mask, strict=True)
    return bytes(token for token, written in rows if not written).decode()


@pytest.mark.parametrize(("call", "found"), [("r in strawberry", 3), (" n in banana ", 2), ("x in kiwi", 0)])
def test_it_counts(call: str, found: int) -> None:
    assert count(call) == found


@pytest.mark.parametrize("call", ["", "strawberry", "rr in cherry", "r in "])
def test_what_is_no_call_says_how_one_is_written(call: str) -> None:
    with pytest.raises(ValueError, match="write a letter, ' in ' and a word"):
        count(call)


def test_the_policy_reads_what_the_tool_gives_and_answers() -> None:
    trajectory = played("r in strawberry?", "3")
    assert [turn.text for turn in trajectory.turns] == ["r in strawberry?", "3"]
    assert shown(trajectory) == "3\n"
    assert (trajectory.finish_reason, trajectory.reward) == ("stop", 1.0)


def test_a_wrong_answer_is_worth_nothing() -> None:
    assert played("r in strawberry?", "4").reward == 0.0


def test_a_call_that_fails_is_shown_and_it_goes_on() -> None:
    trajectory = played("strawberry?", "3")
    assert shown(trajectory) == "error: ValueError: write a letter, ' in ' and a word\n"
    assert trajectory.reward == 1.0


def test_one_that_never_answers_is_cut_off() -> None:
    trajectory = played("r in strawberry?")
    assert (trajectory.finish_reason, trajectory.reward) == ("length", 0.0)


def test_the_hint_comes_first() -> None:
    assert shown(played("3", hint="Ask or answer. ")) == "Ask or answer. "
{% else %}
"""The formula on numbers worked out by hand."""

from __future__ import annotations

{% if cookiecutter.kind != "mask" %}
from math import log
{% endif %}
from typing import Any

import pytest
from relax_core.conformance.case import replay
from relax_core.registry import Registry

{% if cookiecutter.kind in ("estimator-and-loss", "loss") %}
# One group of two responses. The ratios are 1 and 4 in the first, 1/2 in the second, whose last token is masked.
CASE: dict[str, Any] = {
{% if cookiecutter.kind == "loss" %}
    "algorithm": "grpo",
    "config": {
        "algorithm": {
            "policy_loss": "{{ cookiecutter.plugin }}",
            "advantage_norm_mode": "group_mean",
        },
    },
{% else %}
    "algorithm": "{{ cookiecutter.plugin }}",
{% endif %}
    "sequences": [
        {"group": 0, "reward": 1.0, "mask": [1, 1], "old_logp": [-1.0, -3.0], "logp": [-1.0, -3.0 + log(4)]},
        {"group": 0, "reward": 0.0, "mask": [1, 0], "old_logp": [-2.0, -9.0], "logp": [-2.0 - log(2), -9.0]},
    ],
}


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return replay(CASE, Registry.load())


def test_the_advantage_is_the_reward_less_the_mean_of_its_group(result: dict[str, Any]) -> None:
    assert result["advantages"] == [[0.5, 0.5], [-0.5, 0.0]]


def test_the_loss_is_the_truncated_ratio_times_the_advantage_times_the_log_probability(result: dict[str, Any]) -> None:
    first, second = result["per_token_loss"]
    assert first == pytest.approx([1 * 0.5 * 1.0, 2 * 0.5 * (3.0 - log(4))])
    assert second == pytest.approx([-0.5 * 0.5 * (2.0 + log(2)), 0.0])


def test_the_gradient_is_minus_the_weighted_advantage_over_three_tokens(result: dict[str, Any]) -> None:
    first, second = result["grad_logp"]
    assert first == pytest.approx([-1 * 0.5 / 3, -2 * 0.5 / 3])
    assert second == pytest.approx([0.5 * 0.5 / 3, 0.0])


def test_one_token_in_three_is_truncated(result: dict[str, Any]) -> None:
    assert result["metrics"]["pg_clipfrac"] == pytest.approx(1 / 3)
{% else %}
{% if cookiecutter.kind == "mask" %}
# The second token of the first response was sampled with e^−12; the last token of the second is masked.
{% set old = ["[-1.0, -12.0]", "[-2.0, -9.0]"] %}
{% else %}
# Sampled with the probabilities 1/2, 1/4 and 1; the last token is masked.
{% set old = ["[log(0.5), log(0.25)]", "[0.0, -9.0]"] %}
{% endif %}
CASE: dict[str, Any] = {
    "algorithm": "grpo",
    "config": {"algorithm": {"{{ cookiecutter.plugin }}": {"enable": True}}},
    "sequences": [
        {"group": 0, "reward": 1.0, "mask": [1, 1], "old_logp": {{ old[0] }}, "logp": {{ old[0] }}},
        {"group": 0, "reward": 0.0, "mask": [1, 0], "old_logp": {{ old[1] }}, "logp": {{ old[1] }}},
    ],
}


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return replay(CASE, Registry.load())
{% if cookiecutter.kind == "mask" %}


def test_the_unlikely_token_is_dropped_from_loss_and_denominator(result: dict[str, Any]) -> None:
    assert result["keep.{{ cookiecutter.plugin }}"] == [[1, 0], [1, 0]]
    assert result["loss_mask"] == [[1, 0], [1, 0]]
    assert result["denominator"] == 2


def test_no_advantage_moves_because_a_token_is_dropped(result: dict[str, Any]) -> None:
    plain = replay({**CASE, "config": {}}, Registry.load())
    assert plain["denominator"] == 3
    assert result["advantages"] == plain["advantages"]


def test_a_token_at_the_bound_stays() -> None:
    config = {"algorithm": {"{{ cookiecutter.plugin }}": {"enable": True, "min_log_prob": -12.0}}}
    assert replay({**CASE, "config": config}, Registry.load())["denominator"] == 3
{% else %}


def test_the_weight_is_one_less_the_probability(result: dict[str, Any]) -> None:
    first, second = result["weight.{{ cookiecutter.plugin }}"]
    assert first == pytest.approx([0.5, 0.75])
    assert second == [0.0, 0.0]


def test_the_gradient_is_weighted_and_the_denominator_stays(result: dict[str, Any]) -> None:
    plain = replay({**CASE, "config": {}}, Registry.load())
    first, second = plain["grad_logp"]
    assert result["denominator"] == plain["denominator"] == 3
    assert result["grad_logp"][0] == pytest.approx([0.5 * first[0], 0.75 * first[1]])
    assert result["grad_logp"][1] == pytest.approx([0.0 * second[0], 0.0])


def test_the_mean_weight_is_reported(result: dict[str, Any]) -> None:
    assert result["metrics"]["weight_mean"] == pytest.approx((0.5 + 0.75 + 0.0) / 3)
{% endif %}
{% endif %}
{% endif %}
