"""Messages as a chat template writes them: a whole conversation, or what stands behind a turn of the policy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from relax_core.errors import FOREIGN, RunError

WHO = "environment"
Message: TypeAlias = Mapping[str, Any]
MARK = "\N{OBJECT REPLACEMENT CHARACTER}{}\N{OBJECT REPLACEMENT CHARACTER}"
"""Stands for a text in the template, so that it is known where the text ends and the template goes on."""
MARKED = re.compile(MARK.format(r"(\d+)"))


def written(tokenizer: Any, messages: Sequence[Message], tools: Sequence[Message] | None = None) -> str:
    """A conversation as text, up to where the policy writes; raises RunError where the template refuses it."""
    try:
        text = tokenizer.apply_chat_template(list(messages), tools=tools, add_generation_prompt=True, tokenize=False)
    except FOREIGN as error:
        raise RunError(f"the chat template refuses its messages: {error}", who=WHO, fix="correct them") from error
    return str(text)


def behind_a_turn(tokenizer: Any, messages: Sequence[Message]) -> Iterator[tuple[str, bool]]:
    """What the template writes between a turn of the policy and the next one, in parts: those of the messages are true."""
    before = [{"role": "user", "content": "?"}, {"role": "assistant", "content": MARK.format(0)}]
    marked = [{**each, "content": MARK.format(number)} for number, each in enumerate(messages, start=1)]
    parts = MARKED.split(written(tokenizer, [*before, *marked]))
    if parts[1::2] != [str(number) for number in range(len(marked) + 1)]:
        fix = "give the observations as text, with sampler.observe"
        raise RunError("the chat template does not write each message once, in order", who=WHO, fix=fix)
    yield parts[2], False
    for message, behind in zip(messages, parts[4::2], strict=True):
        yield str(message.get("content") or ""), True
        yield behind, False
