"""Rewards: what counts as a score, what a failure says, and the built-in ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from relax_core.config import DataSection
from relax_core.data.examples import load_examples
from relax_core.data.rewards import RewardBatch, RewardFunction, Sample
from relax_core.errors import LoadError, RunError, UsageError

FILE = """
import numpy as np
import torch

VALUES = {
    "float": 0.5, "bool": True, "int": -2, "numpy": np.float32(0.25), "numpy bool": np.bool_(True),
    "torch": torch.tensor(2.0), "text": "1.0", "none": None, "nan": float("nan"), "inf": float("inf"),
    "vector": torch.ones(2),
}

def by_answer(sample, scale=1):
    if sample.answer == "raises":
        raise KeyError("no such answer")
    return VALUES[sample.answer] if scale == 1 else VALUES[sample.answer] * scale

def three(sample, first, second): return 0
"""


def sample(answer: object, response: str = "", name: str = "e1", **metadata: object) -> Sample:
    return Sample(name, "?", response, answer, metadata, [1], [2], "stop")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(FILE)
    return tmp_path


def reward(base: Path, on_error: str = "stop", name: str = "mine.py:by_answer", **args: object) -> RewardFunction:
    return RewardFunction(name, args, on_error, base)


def builtin(name: str) -> RewardFunction:
    return RewardFunction(f"relax_core.data.rewards:{name}", {}, "stop", Path.cwd())


def test_numbers_of_every_kind_are_scores(base: Path) -> None:
    kinds = ("float", "bool", "int", "numpy", "numpy bool", "torch")
    batch = reward(base).score([sample(kind) for kind in kinds])
    assert batch == RewardBatch([0.5, 1.0, -2.0, 0.25, 1.0, 2.0], 0)
    assert {type(value) for value in batch.rewards} == {float}


def test_arguments_reach_the_reward(base: Path) -> None:
    assert reward(base, scale=4).score([sample("float")]).rewards == [2.0]


def test_zero_counts_what_failed_and_keeps_the_order(base: Path) -> None:
    kinds = ("float", "raises", "text", "none", "nan", "inf", "vector", "int")
    batch = reward(base, "zero").score([sample(kind) for kind in kinds])
    assert (batch.rewards, batch.errors) == ([0.5, 0, 0, 0, 0, 0, 0, -2.0], 6)


def test_zero_keeps_each_kind_of_error_with_the_first_sample_that_gave_it(base: Path) -> None:
    kinds = ("float", "raises", "text", "raises", "nan")
    batch = reward(base, "zero").score([sample(kind, name=f"e{number}") for number, kind in enumerate(kinds)])
    assert batch.failures == {
        "KeyError: 'no such answer' (mine.py:13)": "e1",
        "ValueError: it returned '1.0' (str), which is not a finite number": "e2",
        "ValueError: it returned nan (float), which is not a finite number": "e4",
    }


def test_texts_of_errors_are_bounded_in_number_and_length(base: Path) -> None:
    (base / "mine.py").write_text("def by_answer(sample):\n    raise ValueError('no\\n' + sample.answer * 1000)\n")
    batch = reward(base, "zero").score([sample(chr(97 + number)) for number in range(26)])
    assert batch.errors == 26
    assert next(iter(batch.failures)) == "ValueError: no " + "a" * 285
    assert len(batch.failures) == 20


def test_a_reward_of_zero_is_no_error(base: Path) -> None:
    assert reward(base, "zero", scale=0).score([sample("float")]) == RewardBatch([0.0], 0)


def test_stop_names_the_sample_and_the_reward_and_shows_the_traceback(base: Path) -> None:
    with pytest.raises(RunError) as caught:
        reward(base).score([sample("float"), sample("raises", name="e7")])
    text = caught.value.message
    assert text.startswith("data.reward: 'mine.py:by_answer' failed on sample e7\nTraceback (most recent call last):")
    assert f'{base / "mine.py"}", line 13, in by_answer\n    raise KeyError("no such answer")' in text
    assert text.endswith("KeyError: 'no such answer'\n. Fix: correct the reward, or set data.on_reward_error to zero")
    assert "rewards.py" not in text


@pytest.mark.parametrize(
    ("kind", "shown"),
    [("text", "'1.0' (str)"), ("none", "None (NoneType)"), ("nan", "nan (float)"), ("inf", "inf (float)")],
)
def test_stop_says_what_is_no_finite_number(base: Path, kind: str, shown: str) -> None:
    with pytest.raises(RunError) as caught:
        reward(base).score([sample(kind)])
    assert f"ValueError: it returned {shown}, which is not a finite number" in caught.value.message


def test_arguments_that_the_reward_does_not_take(base: Path) -> None:
    with pytest.raises(UsageError) as caught:
        reward(base, name="mine.py:three", first=1, third=3)
    assert caught.value.message == (
        "data.reward_args: 'mine.py:three' cannot be called with these: missing a required argument: 'second'. "
        "Fix: its signature is mine.py:three(sample, first, second); the first argument is the sample"
    )


def test_a_callable_without_a_signature_is_accepted() -> None:
    assert RewardFunction("builtins:bool", {}, "stop", Path.cwd()).score([sample("x")]).rewards == [1.0]


def test_exact_match() -> None:
    samples = [sample("4", " 4\n"), sample(4, "4"), sample("4", "44"), sample("", "4")]
    assert builtin("exact_match").score(samples).rewards == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("answer", "response", "score"),
    [
        ("0.5", r"So it is \boxed{\frac{1}{2}}.", 1.0),
        (r"\frac{1}{2}", "The answer is 0.5", 1.0),
        (12, "7 plus 5 makes 12.", 1.0),
        ("12", "7 plus 5 makes 11.", 0.0),
        ("$x + 1$", r"\boxed{1 + x}", 1.0),
        ("12", "I do not know", 0.0),
        ("12", "", 0.0),
    ],
)
def test_math_answer(answer: object, response: str, score: float) -> None:
    assert builtin("math_answer").score([sample(answer, response)]).rewards == [score]


def test_math_answer_refuses_an_answer_that_is_no_expression() -> None:
    with pytest.raises(RunError, match="the answer '' is no mathematical expression"):
        builtin("math_answer").score([sample("", "12")])


def test_math_answer_off_the_main_thread() -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        batch = pool.submit(builtin("math_answer").score, [sample("0.5", r"\boxed{\frac{1}{2}}")]).result()
    assert batch.rewards == [1.0]


@pytest.mark.parametrize(
    ("name", "module", "extra"), [("math_answer", "math_verify", "math"), ("task_score", "reasoning_gym", "tasks")]
)
def test_a_missing_extra_is_known_when_the_reward_is_loaded(
    monkeypatch: pytest.MonkeyPatch, name: str, module: str, extra: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(LoadError) as caught:
        builtin(name)
    assert caught.value.message == (
        f"data.reward: the reward 'relax_core.data.rewards:{name}' needs the package {module.replace('_', '-')}, "
        f"which is not installed. Fix: install with pip install 'relax-rl[{extra}]'"
    )


def test_task_score_is_the_tasks_own() -> None:
    data = DataSection(task="leg_counting", task_args={"size": 1, "seed": 1})
    [example] = load_examples(data, Path.cwd())
    responses = (example.answer, f"Let me see.<answer> {example.answer} </answer>", "nothing")
    samples = [Sample("e", "?", text, example.answer, example.metadata, [], [], "stop") for text in responses]
    first, second, third = builtin("task_score").score(samples).rewards
    assert (first, second) == (1.0, 1.0)
    assert third < 0.1


def test_task_score_uses_the_arguments_of_the_task() -> None:
    args = {"size": 1, "seed": 3, "min_num_decimal_places": 1, "max_num_decimal_places": 1}
    data = DataSection(task="decimal_arithmetic", task_args=args)
    [example] = load_examples(data, Path.cwd())
    near = str(float(example.answer) + 0.05)  # the tolerance is one of the last decimal place: 0.1 here
    samples = [Sample("e", "?", near, example.answer, example.metadata, [], [], "stop")]
    assert builtin("task_score").score(samples).rewards == [1.0]


def test_task_score_without_a_task() -> None:
    with pytest.raises(RunError, match="the example comes from no reasoning-gym task; the reward `task` goes with"):
        builtin("task_score").score([sample("4", "4")])
