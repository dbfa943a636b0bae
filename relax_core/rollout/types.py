"""What a rollout engine is asked for and what it gives back: token ids in, token ids and log-probs out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from relax_core.errors import RunError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from torch import Tensor

FinishReason = Literal["stop", "length", "abort"]
Reset: TypeAlias = tuple[int, list[int]]
"""A place among a response's tokens, and what the policy reads before what follows there, in place of all before."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample. `top_k` 0 and `top_p` 1 switch the truncation off; `max_new_tokens` bounds each response.

    A `temperature` of 0 takes the likeliest token each time, and reads no truncation.
    `seed` and a prompt's place decide what is sampled for it, whatever else is sampled with it.
    """

    n: int
    max_new_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled response.

    `token_ids` holds every sampled token, the one that ended the sequence included; `log_probs` (float32 values, one
    a token) are those of the distribution that was sampled from: after temperature, top-k and top-p; at temperature 0
    those of the untempered one. `versions` are those of the weights that sampled each token. `finish_reason` is `stop`
    (a stop token or string), `length` (`max_new_tokens`) or `abort`: a budget ran out, and the response can be gone on
    with.

    An environment adds tokens that nobody sampled: `raw_mask` is true where the policy did (empty: everywhere), and
    elsewhere the log-prob is 0. `turn_rewards` stand on the last tokens of turns, 0 elsewhere (empty: none are given);
    `reward` is its own for the whole; `counts` say what happened on the way. `resets` are where the context was replaced,
    in order, and `observations` the places where one begins, with the tool that gave it, "" for none.
    """

    token_ids: list[int]
    log_probs: list[float]
    finish_reason: FinishReason
    versions: list[int]
    raw_mask: list[bool] = field(default_factory=list)
    turn_rewards: list[float] = field(default_factory=list)
    reward: float | None = None
    counts: dict[str, int] = field(default_factory=dict)
    resets: list[Reset] = field(default_factory=list)
    observations: list[tuple[int, str]] = field(default_factory=list)

    def row(self) -> tuple[Any, ...]:
        """Its fields as plain values, in order."""
        return tuple(getattr(self, each.name) for each in fields(self))


@dataclass(frozen=True, slots=True)
class Budget:
    """What one call may spend: new `tokens` for each response, `seconds` for all of them; None is no bound."""

    tokens: int | None = None
    seconds: float | None = None


class RolloutEngine(Protocol):
    """Generation behind one interface, in this process or in another.

    `shares_weights`: it samples from the trained parameters themselves, and an update only says that they are new.
    """

    shares_weights: bool

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, places: Sequence[int] | None = None
    ) -> list[list[Completion]]:
        """`params.n` completions of each prompt, in the order of the prompts; `places` are their numbers in the run.

        Left out, a prompt's place is where it stands in `prompts`.
        """

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take the named tensors as the policy from now on, and stamp `version` on what is sampled with them."""

    def sleep(self) -> None:
        """Give memory back until the next `update_weights`, where the platform can."""

    def close(self) -> None:
        """Release what the engine holds; it does nothing afterwards."""


class ContinuousEngine(RolloutEngine, Protocol):
    """A `RolloutEngine` that is asked for more while it samples, and takes new weights meanwhile."""

    def submit(self, prompt: Sequence[int], params: SamplingParams, place: int) -> Future[list[Completion]]:
        """`params.n` completions of one prompt, when they are there."""


class EngineEnded(RunError):
    """A process of the engine's own has ended: this engine samples no more, a new one may."""


class PartialRolloutEngine(RolloutEngine, Protocol):
    """A `RolloutEngine` that can stop in the middle of a response and go on with it later."""

    def proceed(
        self,
        prompts: Sequence[Sequence[int]],
        begun: Sequence[Sequence[Completion]],
        params: SamplingParams,
        budget: Budget,
        places: Sequence[int] | None = None,
    ) -> list[list[Completion]]:
        """`generate` within a budget: `begun` [P][n] are the responses so far, none (an empty list) or `params.n`.

        What has ended is given back as it is. Tokens, log-probs and versions of the others are kept and added to.
        """
