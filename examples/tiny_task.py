"""Count down to zero, then stop: `from 4` asks for `3210` and the end of the sequence.

Small enough for a model of random weights to learn on a laptop in a minute, and answers differ in length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relax_core.data.rewards import Sample

PHRASES = ("from", "count down from")
STARTS = range(1, 6)


def examples() -> list[dict[str, Any]]:
    """All ten prompts with their answers of one to five digits."""
    return [
        {"id": f"{phrase} {start}", "prompt": f"{phrase} {start}", "answer": "43210"[-start:]}
        for phrase in PHRASES
        for start in STARTS
    ]


def reward(sample: Sample) -> float:
    """The share of positions that are right, the end of the sequence counted as one; 1.0 only for a right answer."""
    ended = sample.finish_reason == "stop"
    length = len(sample.response_ids) - ended
    digits = sum(written == wanted for written, wanted in zip(sample.response, sample.answer, strict=False))
    right = digits + (ended and length == len(sample.answer))
    return right / (max(length, len(sample.answer)) + 1)
