"""Environments written in a test, played by the kit's scripted policy."""

from __future__ import annotations

import asyncio

from relax_core.config import EnvironmentSection
from relax_core.conformance.scripted import Bytes, ScriptedEngine
from relax_core.environments.engines import Batches
from relax_core.environments.loading import Environment
from relax_core.environments.player import Player
from relax_core.environments.trajectory import EnvironmentPrompt, Limits, Trajectory
from relax_core.rollout.types import SamplingParams

ROOM = Limits(6, 200)


def play(generate, turns=(), *, n=1, limits=ROOM, engine=None, asking=None, **settings) -> list[Trajectory]:
    """`n` trajectories of one prompt, whose policy writes `turns`, or random text."""
    asking = asking or Batches(engine or ScriptedEngine(turns))
    player = Player(Environment("test", generate, None), {}, EnvironmentSection(**settings), asking, Bytes())
    prompt = EnvironmentPrompt("row-1", "ask:", tuple(b"ask:"), "3", {}, limits)
    try:
        playing = player.play([prompt], SamplingParams(n, limits.tokens), [5])
        (group,) = asyncio.run_coroutine_threadsafe(playing, player.loop).result(60)
    finally:
        player.close()
    return group


def text_of(trajectory: Trajectory) -> str:
    return Bytes().decode(trajectory.token_ids)
