"""Calls of engines that are alike: each goes to whichever has room, and those of an engine that dies to another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any

import ray

from relax_core.orchestration.log import warn
from relax_core.orchestration.ray.waiting import Lost, value
from relax_core.rollout.types import Completion

LIVELY = 0.05
"""Seconds after which the thread that waits for results looks for new calls."""


@dataclass(eq=False, slots=True)
class Engine:
    """An actor by the name that messages have for it. `life` counts its deaths; `calls` those that it has now."""

    name: str
    actor: Any
    life: int = 0
    ready: bool = True
    calls: int = 0


@dataclass(eq=False, slots=True)
class Call:
    """What an engine is asked; without arguments, that it is alive again."""

    arguments: tuple[Any, ...]
    future: Future[list[list[Completion]]] = field(default_factory=Future)
    engine: Engine | None = None
    life: int = 0


class Dispatcher:
    """A thread that gives each engine `slots` calls at most; `revive` asks one that Ray starts again to be as the others."""

    def __init__(
        self, engines: Sequence[Engine], slots: int, max_restarts: int, revive: Callable[[Engine], Any]
    ) -> None:
        self._engines, self._slots = engines, slots
        self._max_restarts, self._revive = max_restarts, revive
        self._waiting, self._running = deque[Call](), dict[Any, Call]()
        self._changed, self._closed = Condition(), False
        self._failure: BaseException | None = None
        self._thread = Thread(target=self._serve, name="rollout", daemon=True)
        self._thread.start()

    def ask(self, arguments: tuple[Any, ...]) -> Call:
        """A call that is answered by some engine; raises what ended the engines, if they are at their end."""
        call = Call(arguments)
        with self._changed:
            if self._failure is not None:
                raise self._failure
            self._waiting.append(call)
            self._changed.notify_all()
        return call

    def close(self) -> None:
        """What was asked for is not waited for."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

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
            while self._waiting and (free := [each for each in self._engines if self._has_room(each)]):
                call, engine = self._waiting.popleft(), min(free, key=lambda each: each.calls)
                self._start(call, engine, engine.actor.proceed.remote(*call.arguments))
            return not self._closed

    def _has_room(self, engine: Engine) -> bool:
        return engine.ready and engine.calls < self._slots

    def _start(self, call: Call, engine: Engine, ref: Any) -> None:
        call.engine, call.life = engine, engine.life
        engine.calls += 1
        self._running[ref] = call

    def _settle(self, ref: Any, call: Call) -> None:
        engine = call.engine
        assert engine is not None
        engine.calls -= 1
        try:
            result = value(ref, engine.name, "proceed")
        except Lost as lost:
            self._recover(engine, call, lost)
        except BaseException as error:
            if not call.arguments:
                raise
            call.future.set_exception(error)
        else:
            engine.ready = engine.ready or not call.arguments
            call.future.set_result(result)

    def _recover(self, engine: Engine, call: Call, lost: Lost) -> None:
        """The call again, for any engine; and the engine, once for each time that it dies."""
        if call.arguments:
            with self._changed:
                self._waiting.appendleft(call)
        if call.life != engine.life:
            return
        engine.life, engine.ready = engine.life + 1, False
        if engine.life > self._max_restarts:
            raise lost
        warn(f"{lost.what}; started again, {engine.life} of {self._max_restarts} times")
        self._start(Call(()), engine, self._revive(engine))

    def _give_up(self, error: BaseException) -> None:
        with self._changed:
            self._failure = error
            calls = [*self._waiting, *self._running.values()]
            self._waiting.clear()
        for call in calls:
            if not call.future.done():
                call.future.set_exception(error)
