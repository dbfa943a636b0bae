"""A `RolloutEngine` on vLLM, in this process or in one of its own, with weights that are updated while it lives."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, random

from relax_core.errors import LoadError, RelaxError, RunError
from relax_core.rollout.types import Budget, Completion, SamplingParams
from relax_core.rollout.vllm.arguments import VLLMSettings, engine_arguments, head_size
from relax_core.rollout.vllm.environment import starting
from relax_core.rollout.vllm.update import WHO, fitting, send
from relax_core.rollout.vllm.watch import watch

if TYPE_CHECKING:
    from relax_core.rollout.vllm.transfer import Transfer

ABANDONED = "a weight update did not end, and its weights are a mixture of two versions"
RESUME = "go on from the last checkpoint: --resume"
ASLEEP = "it sleeps until the next weight update"


@dataclass(slots=True)
class _Row:
    """One response on its way: the prompt, what was sampled before, and what is now."""

    prompt: Sequence[int]
    before: Completion
    seed: int
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    reason: str = "abort"

    def take(self, output: Any) -> None:
        self.token_ids += output.token_ids
        self.log_probs += output.logprobs.logprobs
        self.reason = output.finish_reason or self.reason

    def completion(self, version: int, most: int) -> Completion:
        """Before and now as one; a response that a budget of tokens ended is not at its end."""
        before = self.before
        if before.finish_reason != "abort":
            return before
        ids = before.token_ids + self.token_ids
        reason: Any = "abort" if self.reason == "length" and len(ids) < most else self.reason
        # The log-softmax of a certain token may round to a little above 0.
        log_probs = before.log_probs + [min(value, 0.0) for value in self.log_probs]
        return Completion(ids, log_probs, reason, before.versions + [version] * len(self.token_ids))


class VLLMEngine:
    """Samples with continuous batching; holds a copy of the policy that `update_weights` renews."""

    shares_weights = False
    _sharing = 0

    def __init__(self, settings: VLLMSettings, version: int = 0) -> None:
        self.settings, self.version = settings, version
        self._unusable = ""
        self._transfer: Transfer | None = None
        alone = settings.rollout.separate_process
        with starting(separate_process=alone, device=settings.device, threads=settings.threads):
            self._engine = _start(settings)
        VLLMEngine._sharing += not alone
        if alone:
            watch(self._engine.engine_core)

    def generate(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[list[Completion]]:
        """`params.n` completions of each prompt (at least one id each), in the order of the prompts.

        A stop token, or the token that completes a stop string, is the last one of its response. Every response has a
        seed of its own, whatever else is in the batch. Raises RunError for a prompt without ids, for an engine whose
        process has ended, and for one whose last weight update failed.
        """
        return self.proceed(prompts, [[]] * len(prompts), params, Budget())

    def proceed(
        self,
        prompts: Sequence[Sequence[int]],
        begun: Sequence[Sequence[Completion]],
        params: SamplingParams,
        budget: Budget,
    ) -> list[list[Completion]]:
        """`generate` within a budget, going on with the responses in `begun`: see `PartialRolloutEngine`."""
        if not all(prompts):
            raise RunError("a prompt has no token ids", who=WHO, fix="give each prompt at least one token")
        self._refuse(ASLEEP, ABANDONED)
        fresh = Completion([], [], "abort", [])
        befores = [each for group in begun for each in (group or [fresh] * params.n)]
        rows = [_Row(prompts[i // params.n], before, _seed(params.seed, i, before)) for i, before in enumerate(befores)]
        # In this process the engine draws from the global generator, which is the trainer's.
        with self._alive("generation"), random.fork_rng(devices=[]):
            self._sample([row for row in rows if row.before.finish_reason == "abort"], params, budget)
        done = [row.completion(self.version, params.max_new_tokens) for row in rows]
        return [done[start : start + params.n] for start in range(0, len(done), params.n)]

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Load the named tensors into the live engine in chunks, and forget what was cached with the old ones.

        Raises RunError when anything is missing, does not fit or did not arrive; the engine generates no more then.
        """
        self._refuse(ABANDONED)
        asleep, self._unusable = self._unusable == ASLEEP, ABANDONED
        with self._alive("a weight update"):
            if asleep:
                self._engine.wake_up(["weights"])
            checked = fitting(weights, self.settings.shapes)
            self._send(checked)
            if asleep:
                self._engine.wake_up(["kv_cache"])
            if not self._engine.reset_prefix_cache():
                raise RunError("the prefix cache could not be reset", who=WHO, fix="let every request end first")
        self.version, self._unusable = version, ""

    def sleep(self) -> None:
        """Drop the weights and the cache until the next update, on a GPU that the trainer shares; else nothing."""
        if self.settings.sleeps:
            with self._alive("going to sleep"):
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

    def _sample(self, rows: list[_Row], params: SamplingParams, budget: Budget) -> None:
        """Run the rows to their ends, or to the end of the budget."""
        open_rows = {str(index): row for index, row in enumerate(rows)}
        for name, row in open_rows.items():
            ids = [*row.prompt, *row.before.token_ids]
            self._engine.add_request(name, {"prompt_token_ids": ids}, self._request(row, params, budget))
        until = None if budget.seconds is None else time.monotonic() + budget.seconds
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                open_rows[output.request_id].take(output.outputs[0])
                if output.finished:
                    del open_rows[output.request_id]
            if until is not None and time.monotonic() >= until:
                self._engine.abort_request(list(open_rows))
                return

    def _request(self, row: _Row, params: SamplingParams, budget: Budget) -> Any:
        from vllm import SamplingParams as Request
        from vllm.sampling_params import RequestOutputKind

        room = params.max_new_tokens - len(row.before.token_ids)
        return Request(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            seed=row.seed,
            max_tokens=room if budget.tokens is None else min(room, budget.tokens),
            logprobs=0,
            flat_logprobs=True,
            ignore_eos=True,
            stop_token_ids=[*self.settings.eos_ids, *params.stop_token_ids],
            stop=list(params.stop),
            detokenize=bool(params.stop),
            skip_special_tokens=False,
            spaces_between_special_tokens=False,
            include_stop_str_in_output=True,
            output_kind=RequestOutputKind.DELTA if budget.seconds is not None else RequestOutputKind.FINAL_ONLY,
        )

    @contextmanager
    def _alive(self, what: str) -> Iterator[None]:
        """Whatever vLLM raises inside the block, as one error that says what was going on."""
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            yield
        except RelaxError:
            raise
        except EngineDeadError:
            fix = "look for a process that was killed, for its memory perhaps; then go on from the last checkpoint: --resume"
            raise RunError(f"its process ended during {what}", who=WHO, fix=fix) from None
        except Exception as error:
            raise RunError(f"{what} failed: {_reason(error)}", who=WHO, fix=RESUME) from error


def _start(settings: VLLMSettings) -> Any:
    _check_heads(settings)
    try:
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        return LLMEngine.from_engine_args(EngineArgs(**engine_arguments(settings)))
    except Exception as error:
        fix = "correct rollout.engine_args, or leave more memory to the engine"
        raise LoadError(f"vLLM does not start: {_reason(error)}", who="rollout.engine", fix=fix) from error


def _check_heads(settings: VLLMSettings) -> None:
    """On a CPU a size of heads without a kernel would fail in the first forward pass alone."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    size, sizes = head_size(settings.model_config), CPUAttentionBackend.get_supported_head_sizes()
    if settings.device == "cpu" and size not in sizes:
        problem = f"vLLM has no attention kernel for heads of {size} on a CPU; it has {', '.join(map(str, sizes))}"
        raise LoadError(problem, who="rollout.engine", fix="write rollout.engine: hf, or take another model")


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _seed(seed: int, row: int, before: Completion) -> int:
    """63 bits that no two calls share, nor two samples of a call, nor the parts of one response."""
    digest = hashlib.sha256(f"{seed} {row} {len(before.token_ids)}".encode()).digest()
    return int.from_bytes(digest[:8]) >> 1
