"""The open requests of one engine, which many threads may wait for: one of them at a time has it take a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from threading import Condition
from typing import Any

import torch
from torch import random

from relax_core.rollout.vllm.rows import Row


class Requests:
    """`version` gives that of the engine's weights, which is stamped on the tokens as they come."""

    def __init__(self, engine: Any, version: Callable[[], int]) -> None:
        self._engine, self._version = engine, version
        self._threads = torch.get_num_threads()
        self._rows: dict[str, Row] = {}
        self._new: list[tuple[str, Row, Any]] = []
        self._names = map(str, count())
        self._changed = Condition()
        self._busy, self._wanted = False, 0
        self._failure: BaseException | None = None

    @property
    def any_open(self) -> bool:
        """Whether a response is under way."""
        return bool(self._rows)

    def run(self, rows: Sequence[Row], requests: Sequence[Any], seconds: float | None) -> None:
        """Have the engine answer each row's request to its end, or for so many seconds; raises what stops the engine."""
        self._settle_in()
        until = None if seconds is None else time.monotonic() + seconds
        mine = {next(self._names): row for row in rows}
        with self._changed:
            self._rows |= mine
            self._new += [(name, row, request) for (name, row), request in zip(mine.items(), requests, strict=True)]
        while self._left(mine):
            if until is not None and time.monotonic() >= until:
                self._abort(mine)
            elif self._take_turn(mine):
                try:
                    self._step()
                except BaseException as error:
                    self.fail(error)
                    raise
                finally:
                    self._end_turn()

    @contextmanager
    def between_steps(self) -> Iterator[None]:
        """Nothing is sampled inside the block; requests that are open wait."""
        self._settle_in()
        with self._changed:
            self._wanted += 1
            self._changed.wait_for(lambda: not self._busy)
            self._wanted, self._busy = self._wanted - 1, True
        try:
            yield
        finally:
            self._end_turn()

    def fail(self, error: BaseException) -> None:
        """No step is taken any more; whoever waits for one hears why."""
        self._failure = error

    def _settle_in(self) -> None:
        """OpenMP counts threads for each thread apart, and vLLM's kernels want the count that the engine started with."""
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)

    def _left(self, mine: Mapping[str, Row]) -> bool:
        if self._failure is not None:
            raise self._failure
        return not mine.keys().isdisjoint(self._rows)

    def _take_turn(self, mine: Mapping[str, Row]) -> bool:
        """True when it is this thread that steps; else after something has changed."""
        with self._changed:
            if mine.keys().isdisjoint(self._rows):
                return False
            if self._busy or self._wanted:
                self._changed.wait()
                return False
            self._busy = True
            return True

    def _end_turn(self) -> None:
        with self._changed:
            self._busy = False
            self._changed.notify_all()

    def _step(self) -> None:
        with self._changed:
            new, self._new = self._new, []
        for name, row, request in new:
            self._engine.add_request(name, {"prompt_token_ids": [*row.prompt, *row.before.token_ids]}, request)
        # In this process the engine draws from the global generator, which is the trainer's.
        with random.fork_rng(devices=[]):
            outputs = self._engine.step()
        for output in outputs:
            self._rows[output.request_id].take(output.outputs[0], self._version())
            if output.finished:
                del self._rows[output.request_id]

    def _abort(self, mine: Mapping[str, Row]) -> None:
        with self.between_steps():
            left = [name for name in mine if name in self._rows]
            self._new = [each for each in self._new if each[0] not in mine]
            self._engine.abort_request(left)
            for name in left:
                del self._rows[name]
