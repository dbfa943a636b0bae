"""Run directories with given responses."""

from __future__ import annotations

import json
from pathlib import Path

TWO_TURNS = {
    "step": 2,
    "id": "row 1",
    "trajectory_id": "0-0",
    "prompt": "How much is 6 times 7?",
    "response": "calc: 6*7 = 42 is é",
    "answer": "42",
    "reward": 1.0,
    "tokens": 10,
    "finish_reason": "stop",
    "segments": [
        {
            "kind": "policy",
            "tool": None,
            "tokens": ["calc", ": ", "6*7"],
            "mask": [1, 1, 1],
            "advantages": [0.5, 0.5, 0.25],
        },
        {
            "kind": "observation",
            "tool": "calculator",
            "tokens": [" = ", "42"],
            "mask": [0, 0],
            "advantages": [0.0, 0.0],
        },
        {
            "kind": "policy",
            "tool": None,
            "tokens": [" is", " ", "é", ""],
            "mask": [1, 0, 1, 1],
            "advantages": [-0.75, -0.75, -0.25, -0.35],
        },
    ],
}
"""A tool between two turns: advantages of both signs, a masked token, and a character of two tokens."""
OTHER = TWO_TURNS | {
    "id": "row 2",
    "trajectory_id": "1-0",
    "reward": 0.0,
    "segments": [{"kind": "policy", "tool": None, "tokens": ["no"], "mask": [1], "advantages": [0.0]}],
}
OLD = {name: value for name, value in TWO_TURNS.items() if name not in ("segments", "trajectory_id")} | {"step": 1}
"""As runs recorded them before there were segments."""


def recorded(path: Path, *records: dict) -> Path:
    """A run directory that has these."""
    path.mkdir(exist_ok=True)
    (path / "metrics.jsonl").write_text('{"step": 1}\n')
    (path / "samples.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    return path
