"""One engine that many trajectories ask at once: in whole batches, or each for itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from relax_core.rollout.types import Completion, SamplingParams


class Generating(Protocol):
    """The one method of a `RolloutEngine` that is used here."""

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, places: Sequence[int] | None = None
    ) -> list[list[Completion]]:
        """`params.n` completions of each prompt."""


QUIET = 0.05
"""Seconds without news after which a batch is formed without those who still wait for their tools."""
PATIENCE = 0.15
"""Seconds after which it is formed in any case."""


@dataclass(slots=True, eq=False)
class Request:
    """A turn that waits to be sampled."""

    prompt: Sequence[int]
    params: SamplingParams
    place: int
    future: asyncio.Future[Completion] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Batches:
    """For an engine that decodes in lockstep: it gets all that wait, when everybody waits or nothing is heard for a while.

    `live` counts the trajectories under way, `largest` the turns of the largest batch. `set_up` is called in the thread
    that asks the engine. Used within one event loop.
    """

    def __init__(self, engine: Generating, set_up: Callable[[], None] | None = None) -> None:
        self._engine, self._waiting = engine, list[Request]()
        self._news, self._thread = asyncio.Event(), ThreadPoolExecutor(1, "sample", set_up)
        self._worker: asyncio.Task[None] | None = None
        self.live, self.largest = 0, 0

    async def sample(self, prompt: Sequence[int], params: SamplingParams, place: int) -> Completion:
        """One completion of `prompt`."""
        request = Request(prompt, params, place)
        self._waiting.append(request)
        self._news.set()
        if self._worker is None or self._worker.done():
            self._worker = asyncio.ensure_future(self._work())
        return await request.future

    def count(self, change: int) -> None:
        """So many trajectories have begun, or ended."""
        self.live += change
        self._news.set()

    def close(self) -> None:
        """Wait for what is being sampled."""
        self._thread.shutdown(cancel_futures=True)

    async def _work(self) -> None:
        while self._waiting:
            await self._settle()
            batch, self._waiting = self._waiting, []
            self.largest = max(self.largest, len(batch))
            for alike in _alike([each for each in batch if not each.future.done()]):
                await self._answer(alike)

    async def _settle(self) -> None:
        """Return when the batch is as full as it gets."""
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE
        while len(self._waiting) < self.live and (left := until - loop.time()) > 0:
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), min(QUIET, left))
            except TimeoutError:
                return

    async def _answer(self, requests: list[Request]) -> None:
        """The longest of the turns decides how long all may be; the others are cut."""
        longest = max(each.params.max_new_tokens for each in requests)
        params = replace(requests[0].params, max_new_tokens=longest)
        prompts, places = [each.prompt for each in requests], [each.place for each in requests]
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._thread, self._engine.generate, prompts, params, places)
        except BaseException as error:
            _fail(requests, error)
            return
        for request, (completion,) in zip(requests, found, strict=True):
            if not request.future.done():
                request.future.set_result(_cut(completion, request.params.max_new_tokens))


class Streams:
    """For an engine with continuous batching: each turn is asked for as it comes, in one of `workers` threads."""

    def __init__(self, engine: Generating, workers: int) -> None:
        self._engine, self._threads = engine, ThreadPoolExecutor(workers, thread_name_prefix="sample")

    async def sample(self, prompt: Sequence[int], params: SamplingParams, place: int) -> Completion:
        """One completion of `prompt`."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, self._engine.generate, [prompt], params, [place])
        return found[0][0]

    def count(self, change: int) -> None:
        """Nobody waits for anybody."""

    def close(self) -> None:
        """Wait for what is being sampled."""
        self._threads.shutdown(cancel_futures=True)


def _alike(requests: Sequence[Request]) -> list[list[Request]]:
    """Those that differ in length alone together."""
    found: dict[SamplingParams, list[Request]] = {}
    for each in requests:
        found.setdefault(replace(each.params, max_new_tokens=1), []).append(each)
    return list(found.values())


def _cut(completion: Completion, most: int) -> Completion:
    """The first `most` tokens, which are those that it would have had alone."""
    if len(completion.token_ids) <= most:
        return completion
    ids, log_probs = completion.token_ids[:most], completion.log_probs[:most]
    return replace(
        completion, token_ids=ids, log_probs=log_probs, versions=completion.versions[:most], finish_reason="length"
    )


def _fail(requests: Sequence[Request], error: BaseException) -> None:
    for each in requests:
        if not each.future.done():
            each.future.set_exception(error)
