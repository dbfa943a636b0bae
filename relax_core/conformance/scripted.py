"""A policy that needs no model: random text of the right form, so that an environment can be played in a second."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relax_core.rollout.types import Completion, SamplingParams

EOS = 256
LETTERS = "0123456789+-*/() abcdefghijklmnopqrstuvwxyz\n"
VERSION = 7


class Bytes:
    """A tokenizer of UTF-8 bytes, with one special token."""

    eos_token_id = EOS
    all_special_ids = (EOS,)

    def __call__(self, text: str, **_: bool) -> Mapping[str, list[int]]:
        """Its bytes; no name of a special token is known."""
        return {"input_ids": list(text.encode())}

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]], **_: Any) -> str:
        """`role: content`, a line each, and `assistant: ` at the end."""
        return "".join(f"{each['role']}: {each['content']}\n" for each in messages) + "assistant: "

    def decode(self, token_ids: Sequence[int], **_: bool) -> str:
        """The text, without the special token."""
        return bytes(each for each in token_ids if each < EOS).decode("utf-8", "replace")


@dataclass(slots=True)
class ScriptedEngine:
    """Writes `turns`, one after another by how many a trajectory has had, or random text where there are none.

    A place and the seed decide what is written; `batches` keeps the number of prompts in each call.
    """

    turns: Sequence[str] = ()
    batches: list[int] = field(default_factory=list)

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, places: Sequence[int] | None = None
    ) -> list[list[Completion]]:
        """One completion of each prompt."""
        self.batches.append(len(prompts))
        rows = zip(prompts, places or range(len(prompts)), strict=True)
        return [[self._written(params, random.Random(f"{params.seed} {place}"), prompt)] for prompt, place in rows]

    def _written(self, params: SamplingParams, source: random.Random, prompt: Sequence[int]) -> Completion:
        ids = self._script(prompt) if self.turns else self._random(params, source)
        cut = len(ids) > params.max_new_tokens
        ids = ids[: params.max_new_tokens]
        log_probs = [-source.random() for _ in ids]
        return Completion(ids, log_probs, "length" if cut else "stop", [VERSION] * len(ids))

    def _script(self, prompt: Sequence[int]) -> list[int]:
        """The first turn that the prompt does not have yet; the last one again where it has all."""
        text = bytes(prompt).decode("utf-8", "replace") if EOS not in prompt else ""
        left = [turn for turn in self.turns if turn not in text]
        return list((left or [self.turns[-1]])[0].encode())

    def _random(self, params: SamplingParams, source: random.Random) -> list[int]:
        """A few letters, then a stop string that was asked for, the end, or neither."""
        ids = list("".join(source.choices(LETTERS, k=source.randint(1, 12))).encode())
        stops = [list(each.encode()) for each in params.stop]
        return ids + source.choice([[EOS], *stops, *stops, source.choices(range(48, 58), k=params.max_new_tokens)])
