"""Sums of two small numbers, asked in words of a chat model; right when the last number of the response is the sum."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relax_core.data.rewards import Sample


def examples(lowest: int = 2, highest: int = 9) -> list[dict[str, Any]]:
    """Every sum `a + b` with `lowest <= a, b <= highest`, as one message of a user, in a fixed order."""
    numbers = range(lowest, highest + 1)
    return [example(left, right) for left in numbers for right in numbers]


def example(left: int, right: int) -> dict[str, Any]:
    """One question with its answer."""
    question = f"What is {left} plus {right}? Answer with a number."
    return {
        "id": f"{left}+{right}",
        "prompt": [{"role": "user", "content": question}],
        "answer": str(left + right),
    }


def reward(sample: Sample) -> float:
    """1.0 when the last number in the response is the answer, else 0.0."""
    numbers = re.findall(r"\d+", sample.response)
    return float(bool(numbers) and int(numbers[-1]) == int(sample.answer))
