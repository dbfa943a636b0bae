"""How sequences are laid out for a forward pass: responses to one prompt may share its tokens in one row.

A row is a prompt and the responses to it, one after another; each response sees the prompt and itself, and its positions
follow the prompt's. The log-probs are those of each sequence alone, and the prompt is computed once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from relax_core.engines.types import Tokens
from relax_core.numerics.sizes import responses_per_row


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
    starts: dict[int, tuple[int, int]] = {}
    ids, positions, segments = [], [], []
    for number, members in enumerate(rows):
        prompt = tokens.prompts[members[0]]
        line, place, segment = list(prompt), list(range(len(prompt))), [0] * len(prompt)
        for part, index in enumerate(members, start=1):
            response = tokens.responses[index]
            starts[index] = (number, len(line))
            line += response
            place += range(len(prompt), len(prompt) + len(response))
            segment += [part] * len(response)
        ids.append(torch.tensor(line))
        positions.append(torch.tensor(place))
        segments.append(torch.tensor(segment))
    return Layout(_pad(ids, 0), _pad(positions, 0), _pad(segments, -1), *_places(tokens, starts))


def _places(tokens: Tokens, starts: dict[int, tuple[int, int]]) -> tuple[Tensor, Tensor, Tensor]:
    rows: list[int] = []
    columns: list[int] = []
    predictors: list[int] = []
    for index, response in enumerate(tokens.responses):
        row, start = starts[index]
        rows += [row] * len(response)
        columns += range(start, start + len(response))
        predictors += [len(tokens.prompts[index]) - 1, *range(start, start + len(response) - 1)][: len(response)]
    places = torch.tensor([rows, columns, predictors], dtype=torch.long)
    return places[0], places[1], places[2]


def rows_of(tokens: Tokens, width: int | None, limit: int | None = None) -> list[list[int]]:
    """The sequences of each row; those of one prompt that are about as long stand together.

    `width` as in `lay_out`. No row that holds several is longer than `limit` tokens.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, prompt in enumerate(tokens.prompts):
        groups.setdefault(tuple(prompt), []).append(index)
    rows = []
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
