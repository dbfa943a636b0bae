"""`play`: what comes of an environment when the policy writes turns that a test gives."""

from __future__ import annotations

import pytest

from relax_core.conformance.playing import play
from relax_core.errors import LoadError
from tests.conftest import EXAMPLES

CALCULATOR = str(EXAMPLES / "environments" / "calculator.py")
ROW = {"prompt": "3+4+5:", "answer": 12}


def test_what_is_shown_stands_between_the_turns_with_the_raw_mask_0():
    trajectory = play(CALCULATOR, ["3+4=", "7+5=", "12"], ROW)
    assert bytes(trajectory.token_ids) == b"3+4=7;7+5=12;12"
    assert trajectory.raw_mask == tuple(each == "1" for each in "111100111100011")
    assert (trajectory.reward, trajectory.finish_reason) == (1.0, "stop")


def test_the_row_decides_what_is_right():
    assert play(CALCULATOR, ["12"], {**ROW, "answer": 13}).reward == 0.0


def test_turns_come_in_order_whatever_the_prompt_says():
    row = {"prompt": "12 3+4=", "answer": 7}
    assert [turn.text for turn in play(CALCULATOR, ["3+4=", "12=", "7"], row).turns] == ["3+4=", "12=", "7"]


def test_the_last_turn_is_written_again_until_a_budget_is_used_up():
    trajectory = play(CALCULATOR, ["1+1=", "2="], ROW)
    assert [turn.text for turn in trajectory.turns] == ["1+1=", *["2="] * 5]
    assert (trajectory.reward, trajectory.finish_reason) == (0.0, "length")


def test_settings_reach_it():
    trajectory = play(CALCULATOR, ["3+4=", "7"], ROW, {"call_reward": 0.5})
    assert trajectory.turn_rewards == [0, 0, 0, 0.5, 0, 0, 0]


def test_a_name_that_is_none():
    with pytest.raises(LoadError, match="no environment is called 'calculater'"):
        play("calculater", ["12"], ROW)
