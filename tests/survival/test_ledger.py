"""How prompts are counted against those of a run that was left alone."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.ledger import prompts_of, survived


@pytest.fixture
def run(tmp_path):
    """Two responses to each prompt: `a` in the first step, `c` in both."""
    places, response = ((1, "a"), (1, "c"), (2, "c")), "a line separator:\u2028"
    rows = [{"step": step, "id": prompt, "response": response} for step, prompt in places for _ in range(2)]
    text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
    (tmp_path / "samples.jsonl").write_text(text, encoding="utf-8")
    return tmp_path


def test_a_prompt_counts_once_for_each_step_that_has_it(run):
    assert prompts_of(run) == {"a": 1, "c": 2}


def test_what_is_missing_is_lost_and_what_is_too_much_is_duplicated(run):
    counted = Counter(faults=3)
    with pytest.raises(AssertionError, match="lost"):
        survived(counted, 3, run, Counter(a=2, b=1, c=1))
    assert counted == {"faults": 3, "survived": 3, "lost": 2, "duplicated": 1}


def test_the_same_prompts_are_neither(run):
    counted = Counter()
    survived(counted, 2, run, Counter(a=1, c=2))
    assert counted == {"survived": 2, "lost": 0, "duplicated": 0}
