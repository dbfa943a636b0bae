"""What an environment is given and what it makes: a prompt, and a trajectory of token ids that only grows."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from relax_core.errors import RunError
from relax_core.spec import AlgorithmConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relax_core.rollout.types import Completion, FinishReason, Reset

WHO = "environment"


class EnvironmentConfig(AlgorithmConfig):
    """Base of an environment's own settings, which a run file gives under `rollout.environment.args`. Strict.

    A docstring under a field documents it.
    """


class BudgetSpent(RunError):
    """A trajectory was to go on that may not: the run ends it there, cut off as by a length."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one trajectory may spend: turns, tokens (observations included), and seconds, None being no bound.

    `context` bounds what the policy reads at once, the prompt included.
    """

    turns: int
    tokens: int
    seconds: float | None = None
    context: int | None = None


@dataclass(frozen=True, slots=True)
class EnvironmentPrompt:
    """A row of the data as an environment sees it: `text` and `token_ids` are what the policy reads first."""

    id: str
    text: str
    token_ids: tuple[int, ...]
    answer: Any
    metadata: dict[str, Any]
    limits: Limits


@dataclass(frozen=True, slots=True)
class Turn:
    """What the policy wrote in one go. `text` is without special tokens, a stop string that ended it included.

    `finish_reason` is `stop` (a stop token or string) or `length`.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason


@dataclass(slots=True, eq=False)
class Trajectory:
    """A prompt and all that came after it, token by token; a `Sampler` adds to it, and nothing takes away.

    `reward` is for the whole of it; left None, the reward of the run scores its text.
    """

    prompt: EnvironmentPrompt
    reward: float | None = None
    _ids: list[int] = field(default_factory=list, init=False)
    _log_probs: list[float] = field(default_factory=list, init=False)
    _versions: list[int] = field(default_factory=list, init=False)
    _sampled: list[bool] = field(default_factory=list, init=False)
    _turn_rewards: dict[int, float] = field(default_factory=dict, init=False)
    _turns: list[Turn] = field(default_factory=list, init=False)
    _counts: Counter[str] = field(default_factory=Counter, init=False)
    _resets: list[Reset] = field(default_factory=list, init=False)
    _observations: list[tuple[int, str]] = field(default_factory=list, init=False)
    _cut: bool = field(default=False, init=False)
    _began: float = field(default_factory=time.monotonic, init=False)

    @property
    def turns(self) -> tuple[Turn, ...]:
        """What the policy wrote so far."""
        return tuple(self._turns)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Everything after the prompt so far, observations included."""
        return tuple(self._ids)

    @property
    def raw_mask(self) -> tuple[bool, ...]:
        """For each of `token_ids`, whether the policy sampled it."""
        return tuple(self._sampled)

    @property
    def context(self) -> tuple[int, ...]:
        """What the policy reads before it goes on: the prompt, or what the last reset put there, and what came since."""
        return self.read_before(len(self._ids))

    @property
    def resets(self) -> tuple[Reset, ...]:
        """The places among `token_ids` where the context was replaced, and by what."""
        return tuple(self._resets)

    @property
    def room(self) -> int:
        """Tokens that it may still have; what contexts were replaced by counts too."""
        return self.prompt.limits.tokens - len(self._ids) - sum(len(context) for _, context in self._resets)

    @property
    def context_room(self) -> int:
        """Tokens that it may still have before the context is replaced: no more than `room`."""
        most = self.prompt.limits.context
        return self.room if most is None else min(self.room, most - len(self.context))

    @property
    def may_go_on(self) -> bool:
        """Whether there may be another turn. One that is asked, and may not, was cut off (`length`)."""
        limits = self.prompt.limits
        late = limits.seconds is not None and time.monotonic() - self._began >= limits.seconds
        may = len(self._turns) < limits.turns and self.room > 0 and not late
        self._cut |= not may
        return may

    @property
    def finish_reason(self) -> FinishReason:
        """`length` where a budget ended it, else `stop`."""
        last_was_cut = bool(self._turns) and self._turns[-1].finish_reason == "length" and self._sampled[-1]
        return "length" if self._cut or last_was_cut else "stop"

    def read_before(self, place: int) -> tuple[int, ...]:
        """What the policy reads before the token at `place`."""
        earlier = [(0, self.prompt.token_ids), *(each for each in self._resets if each[0] <= place)]
        start, context = earlier[-1]
        return (*context, *self._ids[start:place])

    def turn_reward(self, value: float) -> None:
        """Put a reward on the last token that the policy wrote so far: the token field `turn_reward`.

        Raises RunError where it has written none, or for a value that is no finite number.
        """
        if not any(self._sampled):
            raise RunError("a turn was rewarded before there was one", who=WHO, fix="sample first")
        if not math.isfinite(value):
            raise RunError(f"a turn's reward is {value!r}", who=WHO, fix="give a finite number")
        self._turn_rewards[len(self._sampled) - 1 - self._sampled[::-1].index(True)] = float(value)

    @property
    def log_probs(self) -> list[float]:
        """Those of `token_ids`; 0 at observations."""
        return list(self._log_probs)

    @property
    def versions(self) -> list[int]:
        """Those of the weights that sampled `token_ids`; an observation has that of what was sampled before it, or after."""
        first = next((each for each in self._versions if each >= 0), 0)
        return [each if each >= 0 else first for each in self._versions]

    @property
    def counts(self) -> dict[str, int]:
        """What happened, and how often: turns, calls of tools, and what went wrong with those."""
        return {"turns": len(self._turns), **self._counts}

    @property
    def observations(self) -> list[tuple[int, str]]:
        """The places among `token_ids` where one begins, with the name of the tool that gave it; "" for none."""
        return list(self._observations)

    @property
    def turn_rewards(self) -> list[float]:
        """The rewards of turns at their tokens, 0 elsewhere; empty without any."""
        return [self._turn_rewards.get(place, 0.0) for place in range(len(self._ids))] if self._turn_rewards else []

    def _take(self, completion: Completion, text: str) -> Turn:
        self._ids += completion.token_ids
        self._log_probs += completion.log_probs
        self._versions += completion.versions
        self._sampled += [True] * len(completion.token_ids)
        turn = Turn(text, tuple(completion.token_ids), completion.finish_reason)
        self._turns.append(turn)
        return turn

    def _reset(self, token_ids: Sequence[int]) -> None:
        place = len(self._ids)
        self._resets = [*(each for each in self._resets if each[0] < place), (place, list(token_ids))]

    def _observe(self, token_ids: Sequence[int], tool: str) -> None:
        self._observations.append((len(self._ids), tool))
        self._ids += token_ids
        self._log_probs += [0.0] * len(token_ids)
        self._versions += [self._versions[-1] if self._versions else -1] * len(token_ids)
        self._sampled += [False] * len(token_ids)
