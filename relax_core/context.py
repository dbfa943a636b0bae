"""What a hook may know of the run beside its batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Generator


@dataclass(frozen=True, slots=True)
class Context:
    """`step` counts from 0 to `total_steps` − 1.

    `generator` is seeded by the run and the step, the same on every rank. A draw per token depends on how the batch is
    cut; a draw per run or step does not.
    `state` is the plugin's own, kept from step to step and checkpointed: numbers, strings, tensors, lists and dicts.
    """

    step: int
    total_steps: int
    generator: Generator
    state: dict[str, Any]
