"""The recipes for GPUs, and the flags that make each a run of seconds on a CPU: its sizes, model and data, nothing else."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import EXAMPLES

RECIPES = {path.stem: path for path in sorted((EXAMPLES / "recipes").glob("*.yaml"))}
PROBLEMS = [
    {"question": f"{name} has one pen and buys one. How many has {name}?", "answer": "It is 1 + 1 = 2.\n#### 2"}
    for name in ("Ann", "Ben", "Eve", "Tom")
]
TINY = {
    "max-prompt-tokens": 250,
    "max-model-len": 260,
    "max-new-tokens": 2,
    "rollout-batch-size": 2,
    "n-samples-per-prompt": 8,
    "num-rollout": 2,
    "lr": 1e-3,
    "trainer.device": "cpu",
    "trainer.num-threads": 1,
    "save-interval": 0,
    "tensorboard": False,
}


def tiny(directory: Path, cache: Path, **changes: object) -> list[str]:
    """Flags of a recipe's sizes, with its data in `directory` and the model in `cache`; `changes` are further ones by name."""
    for name, rows in {"train": PROBLEMS, "test": PROBLEMS[:1]}.items():
        (directory / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    args = {name: {"path": f"{directory}/{name}.jsonl", "cache": f"{directory}/cache"} for name in ("train", "test")}
    places = {
        "model.path": Path(__file__).with_name("recipe_model.py:build"),
        "model.cache-dir": cache,
        "data.source-args": json.dumps(args["train"]),
        "evaluation.source-args": json.dumps(args["test"]),
    }
    return [f"--{name}={value}" for name, value in {**places, **TINY, **changes}.items()]
