"""Prompts: examples as the model reads them, tokenised once, and the endless sequence in which a run takes them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from relax_core.data.examples import Example
from relax_core.errors import LoadError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from relax_core.config import DataSection


@dataclass(frozen=True, slots=True)
class Prompt:
    """An example as the model reads it: `text` after the chat template, and its tokens."""

    example: Example
    token_ids: list[int]
    text: str


class PromptSource:
    """The tokenised prompts of a run and their order; nothing in it changes as steps pass.

    `max_tokens` (beside `data.max_prompt_tokens`) bounds a prompt's length in tokens; LoadError for a longer one, which
    gives `fix` for a bound that another setting makes.
    """

    def __init__(
        self,
        examples: list[Example],
        tokenizer: PreTrainedTokenizerBase,
        data: DataSection,
        seed: int,
        max_tokens: int | None,
        fix: str = "lower rollout.max_new_tokens",
    ) -> None:
        self._seed = seed
        self._shuffle = data.shuffle
        self.prompts = [tokenize(example, tokenizer, data) for example in examples]
        limits = [limit for limit in (max_tokens, data.max_prompt_tokens) if limit is not None]
        if limits:
            check_lengths(self.prompts, min(limits), fix)

    def take(self, start: int, size: int) -> list[Prompt]:
        """`size` prompts from place `start` of the endless sequence of epochs."""
        places = (divmod(position, len(self.prompts)) for position in range(start, start + size))
        return [self.prompts[self._order(epoch)[index]] for epoch, index in places]

    def _order(self, epoch: int) -> tuple[int, ...]:
        count = len(self.prompts)
        return permutation(self._seed, epoch, count) if self._shuffle else tuple(range(count))


@lru_cache(maxsize=4)
def permutation(seed: int, epoch: int, count: int) -> tuple[int, ...]:
    """The order of `count` examples in `epoch`."""
    order = list(range(count))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return tuple(order)


def tokenize(example: Example, tokenizer: PreTrainedTokenizerBase, data: DataSection) -> Prompt:
    """The example's text, through the chat template where that is used, and its tokens."""
    templated = uses_template(example, tokenizer, data)
    text = render(example, tokenizer, data.system_prompt) if templated else str(example.prompt)
    # A template writes the special tokens itself.
    token_ids: list[int] = tokenizer(text, add_special_tokens=not templated)["input_ids"]
    if not token_ids:
        raise LoadError("the prompt has no tokens", who=f"example {example.id}", fix="take it out of the data")
    return Prompt(example, token_ids, text)


def uses_template(example: Example, tokenizer: PreTrainedTokenizerBase, data: DataSection) -> bool:
    """Whether the chat template is used. LoadError where one is needed that is off or missing."""
    available, messages = bool(tokenizer.chat_template), not isinstance(example.prompt, str)
    needs = messages or bool(data.system_prompt) or bool(data.chat_template)
    who = f"example {example.id}"
    if needs and data.chat_template is False:
        reason = "messages" if messages else "a system prompt"
        fix = "leave data.chat_template out, or give prompts as text and no data.system_prompt"
        raise LoadError(f"{reason} cannot be written without the chat template", who=who, fix=fix)
    if needs and not available:
        text = "give prompts as text, without data.chat_template and data.system_prompt"
        fix = f"use a model whose tokenizer has one, or {text}"
        raise LoadError("the tokenizer has no chat template, which this prompt needs", who=who, fix=fix)
    return available and data.chat_template is not False


def render(example: Example, tokenizer: PreTrainedTokenizerBase, system_prompt: str | None) -> str:
    """The example through the chat template, with the tools that its row has under `tools`.

    A system message of its own stands before `system_prompt`.
    """
    prompt = example.prompt
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    if system_prompt and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system_prompt})
    try:
        tools = example.metadata.get("tools") or None
        return str(tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False))
    except Exception as error:
        what = f"the chat template refuses its messages: {error}"
        fix = "correct the messages or data.system_prompt"
        raise LoadError(what, who=f"example {example.id}", fix=fix) from error


def check_lengths(prompts: list[Prompt], limit: int, remedy: str) -> None:
    long = [prompt for prompt in prompts if len(prompt.token_ids) > limit]
    if long:
        others = f" ({len(long) - 1} more {'is' if len(long) == 2 else 'are'} too long)" if len(long) > 1 else ""
        what = f"the prompt has {len(long[0].token_ids)} tokens, more than the limit of {limit}{others}"
        fix = f"raise data.max_prompt_tokens, {remedy}, or take it out of the data"
        raise LoadError(what, who=f"example {long[0].example.id}", fix=fix)
