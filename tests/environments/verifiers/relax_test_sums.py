"""Environments as packages of `verifiers` have them: a tool, plain text, and a history that is rewritten."""

from __future__ import annotations

import time

import verifiers as vf
from datasets import Dataset

SUMS = {"question": ["3+4?", "5+6?"], "answer": ["7", "11"]}


def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


def sleep() -> str:
    """Answers too late."""
    time.sleep(30)
    return "awake"


async def right(completion, answer) -> float:
    return float(answer in completion[-1]["content"])


async def right_text(completion, answer) -> float:
    return float(answer in completion)


async def best(completions) -> list[float]:
    return [0.0 for _ in completions]


class Guess(vf.MultiTurnEnv):
    """Text after text; `rewrites` shows another history each time."""

    rewrites = False

    async def env_response(self, messages, state, **_):
        return "[higher]"

    async def get_prompt_messages(self, state):
        text = await super().get_prompt_messages(state)
        return f"again {len(state['trajectory'])}:" if self.rewrites and state["trajectory"] else text


class Hot(vf.SingleTurnEnv):
    async def get_model_response(self, state, prompt, **_):
        return await super().get_model_response(state, prompt, sampling_args={"temperature": 0.1})


class Failing(vf.ToolEnv):
    async def env_response(self, messages, state, **_):
        raise vf.SandboxError("no sandbox")


def load_environment(kind: str = "tools", rewrites: bool = False):
    rubric, sums = vf.Rubric(funcs=[right]), Dataset.from_dict(SUMS)
    texts = Dataset.from_dict({"prompt": ["guess:"], "answer": ["42"]})
    if kind == "guess":
        found = Guess(dataset=texts, message_type="completion", rubric=vf.Rubric(funcs=[right_text]), max_turns=3)
        found.rewrites = rewrites
        return found
    kinds = {
        "tools": lambda: vf.ToolEnv(tools=[add, sleep], dataset=sums, rubric=rubric, max_turns=4),
        "single": lambda: vf.SingleTurnEnv(dataset=sums, rubric=rubric, system_prompt="Add."),
        "hot": lambda: Hot(dataset=sums, rubric=rubric),
        "failing": lambda: Failing(tools=[add], dataset=sums, rubric=rubric),
        "group": lambda: vf.SingleTurnEnv(dataset=sums, rubric=vf.Rubric(funcs=[right, best])),
        "unscored": lambda: vf.SingleTurnEnv(dataset=sums, rubric=vf.Rubric()),
    }
    return kinds[kind]()
