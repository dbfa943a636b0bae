"""A few responses of each step as records for `samples.jsonl`, with what training made of every token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from relax_core.batch import Rollout
from relax_core.config import RunConfig
from relax_core.orchestration.collect import Response
from relax_core.orchestration.segments import segments_of
from relax_core.rollout.types import Completion


def shown(
    responses: Sequence[Response], prepared: Rollout | None, config: RunConfig, tokenizer: Any
) -> list[dict[str, Any]]:
    """The first of each group before the others.

    `prepared` is the rollout of the responses as it was trained on; None where nothing was.
    """
    if prepared is None:
        return []
    size, count = config.rollout.n_samples_per_prompt, config.output.samples_per_step
    lengths = prepared.lengths.tolist()
    values = (prepared.loss_mask, prepared.advantages.double())
    mask, advantages = (torch.split(each.cpu(), lengths) for each in values)
    found = []
    for i in sorted(range(len(responses)), key=lambda i: (i % size, i))[:count]:
        segments = segments_of(responses[i].completion, mask[i].tolist(), advantages[i].tolist(), tokenizer)
        found.append({**_record(responses[i], i % size), "segments": segments})
    return found


def _record(response: Response, number: int) -> dict[str, Any]:
    return {
        "id": response.sample.id,
        "trajectory_id": f"{response.group}-{number}",
        "prompt": response.prompt.text,
        "response": response.sample.response,
        "answer": response.sample.answer,
        "reward": response.score,
        "tokens": len(response.completion.token_ids),
        "finish_reason": response.completion.finish_reason,
        **_turns(response.completion),
    }


def _turns(completion: Completion) -> dict[str, Any]:
    """What tells the turns of a response apart, where an environment gave it: 0 in `raw_mask` is its own token."""
    if not completion.raw_mask:
        return {}
    found = {
        "token_ids": completion.token_ids,
        "raw_mask": [int(each) for each in completion.raw_mask],
        "turn_rewards": completion.turn_rewards,
        "resets": completion.resets,
    }
    return {name: value for name, value in found.items() if value}
