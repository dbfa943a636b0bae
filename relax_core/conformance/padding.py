"""Masked tokens packed between the others, and garbage under the mask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from relax_core.batch import Batch
from relax_core.conformance.outcome import Outcome
from relax_core.conformance.samples import under


def padded(batch: Batch, seed: int) -> Batch:
    """The batch with up to two masked tokens before each of its tokens; `kit_position` is −1 for those."""
    total = len(batch.sequence_ids)
    copies = 1 + torch.randint(3, (total,), generator=torch.Generator().manual_seed(seed))
    source = torch.arange(total).repeat_interleave(copies)
    real = torch.cat([source[1:] != source[:-1], torch.ones(min(total, 1), dtype=torch.bool)])
    tokens = {name: under(real, value[source], 0) for name, value in batch.tokens.items()}
    for name in ("raw_mask", "loss_mask"):
        if name in tokens:
            tokens[name] = tokens[name] & real
    tokens["kit_position"] = torch.where(real, batch.read("kit_position")[source], -1)
    return replace(batch, sequence_ids=batch.sequence_ids[source], tokens=tokens)


def without_padding(outcome: Outcome, larger: Batch) -> Outcome:
    """What belongs to the real tokens of a padded batch."""
    real = larger.read("kit_position") >= 0

    def taken(found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: value[real] if len(value) == len(real) else value for name, value in found.items()}

    return Outcome(taken(outcome.values), taken(outcome.gradients))


def garbage(value: Tensor, seed: int) -> Tensor:
    """Finite values without meaning, small, large and both signs, of the kind of `value`."""
    choices = torch.tensor([0.0, -0.7, 1.0, 30.0, -9999.0, 3e5, -750.0], dtype=torch.float64)
    index = torch.randint(len(choices), value.shape, generator=torch.Generator().manual_seed(seed))
    return choices[index].to(value.dtype) if value.is_floating_point() else index.to(value.dtype)


def poisoned(batch: Batch, seed: int) -> Batch:
    """The batch with garbage in every field of every token that the raw mask leaves out."""
    kept = {"raw_mask", "loss_mask", "candidate_ids"}
    tokens = {
        name: value
        if name in kept or name.startswith("kit_") or value.dtype == torch.bool
        else torch.where(batch.raw_mask.reshape(-1, *[1] * (value.dim() - 1)), value, garbage(value, seed + index))
        for index, (name, value) in enumerate(batch.tokens.items())
    }
    return replace(batch, tokens=tokens)


def converted(batch: Batch, dtype: torch.dtype) -> Batch:
    """The batch with every number in another precision."""

    def all_in(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        kept = {name: value for name, value in values.items() if name.startswith("kit_")}
        return {name: value.to(dtype) if value.is_floating_point() else value for name, value in values.items()} | kept

    return replace(batch, tokens=all_in(batch.tokens), sequences=all_in(batch.sequences))


def mapped(batch: Batch, function: Callable[[Tensor], Tensor]) -> Batch:
    """The batch with `function` applied to every tensor."""
    return replace(
        batch,
        sequence_ids=function(batch.sequence_ids),
        tokens={name: function(value) for name, value in batch.tokens.items()},
        sequences={name: function(value) for name, value in batch.sequences.items()},
    )
