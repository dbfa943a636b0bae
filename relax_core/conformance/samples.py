"""Random batches with everything that is awkward about real ones, of the kind that a hook gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from relax_core.batch import Batch, CriticBatch, LossBatch, Rollout
from relax_core.spec import SequenceField, TokenField

LENGTHS = (5, 1, 7, 3, 9, 4, 2, 6, 0, 8, 3, 5)
SILENT = 3
"""The sequence whose tokens are all masked."""
GAPS = (0.02, 0.3, 0.8)
"""How far the policy has moved, from sequence to sequence."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a sample is to be like. `fields` are the plugin's own; `flags` makes their values bool.

    `long`: longer sequences, in which a few tokens have moved far and the others hardly at all.
    """

    kind: type[Any] = LossBatch
    seed: int = 0
    group_size: int = 3
    candidates: int = 0
    fields: Sequence[TokenField | SequenceField] = ()
    flags: bool = False
    long: bool = False


def sample(recipe: Recipe) -> Batch:
    """A batch with every field that the core can give, float64, zeros under the raw mask as the core leaves them."""
    draw = _Draw(recipe.seed)
    lengths = torch.tensor(LENGTHS) * (15 if recipe.long else 1)
    ids = torch.arange(len(lengths)).repeat_interleave(lengths)
    raw = (draw.uniform(len(ids)) < 0.8) & (ids != SILENT)
    tokens = {"raw_mask": raw, "loss_mask": raw & (draw.uniform(len(ids)) < 0.9), **_log_probs(draw, ids, recipe.long)}
    tokens |= _other_tokens(draw, len(ids), recipe.candidates)
    tokens["kit_position"] = torch.arange(len(ids))
    sequences = _sequences(draw, lengths, recipe.group_size)
    for each in recipe.fields:
        if each.name in tokens or each.name in sequences:
            continue
        home, size = (tokens, len(ids)) if isinstance(each, TokenField) else (sequences, len(lengths))
        values = draw.uniform(size).round()
        home[each.name] = values.bool() if recipe.flags else values
    cleaned = {name: under(raw, value, 0.0) for name, value in tokens.items() if not name.startswith("kit_")}
    batch: Batch = recipe.kind(ids, {**tokens, **cleaned}, sequences)
    return _of_kind(batch, draw, len(ids))


def under(mask: Tensor, value: Tensor, other: Any) -> Tensor:
    """[T, …] with `other` where the mask [T] is false; a mask stays as it is."""
    if value.dtype == torch.bool:
        return value
    return torch.where(mask.reshape(-1, *[1] * (value.dim() - 1)), value, torch.as_tensor(other).to(value.dtype))


def _of_kind(batch: Batch, draw: _Draw, total: int) -> Batch:
    """Without what this kind of batch does not hold."""
    gone = {"loss_mask", "advantages"} if isinstance(batch, Rollout) else set()
    if isinstance(batch, Rollout):
        gone |= {"log_probs", "entropy", "candidate_log_probs", "returns", "old_values"}
    elif not isinstance(batch, CriticBatch):
        gone |= {"old_values"}
    kept = {name: value for name, value in batch.tokens.items() if name not in gone}
    found: Batch = type(batch)(batch.sequence_ids, kept, batch.sequences, batch.group)
    return found


class _Draw:
    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.generator, dtype=torch.float64)

    def around(self, total: int, width: float | Tensor = 1.0) -> Tensor:
        return (2 * self.uniform(total) - 1) * width


def _log_probs(draw: _Draw, ids: Tensor, few: bool) -> dict[str, Tensor]:
    total = len(ids)
    gap = torch.tensor(GAPS, dtype=torch.float64)[ids % len(GAPS)]
    if few:
        gap = torch.where(draw.uniform(total) < 0.04, 1.5, 0.02)
    old = -3 * draw.uniform(total) - 0.1
    return {
        "old_log_probs": old,
        "log_probs": old + draw.around(total, gap),
        "rollout_log_probs": old + draw.around(total, gap),
        "ref_log_probs": old + draw.around(total, 0.5),
        "teacher_log_probs": old + draw.around(total, 0.5),
    }


def _other_tokens(draw: _Draw, total: int, candidates: int) -> dict[str, Tensor]:
    found = {
        "values": draw.around(total),
        "old_values": draw.around(total),
        "returns": draw.around(total),
        "entropy": draw.uniform(total) + 0.5,
        "advantages": draw.around(total),
        "staleness": (draw.uniform(total) * 3).long(),
    }
    if candidates:
        found["candidate_ids"] = torch.arange(candidates).expand(total, candidates).clone()
        for name in ("candidate_log_probs", "teacher_candidate_log_probs"):
            found[name] = -4 * draw.uniform(total, candidates)
    return found


def _sequences(draw: _Draw, lengths: Tensor, group_size: int) -> dict[str, Tensor]:
    count = len(lengths)
    rewards = draw.uniform(count)
    return {
        "rewards": rewards,
        "unshaped_rewards": rewards.clone(),
        "group_ids": torch.arange(count) // group_size,
        "lengths": lengths,
        "finish_reasons": torch.arange(count) % 2,
        "kit_index": torch.arange(count),
        "kit_weight": 0.5 + draw.uniform(count),
    }
