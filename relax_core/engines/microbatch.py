"""How a mini-batch is cut into micro-batches. The gradient does not depend on it; memory and time do."""

from __future__ import annotations

from collections.abc import Sequence


def by_count(sequences: int, size: int) -> list[list[int]]:
    """Consecutive cuts of at most `size` sequences."""
    return [list(range(start, min(start + size, sequences))) for start in range(0, sequences, size)]


def by_tokens(lengths: Sequence[int], budget: int, lines: Sequence[int] = ()) -> list[list[int]]:
    """Cuts of sequences of similar length whose padded size (count × longest) is within `budget` tokens.

    `lines` says how often each counts, once without it. A sequence that is longer than the budget goes alone.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    counts = lines or [1] * len(lengths)
    cuts: list[list[int]] = []
    taken = 0
    for i in order:
        # Longest first: a cut's first sequence is its longest.
        if cuts and lengths[cuts[-1][0]] * (taken + counts[i]) <= budget:
            cuts[-1].append(i)
            taken += counts[i]
        else:
            cuts.append([i])
            taken = counts[i]
    return cuts
