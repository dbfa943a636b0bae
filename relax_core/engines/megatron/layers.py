"""Layers in plain PyTorch for where Transformer Engine is not installed: what Megatron-core's own local ones refuse.

Its norm refuses sequence parallelism; its attention refuses context parallelism and packed sequences.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.module import MegatronModule
from torch import Tensor
from torch.nn import functional

from relax_core.engines.megatron.sequence import held


class Norm(torch.nn.RMSNorm):
    """RMSNorm on a part of the sequence; its gradient is summed over the tensor-parallel ranks."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        # Megatron sums the gradients of the parameters that say so.
        setattr(self.weight, "sequence_parallel", config.sequence_parallel)  # noqa: B010


class PackedAttention(MegatronModule):  # type: ignore[misc]
    """Causal attention within each packed sequence; context-parallel ranks gather the keys and values of the others."""

    def __init__(self, config: Any, *_: Any, softmax_scale: float | None = None, **__: Any) -> None:
        super().__init__(config=config)
        self.scale = softmax_scale
        self.group = parallel_state.get_context_parallel_group()

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *_: Any, packed_seq_params: Any = None, **__: Any
    ) -> Tensor:
        """[t, heads, d], [t, groups, d], [t, groups, d] -> [t, heads·d]."""
        boundaries, size = packed_seq_params.cu_seqlens_q, self.group.size()
        rows = [_Rows(*held(boundaries, size, rank), boundaries) for rank in range(size)]
        mine = rows[self.group.rank()]
        everyone = _Rows.of_all(rows, boundaries)
        if size > 1:
            key, value = _gathered(key, self.group), _gathered(value, self.group)
        seen = everyone.places[:, None, :] <= mine.places[:, :, None]
        context = functional.scaled_dot_product_attention(
            mine.padded(query), everyone.padded(key), everyone.padded(value),
            attn_mask=seen[:, None], scale=self.scale, enable_gqa=True,
        )  # fmt: skip
        result: Tensor = mine.flat(context).flatten(1)
        return result


class _Rows:
    """Packed tokens as one padded row a sequence: `places` [S, L] in the sequence, past every other where it is padding."""

    def __init__(self, sequences: Tensor, places: Tensor, boundaries: Tensor) -> None:
        counts = torch.bincount(sequences, minlength=len(boundaries) - 1)
        order = torch.argsort(sequences, stable=True)
        columns = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[sequences[order]]
        self.shape = (len(counts), int(counts.max()))
        self.cells = torch.empty_like(order).index_copy(0, order, sequences[order] * self.shape[1] + columns)
        past = places.new_full((self.shape[0] * self.shape[1],), int(boundaries[-1]))
        self.places = past.index_copy(0, self.cells, places).view(self.shape)

    @classmethod
    def of_all(cls, rows: list[_Rows], boundaries: Tensor) -> _Rows:
        """The tokens of every rank, one rank after the other."""
        found = [(each.cells // each.shape[1], each.places.flatten()[each.cells]) for each in rows]
        return cls(torch.cat([s for s, _ in found]), torch.cat([p for _, p in found]), boundaries)

    def padded(self, x: Tensor) -> Tensor:
        """[t, heads, d] -> [S, heads, L, d]."""
        empty = x.new_zeros(self.shape[0] * self.shape[1], *x.shape[1:])
        return empty.index_copy(0, self.cells, x).view(*self.shape, *x.shape[1:]).transpose(1, 2)

    def flat(self, x: Tensor) -> Tensor:
        """[S, heads, L, d] -> [t, heads, d]."""
        return x.transpose(1, 2).flatten(0, 1).index_select(0, self.cells)


class _Gathered(torch.autograd.Function):
    """Every rank's tokens, one rank after the other; the backward sums what the ranks found for each token."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        parts = [torch.empty_like(x) for _ in range(group.size())]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        summed = grad.contiguous().clone()
        dist.all_reduce(summed, group=ctx.group)
        return summed.chunk(ctx.group.size())[ctx.group.rank()], None


def _gathered(x: Tensor, group: Any) -> Tensor:
    result: Tensor = _Gathered.apply(x, group)  # type: ignore[no-untyped-call]
    return result
