"""The rollout engines behind one handle: groups go to whichever has room, and those of an engine that dies to another."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any

import ray

from relax_core.engines.job import Origin
from relax_core.errors import RunError
from relax_core.orchestration.log import warn
from relax_core.orchestration.ray.sampling import SamplingActor
from relax_core.orchestration.ray.waiting import RESUME, Lost, gather, value
from relax_core.rollout.types import Budget, Completion, SamplingParams

LIVELY = 0.05
"""Seconds after which a thread that waits for results looks for new calls."""
SEQUENCES = 512
"""That one engine is asked for at a time; the others wait for whichever has room first."""


@dataclass(eq=False, slots=True)
class _Engine:
    name: str
    actor: Any
    life: int = 0
    ready: bool = True
    calls: int = 0


@dataclass(eq=False, slots=True)
class _Call:
    arguments: tuple[Any, ...]
    future: Future[list[list[Completion]]] = field(default_factory=Future)
    engine: _Engine | None = None
    life: int = 0


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
        self._whole, self._max_restarts, self._timeout = whole, max_restarts, timeout
        self._slots = max(1, SEQUENCES // group) if at_once else 1
        actor = ray.remote(SamplingActor)
        more = {"max_restarts": max_restarts, "max_task_retries": 0, "max_concurrency": self._slots + 4}
        self._engines = [
            _Engine(f"rollout {number}", actor.options(**more, **each).remote(*arguments))
            for number, each in enumerate(options)
        ]
        self._waiting, self._running = deque[_Call](), dict[Any, _Call]()
        self._weights: tuple[list[Any], int] = ([], 0)
        self._changed, self._closed = Condition(), False
        self._failure: BaseException | None = None
        self._thread = Thread(target=self._serve, name="rollout", daemon=True)
        self._thread.start()

    @property
    def names(self) -> list[str]:
        """What messages call the engines."""
        return [each.name for each in self._engines]

    def begin(self, timeout: float) -> list[tuple[dict[str, Origin], int]]:
        """Wait for the engines: where the plugins of each are from, and its process's number."""
        return gather({each.actor.begin.remote(): each.name for each in self._engines}, "start", timeout)

    def submit(self, prompt: Sequence[int], params: SamplingParams, place: int) -> Future[list[Completion]]:
        """`params.n` completions of one prompt, when they are there."""
        call, only = self._ask(([list(prompt)], [[]], params, Budget(), [place])), Future[list[Completion]]()
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
        calls = [self._ask((prompts[cut], begun[cut], params, budget, list(places[cut]))) for cut in cuts]
        return [completions for call in calls for completions in self._result(call)]

    def update_weights(self, weights: Any, version: int) -> None:
        """Have every engine take the weights that lie in the cluster under these references."""
        self._weights = (list(weights), version)
        gather({self._update(each): each.name for each in self._engines}, "update", self._timeout)

    def sleep(self) -> None:
        """Give memory back until the next update, where the platform can."""
        gather({each.actor.sleep.remote(): each.name for each in self._engines}, "sleep", self._timeout)

    def close(self) -> None:
        """End the engines; what they were asked for is not waited for."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        for each in self._engines:
            ray.kill(each.actor)

    def _ask(self, arguments: tuple[Any, ...]) -> _Call:
        call = _Call(arguments)
        with self._changed:
            if self._failure is not None:
                raise self._failure
            self._waiting.append(call)
            self._changed.notify_all()
        return call

    def _result(self, call: _Call) -> list[list[Completion]]:
        try:
            return call.future.result(self._timeout)
        except TimeoutError:
            problem = f"no engine answered 'proceed' in {self._timeout:g} s"
            raise RunError(problem, who="rollout", fix=RESUME) from None

    def _update(self, engine: _Engine) -> Any:
        """Tried again by Ray where the engine is started again meanwhile."""
        return engine.actor.update.options(max_task_retries=-1).remote(*self._weights)

    # -- the thread that hands out calls and takes results ---------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while self._hand_out():
                ready, _ = ray.wait(list(self._running), num_returns=1, timeout=LIVELY)
                for ref in ready:
                    self._settle(ref, self._running.pop(ref))
        except BaseException as error:
            self._give_up(error)

    def _hand_out(self) -> bool:
        """Give waiting calls to engines with room; false at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._running or self._waiting)
            while self._waiting and (
                free := [each for each in self._engines if each.ready and each.calls < self._slots]
            ):
                self._start(self._waiting.popleft(), min(free, key=lambda engine: engine.calls))
            return not self._closed

    def _start(self, call: _Call, engine: _Engine) -> None:
        call.engine, call.life = engine, engine.life
        engine.calls += 1
        self._running[engine.actor.proceed.remote(*call.arguments)] = call

    def _settle(self, ref: Any, call: _Call) -> None:
        engine = call.engine
        assert engine is not None
        engine.calls -= 1
        try:
            result = value(ref, engine.name, "proceed")
        except Lost as lost:
            self._recover(engine, call, lost)
        except BaseException as error:
            call.future.set_exception(error)
        else:
            self._arrived(engine, call, result)

    def _arrived(self, engine: _Engine, call: _Call, result: Any) -> None:
        if call.arguments:
            call.future.set_result(result)
        else:
            engine.ready = True

    def _recover(self, engine: _Engine, call: _Call, lost: Lost) -> None:
        """Its weights again for an engine that Ray starts again; the call again for any engine, once each time it is lost."""
        if call.arguments:
            with self._changed:
                self._waiting.appendleft(call)
        if call.life != engine.life:
            return
        engine.life, engine.ready = engine.life + 1, False
        if engine.life > self._max_restarts:
            raise lost
        warn(f"{lost.what}; started again, {engine.life} of {self._max_restarts} times")
        ref = self._update(engine) if self._weights[0] else engine.actor.begin.options(max_task_retries=-1).remote()
        engine.calls += 1
        self._running[ref] = _Call((), engine=engine, life=engine.life)

    def _give_up(self, error: BaseException) -> None:
        with self._changed:
            self._failure = error
            calls = [*self._waiting, *self._running.values()]
            self._waiting.clear()
        for call in calls:
            if not call.future.done():
                call.future.set_exception(error)


def _pass_on(done: Future[list[list[Completion]]], only: Future[list[Completion]]) -> None:
    error = done.exception()
    if error is not None:
        only.set_exception(error)
    else:
        only.set_result(done.result()[0])
