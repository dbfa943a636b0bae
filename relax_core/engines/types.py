"""What a training engine is given and what it does, the same for every engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from relax_core.batch import Rollout
    from relax_core.reductions import Metrics
    from relax_core.rollout.types import Reset
    from relax_core.runtime import Runtime

Policy = Literal["actor", "reference", "teacher"]
Piece: TypeAlias = tuple[list[int], list[int]]
"""A context and the response tokens that follow it."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The token ids of S sequences, prompts and responses apart.

    `resets`, where there are any, has for each sequence the places in its response where its context was replaced, and
    by what. `rows` says how many sequences stand in each row, one after another; without it a layout decides.
    """

    prompts: list[list[int]]
    responses: list[list[int]]
    rows: tuple[int, ...] = ()
    resets: Sequence[Sequence[Reset]] = ()

    def select(self, index: Sequence[int], rows: tuple[int, ...] = ()) -> Tokens:
        """The sequences at `index`, in that order."""
        resets = [self.resets[i] for i in index] if self.resets else ()
        return Tokens([self.prompts[i] for i in index], [self.responses[i] for i in index], rows, resets)

    def pieces(self, index: int) -> list[Piece]:
        """What the model reads of a sequence at a time: a context with the response tokens behind it, one at least."""
        response, resets = self.responses[index], self.resets[index] if self.resets else ()
        contexts = [(0, self.prompts[index]), *resets]
        ends = [*(place for place, _ in resets), len(response)]
        found = [(context, response[start:end]) for (start, context), end in zip(contexts, ends, strict=True)]
        return [piece for piece in found if piece[1]] or found[:1]

    def lengths(self) -> list[int]:
        """Tokens that the model reads of each sequence: its contexts and its response."""
        return [sum(len(context) + len(part) for context, part in self.pieces(i)) for i in range(len(self.prompts))]


@dataclass(frozen=True, slots=True)
class Update:
    """What one optimizer update did: metrics to be reduced, the gradient's norm before clipping, the learning rate.

    `applied` is false when nothing was live, and nothing was changed.
    """

    metrics: Metrics
    grad_norm: float
    lr: float
    applied: bool


class CriticEngine(Protocol):
    """The critic under training: a value for each response token, of the state before it."""

    def values(self, tokens: Tokens) -> Tensor:
        """[T] values, in eval mode and without a graph."""

    def update(self, tokens: Tokens, rollout: Rollout, runtime: Runtime, step: int) -> Update:
        """One optimizer update on a mini-batch."""

    def save(self, directory: Path) -> None:
        """Write the critic's weights and the state that training goes on from."""

    def load(self, directory: Path) -> None:
        """Go on from what `save` wrote."""


class TrainingEngine(Protocol):
    """The policy under training.

    `device` is where what it is given and gives lives; `vocabulary` counts the ids that it can give; `copies_weights`:
    a sampler cannot read its parameters themselves, and is sent `weights()`.
    """

    @property
    def device(self) -> torch.device: ...

    @property
    def vocabulary(self) -> int: ...

    @property
    def copies_weights(self) -> bool: ...

    def score(self, tokens: Tokens, policy: Policy) -> Tensor:
        """[T] log-probs of the response tokens, in eval mode and without a graph."""

    def candidates(self, tokens: Tokens, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """The teacher's log-probs [T] of the response tokens, the ids [T, count] it finds likeliest there, and theirs."""

    def update(self, tokens: Tokens, rollout: Rollout, runtime: Runtime, step: int) -> Update:
        """One optimizer update on a mini-batch."""

    def refresh_reference(self) -> None:
        """Copy the actor into the reference."""

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The actor's weights by name in Hugging Face form."""

    def save(self, directory: Path) -> None:
        """Write weights that `from_pretrained` loads, and the state that training goes on from."""

    def load(self, directory: Path) -> None:
        """Go on from what `save` wrote."""

    def close(self) -> None:
        """Give back what the engine holds: nothing is asked of it any more."""
