"""What scores a response: a callable `(sample, **reward_args) -> float`, loaded by name and called sample by sample."""

from __future__ import annotations

import importlib.util
import inspect
import json
import math
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from numbers import Real
from pathlib import Path
from typing import Any, Literal

from relax_core.errors import FOREIGN, RunError, UsageError, describe
from relax_core.references import load_callable, missing_extra

Reward = Callable[..., Any]
TEXTS, LONGEST = 20, 300
"""How many texts of errors are kept of a batch, and how many characters of each."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One response as a reward sees it.

    `prompt` and `response` are text, `response` without the stop token; `prompt_ids` and `response_ids` are the tokens
    themselves, the one that ended the response included. `answer` and `metadata` come from the example.
    `finish_reason` is `stop` or `length`.
    """

    id: str
    prompt: str
    response: str
    answer: Any
    metadata: dict[str, Any]
    prompt_ids: list[int]
    response_ids: list[int]
    finish_reason: str


@dataclass(frozen=True, slots=True)
class RewardBatch:
    """One reward a sample, in the order of the samples, and how many of them are 0 because the reward failed.

    `failures` has the texts of the errors, `TEXTS` at most, and beside each the id of the first sample that gave it.
    """

    rewards: list[float]
    errors: int
    failures: dict[str, str] = field(default_factory=dict)


class RewardFunction:
    """The reward of a run. Loading it raises LoadError; arguments that it does not take are a UsageError."""

    def __init__(self, reference: str, args: dict[str, Any], on_error: Literal["stop", "zero"], base: Path) -> None:
        self.name = reference
        self._args = args
        self._on_error = on_error
        self._function = load_callable(reference, who="data.reward", base=base, group="relax.rewards")
        check_requirement(self._function, reference)
        check_arguments(self._function, reference, args)

    def score(self, samples: Sequence[Sample]) -> RewardBatch:
        """The rewards of `samples`. A reward that fails is a RunError, or counts as 0 where `on_error` is `zero`."""
        failures: dict[str, str] = {}
        scores = [self._score(sample, failures) for sample in samples]
        return RewardBatch([score or 0.0 for score in scores], sum(score is None for score in scores), failures)

    def _score(self, sample: Sample, failures: dict[str, str]) -> float | None:
        try:
            return finite(self._function(sample, **self._args))
        except FOREIGN as error:
            if self._on_error == "zero":
                if len(failures) < TEXTS:
                    failures.setdefault(_told(error), sample.id)
                return None
            raise self._failure(sample, error) from error

    def _failure(self, sample: Sample, error: BaseException) -> RunError:
        frames = error.__traceback__ and error.__traceback__.tb_next
        text = "".join(traceback.format_exception(type(error), error, frames)).rstrip()
        fix = "correct the reward, or set data.on_reward_error to zero"
        return RunError(f"'{self.name}' failed on sample {sample.id}\n{text}\n", who="data.reward", fix=fix)


def _told(error: BaseException) -> str:
    """Its text in a line, with the place in the reward that raised it."""
    place = traceback.extract_tb(error.__traceback__)[-1].filename
    text = f"{type(error).__name__}: {error}" if place == __file__ else describe(error)
    return " ".join(text.split())[:LONGEST]


def finite(value: Any) -> float:
    """`value`, a number or a scalar of numpy or torch, as a float. ValueError where it is no finite number."""
    number = value.item() if hasattr(value, "item") else value
    if not isinstance(number, Real) or not math.isfinite(number):
        raise ValueError(f"it returned {value!r} ({type(value).__name__}), which is not a finite number")
    return float(number)


def needs(module: str) -> Callable[[Reward], Reward]:
    """Mark a reward as unusable without `module`, so that a run without it stops when it starts."""

    def mark(reward: Reward) -> Reward:
        reward.__dict__["needs"] = module
        return reward

    return mark


def check_requirement(reward: Reward, name: str) -> None:
    module = getattr(reward, "needs", None)
    if module and importlib.util.find_spec(module) is None:
        raise missing_extra(module, f"the reward '{name}'", who="data.reward")


def check_arguments(reward: Reward, name: str, args: dict[str, Any]) -> None:
    try:
        signature = inspect.signature(reward)
    except ValueError:  # a callable written in C shows none
        return
    try:
        signature.bind(None, **args)
    except TypeError as error:
        fix = f"its signature is {name}{signature}; the first argument is the sample"
        raise UsageError(f"'{name}' cannot be called with these: {error}", who="data.reward_args", fix=fix) from None


def exact_match(sample: Sample) -> float:
    """1.0 when the response equals the answer, both without surrounding white space."""
    return float(sample.response.strip() == str(sample.answer).strip())


@needs("math_verify")
def math_answer(sample: Sample) -> float:
    r"""1.0 when the `\boxed{}` or last expression of the response is mathematically the answer (math-verify).

    ValueError for an answer that is no expression.
    """
    from math_verify import parse, verify

    # math-verify limits its time with a signal, which only the main thread may use.
    seconds = 5 if threading.current_thread() is threading.main_thread() else None
    answer = str(sample.answer)
    gold = parse(answer if "$" in answer or r"\boxed" in answer else f"${answer}$", parsing_timeout=seconds)
    if not gold:
        raise ValueError(f"the answer {answer!r} is no mathematical expression")
    response = parse(sample.response, parsing_timeout=seconds)
    return float(verify(gold, response, timeout_seconds=seconds))


@needs("reasoning_gym")
def task_score(sample: Sample) -> float:
    """The task's own score in 0..1 of the text in `<answer>` tags, or of the whole response where there are none.

    For examples of `data.task` only: their metadata say which task, with which arguments, and hold the entry.
    """
    from reasoning_gym.utils import extract_answer

    if "task" not in sample.metadata or "entry" not in sample.metadata:
        raise ValueError("the example comes from no reasoning-gym task; the reward `task` goes with `data.task`")
    scorer = task_scorer(sample.metadata["task"], json.dumps(sample.metadata["task_args"], sort_keys=True))
    answer = extract_answer(sample.response) or sample.response.strip()
    return float(scorer(answer, sample.metadata["entry"]))


@cache
def task_scorer(task: str, args: str) -> Callable[[str, dict[str, Any]], float]:
    """The scorer of a task; many read the arguments that its questions were made with."""
    from reasoning_gym import create_dataset

    scorer: Callable[[str, dict[str, Any]], float] = create_dataset(task, **json.loads(args)).score_answer
    return scorer
