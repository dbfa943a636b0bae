"""The rollout engines behind one handle: groups go to whichever has room, and those of an engine that dies to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import ray

from relax_core.engines.job import Origin
from relax_core.errors import RunError
from relax_core.orchestration.ray.dispatch import Call, Dispatcher, Engine
from relax_core.orchestration.ray.sampling import SamplingActor
from relax_core.orchestration.ray.waiting import RESUME, gather
from relax_core.rollout.types import Budget, Completion, SamplingParams

SPARE = 4
"""Calls that an engine takes beside those for samples: new weights, and whether it is there."""
SEQUENCES = 512
"""That one engine is asked for at a time; the others wait for whichever has room first."""


class RaySampler:
    """A `RolloutEngine` of several. `at_once`: one takes many calls at a time; `whole`: as few calls as there are engines."""

    shares_weights = False

    def __init__(
        self,
        options: Sequence[Mapping[str, Any]],
        arguments: Sequence[Any],
        *,
        group: int,
        whole: bool,
        at_once: bool,
        max_restarts: int,
        timeout: float,
    ) -> None:
        self._whole, self._timeout = whole, timeout
        slots = max(1, SEQUENCES // group) if at_once else 1
        actor = ray.remote(SamplingActor)
        more = {"max_restarts": max_restarts, "max_task_retries": 0, "max_concurrency": slots + SPARE}
        self._engines = [
            Engine(f"rollout {number}", actor.options(**more, **each).remote(*arguments))
            for number, each in enumerate(options)
        ]
        self._weights: tuple[list[Any], int] = ([], 0)
        self._sent = 0
        self._calls = Dispatcher(self._engines, slots, max_restarts, self._renew)

    @property
    def names(self) -> list[str]:
        """What messages call the engines."""
        return [each.name for each in self._engines]

    def begin(self, timeout: float) -> list[dict[str, Origin]]:
        """Wait for the engines: where the plugins of each are from."""
        return gather({each.actor.begin.remote(): each.name for each in self._engines}, "start", timeout)

    def submit(self, prompt: Sequence[int], params: SamplingParams, place: int) -> Future[list[Completion]]:
        """`params.n` completions of one prompt, when they are there."""
        call, only = self._calls.ask(([list(prompt)], [[]], params, Budget(), [place])), Future[list[Completion]]()
        call.future.add_done_callback(lambda done: _pass_on(done, only))
        return only

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, places: Sequence[int] | None = None
    ) -> list[list[Completion]]:
        """`params.n` completions of each prompt, in the order of the prompts."""
        return self.proceed(prompts, [[]] * len(prompts), params, Budget(), places)

    def proceed(
        self,
        prompts: Sequence[Sequence[int]],
        begun: Sequence[Sequence[Completion]],
        params: SamplingParams,
        budget: Budget,
        places: Sequence[int] | None = None,
    ) -> list[list[Completion]]:
        """`generate` within a budget, going on with the responses in `begun`."""
        places = range(len(prompts)) if places is None else places
        size = -(-len(prompts) // len(self._engines)) if self._whole or budget != Budget() else 1
        cuts = [slice(start, start + size) for start in range(0, len(prompts), size)]
        calls = [self._calls.ask((prompts[cut], begun[cut], params, budget, list(places[cut]))) for cut in cuts]
        return [completions for call in calls for completions in self._result(call)]

    def update_weights(self, weights: Any, version: int) -> None:
        """Have every engine take the weights that lie in the cluster under these references."""
        self._weights, self._sent = (list(weights), version), self._sent + 1
        gather({self._renew(each): each.name for each in self._engines}, "update", self._timeout)

    def sleep(self) -> None:
        """Give memory back until the next update, where the platform can."""
        gather({each.actor.sleep.remote(): each.name for each in self._engines}, "sleep", self._timeout)

    def close(self) -> None:
        """End the engines; what they were asked for is not waited for."""
        self._calls.close()
        for each in self._engines:
            ray.kill(each.actor)

    def _result(self, call: Call) -> list[list[Completion]]:
        try:
            return call.future.result(self._timeout)
        except TimeoutError:
            problem = f"no engine answered 'proceed' in {self._timeout:g} s"
            raise RunError(problem, who="rollout", fix=RESUME) from None

    def _renew(self, engine: Engine) -> Any:
        """The weights of now for an engine; tried again by Ray where it is started again meanwhile."""
        if not self._weights[0]:  # those that it starts with
            return engine.actor.begin.options(max_task_retries=-1).remote()
        return engine.actor.update.options(max_task_retries=-1).remote(*self._weights, self._sent)


def _pass_on(done: Future[list[list[Completion]]], only: Future[list[Completion]]) -> None:
    error = done.exception()
    if error is not None:
        only.set_exception(error)
    else:
        only.set_result(done.result()[0])
