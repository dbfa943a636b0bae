"""One round of generation: sample, reward, shape, keep the groups worth training on, and replace the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from relax_core.batch import Rollout
from relax_core.data.prompts import Prompt
from relax_core.data.rewards import Sample
from relax_core.orchestration.assemble import Parts
from relax_core.orchestration.collect import Response, pack
from relax_core.rollout.types import Completion, SamplingParams
from relax_core.spec import SequenceField


@dataclass
class Round:
    """What a round gave: the responses of the groups that are kept, and what was seen on the way."""

    kept: list[Response] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    errors: int = 0
    dropped: int = 0

    def metrics(self) -> dict[str, float]:
        """Of all that was sampled, dropped groups included."""
        scores = torch.tensor(self.scores, dtype=torch.float64)
        return {
            "rollout/reward_mean": float(scores.mean()),
            "rollout/reward_std": float(scores.std()) if len(scores) > 1 else 0.0,
            "rollout/reward_errors": float(self.errors),
            "rollout/dropped_groups": float(self.dropped),
        }


class Generation:
    """Rounds of generation; `cursor` counts the prompts that were used, and is all there is to remember."""

    def __init__(self, parts: Parts, fields: Sequence[SequenceField]) -> None:
        self.parts, self.fields = parts, fields
        self.config = parts.topology.run
        self.cursor = 0

    def run(self, step: int) -> Round:
        """Groups until there are enough that every `keep_group` plugin keeps, or the refills are used up."""
        result, wanted = Round(), self.config.rollout.rollout_batch_size
        for attempt in range(self.config.rollout.max_refills + 1):
            missing = wanted - len({each.group for each in result.kept})
            if missing:
                self._attempt(result, missing, step, attempt)
        return result

    def pack(self, responses: Sequence[Response], step: int) -> Rollout:
        """The responses as a rollout on the training device."""
        return pack(responses, step, self.fields, self.parts.engine.device)

    def _attempt(self, result: Round, groups: int, step: int, attempt: int) -> None:
        prompts = self.parts.prompts.take(self.cursor, groups)
        first = self.cursor
        self.cursor += groups
        responses = self._responses(prompts, first, self._params(step, attempt))
        scored = self.parts.reward.score([each.sample for each in responses])
        for response, reward in zip(responses, scored.rewards, strict=True):
            response.score = response.reward = reward
        kept = self._filter(responses, step)
        result.kept += kept
        result.scores += scored.rewards
        result.errors += scored.errors
        result.dropped += groups - len({each.group for each in kept})

    def _responses(self, prompts: Sequence[Prompt], first: int, params: SamplingParams) -> list[Response]:
        groups = self.parts.sampler.generate([prompt.token_ids for prompt in prompts], params)
        texts = self.parts.tokenizer.batch_decode(
            [each.token_ids for group in groups for each in group], skip_special_tokens=True
        )
        pairs = [(i, each) for i, group in enumerate(groups) for each in group]
        return [
            Response(prompts[i], each, _sample(prompts[i], each, text), first + i)
            for (i, each), text in zip(pairs, texts, strict=True)
        ]

    def _filter(self, responses: list[Response], step: int) -> list[Response]:
        rollout = self.parts.runtime.shape_rewards(self.pack(responses, step), step)
        for response, reward in zip(responses, rollout.rewards.tolist(), strict=True):
            response.reward = reward
        keep = self.parts.runtime.kept_groups(rollout, step).tolist()
        return [response for response, kept in zip(responses, keep, strict=True) if kept]

    def _params(self, step: int, attempt: int) -> SamplingParams:
        rollout = self.config.rollout
        return SamplingParams(
            n=rollout.n_samples_per_prompt,
            max_new_tokens=rollout.max_new_tokens,
            temperature=rollout.temperature,
            top_k=rollout.top_k,
            top_p=rollout.top_p,
            stop_token_ids=tuple(rollout.stop_token_ids),
            stop=tuple(rollout.stop),
            seed=(self.config.trainer.seed * 1_000_003 + step) * 1_000 + attempt,
        )


def _sample(prompt: Prompt, completion: Completion, text: str) -> Sample:
    return Sample(
        id=prompt.example.id,
        prompt=prompt.text,
        response=text,
        answer=prompt.example.answer,
        metadata=prompt.example.metadata,
        prompt_ids=prompt.token_ids,
        response_ids=completion.token_ids,
        finish_reason=completion.finish_reason,
    )


def shown(responses: Sequence[Response], group_size: int, count: int) -> list[dict[str, Any]]:
    """A few responses as readable records: the first of each group before the others."""
    order = sorted(range(len(responses)), key=lambda i: (i % group_size, i))
    return [_record(responses[i]) for i in order[:count]]


def _record(response: Response) -> dict[str, Any]:
    return {
        "id": response.sample.id,
        "prompt": response.prompt.text,
        "response": response.sample.response,
        "answer": response.sample.answer,
        "reward": response.score,
        "tokens": len(response.completion.token_ids),
        "finish_reason": response.completion.finish_reason,
    }
