"""Whether tools are waited for side by side: seconds of many trajectories at once, over those of the slowest one alone.

python benchmarks/environments.py [--trajectories N] [--turns N] [--rounds N] [--seed N]

Every trajectory has `turns` turns of a tiny model in the embedded engine, and after each a tool that sleeps 0.2 to 1 s.
Prints one JSON object: `seconds` of all of them, median of the rounds; `slowest_chain`, seconds of the one that sleeps the
longest, alone; `ratio` of the two; `slept`, seconds of all sleeps together; and `batches`, how many the engine had.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from relax_core import EnvironmentPrompt, Sampler, Trajectory
from relax_core.config import EnvironmentSection
from relax_core.environments.engines import Batches
from relax_core.environments.loading import Environment
from relax_core.environments.player import Player
from relax_core.environments.trajectory import Limits
from relax_core.rollout.hf import HFSampler
from relax_core.rollout.types import SamplingParams

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

NEW, SHOWN = 6, 2
"""Tokens of a turn, and of what a tool gives."""


async def generate(prompt: EnvironmentPrompt, sampler: Sampler) -> Trajectory:
    """Turns with a sleep after each."""
    trajectory = Trajectory(prompt, reward=0.0)
    for seconds in prompt.metadata["sleeps"]:
        await sampler.sample(trajectory, max_tokens=NEW)
        await sampler.call(trajectory, time.sleep, seconds, after="ok")
    return trajectory


class Counted(HFSampler):
    """Counts its calls."""

    calls = 0

    def generate(self, *arguments: Any) -> Any:
        """As `HFSampler`."""
        self.calls += 1
        return super().generate(*arguments)


def seconds_of(chains: list[list[float]], engine: Counted, tokenizer: Any) -> float:
    """How long the chains take together."""
    player = Player(Environment("sleeps", generate, None), {}, EnvironmentSection(), Batches(engine), tokenizer)
    limits = Limits(len(chains[0]), len(chains[0]) * (NEW + SHOWN))
    prompts = [
        EnvironmentPrompt(f"{i}", "go", (74, 82), None, {"sleeps": each}, limits) for i, each in enumerate(chains)
    ]
    began = time.perf_counter()
    playing = player.play(prompts, SamplingParams(1, limits.tokens), range(len(chains)))
    asyncio.run_coroutine_threadsafe(playing, player.loop).result()
    took = time.perf_counter() - began
    player.close()
    return took


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser()
    for name, default in {"trajectories": 200, "turns": 3, "rounds": 3, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    from tiny_model import byte_tokenizer, random_model

    torch.set_num_threads(1)
    tokenizer, source = byte_tokenizer(), random.Random(asked.seed)
    engine = Counted(random_model(), tokenizer)
    engine._eos_ids = set()  # every turn has its full length
    chains = [[source.uniform(0.2, 1.0) for _ in range(asked.turns)] for _ in range(asked.trajectories)]
    alone = statistics.median(seconds_of([max(chains, key=sum)], engine, tokenizer) for _ in range(asked.rounds))
    engine.calls = 0
    together = statistics.median(seconds_of(chains, engine, tokenizer) for _ in range(asked.rounds))
    found = {"seconds": together, "slowest_chain": alone, "ratio": together / alone, "slept": sum(map(sum, chains))}
    print(
        json.dumps({name: round(value, 3) for name, value in found.items()} | {"batches": engine.calls // asked.rounds})
    )


if __name__ == "__main__":
    main()
