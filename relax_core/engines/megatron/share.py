"""A rank's share of a batch: which sequences it has, how they are cut into micro-batches, which tokens of them it holds."""

from __future__ import annotations

import torch
from megatron.core import parallel_state
from torch import Tensor

from relax_core.batch import Rollout
from relax_core.config import RunConfig
from relax_core.engines.megatron.sequence import pack
from relax_core.engines.placement import cuts
from relax_core.engines.types import Tokens
from relax_core.packing import select_sequences, select_tokens


class Share:
    """Every data-parallel rank has every DP-th sequence, in one micro-batch at least, which may be empty."""

    def __init__(self, tokens: Tokens, run: RunConfig, device: torch.device) -> None:
        ranks, rank = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
        mine = range(rank, len(tokens.prompts), ranks)
        self.index = [[mine[i] for i in cut] for cut in cuts(tokens.select(mine), run.trainer)] or [[]]
        parts, part = parallel_state.get_context_parallel_world_size(), parallel_state.get_context_parallel_rank()
        multiple = _multiple(run)
        self.packed = [pack(tokens.select(cut), multiple, parts, part).to(device) for cut in self.index]
        counts = torch.tensor([len(response) for response in tokens.responses])
        self._starts, self._counts = counts.cumsum(0) - counts, counts

    def of(self, rollout: Rollout, number: int) -> Rollout:
        """What of the batch's rollout belongs to a micro-batch: its sequences, and of their tokens those held here."""
        index = torch.tensor(self.index[number], dtype=torch.long, device=rollout.sequence_ids.device)
        part = select_sequences(rollout, index)
        keep = torch.zeros_like(part.sequence_ids, dtype=torch.bool)
        return select_tokens(part, keep.index_fill(0, self.packed[number].places, True))

    def places(self, number: int) -> Tensor:
        """[n] where the response tokens held here stand among those of the batch."""
        cut = self.index[number]
        places = [torch.arange(int(self._counts[i])) + int(self._starts[i]) for i in cut]
        return torch.cat([torch.zeros(0, dtype=torch.long), *places])[self.packed[number].places.cpu()]


def _multiple(run: RunConfig) -> int:
    """Every rank has as many tokens of each sequence, in two chunks; and every tensor-parallel rank as many of those."""
    context, tensor = run.topology.context_parallel_size, run.topology.tensor_model_parallel_size
    return (2 * context if context > 1 else 1) * (tensor if run.topology.sequence_parallel else 1)
