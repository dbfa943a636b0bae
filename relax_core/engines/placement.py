"""Where a model of the embedded engine lives, in which arithmetic, and how its batches are cut."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from relax_core.config import TrainerSection
from relax_core.engines.microbatch import by_count, by_tokens
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


def cuts(tokens: Tokens, trainer: TrainerSection) -> list[list[int]]:
    """The sequences of each micro-batch."""
    if trainer.use_dynamic_batch_size:
        return by_tokens(tokens.lengths(), trainer.max_tokens_per_micro_batch)
    return by_count(len(tokens.prompts), trainer.micro_batch_size)


def restore(parts: list[Tensor], index: list[list[int]], tokens: Tokens) -> Tensor:
    """Per-token values [T, …] of all cuts, put back in the order of the batch."""
    order = [i for cut in index for i in cut]
    pieces = torch.split(torch.cat(parts), [len(tokens.responses[i]) for i in order])
    return torch.cat([piece for _, piece in sorted(zip(order, pieces, strict=True), key=lambda pair: pair[0])])
