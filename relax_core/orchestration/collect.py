"""From sampled completions to responses that a reward can read, and to a packed rollout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from relax_core.batch import FinishReason, Rollout, build
from relax_core.data.prompts import Prompt
from relax_core.data.rewards import RewardBatch, RewardFunction, Sample
from relax_core.engines.types import Tokens
from relax_core.errors import LoadError
from relax_core.rollout.types import Completion
from relax_core.spec import SequenceField, TokenField

REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}


@dataclass(slots=True)
class Response:
    """One sampled response: `group` is its prompt's place in the run, `score` what the reward said, `reward` as shaped."""

    prompt: Prompt
    completion: Completion
    sample: Sample
    group: int
    score: float = 0.0
    reward: float = 0.0


def decoded(found: Sequence[tuple[int, Prompt, Completion]], tokenizer: Any) -> list[Response]:
    """A response for each place in the run, prompt and completion; its text is without special tokens."""
    texts = tokenizer.batch_decode([each.token_ids for _, _, each in found], skip_special_tokens=True)
    return [
        Response(prompt, each, _sample(prompt, each, text), place)
        for (place, prompt, each), text in zip(found, texts, strict=True)
    ]


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


def scores_of(responses: Sequence[Response], reward: RewardFunction) -> RewardBatch:
    """A reward for each response: its environment's, or else what `reward` gives for its text."""
    asked = [each for each in responses if each.completion.reward is None]
    found = reward.score([each.sample for each in asked]) if asked else RewardBatch([], 0)
    given = iter(found.rewards)
    own = [each.completion.reward for each in responses]
    return RewardBatch([next(given) if value is None else value for value in own], found.errors, found.failures)


def tokens_of(sequences: Sequence[Response]) -> Tokens:
    """Their token ids."""
    prompts, completions = [each.prompt.token_ids for each in sequences], [each.completion for each in sequences]
    resets = [each.resets for each in completions]
    return Tokens(prompts, [each.token_ids for each in completions], resets=resets if any(resets) else ())


def pack(
    sequences: Sequence[Response],
    version: int,
    fields: Sequence[SequenceField | TokenField],
    device: torch.device,
    *,
    mask_stale: bool = False,
) -> Rollout:
    """A rollout of whole sequences; `version` is that of the weights that train on it, for the staleness of each token.

    What an environment added is not in the raw mask; with `mask_stale`, nor are tokens that older weights sampled.
    """
    own = [field for field in fields if isinstance(field, SequenceField)]
    lengths = _integers(len(each.completion.token_ids) for each in sequences)
    groups = {group: index for index, group in enumerate(dict.fromkeys(each.group for each in sequences))}
    log_probs = [value for each in sequences for value in each.completion.log_probs]
    staleness = _integers(version - sampled for each in sequences for sampled in each.completion.versions)
    sampled = torch.tensor([value for each in sequences for value in _mask(each)], dtype=torch.bool)
    tokens = {
        "raw_mask": sampled & (staleness == 0) if mask_stale else sampled,
        "rollout_log_probs": torch.tensor(log_probs, dtype=torch.float32),
        "staleness": staleness,
        **{field.name: _turn_rewards(sequences) for field in fields if isinstance(field, TokenField)},
    }
    per_sequence = {
        "rewards": torch.tensor([each.reward for each in sequences], dtype=torch.float32),
        "group_ids": _integers(groups[each.group] for each in sequences),
        "lengths": lengths,
        "finish_reasons": _integers(REASONS[each.completion.finish_reason] for each in sequences),
        **{field.name: torch.tensor([_field(each, field) for each in sequences]) for field in own},
    }
    ids = torch.arange(len(sequences)).repeat_interleave(lengths)
    rollout: Rollout = build(
        Rollout,
        ids.to(device),
        {name: value.to(device) for name, value in tokens.items()},
        {name: value.to(device) for name, value in per_sequence.items()},
    )
    return rollout


def _mask(sequence: Response) -> list[bool]:
    completion = sequence.completion
    return completion.raw_mask or [True] * len(completion.token_ids)


def _turn_rewards(sequences: Sequence[Response]) -> Tensor:
    """The one field of tokens that is known to the core: `turn_reward`, as the start-up check has seen to."""
    completions = [each.completion for each in sequences]
    rewards = [value for each in completions for value in each.turn_rewards or [0.0] * len(each.token_ids)]
    return torch.tensor(rewards, dtype=torch.float32)


def _integers(values: Iterable[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.long)


def _field(sequence: Response, field: SequenceField) -> float:
    row = sequence.prompt.example
    value = row.metadata.get(field.name)
    if isinstance(value, bool | int | float):
        return value
    raise LoadError(
        f"row '{row.id}' has no number under '{field.name}'", who="data", fix=f"give every row a '{field.name}'"
    )
