"""The environment of a run, asked as a rollout engine is: completions of prompts, of several turns each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import torch

from relax_core.config import RunConfig
from relax_core.data.prompts import Prompt
from relax_core.environments.engines import Batches, Streams
from relax_core.environments.loading import Environment
from relax_core.environments.player import Player
from relax_core.environments.trajectory import EnvironmentPrompt, Limits, Trajectory
from relax_core.rollout.types import Completion, RolloutEngine, SamplingParams

AT_ONCE = 256
"""Turns that an engine with continuous batching is asked for at a time, where `rollout.max_batch` says nothing."""


class Episodes:
    """Trajectories of `environment`, sampled by `engine`."""

    def __init__(self, environment: Environment, config: RunConfig, engine: RolloutEngine, tokenizer: Any) -> None:
        self.settings = config.rollout.environment
        self.player = Player(environment, self.settings.args, self.settings, _asking(config, engine), tokenizer)

    def generate(
        self, prompts: Sequence[Prompt], params: SamplingParams, places: Sequence[int]
    ) -> list[list[Completion]]:
        """`params.n` responses to each prompt, in the order of the prompts."""
        return asyncio.run_coroutine_threadsafe(self._played(prompts, params, places), self.player.loop).result()

    def submit(self, prompt: Prompt, params: SamplingParams, place: int) -> Future[list[Completion]]:
        """The responses to one prompt, when they are there."""
        return asyncio.run_coroutine_threadsafe(self._group(prompt, params, place), self.player.loop)

    def close(self) -> None:
        """End what is under way."""
        self.player.close()

    async def _group(self, prompt: Prompt, params: SamplingParams, place: int) -> list[Completion]:
        (group,) = await self._played([prompt], params, [place])
        return group

    async def _played(
        self, prompts: Sequence[Prompt], params: SamplingParams, places: Sequence[int]
    ) -> list[list[Completion]]:
        settings = self.settings
        limits = Limits(settings.max_turns, params.max_new_tokens, settings.max_seconds, settings.max_context_tokens)
        groups = await self.player.play([_seen(each, limits) for each in prompts], params, places)
        return [[completion_of(each) for each in group] for group in groups]


def completion_of(trajectory: Trajectory) -> Completion:
    """All that came after the prompt, as one response."""
    return Completion(
        list(trajectory.token_ids),
        trajectory.log_probs,
        trajectory.finish_reason,
        trajectory.versions,
        list(trajectory.raw_mask),
        trajectory.turn_rewards,
        None if trajectory.reward is None else float(trajectory.reward),
        trajectory.counts,
        list(trajectory.resets),
        trajectory.observations,
    )


def _seen(prompt: Prompt, limits: Limits) -> EnvironmentPrompt:
    row = prompt.example
    return EnvironmentPrompt(row.id, prompt.text, tuple(prompt.token_ids), row.answer, row.metadata, limits)


def _asking(config: RunConfig, engine: RolloutEngine) -> Batches | Streams:
    if config.rollout.engine == "vllm":
        return Streams(engine, config.rollout.max_batch or AT_ONCE)
    # OpenMP counts threads for each thread apart.
    return Batches(engine, partial(torch.set_num_threads, torch.get_num_threads()))
