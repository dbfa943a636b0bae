"""How sequences are laid out for a forward pass: responses to one prompt may share its tokens in one row.

A row is a prompt and the responses to it, one after another; each response sees the prompt and itself, and its positions
follow the prompt's. The log-probs are those of each sequence alone, and the prompt is computed once. A sequence whose context
was replaced has a row for each of its pieces, and shares none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

import torch
from torch import Tensor

from relax_core.engines.types import Tokens
from relax_core.numerics.sizes import responses_per_row

Key: TypeAlias = tuple[int, int]
"""A sequence, and which of its pieces."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """B rows of width L: `ids`, `positions` and `segments` [B, L] (0 the prompt, then one number a response, −1 padding).

    `rows` and `columns` [T] say where each response token of the batch stands, `predictors` [T] the column before it.
    """

    ids: Tensor
    positions: Tensor
    segments: Tensor
    rows: Tensor
    columns: Tensor
    predictors: Tensor

    @property
    def shares(self) -> bool:
        """Whether a row holds more than one response."""
        return bool((self.segments > 1).any())

    @property
    def responses(self) -> Tensor:
        """[T] the response tokens, sequence after sequence."""
        return self.ids[self.rows, self.columns]

    def to(self, device: torch.device) -> Layout:
        """On another device."""
        return Layout(*(getattr(self, name).to(device) for name in self.__slots__))

    def mask(self) -> Tensor:
        """[B, L] for plain rows; [B, 1, L, L] bool, true where a token sees another, for rows that share a prompt."""
        if not self.shares:
            return (self.segments >= 0).long()
        segments = self.segments
        earlier = torch.ones(segments.shape[1], segments.shape[1], dtype=torch.bool, device=segments.device).tril()
        related = (segments[:, None, :] == 0) | (segments[:, None, :] == segments[:, :, None])
        return (earlier & related)[:, None]


def lay_out(tokens: Tokens, width: int | None) -> Layout:
    """Rows for the sequences of a micro-batch; `width`, the model's hidden size, allows sharing, None forbids it."""
    rows = _given(tokens) if tokens.rows else rows_of(tokens, width)
    starts: dict[Key, tuple[int, int]] = {}
    ids, positions, segments = [], [], []
    for number, (context, parts) in enumerate(line for members in rows for line in _lines(tokens, members)):
        line, place, segment = list(context), list(range(len(context))), [0] * len(context)
        for order, (key, part) in enumerate(parts, start=1):
            starts[key] = (number, len(line))
            line += part
            place += range(len(context), len(context) + len(part))
            segment += [order] * len(part)
        ids.append(torch.tensor(line))
        positions.append(torch.tensor(place))
        segments.append(torch.tensor(segment))
    return Layout(_pad(ids, 0), _pad(positions, 0), _pad(segments, -1), *_places(tokens, starts))


def _lines(tokens: Tokens, members: Sequence[int]) -> Iterator[tuple[list[int], list[tuple[Key, list[int]]]]]:
    """What stands in each line: a context, and the parts of responses that follow it."""
    if len(members) > 1:
        yield tokens.prompts[members[0]], [((index, 0), tokens.responses[index]) for index in members]
        return
    for number, (context, part) in enumerate(tokens.pieces(members[0])):
        yield context, [((members[0], number), part)]


def _places(tokens: Tokens, starts: dict[Key, tuple[int, int]]) -> tuple[Tensor, Tensor, Tensor]:
    rows: list[int] = []
    columns: list[int] = []
    predictors: list[int] = []
    for index in range(len(tokens.prompts)):
        for number, (context, part) in enumerate(tokens.pieces(index)):
            row, start = starts[index, number]
            rows += [row] * len(part)
            columns += range(start, start + len(part))
            predictors += [len(context) - 1, *range(start, start + len(part) - 1)][: len(part)]
    places = torch.tensor([rows, columns, predictors], dtype=torch.long)
    return places[0], places[1], places[2]


def rows_of(tokens: Tokens, width: int | None, limit: int | None = None) -> list[list[int]]:
    """The sequences of each row; those of one prompt that are about as long stand together.

    `width` as in `lay_out`. No row that holds several is longer than `limit` tokens.
    """
    apart = [index for index, resets in enumerate(tokens.resets) if resets]
    groups: dict[tuple[int, ...], list[int]] = {}
    for index in sorted(set(range(len(tokens.prompts))).difference(apart)):
        groups.setdefault(tuple(tokens.prompts[index]), []).append(index)
    rows = [[index] for index in apart]
    for shared, members in groups.items():
        lengths = [len(tokens.responses[index]) for index in members]
        size = 1 if width is None else responses_per_row(len(shared), sum(lengths) / len(members), len(members), width)
        rows += _filled(members, lengths, size, None if limit is None else limit - len(shared))
    return rows


def _filled(members: list[int], lengths: list[int], size: int, room: int | None) -> list[list[int]]:
    """At most `size` members a row, the longest first, with `room` for their tokens."""
    rows: list[list[int]] = []
    taken = 0
    for length, index in sorted(zip(lengths, members, strict=True), key=lambda each: (-each[0], each[1])):
        if not rows or len(rows[-1]) == size or (room is not None and taken + length > room):
            rows.append([])
            taken = 0
        rows[-1].append(index)
        taken += length
    return rows


def _given(tokens: Tokens) -> list[list[int]]:
    ends = list(accumulate(tokens.rows))
    return [list(range(end - count, end)) for end, count in zip(ends, tokens.rows, strict=True)]


def _pad(rows: list[Tensor], value: int) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)
