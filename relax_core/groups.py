"""How the ranks that hold parts of one batch speak to each other: the only place that knows of process groups."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import torch
from torch import Tensor

Operation = Literal["sum", "max", "min"]


class Group(Protocol):
    """Ranks that hold parts of one batch. Every member takes part in every collective, an empty one too."""

    rank: int
    size: int

    def all_reduce(self, x: Tensor, operation: Operation) -> Tensor:
        """The elementwise reduction of every rank's `x`, which has one shape on all ranks; `x` is not changed."""

    def all_gather(self, x: Tensor) -> list[Tensor]:
        """Every rank's [N_r], in the order of ranks; lengths may differ."""


class Solo:
    """A group of one: nothing to say to anybody."""

    rank = 0
    size = 1

    def all_reduce(self, x: Tensor, operation: Operation) -> Tensor:
        return x

    def all_gather(self, x: Tensor) -> list[Tensor]:
        return [x]


class DistributedGroup:
    """A `torch.distributed` process group (gloo or NCCL)."""

    def __init__(self, process_group: Any) -> None:
        import torch.distributed as dist

        self._dist = dist
        self._group = process_group
        self.rank = dist.get_rank(process_group)
        self.size = dist.get_world_size(process_group)

    def all_reduce(self, x: Tensor, operation: Operation) -> Tensor:
        result = x.detach().clone()
        self._dist.all_reduce(result, op=getattr(self._dist.ReduceOp, operation.upper()), group=self._group)
        return result

    def all_gather(self, x: Tensor) -> list[Tensor]:
        lengths = [torch.empty(1, dtype=torch.long, device=x.device) for _ in range(self.size)]
        self._dist.all_gather(lengths, torch.tensor([x.shape[0]], device=x.device), group=self._group)
        longest = max(int(length) for length in lengths)
        padded = torch.cat([x.detach(), x.new_zeros(longest - x.shape[0])])
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        self._dist.all_gather(parts, padded, group=self._group)
        return [part[: int(length)] for part, length in zip(parts, lengths, strict=True)]


class _Summed(torch.autograd.Function):
    """Every rank's result depends on every rank's input, so the backward sums the gradients over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return group.all_reduce(x, "sum")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.group.all_reduce(grad.contiguous(), "sum"), None


def summed(x: Tensor, group: Group) -> Tensor:
    """The sum of `x` over the ranks, differentiable."""
    return x if group.size == 1 else _Summed.apply(x, group)  # type: ignore[no-untyped-call]
