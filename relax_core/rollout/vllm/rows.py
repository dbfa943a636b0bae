"""One response on its way through vLLM: its request, its seed, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from relax_core.rollout.seeds import seed_of
from relax_core.rollout.types import Budget, Completion, SamplingParams

FRESH = Completion([], [], "abort", [])


@dataclass(slots=True)
class Row:
    """The prompt, what was sampled before (`FRESH`: nothing), and what is now."""

    prompt: Sequence[int]
    before: Completion
    seed: int
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    reason: str = "abort"

    @property
    def is_open(self) -> bool:
        """Whether it was not at its end before."""
        return self.before.finish_reason == "abort"

    def take(self, output: Any, version: int) -> None:
        """Add what vLLM gave: all of it, or the next part; weights of this version sampled it."""
        self.token_ids += output.token_ids
        self.versions += [version] * len(output.token_ids)
        self.log_probs += output.logprobs.logprobs
        self.reason = output.finish_reason or self.reason

    def completion(self, most: int) -> Completion:
        """Before and now as one; a response that a budget of tokens ended is not at its end."""
        if not self.is_open:
            return self.before
        ids = self.before.token_ids + self.token_ids
        reason: Any = "abort" if self.reason == "length" and len(ids) < most else self.reason
        # The log-softmax of a certain token may round to a little above 0.
        log_probs = self.before.log_probs + [min(value, 0.0) for value in self.log_probs]
        return Completion(ids, log_probs, reason, self.before.versions + self.versions)


def rows_of(
    prompts: Sequence[Sequence[int]],
    begun: Sequence[Sequence[Completion]],
    params: SamplingParams,
    places: Sequence[int],
) -> list[Row]:
    """`params.n` rows for each prompt, in order; a seed of its own for each sample, and for each part of one."""
    return [
        Row(prompt, before, seed_of(params.seed, place, sample, len(before.token_ids)))
        for prompt, group, place in zip(prompts, begun, places, strict=True)
        for sample, before in enumerate(group or [FRESH] * params.n)
    ]


def request(row: Row, params: SamplingParams, budget: Budget, eos_ids: Sequence[int], *, streams: bool) -> Any:
    """vLLM's sampling parameters: the sampled token's log-prob alone, and every end that is ours.

    With `streams` tokens come as they are sampled, without it together at the end.
    """
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
        stop_token_ids=[*eos_ids, *params.stop_token_ids],
        stop=list(params.stop),
        detokenize=bool(params.stop),
        skip_special_tokens=False,
        spaces_between_special_tokens=False,
        include_stop_str_in_output=True,
        output_kind=RequestOutputKind.DELTA if streams else RequestOutputKind.FINAL_ONLY,
    )
