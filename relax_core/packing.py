"""Cutting a packed batch: whole sequences for micro-batches and data-parallel shards, tokens for context-parallel ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from relax_core.batch import Batch, CriticBatch, LossBatch, Rollout, build
from relax_core.groups import Group

B = TypeVar("B", bound=Batch)


def select_sequences(batch: B, index: Tensor) -> B:
    """The sequences at `index` [K], in that order; group ids are numbered anew."""
    lengths = torch.bincount(batch.sequence_ids, minlength=batch.size)
    starts = lengths.cumsum(0) - lengths
    chosen = lengths[index]
    within = torch.arange(int(chosen.sum()), device=index.device) - (chosen.cumsum(0) - chosen).repeat_interleave(
        chosen
    )
    tokens = starts[index].repeat_interleave(chosen) + within
    sequences = {name: value[index] for name, value in batch.sequences.items()}
    if "group_ids" in sequences:
        sequences["group_ids"] = torch.unique(sequences["group_ids"], return_inverse=True)[1]
    return replace(
        batch,
        sequence_ids=torch.arange(len(index), device=index.device).repeat_interleave(chosen),
        tokens={name: value[tokens] for name, value in batch.tokens.items()},
        sequences=sequences,
    )


def select_tokens(batch: B, keep: Tensor) -> B:
    """The tokens where `keep` [T] is true, of the same sequences: a context-parallel part."""
    tokens = {name: value[keep] for name, value in batch.tokens.items()}
    return replace(batch, sequence_ids=batch.sequence_ids[keep], tokens=tokens)


def loss_batch(rollout: Rollout, group: Group | None = None, /, **tokens: Tensor) -> LossBatch:
    """The rollout (or a cut of it) with what a forward pass adds: `log_probs`, and `entropy` where it is computed.

    A rollout without old log-probs is trained on once, by the policy that they are those of.
    """
    new: LossBatch = build(LossBatch, rollout.sequence_ids, {"raw_mask": rollout.raw_mask, **tokens}, {}, group)
    found = {**rollout.tokens, **new.tokens}
    if new.has("log_probs"):
        found.setdefault("old_log_probs", new.log_probs.detach())
    return replace(new, tokens=found, sequences=rollout.sequences)


def critic_batch(rollout: Rollout, values: Tensor, group: Group | None = None) -> CriticBatch:
    """The rollout (or a cut of it) with the values of the critic's own forward pass beside those of before."""
    tokens = {**rollout.tokens, "values": values, "old_values": rollout.values}
    batch: CriticBatch = build(CriticBatch, rollout.sequence_ids, tokens, rollout.sequences, group)
    return batch


def plain(rollout: Rollout) -> dict[str, Any]:
    """A rollout as plain values on the CPU, for another process; `rollout_of` makes it again."""
    tokens, sequences = ({k: v.cpu() for k, v in each.items()} for each in (rollout.tokens, rollout.sequences))
    return {"sequence_ids": rollout.sequence_ids.cpu(), "tokens": tokens, "sequences": sequences}


def rollout_of(values: Mapping[str, Any], device: torch.device) -> Rollout:
    """The rollout that `plain` described."""
    tokens, sequences = ({k: v.to(device) for k, v in values[name].items()} for name in ("tokens", "sequences"))
    return Rollout(values["sequence_ids"].to(device), tokens, sequences)
