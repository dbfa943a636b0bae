"""Sums, minima and recursions over the segments of a packed vector. No loop over tokens; static shapes throughout."""

from __future__ import annotations

import torch
from torch import Tensor


def segment_sum(x: Tensor, ids: Tensor, segments: int) -> Tensor:
    """[N] values and [N] segment ids -> [segments] sums."""
    return x.new_zeros(segments).index_add(0, ids, x)


def segment_min(x: Tensor, ids: Tensor, segments: int) -> Tensor:
    """[N] values -> [segments] minima; +inf for an empty segment."""
    return torch.full((segments,), torch.inf, dtype=x.dtype, device=x.device).scatter_reduce(0, ids, x, "amin")


def segment_mean(x: Tensor, ids: Tensor, segments: int) -> Tensor:
    """[N] values -> [segments] means, taken around an element of the segment so that equal values give their value exactly."""
    count = segment_sum(torch.ones_like(x), ids, segments).clamp(min=1)
    pivot = segment_min(x, ids, segments).nan_to_num(posinf=0.0)
    return pivot + segment_sum(x - pivot[ids], ids, segments) / count


def segment_std(x: Tensor, ids: Tensor, segments: int, *, unbiased: bool) -> Tensor:
    """[N] values -> [segments] standard deviations, two-pass; 0 where there are too few values."""
    count = segment_sum(torch.ones_like(x), ids, segments)
    deviation = x - segment_mean(x, ids, segments)[ids]
    return (segment_sum(deviation * deviation, ids, segments) / (count - int(unbiased)).clamp(min=1)).sqrt()


def next_live_index(live: Tensor, sequence_ids: Tensor) -> Tensor:
    """[T] bool, [T] ids of contiguous sequences -> [T] position of the sequence's next live token; T where there is none."""
    total = live.shape[0]
    position = torch.arange(total, device=live.device)
    at_or_after = torch.where(live, position, total).flip(0).cummin(0).values.flip(0)
    following = torch.cat([at_or_after[1:], at_or_after.new_full((min(total, 1),), total)])
    ids = torch.cat([sequence_ids, sequence_ids.new_full((1,), -1)])
    return torch.where(ids[following] == sequence_ids, following, total)


def discounted_sum(x: Tensor, decay: Tensor, following: Tensor) -> Tensor:
    """y_t = x_t + decay_t · y[following_t], with y = 0 past the end ([T] each; `following` is T for "none").

    Pointer doubling: after k rounds y_t holds 2^k terms, so log2(T) gathers replace a loop over tokens.
    """
    total = x.shape[0]
    y, weight, pointer = (
        torch.cat([part, part.new_full((1,), end)])
        for part, end in ((x, 0), (decay.expand_as(x), 0), (following, total))
    )
    for _ in range(total.bit_length()):
        y = y + weight * y[pointer]
        weight = weight * weight[pointer]
        pointer = pointer[pointer]
    return y[:total]
