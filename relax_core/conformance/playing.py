"""An environment played without a model, by a policy that writes random text or given turns."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from relax_core.config import EnvironmentSection
from relax_core.conformance.scripted import Bytes, ScriptedEngine
from relax_core.environments.engines import Batches
from relax_core.environments.loading import Environment, load_environment
from relax_core.environments.player import Player
from relax_core.environments.trajectory import EnvironmentPrompt, Limits, Trajectory
from relax_core.rollout.types import Completion, SamplingParams

PROMPT = {"prompt": "3+4+5:", "answer": "12"}
EACH = 16
"""Trajectories of each row."""
WIDE, NARROW = Limits(6, 200, 20), Limits(2, 24, 20)


class Recorded(Batches):
    """Keeps what was asked by place."""

    def __init__(self, engine: ScriptedEngine, asked: dict[int, tuple[Sequence[int], Completion]]) -> None:
        super().__init__(engine)
        self._asked = asked

    async def sample(self, prompt: Sequence[int], params: SamplingParams, place: int) -> Completion:
        """One completion of `prompt`."""
        completion = await super().sample(prompt, params, place)
        self._asked[place] = (prompt, completion)
        return completion


class InOrder(ScriptedEngine):
    """Writes `turns` one after another, and then the last one again, whatever it reads: for one trajectory."""

    def _script(self, prompt: Sequence[int]) -> list[int]:
        return list(self.turns[min(len(self.batches), len(self.turns)) - 1].encode())


@dataclass
class Played:
    """An environment under check. Its module's `EXAMPLES` are the rows that it is played on, as a data file has them."""

    environment: Environment
    rows: Sequence[Mapping[str, Any]] = (PROMPT,)
    seed: int = 0
    asked: dict[int, tuple[Sequence[int], Completion]] = field(default_factory=dict)

    @cached_property
    def wide(self) -> list[Trajectory]:
        """Trajectories with room; `asked` has their turns by place, each with what it was asked after."""
        return self.play(WIDE, self.asked)

    def play(
        self, limits: Limits, asked: dict[int, tuple[Sequence[int], Completion]] | None = None
    ) -> list[Trajectory]:
        """`EACH` of every row."""
        asking = Recorded(ScriptedEngine(), {} if asked is None else asked)
        player = Player(self.environment, {}, EnvironmentSection(tool_timeout=5), asking, Bytes())
        return _ended(player, [prompt_of(row, limits) for row in self.rows], self.params(limits))

    def params(self, limits: Limits) -> SamplingParams:
        return SamplingParams(EACH, limits.tokens, seed=self.seed)


def play(name: str, turns: Sequence[str], row: Mapping[str, Any], args: Mapping[str, Any] | None = None) -> Trajectory:
    """What comes of `row`, a row of a data file, when the policy writes `turns` in order, and then the last one again.

    `name` is an installed environment, a file or a module, `args` its settings. A token is a byte of UTF-8. Raises
    LoadError for what is no environment, ValidationError for wrong settings, RunError for a broken contract.
    """
    environment, asking = load_environment(name, Path(), "play"), Batches(InOrder(turns))
    player = Player(environment, args or {}, EnvironmentSection(tool_timeout=5), asking, Bytes())
    (trajectory,) = _ended(player, [prompt_of(row, WIDE)], SamplingParams(1, WIDE.tokens))
    return trajectory


def prompt_of(row: Mapping[str, Any], limits: Limits) -> EnvironmentPrompt:
    """A row as the run would give it."""
    text = str(row["prompt"])
    return EnvironmentPrompt(
        str(row.get("id", "row")), text, tuple(text.encode()), row.get("answer"), dict(row), limits
    )


def _ended(player: Player, prompts: Sequence[EnvironmentPrompt], params: SamplingParams) -> list[Trajectory]:
    """The trajectories of every prompt; the player is closed."""
    try:
        playing = player.play(prompts, params, range(len(prompts)))
        groups = asyncio.run_coroutine_threadsafe(playing, player.loop).result()
    finally:
        player.close()
    return [each for group in groups for each in group]
