"""Write so many letters of a kind, then stop: `capital 3` asks for any three capital letters and the end.

Small enough for a model of random weights to learn on a laptop in a minute, and answers differ in length.
"""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relax_core.data.rewards import Sample

KINDS = {"small": string.ascii_lowercase, "capital": string.ascii_uppercase}
COUNTS = (1, 2, 3, 4)


def examples() -> list[dict[str, Any]]:
    """All prompts; the answer is how many characters of which kind."""
    return [
        {"id": f"{count}-{kind}", "prompt": f"{kind} {count}", "answer": {"kind": kind, "count": count}}
        for count in COUNTS
        for kind in KINDS
    ]


def reward(sample: Sample) -> float:
    """Half for the characters of the kind that were asked for, half for ending near the right length.

    1.0 only for a right answer. What is written beyond the right length counts as wrong.
    """
    kind, count = KINDS[sample.answer["kind"]], sample.answer["count"]
    ended = sample.finish_reason == "stop"
    length = len(sample.response_ids) - ended
    right_kind = sum(character in kind for character in sample.response[:count]) / max(length, count)
    right_length = ended * max(0.0, 1 - abs(length - count) / count)
    return 0.5 * right_kind + 0.5 * right_length
