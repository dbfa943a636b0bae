"""What an environment of `verifiers` takes for its client: the policy under training, in the interface of OpenAI's.

What the environment asks with is compared with what the policy has read and written: what is new is shown to it, and a
history that was changed replaces its context. What it wrote is never tokenised again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

from relax_core.environments.sampler import Sampler
from relax_core.environments.trajectory import WHO, BudgetSpent, Trajectory, Turn
from relax_core.environments.verifiers.tool_calls import tool_calls
from relax_core.errors import RunError

PLAYING: ContextVar[tuple[Sampler, Trajectory]] = ContextVar("playing")
"""Whose tools are called: each trajectory is played in a task of its own."""
LENGTHS = ("max_tokens", "max_completion_tokens")
EMPTY: tuple[Any, ...] = (None, {}, 1)
"""Values of other sampling arguments that ask for nothing."""


class Policy:
    """`chat.completions.create` and `completions.create` of one trajectory; `failure` is what broke the contract there."""

    def __init__(self, trajectory: Trajectory, sampler: Sampler, message_type: str) -> None:
        self.trajectory, self.sampler = trajectory, sampler
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._chat))
        self.completions = SimpleNamespace(create=self._text)
        self.failure: RunError | None = None
        self._seen: list[Any] | str | None = None
        self._names: dict[str, str] = {}

    def fatal(self, state: Mapping[str, Any]) -> Exception | None:
        """The error that ended the rollout, where it is not one of what the policy wrote."""
        from verifiers import ModelError

        error = state.get("error")
        return error if isinstance(error, Exception) and not isinstance(error, ModelError) else None

    async def _chat(self, *, messages: list[Any], model: str, tools: Any = None, **asked: Any) -> Any:
        from openai.types.chat import ChatCompletion

        turn = await self._turn(lambda: self._read_messages(messages, tools), asked)
        content, calls = tool_calls(turn.text, len(self.trajectory.turns)) if tools else (turn.text, [])
        self._names |= {each["id"]: each["function"]["name"] for each in calls}
        answer = {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}
        self._seen = [*messages, answer]
        choice = {"index": 0, "message": answer, "finish_reason": "tool_calls" if calls else turn.finish_reason}
        return ChatCompletion.model_validate(_response("chat.completion", model, choice))

    async def _text(self, *, prompt: str, model: str, **asked: Any) -> Any:
        from openai.types import Completion

        turn = await self._turn(lambda: self._read_text(prompt), asked)
        self._seen = prompt + turn.text
        choice = {"index": 0, "text": turn.text, "finish_reason": turn.finish_reason}
        return Completion.model_validate(_response("text_completion", model, choice))

    async def _turn(self, read: Any, asked: Mapping[str, Any]) -> Turn:
        """A turn after what `read` shows; a spent budget is to the environment what a prompt that is too long is."""
        try:
            most, stop = _settings(asked)
            read()
            return await self.sampler.sample(self.trajectory, stop=stop, max_tokens=most)
        except BudgetSpent:
            self.trajectory._cut = True
            raise _too_long() from None
        except RunError as error:
            self.failure = error
            raise

    def _read_messages(self, messages: list[Any], tools: Any) -> None:
        seen = self._seen if isinstance(self._seen, list) else []
        if seen and [*map(_plain, messages[: len(seen)])] == [*map(_plain, seen)] and len(messages) > len(seen):
            self.sampler.tell(self.trajectory, [self._named(each) for each in messages[len(seen) :]])
        else:
            self._read_anew(self.sampler.written([dict(each) for each in messages], tools))

    def _read_text(self, prompt: str) -> None:
        if isinstance(self._seen, str) and prompt.startswith(self._seen):
            self.sampler.observe(self.trajectory, prompt[len(self._seen) :])
        else:
            self._read_anew(prompt)

    def _read_anew(self, text: str) -> None:
        if self._seen is not None or text != self.trajectory.prompt.text:
            self.sampler.reset(self.trajectory, text)

    def _named(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """With the name of the tool that it answers for, as templates have it."""
        name = self._names.get(str(message.get("tool_call_id")))
        return {**message, "name": name} if name else dict(message)


def _plain(message: Mapping[str, Any]) -> tuple[Any, ...]:
    """What of a message the policy has read or written."""
    calls = message.get("tool_calls") or ()
    return message["role"], message.get("content") or "", tuple(each["function"]["arguments"] for each in calls)


def _settings(asked: Mapping[str, Any]) -> tuple[int | None, Sequence[str]]:
    """Tokens and stop strings that are asked for. Raises RunError for what would make another policy of it."""
    other = [name for name, value in asked.items() if name not in (*LENGTHS, "stop") and value not in EMPTY]
    if other:
        problem = f"the environment asks for another {', '.join(sorted(other))}"
        raise RunError(problem, who=WHO, fix="leave it to the run file: it trains the policy that it samples from")
    most = [asked[name] for name in LENGTHS if asked.get(name) is not None]
    stop = asked.get("stop") or ()
    return min(most, default=None), (stop,) if isinstance(stop, str) else tuple(stop)


def _response(kind: str, model: str, choice: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": "policy", "object": kind, "created": 0, "model": model, "choices": [choice]}


def _too_long() -> Exception:
    from openai import BadRequestError

    text = "the maximum context length is used up"
    response: Any = SimpleNamespace(text=text, status_code=400, request=None, headers={})
    error: Exception = BadRequestError(text, response=response, body=None)
    return error
