"""Environments of the `verifiers` package, as they are: their rows, their turns and tools, their rubrics.

data:    {source: "relax_core.environments.verifiers:examples", source_args: {id: wordle}}
rollout: {environment: {name: verifiers, args: {id: wordle}}}
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from relax_core.environments.sampler import Sampler
from relax_core.environments.trajectory import EnvironmentConfig, EnvironmentPrompt, Trajectory
from relax_core.environments.verifiers.loading import loaded, row_of, rows_of
from relax_core.environments.verifiers.policy import PLAYING, Policy

__all__ = ["Config", "examples", "generate"]


class Config(EnvironmentConfig):
    id: str
    """The environment, as `verifiers.load_environment` takes it: the name of an installed module."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of its `load_environment`."""

    @model_validator(mode="after")
    def _is_there(self) -> Config:
        loaded(self.id, self.args)
        return self


def examples(id: str, args: dict[str, Any] | None = None, part: str = "train", count: int = -1) -> list[dict[str, Any]]:
    """The rows of an environment for `data.source`: those it trains on, or, where `part` is `eval`, those held out.

    `count` takes the first of them. Raises LoadError for an environment that is none, or has no such rows.
    """
    return rows_of(loaded(id, args or {}), part, count)


async def generate(prompt: EnvironmentPrompt, sampler: Sampler, config: Config) -> Trajectory:
    """What the environment makes of a row; its rubric gives the reward."""
    environment, trajectory = loaded(config.id, config.args), Trajectory(prompt)
    policy = Policy(trajectory, sampler, environment.message_type)
    PLAYING.set((sampler, trajectory))
    state = await environment.rollout(row_of(prompt), policy, "policy", {})
    if policy.failure is not None:
        raise policy.failure
    if (error := policy.fatal(state)) is not None:
        raise error
    await environment.rubric.score_rollout(state)
    trajectory.reward = float(state["reward"])
    return trajectory
