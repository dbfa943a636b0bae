"""Rewards that fail and count as 0 are not only counted: each kind of error is told once, with a sample to look at."""

from __future__ import annotations

import json

import pytest

REWARD = """
calls = []

def reward(sample):
    calls.append(sample)
    {body}
    return float(len(calls) % 2)
"""


@pytest.fixture
def warnings(relax, run_file, tmp_path):
    """Train with a reward of this body, 16 calls long; gives the warnings in the log, which are those on stderr too."""

    def run(body, *flags):
        (tmp_path / "reward.py").write_text(REWARD.format(body=body))
        arguments = ("--data.reward", "reward.py:reward", "--on-reward-error", "zero", "--output.dir", "run")
        result = relax("train", run_file(), *arguments, *flags)
        assert result.code == 0, result.err
        events = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
        found = [each["message"] for each in events if each["event"] == "warning" and "data.reward" in each["message"]]
        assert [line for line in result.err.splitlines() if "data.reward" in line] == [f"warning: {x}" for x in found]
        return found

    return run


def counted(tmp_path):
    return [json.loads(line)["rollout/reward_errors"] for line in (tmp_path / "run" / "metrics.jsonl").open()]


def first_samples(tmp_path):
    """The ids of the first step's prompts."""
    rows = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").open()]
    return list(dict.fromkeys(row["id"] for row in rows if row["step"] == 1))


def test_an_error_is_told_once_with_the_first_sample_that_gave_it(warnings, tmp_path):
    found = warnings("[][0] if len(calls) > 2 else 1 / 0 if len(calls) == 2 else 0", "--output.samples-per-step", 8)
    first, _ = first_samples(tmp_path)
    assert found == [
        f"data.reward: failed on sample {first}, which counts as 0: ZeroDivisionError: division by zero (reward.py:6)",
        f"data.reward: failed on sample {first}, which counts as 0: IndexError: list index out of range (reward.py:6)",
    ]
    assert counted(tmp_path) == [7.0, 8.0]


def test_errors_that_are_all_different_are_not_all_told(warnings, tmp_path):
    found = warnings("raise ValueError(len(calls))", "--num-rollout", 3)
    assert [each.split(": ")[3].split(" ")[0] for each in found] == [str(number) for number in range(1, 21)]
    assert found[19].endswith("; errors with other texts are counted, and not told any more")
    assert not any("not told any more" in each for each in found[:19])
    assert counted(tmp_path) == [8.0, 8.0, 8.0]


def test_those_of_an_evaluation_are_told_too(warnings, tmp_path):
    source = tmp_path / "held.py"
    source.write_text("def examples():\n    return [{'prompt': 'a', 'answer': 'b', 'id': 'held-out'}]\n")
    body = "1 / 0 if sample.id == 'held-out' else 0"
    found = warnings(body, "--eval-interval", 1, "--evaluation.source", "held.py:examples")
    assert found == [
        "data.reward: failed on sample held-out, which counts as 0: ZeroDivisionError: division by zero (reward.py:6)"
    ]
