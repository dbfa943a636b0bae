"""A `RolloutEngine` on vLLM, in this process or in one of its own, with weights that are updated while it lives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from relax_core.errors import RunError
from relax_core.rollout.types import Budget, Completion, SamplingParams
from relax_core.rollout.vllm.arguments import VLLMSettings
from relax_core.rollout.vllm.requests import Requests
from relax_core.rollout.vllm.rows import request, rows_of
from relax_core.rollout.vllm.start import RESUME, alive, start
from relax_core.rollout.vllm.update import WHO, fitting, send

if TYPE_CHECKING:
    from relax_core.rollout.vllm.transfer import Transfer

ABANDONED = "a weight update did not end, and its weights are a mixture of two versions"
ASLEEP = "it sleeps until the next weight update"


class VLLMEngine:
    """Samples with continuous batching; holds a copy of the policy that `update_weights` renews."""

    shares_weights = False
    _sharing = 0

    def __init__(self, settings: VLLMSettings, version: int = 0) -> None:
        self.settings, self.version = settings, version
        self._unusable = ""
        self._transfer: Transfer | None = None
        self._engine = start(settings)
        self._requests = Requests(self._engine, lambda: self.version)
        VLLMEngine._sharing += not settings.rollout.separate_process

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, places: Sequence[int] | None = None
    ) -> list[list[Completion]]:
        """`params.n` completions of each prompt (at least one id each), in the order of the prompts.

        A stop token, or the token that completes a stop string, is the last one of its response. Every response has a
        seed of its own, whatever else is in the batch. Raises RunError for a prompt without ids, for an engine whose
        process has ended, and for one whose last weight update failed.
        """
        return self.proceed(prompts, [[]] * len(prompts), params, Budget(), places)

    def proceed(
        self,
        prompts: Sequence[Sequence[int]],
        begun: Sequence[Sequence[Completion]],
        params: SamplingParams,
        budget: Budget,
        places: Sequence[int] | None = None,
    ) -> list[list[Completion]]:
        """`generate` within a budget, going on with the responses in `begun`: see `PartialRolloutEngine`."""
        if not all(prompts):
            raise RunError("a prompt has no token ids", who=WHO, fix="give each prompt at least one token")
        self._refuse(ASLEEP, ABANDONED)
        rows = rows_of(prompts, begun, params, range(len(prompts)) if places is None else places)
        going, eos = [row for row in rows if row.is_open], self.settings.eos_ids
        streams = self.settings.in_flight or budget.seconds is not None
        with alive("generation"):
            asked = [request(row, params, budget, eos, streams=streams) for row in going]
            self._requests.run(going, asked, budget.seconds)
        done = [row.completion(params.max_new_tokens) for row in rows]
        return [done[start : start + params.n] for start in range(0, len(done), params.n)]

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Load the named tensors into the live engine in chunks, and forget what was cached with the old ones.

        Responses that are under way go on with them, and what they have of a cache is computed again.
        Raises RunError when anything is missing, does not fit or did not arrive; the engine generates no more then.
        """
        self._refuse(ABANDONED)
        with self._requests.between_steps():
            try:
                with alive("a weight update"):
                    self._renew(weights)
            except BaseException as error:
                self._unusable = ABANDONED
                self._requests.fail(error)
                raise
            self.version, self._unusable = version, ""

    def sleep(self) -> None:
        """Drop the weights and the cache until the next update, on a GPU that the trainer shares; else nothing."""
        if self.settings.sleeps:
            with alive("going to sleep"):
                self._engine.sleep(level=2)
            self._unusable = ASLEEP

    def close(self) -> None:
        """End the engine's processes and free its memory."""
        alone = self.settings.rollout.separate_process
        VLLMEngine._sharing -= not alone
        if alone or not VLLMEngine._sharing:
            self._engine.engine_core.shutdown()
        else:
            # Engines in this process share one process group, and the first to shut down would take it from the others.
            self._engine.engine_core._finalizer.detach()
        if not alone and not VLLMEngine._sharing:
            from vllm.distributed import cleanup_dist_env_and_memory

            cleanup_dist_env_and_memory()
        del self._engine

    def _renew(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        asleep = self._unusable == ASLEEP
        if asleep:
            self._engine.wake_up(["weights"])
        self._send(fitting(weights, self.settings.shapes))
        if asleep:
            self._engine.wake_up(["kv_cache"])
        if not self._engine.reset_prefix_cache(reset_running_requests=self._requests.any_open):
            raise RunError("the prefix cache could not be reset", who=WHO, fix="let every request end first")

    def _refuse(self, *reasons: str) -> None:
        if self._unusable in reasons:
            raise RunError(self._unusable, who=WHO, fix=RESUME)

    def _send(self, weights: Iterator[tuple[str, Tensor]]) -> None:
        rollout, way = self.settings.rollout, self.settings.way
        limit, check = rollout.update_chunk_mb * 2**20, rollout.verify_weights
        if way in ("direct", "bytes"):
            send(self._call, weights, limit, by_bytes=way == "bytes", check=check)
            return
        if self._transfer is None:
            from relax_core.rollout.vllm.transfer import Transfer

            self._transfer = Transfer(self._call, way, rollout.tensor_parallel_size, limit)
        self._transfer.send(weights, check=check)

    def _call(self, method: str, *arguments: Any) -> list[Any]:
        results: list[Any] = self._engine.collective_rpc(method, args=arguments)
        return results
