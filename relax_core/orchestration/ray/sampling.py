"""The actor that samples: an engine with a copy of the policy, asked for groups while its weights change between tokens."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Lock
from typing import Any

import ray
import torch
from torch import Tensor

from relax_core.engines.hf_model import load_model, load_skeleton, load_tokenizer
from relax_core.engines.job import Origin, bound, origins
from relax_core.engines.placement import placement
from relax_core.rollout.factory import rollout_engine
from relax_core.rollout.types import Budget, Completion, EngineEnded, SamplingParams


class SamplingActor:
    """One rollout engine. Its calls come from many threads: an engine that cannot have that does one after another."""

    def __init__(self, run: Mapping[str, Any], path: str, longest: int) -> None:
        self.config, self.binding = bound(run)
        self._count_threads()
        trust, place = self.config.model.trust_remote_code, Path(path)
        load = load_model if self.config.rollout.engine == "hf" else load_skeleton
        model = load(place, who="model.path", trust_remote_code=trust)
        device = placement(self.config.trainer)[0]
        if self.config.rollout.engine == "hf":
            model.to(device)
        tokenizer = load_tokenizer(place, who="model.path", trust_remote_code=trust)
        self.engine: Any = rollout_engine(self.config, model, tokenizer, place, longest, device.type)
        self._updating, self._number = Lock(), 0
        self._turn: Any = nullcontext() if self.config.rollout.engine == "vllm" else Lock()

    def begin(self) -> dict[str, Origin]:
        """Where the plugins of this process are from."""
        return origins(self.binding)

    def proceed(
        self,
        prompts: Sequence[Sequence[int]],
        begun: Sequence[Sequence[Completion]],
        params: SamplingParams,
        budget: Budget,
        places: Sequence[int],
    ) -> list[list[Completion]]:
        """As a `RolloutEngine`'s `generate`, or a `PartialRolloutEngine`'s `proceed` where something was begun or is bounded."""
        self._count_threads()
        with self._turn, _or_ended():
            if budget == Budget() and not any(begun):
                completions: list[list[Completion]] = self.engine.generate(prompts, params, places)
            else:
                completions = self.engine.proceed(prompts, begun, params, budget, places)
            return completions

    def update(self, weights: Sequence[Any], version: int, number: int) -> None:
        """Take the weights that lie in the cluster under these references, unless later ones (by `number`) have come."""
        with self._turn, self._updating, _or_ended():
            if number > self._number:
                self.engine.update_weights(_fetched(weights), version)
                self._number = number

    def _count_threads(self) -> None:
        """For the thread that asks: OpenMP counts for each apart."""
        if self.config.trainer.num_threads is not None:
            torch.set_num_threads(self.config.trainer.num_threads)

    def sleep(self) -> None:
        """Give memory back until the next update, where the platform can."""
        with self._turn:
            self.engine.sleep()

    def close(self) -> None:
        """Release what the engine holds."""
        self.engine.close()


@contextmanager
def _or_ended() -> Iterator[None]:
    """An engine whose own process is gone is of no use: this one ends too, and Ray starts another."""
    try:
        yield
    except EngineEnded:
        os._exit(1)


def _fetched(weights: Sequence[Any]) -> Iterator[tuple[str, Tensor]]:
    for ref in weights:
        yield from ray.get(ref).items()
