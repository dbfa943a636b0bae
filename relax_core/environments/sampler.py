"""What an environment does with the policy and with the world: have a turn sampled, call a tool, show a text."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from relax_core.environments.chat import Message, behind_a_turn, written
from relax_core.environments.tools import Result, call
from relax_core.environments.trajectory import WHO, BudgetSpent, Trajectory, Turn
from relax_core.errors import RunError

if TYPE_CHECKING:
    from relax_core.config import EnvironmentSection
    from relax_core.rollout.types import Completion, SamplingParams

CHARACTERS = 32
"""Of a text that are tokenised for each token that it may have: enough for any, and 1 MB of output costs nothing."""


class Asking(Protocol):
    """Where turns are sampled: an engine that many trajectories ask at once."""

    async def sample(self, prompt: Sequence[int], params: SamplingParams, place: int) -> Completion:
        """One completion of `prompt`, which `place` and the seed decide."""


class Sampler:
    """One trajectory's way to the policy and to tools. `place` is its prompt's, `index` its own in the group.

    `trajectory` is the one that it was given; `failure` what stopped the engine.
    """

    def __init__(
        self,
        asking: Asking,
        tokenizer: Any,
        params: SamplingParams,
        settings: EnvironmentSection,
        place: int = 0,
        index: int = 0,
    ) -> None:
        self._asking, self._tokenizer, self._params, self._settings = asking, tokenizer, params, settings
        self._place, self._index = place, index
        self.trajectory: Trajectory | None = None
        self.failure: BaseException | None = None

    async def sample(self, trajectory: Trajectory, *, stop: Sequence[str] = (), max_tokens: int | None = None) -> Turn:
        """Have the policy go on, to a stop token, one of the run's stop strings or of `stop`, or so many tokens.

        What it wrote is added to the trajectory with its log-probs. Raises BudgetSpent where there may be no more turn,
        which the run takes for the trajectory's end: nobody has to catch it.
        """
        self._meet(trajectory)
        if not trajectory.may_go_on or trajectory.context_room <= 0:
            trajectory._cut = True
            await asyncio.sleep(0)  # one that catches this and asks again can still be cancelled
            raise BudgetSpent("the trajectory may not go on", who=WHO, fix="ask `trajectory.may_go_on` first")
        bounds = (max_tokens, self._settings.max_turn_tokens, trajectory.context_room)
        most = [each for each in bounds if each is not None]
        stops = (*self._params.stop, *stop)
        params = replace(self._params, n=1, max_new_tokens=max(1, min(most)), stop=tuple(dict.fromkeys(stops)))
        place = turn_place(self._place, self._index, len(trajectory.turns))
        try:
            completion = await self._asking.sample(trajectory.context, params, place)
        except Exception as error:  # the engine's fault, whatever the environment makes of it
            self.failure = error
            raise
        return trajectory._take(completion, self._tokenizer.decode(completion.token_ids, skip_special_tokens=True))

    async def call(
        self, trajectory: Trajectory, tool: Callable[..., Any], *arguments: Any, before: str = "", after: str = ""
    ) -> str:
        """Call a tool, plain or async, and show the policy its result between `before` and `after`; gives the result.

        A tool that raises, or gives nothing within `tool_timeout`, is a text that says so, after `error_prefix`.
        No special token comes out of a tool: the name of one in its result is plain text; in `before` and `after` not.
        """
        found = await self._called(trajectory, tool, *arguments)
        text = f"{self._settings.error_prefix}{found.text}" if found.problem else found.text
        parts = [self._ids(before), self._ids(text, plain=True), self._ids(after)]
        room = self._settings.max_observation_tokens - len(parts[0]) - len(parts[2])
        if len(parts[1]) > max(0, room):
            trajectory._counts["tool_truncated"] += 1
            parts[1] = parts[1][: max(0, room)]
        self._show(trajectory, [each for part in parts for each in part], _name(tool))
        return text

    async def run(self, trajectory: Trajectory, tool: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call a tool as `call` does, and count it, but show nothing: gives its result as it is.

        Raises what it raises, an error that says so for one that was cancelled, and TimeoutError after `tool_timeout`.
        """
        found = await self._called(trajectory, partial(tool, **named), *arguments)
        if found.problem == "timeout":
            raise TimeoutError(found.text)
        if found.error is not None:
            raise found.error if isinstance(found.error, Exception) else RuntimeError(found.text)
        return found.value

    def tell(self, trajectory: Trajectory, messages: Sequence[Message]) -> None:
        """Show the policy chat messages, as its chat template writes them between its turn and the next one.

        A message has `role` and `content`, and may have `name`, that of the tool that it comes from. A content is cut as a
        tool's result is, and plain text. Raises RunError where the tokenizer has no template, or one that refuses them.
        """
        self._meet(trajectory)
        most, ids = self._settings.max_observation_tokens, list[int]()
        for text, is_content in behind_a_turn(self._tokenizer, messages):
            found = self._ids(text, plain=True) if is_content else self._all_ids(text)
            trajectory._counts["tool_truncated"] += is_content and len(found) > most
            ids += found[:most] if is_content else found
        ended = trajectory.raw_mask[-1:] == (True,) and trajectory.token_ids[-1] in self._tokenizer.all_special_ids
        names = ", ".join(dict.fromkeys(str(each["name"]) for each in messages if each.get("name")))
        # The policy may have written the token that ends a turn itself.
        self._show(trajectory, ids[1:] if ended and ids[:1] == [trajectory.token_ids[-1]] else ids, names)

    def written(self, messages: Sequence[Message], tools: Sequence[Message] | None = None) -> str:
        """A conversation as the chat template writes it, up to where the policy goes on: for `reset`."""
        return written(self._tokenizer, messages, tools)

    def observe(self, trajectory: Trajectory, text: str) -> None:
        """Show the policy a text, in which names of special tokens are those tokens; it is cut as a tool's result is."""
        self._meet(trajectory)
        self._show(trajectory, self._ids(text)[: self._settings.max_observation_tokens])

    def reset(self, trajectory: Trajectory, *parts: str | Sequence[int]) -> None:
        """Replace all that the policy has read and written: from here on it reads `parts`, and what follows them.

        What was sampled stays in the trajectory, which is scored and rewarded as one. A part is a text, in which names of
        special tokens are those tokens, or token ids, as `prompt.token_ids` are. They count as tokens of the trajectory.
        Raises RunError where there are none, and BudgetSpent, which nobody has to catch, where they leave no room.
        """
        self._meet(trajectory)
        context = [each for part in parts for each in (self._all_ids(part) if isinstance(part, str) else part)]
        if not context:
            raise RunError("a context was replaced by nothing", who=WHO, fix="give a text, or token ids")
        most = trajectory.prompt.limits.context
        if len(context) >= (trajectory.room if most is None else min(trajectory.room, most)):
            raise BudgetSpent("the new context leaves no room", who=WHO, fix="give a shorter one")
        trajectory._reset(context)

    def _show(self, trajectory: Trajectory, token_ids: list[int], tool: str = "") -> None:
        trajectory._observe(token_ids[: max(0, trajectory.context_room)], tool)

    async def _called(self, trajectory: Trajectory, tool: Callable[..., Any], *arguments: Any) -> Result:
        self._meet(trajectory)
        found = await call(tool, arguments, self._settings.tool_timeout)
        trajectory._counts["tool_calls"] += 1
        if found.problem:
            trajectory._counts[{"error": "tool_errors", "timeout": "tool_timeouts"}[found.problem]] += 1
        return found

    def _ids(self, text: str, *, plain: bool = False) -> list[int]:
        """Tokens of `text` alone, one more at most than can be shown."""
        most = self._settings.max_observation_tokens + 1
        options = {"split_special_tokens": True} if plain else {}
        found = self._tokenizer(text[: most * CHARACTERS], add_special_tokens=False, **options)["input_ids"]
        return list(found)[:most]

    def _all_ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _meet(self, trajectory: Trajectory) -> None:
        if self.trajectory is None:
            self.trajectory = trajectory
        if trajectory is not self.trajectory:
            problem = "two trajectories were given to one sampler"
            raise RunError(problem, who=WHO, fix="make one Trajectory(prompt) in each call of generate")


def _name(tool: Callable[..., Any]) -> str:
    """As its author calls it."""
    plain = tool.func if isinstance(tool, partial) else tool
    return str(getattr(plain, "__name__", type(plain).__name__))


def turn_place(place: int, index: int, turn: int) -> int:
    """A place of its own for each turn of each trajectory: what it samples depends on nothing else but the seed."""
    return int.from_bytes(hashlib.sha256(f"{place} {index} {turn}".encode()).digest()[:8]) >> 1
