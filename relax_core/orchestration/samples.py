"""A few responses of each step as records for `samples.jsonl`, with what training made of every token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from relax_core.batch import Rollout
from relax_core.config import RunConfig
from relax_core.orchestration.collect import Response
from relax_core.orchestration.segments import segments_of


def shown(
    responses: Sequence[Response], prepared: Rollout | None, config: RunConfig, tokenizer: Any, version: int
) -> list[dict[str, Any]]:
    """The first of each group before the others.

    `prepared` is the rollout of the responses as weights of this `version` trained on it; None where nothing did.
    """
    if prepared is None:
        return []
    size, count = config.rollout.n_samples_per_prompt, config.output.samples_per_step
    lengths = prepared.lengths.tolist()
    values = (prepared.raw_mask, prepared.loss_mask, prepared.advantages.double())
    raw, mask, advantages = (torch.split(each.cpu(), lengths) for each in values)
    oldest = version if config.rollout.mask_offpolicy_in_partial_rollout else 0
    found = []
    for i in sorted(range(len(responses)), key=lambda i: (i % size, i))[:count]:
        completion = responses[i].completion
        # What older weights wrote leaves the raw mask where the run says so, and is the policy's own all the same.
        policy = [live or age < oldest for live, age in zip(raw[i].tolist(), completion.versions, strict=True)]
        segments = segments_of(completion.token_ids, policy, mask[i].tolist(), advantages[i].tolist(), tokenizer)
        found.append({**_record(responses[i], i % size), "segments": segments})
    return found


def _record(response: Response, number: int) -> dict[str, Any]:
    return {
        "id": response.sample.id,
        "trajectory": f"{response.group}-{number}",
        "prompt": response.prompt.text,
        "response": response.sample.response,
        "answer": response.sample.answer,
        "reward": response.score,
        "tokens": len(response.completion.token_ids),
        "finish_reason": response.completion.finish_reason,
    }
