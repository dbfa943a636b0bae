"""A calculator: the policy writes an expression and `=`, reads what it comes to, and goes on until it writes an answer.

3+4=7;7+5=12;12        the policy wrote `3+4=`, `7+5=` and `12`; the calculator `7;` and `12;`
"""

from __future__ import annotations

import re
from fractions import Fraction

from relax_core import EnvironmentConfig, EnvironmentPrompt, Sampler, Trajectory

CALL = re.compile(r"([^=;]+)=$")
TOKEN = re.compile(r"\d{1,9}|[-+*/()]")
LONGEST = 60
"""Characters of an expression; it bounds the numbers, and how deep brackets go."""


class Config(EnvironmentConfig):
    call_reward: float = 0.0
    """Reward of a turn whose expression the calculator could read: the token field `turn_reward`."""


async def generate(prompt: EnvironmentPrompt, sampler: Sampler, config: Config) -> Trajectory:
    """1 for the right answer after the last call, else 0."""
    trajectory, answer = Trajectory(prompt), ""
    while trajectory.may_go_on:
        turn = await sampler.sample(trajectory, stop=("=",))
        if (call := CALL.search(turn.text)) is None:
            answer = turn.text
            break
        found = await sampler.call(trajectory, calculate, call[1], after=";")
        trajectory.turn_reward(config.call_reward if re.fullmatch(r"-?[\d/]+", found) else 0.0)
    trajectory.reward = float(answer.strip() == str(prompt.answer))
    return trajectory


def calculate(text: str) -> str:
    """The value of a sum of products, as an integer or a fraction. ValueError for anything else."""
    tokens = TOKEN.findall(text)
    if len(text) > LONGEST or "".join(tokens) != "".join(text.split()):
        raise ValueError("not an expression")
    value = _sum(tokens)
    if tokens:
        raise ValueError(f"'{tokens[0]}' is left over")
    return str(value)


def _sum(tokens: list[str]) -> Fraction:
    value = _product(tokens)
    while tokens and tokens[0] in "+-":
        sign = 1 if tokens.pop(0) == "+" else -1
        value += sign * _product(tokens)
    return value


def _product(tokens: list[str]) -> Fraction:
    value = _factor(tokens)
    while tokens and tokens[0] in "*/":
        divides = tokens.pop(0) == "/"
        factor = _factor(tokens)
        value = value / factor if divides else value * factor
    return value


def _factor(tokens: list[str]) -> Fraction:
    token = tokens.pop(0) if tokens else "the end"
    if token == "-":
        return -_factor(tokens)
    if token == "(":
        value = _sum(tokens)
        if not tokens or tokens.pop(0) != ")":
            raise ValueError("a bracket is not closed")
        return value
    if not token.isdigit():
        raise ValueError(f"a number is missing before '{token}'")
    return Fraction(int(token))
