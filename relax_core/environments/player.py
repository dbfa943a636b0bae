"""Playing trajectories of one environment, as many at once as are asked for, in an event loop of its own."""

from __future__ import annotations

import asyncio
import math
import threading
import traceback
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

from relax_core.environments.engines import Batches, Streams
from relax_core.environments.loading import Environment
from relax_core.environments.sampler import Sampler
from relax_core.environments.trajectory import WHO, BudgetSpent, EnvironmentPrompt, Trajectory
from relax_core.errors import FOREIGN, RunError

if TYPE_CHECKING:
    from relax_core.config import EnvironmentSection
    from relax_core.rollout.types import SamplingParams

MERCY = 1.0
"""Seconds that a trajectory has to end after it was cancelled."""


class Player:
    """What plays `environment` with its settings `args`; every turn of every trajectory is asked of `asking`.

    `loop` is the event loop, which runs in a thread of its own.
    """

    def __init__(
        self,
        environment: Environment,
        args: Mapping[str, Any],
        settings: EnvironmentSection,
        asking: Batches | Streams,
        tokenizer: Any,
    ) -> None:
        self.environment, self.settings, self.asking, self.tokenizer = environment, settings, asking, tokenizer
        self._arguments = environment.arguments(args)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True, name="environment")
        self._thread.start()

    def close(self) -> None:
        """Cancel what is under way; a turn that is being sampled is waited for."""
        asyncio.run_coroutine_threadsafe(self._cancel(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.asking.close()
        self.loop.close()

    async def play(
        self, prompts: Sequence[EnvironmentPrompt], params: SamplingParams, places: Sequence[int]
    ) -> list[list[Trajectory]]:
        """`params.n` trajectories of each prompt, in the order of the prompts; to be awaited in `loop`.

        Raises RunError for what breaks the contract, and for an environment that raises where `on_error` is `stop`.
        """
        rows = [(prompt, place, i) for prompt, place in zip(prompts, places, strict=True) for i in range(params.n)]
        self.asking.count(len(rows))
        tasks = [asyncio.ensure_future(self._one(prompt, params, place, index)) for prompt, place, index in rows]
        try:
            found = await asyncio.gather(*tasks)
        except BaseException:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        return [list(found[start : start + params.n]) for start in range(0, len(found), params.n)]

    async def _one(self, prompt: EnvironmentPrompt, params: SamplingParams, place: int, index: int) -> Trajectory:
        sampler = Sampler(self.asking, self.tokenizer, params, self.settings, place, index)
        playing = asyncio.ensure_future(self.environment.generate(prompt, sampler, **self._arguments))
        try:
            await asyncio.wait([playing], timeout=prompt.limits.seconds)
            late = not playing.done()
            if late:
                playing.cancel()
                await asyncio.wait([playing], timeout=MERCY)
        finally:
            playing.cancel()
            self.asking.count(-1)
        if sampler.failure is not None:
            raise sampler.failure
        return self._ended(playing, late, sampler, prompt)

    def _ended(
        self, playing: asyncio.Future[Any], late: bool, sampler: Sampler, prompt: EnvironmentPrompt
    ) -> Trajectory:
        """The trajectory that it came to, or was cut to."""
        if late:
            return _cut(sampler, prompt, f"no turn ended within {prompt.limits.seconds:g} s")
        try:
            return checked(playing.result(), sampler, prompt)
        except BudgetSpent:
            return _cut(sampler, prompt, "the budgets allow no turn")
        except RunError:
            raise
        except (*FOREIGN, asyncio.CancelledError) as error:
            if self.settings.on_error == "stop" or not _sampled(sampler.trajectory):
                raise self._failure(error, prompt) from error
        trajectory = _cut(sampler, prompt, "")
        trajectory.reward = 0.0
        trajectory._counts["environment_errors"] += 1
        return trajectory

    def _failure(self, error: BaseException, prompt: EnvironmentPrompt) -> RunError:
        frames = error.__traceback__ and error.__traceback__.tb_next
        text = "".join(traceback.format_exception(type(error), error, frames)).rstrip()
        fix = "correct the environment, or set rollout.environment.on_error to zero"
        return RunError(f"'{self.environment.name}' failed on row '{prompt.id}'\n{text}\n", who=WHO, fix=fix)

    async def _cancel(self) -> None:
        tasks = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
        for each in tasks:
            each.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=MERCY)


def checked(value: Any, sampler: Sampler, prompt: EnvironmentPrompt) -> Trajectory:
    """What `generate` returned, where it is what the contract asks for; else RunError."""
    if not isinstance(value, Trajectory):
        raise _refusal(prompt, f"generate returned {type(value).__name__}", "return the Trajectory that it made")
    if value.prompt is not prompt:
        raise _refusal(prompt, "the trajectory is of another prompt", "make it with Trajectory(prompt)")
    if not _sampled(value):
        raise _refusal(prompt, "the policy sampled no token", "await sampler.sample(trajectory) at least once")
    if value is not sampler.trajectory:
        raise _refusal(prompt, "the trajectory is not the one that was sampled", "return the one given to the sampler")
    if value.reward is not None and not (isinstance(value.reward, Real) and math.isfinite(value.reward)):
        raise _refusal(prompt, f"the reward is {value.reward!r}", "give a finite number, or None for data.reward")
    return value


def _cut(sampler: Sampler, prompt: EnvironmentPrompt, problem: str) -> Trajectory:
    trajectory = sampler.trajectory
    if trajectory is None or not _sampled(trajectory):
        raise _refusal(prompt, problem, "raise rollout.environment.max_seconds, or sample sooner")
    trajectory._cut = True
    return trajectory


def _sampled(trajectory: Trajectory | None) -> bool:
    return trajectory is not None and bool(trajectory.turns)


def _refusal(prompt: EnvironmentPrompt, problem: str, fix: str) -> RunError:
    return RunError(f"row '{prompt.id}': {problem}", who=WHO, fix=fix)
