"""From the last hidden states to log-probs where each tensor-parallel rank has a part of the vocabulary.

As `relax_core.numerics.log_probs`: chunked, computed a second time in the backward, never the logits of more than a few tokens.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import (
    copy_to_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
)
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from relax_core.numerics.sizes import chunk_tokens


class VocabularyHead:
    """The output embedding's rows on this rank, `weight` [V/TP, H]; ids from `vocabulary` on have no probability."""

    def __init__(self, weight: Tensor, vocabulary: int, temperature: float, group: dist.ProcessGroup) -> None:
        self.weight, self.temperature, self.group = weight, temperature, group
        self.first = group.rank() * weight.shape[0]
        ids = torch.arange(weight.shape[0], device=weight.device) + self.first
        self.unknown = ids >= vocabulary
        self.size = chunk_tokens(weight.shape[0])

    def log_probs(self, hidden: Tensor, ids: Tensor, *, entropy: bool = False) -> tuple[Tensor, Tensor | None]:
        """[T, H], the same on every rank, and ids [T] or [T, C] -> log-probs of that shape, and entropies [T] if asked for.

        In nats and float32; differentiable in the hidden states and in the weight.
        """
        hidden = copy_to_tensor_model_parallel_region(hidden)
        parts = [
            checkpoint(self._chunk, states, wanted, entropy, use_reentrant=False, preserve_rng_state=False)
            for states, wanted in zip(torch.split(hidden, self.size), torch.split(ids, self.size), strict=True)
        ]
        log_probs, entropies = zip(*parts, strict=True)
        return torch.cat(log_probs), torch.cat(entropies) if entropy else None

    @torch.no_grad()
    def likeliest(self, hidden: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """[T, H] -> the `count` likeliest ids [T, count] and their log-probs [T, count]; no gradient."""
        found = [self._top(states, count) for states in torch.split(hidden, self.size)]
        return torch.cat([ids for ids, _ in found]), torch.cat([log_probs for _, log_probs in found])

    def _chunk(self, hidden: Tensor, ids: Tensor, entropy: bool) -> tuple[Tensor, Tensor | None]:
        logits, total = self._relative(hidden)
        wanted = ids if ids.dim() == 2 else ids[:, None]
        here = wanted - self.first
        mine = (here >= 0) & (here < logits.shape[-1])
        chosen = torch.where(mine, logits.gather(-1, here.clamp(0, logits.shape[-1] - 1)), 0.0)
        log_probs = reduce_from_tensor_model_parallel_region(chosen) - total.log()[:, None]
        if not entropy:
            return log_probs.reshape(ids.shape), None
        # Summed before the division: `total` is the same on every rank, and so must be all that its gradient comes from.
        weighted = reduce_from_tensor_model_parallel_region((logits.exp() * logits).sum(-1))
        return log_probs.reshape(ids.shape), total.log() - weighted / total

    def _top(self, hidden: Tensor, count: int) -> tuple[Tensor, Tensor]:
        logits, total = self._relative(hidden)
        log_probs = logits - total.log()[:, None]
        best = log_probs.topk(min(count, log_probs.shape[-1]))
        ids, values = self._gathered(best.indices + self.first), self._gathered(best.values)
        winners = values.topk(count)
        return ids.gather(-1, winners.indices), winners.values

    def _gathered(self, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(self.group.size())]
        dist.all_gather(parts, x.contiguous(), group=self.group)
        return torch.cat(parts, -1)

    def _relative(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """This rank's logits less the largest of all ranks [T, V/TP], and the sum [T] of their exponentials over all."""
        logits = functional.linear(hidden.to(self.weight.dtype), self.weight).float() / self.temperature
        logits = logits.masked_fill(self.unknown, torch.finfo(logits.dtype).min)
        largest = logits.detach().max(-1).values
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.group)
        logits = logits - largest[:, None]
        return logits, reduce_from_tensor_model_parallel_region(logits.exp().sum(-1))
