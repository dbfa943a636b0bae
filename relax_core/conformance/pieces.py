"""A batch cut into pieces, each seen by a hook alone, and what the pieces came to put together again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from relax_core.batch import Batch
from relax_core.conformance.call import Call
from relax_core.conformance.outcome import Outcome
from relax_core.conformance.threads import run_ranks
from relax_core.groups import Group
from relax_core.packing import select_sequences, select_tokens
from relax_core.reductions import Metrics

Seen = tuple[Batch, Outcome]


def micro_batches(batch: Batch, seed: int) -> list[Batch]:
    """Whole sequences in three micro-batches and an empty one."""
    home = torch.randint(3, (batch.size,), generator=torch.Generator().manual_seed(seed))
    return [select_sequences(batch, (home == index).nonzero().flatten()) for index in range(4)]


def shards(batch: Batch, used: int = 2) -> list[Batch]:
    """Whole groups on as many ranks as are `used`, and a rank that has none."""
    home = batch.group_ids % used
    return [select_sequences(batch, (home == index).nonzero().flatten()) for index in range(used + 1)]


def parts(batch: Batch, seed: int | None) -> list[Batch]:
    """The tokens on two ranks, one of the sequences wholly on one of them; all on one where there is no seed."""
    generator = torch.Generator().manual_seed(seed or 0)
    home = torch.randint(2, batch.sequence_ids.shape, generator=generator)
    home = torch.where((batch.sequence_ids == 0) | (seed is None), 1, home)
    return [select_tokens(batch, home == index) for index in range(2)]


def alone(call: Call, pieces: Sequence[Batch]) -> list[Seen]:
    """Each piece by itself."""
    return [(piece, call.evaluate(piece)) for piece in pieces]


def together(call: Call, pieces: Sequence[Batch]) -> list[Seen]:
    """Each piece on a rank of one group."""

    def work(group: Group) -> Seen:
        piece = replace(pieces[group.rank], group=group)
        return piece, call.evaluate(piece)

    return run_ranks(len(pieces), work)


def assembled(seen: Sequence[Seen], whole: Batch) -> Outcome:
    """The pieces' values and gradients in the order of the whole."""
    first = seen[0][1]
    return Outcome(
        {name: _assembled(seen, whole, lambda outcome, name=name: outcome.values[name]) for name in first.values},
        {name: _assembled(seen, whole, lambda outcome, name=name: outcome.gradients[name]) for name in first.gradients},
    )


def _assembled(seen: Sequence[Seen], whole: Batch, get: Callable[..., Tensor]) -> Tensor:
    example = get(seen[0][1])
    per_token = example.shape[:1] == seen[0][0].sequence_ids.shape
    size = len(whole.sequence_ids) if per_token else whole.size
    result = example.new_zeros((size, *example.shape[1:]))
    for piece, outcome in seen:
        place = piece.read("kit_position" if per_token else "kit_index")
        result[place] = get(outcome).to(result.dtype)
    return result


def metrics(seen: Sequence[Seen], group: Group) -> dict[str, float]:
    """The pieces' metrics, reduced as they declare."""
    found = Metrics()
    for piece, outcome in seen:
        found.add("kit", outcome.metrics, piece)
    return found.reduce(group)


def silenced(batch: Batch) -> Batch:
    """The batch with every token masked, and 0 there as the core leaves it."""
    masks = {name: torch.zeros_like(batch.raw_mask) for name in ("raw_mask", "loss_mask") if name in batch.tokens}
    zeros = {name: torch.zeros_like(value) for name, value in batch.tokens.items() if value.is_floating_point()}
    return replace(batch, tokens={**batch.tokens, **zeros, **masks})
