"""How the sequences of a micro-batch are packed into one row, and which tokens of it a context-parallel rank holds.

One whose context was replaced stands there in pieces, as if each were a sequence. Each is padded to a multiple of
`2·CP·TP` (of TP without context parallelism) and cut into 2·CP chunks, of which rank r holds chunks r and 2·CP−1−r: the
zigzag that gives every rank the same amount of causal attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relax_core.engines.types import Piece, Tokens


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """One micro-batch on one context-parallel rank: t tokens here, n of them predict a response token.

    `ids` [t]; `boundaries` [S+1], the padded sequences' ends over all ranks; `longest`, of them; `predictors` [n] the
    place in `ids` from which a response token is predicted, `places` [n] where that token stands among the response
    tokens of the micro-batch (ascending), `labels` [n] the tokens themselves.
    """

    ids: Tensor
    boundaries: Tensor
    longest: int
    predictors: Tensor
    places: Tensor
    labels: Tensor

    def to(self, device: torch.device) -> Packed:
        """On another device."""
        tensors = {name: getattr(self, name).to(device) for name in self.__slots__ if name != "longest"}
        return Packed(longest=self.longest, **tensors)


def held(boundaries: Tensor, size: int, rank: int) -> tuple[Tensor, Tensor]:
    """[t], [t]: of the tokens that context-parallel rank `rank` of `size` holds, the sequence and the place in it."""
    lengths = boundaries.diff().long()
    sequences = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)
    places = torch.arange(len(sequences), device=lengths.device) - boundaries[:-1].long()[sequences]
    if size == 1:
        return sequences, places
    chunk = places // (lengths // (2 * size))[sequences]
    mine = (chunk == rank) | (chunk == 2 * size - 1 - rank)
    return sequences[mine], places[mine]


def pack(tokens: Tokens, multiple: int, size: int = 1, rank: int = 0) -> Packed:
    """The part of `tokens` that a rank holds, every sequence padded with 0 to a multiple of `multiple` tokens.

    Without a sequence there is one of padding alone, so that the rank still takes part in every collective.
    """
    pieces = [piece for index in range(len(tokens.prompts)) for piece in tokens.pieces(index)]
    rows = [context + part for context, part in pieces] or [[0]]
    lengths = torch.tensor([-(-len(row) // multiple) * multiple for row in rows])
    boundaries = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    ids = torch.cat([torch.tensor(row + [0] * (int(n) - len(row))) for row, n in zip(rows, lengths, strict=True)])
    sequences, places = held(boundaries, size, rank)
    mine = boundaries[sequences] + places
    return Packed(ids[mine], boundaries.int(), int(lengths.max()), *_responses(pieces, boundaries, mine))


def _responses(pieces: Sequence[Piece], boundaries: Tensor, mine: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Predictors, places and labels: what of the response tokens is predicted from a token that is held here."""
    counts = torch.tensor([len(part) for _, part in pieces], dtype=torch.long)
    firsts = boundaries[: len(counts)] + torch.tensor([len(context) - 1 for context, _ in pieces], dtype=torch.long)
    within = torch.arange(int(counts.sum())) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    predictors = firsts.repeat_interleave(counts) + within
    here = torch.full((int(boundaries[-1]),), -1).index_copy(0, mine, torch.arange(len(mine)))[predictors]
    places = (here >= 0).nonzero().flatten()
    labels = torch.tensor([token for _, part in pieces for token in part], dtype=torch.long)
    return here[places], places, labels[places]
