"""Where a model of the embedded engine lives, in which arithmetic, and how its batches are cut."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from relax_core.config import TrainerSection
from relax_core.engines.microbatch import by_count, by_tokens
from relax_core.engines.rows import rows_of
from relax_core.engines.types import Tokens
from relax_core.errors import LoadError


def placement(trainer: TrainerSection) -> tuple[torch.device, AbstractContextManager[Any]]:
    """The device, and the autocast in which forwards run; parameters stay float32 either way."""
    available = torch.cuda.is_available()
    if trainer.device == "cuda" and not available:
        raise LoadError("there is no GPU here", who="trainer.device", fix="write device: auto")
    name = trainer.device if trainer.device != "auto" else "cuda" if available else "cpu"
    bfloat16 = trainer.dtype == "bfloat16" or (trainer.dtype == "auto" and name == "cuda")
    context: AbstractContextManager[Any] = torch.autocast(name, torch.bfloat16) if bfloat16 else nullcontext()
    return torch.device(name), context


@dataclass(frozen=True, slots=True)
class Part:
    """A micro-batch: which sequences it has, and their tokens."""

    index: list[int]
    tokens: Tokens


def parts(tokens: Tokens, trainer: TrainerSection, width: int | None) -> list[Part]:
    """The micro-batches. With dynamic sizes they are of rows, in which responses share a prompt where `width` allows it."""
    if not trainer.use_dynamic_batch_size:
        return [Part(cut, tokens.select(cut)) for cut in cuts(tokens, trainer)]
    limit = trainer.max_tokens_per_micro_batch
    rows = rows_of(tokens, width, limit)
    sizes = [_size(tokens, row) for row in rows]
    lines = [len(tokens.pieces(row[0])) for row in rows]
    return [_part(tokens, [rows[number] for number in cut]) for cut in by_tokens(sizes, limit, lines)]


def _size(tokens: Tokens, row: list[int]) -> int:
    """The tokens of a row; of a sequence in pieces, those of the longest."""
    pieces = [tokens.pieces(index) for index in row]
    if len(row) == 1:
        return max(len(context) + len(part) for context, part in pieces[0])
    return len(tokens.prompts[row[0]]) + sum(len(part) for ((_, part),) in pieces)


def _part(tokens: Tokens, rows: list[list[int]]) -> Part:
    index = [i for row in rows for i in row]
    return Part(index, tokens.select(index, tuple(map(len, rows))))


def cuts(tokens: Tokens, trainer: TrainerSection) -> list[list[int]]:
    """The sequences of each micro-batch where no row is shared."""
    if trainer.use_dynamic_batch_size:
        return by_tokens(tokens.lengths(), trainer.max_tokens_per_micro_batch)
    return by_count(len(tokens.prompts), trainer.micro_batch_size)


def restore(values: list[Tensor], parts: list[Part], tokens: Tokens) -> Tensor:
    """Per-token values [T, …] of all micro-batches, put back in the order of the batch."""
    order = [i for part in parts for i in part.index]
    pieces = torch.split(torch.cat(values), [len(tokens.responses[i]) for i in order])
    return torch.cat([piece for _, piece in sorted(zip(order, pieces, strict=True), key=lambda pair: pair[0])])
