"""The checks behind `relax plugins validate` of an environment: it is played with a policy that writes random text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from relax_core.config import EnvironmentSection
from relax_core.conformance.check import Problem
from relax_core.conformance.playing import EACH, NARROW, PROMPT, WIDE, Played, prompt_of
from relax_core.conformance.report import Finding, Report, Severity
from relax_core.conformance.scripted import Bytes
from relax_core.environments.loading import load_environment
from relax_core.environments.player import MERCY
from relax_core.environments.sampler import Sampler, turn_place
from relax_core.environments.trajectory import Trajectory
from relax_core.errors import FOREIGN, LoadError, RelaxError
from relax_core.rollout.types import Completion, SamplingParams

WHO = "relax plugins validate"
Find = Callable[[Played], Iterable[Problem]]


@dataclass(frozen=True, slots=True)
class EnvironmentCheck:
    """`id` is stable; `find` gives the problems of an environment."""

    id: str
    title: str
    fix: str
    find: Find
    severity: Severity = "error"


def check(id: str, title: str, fix: str, severity: Severity = "error") -> Callable[[Find], EnvironmentCheck]:
    """Declare a check of environments."""
    return lambda find: EnvironmentCheck(id, title, fix, find, severity)


@check(
    "RLX911",
    "A policy that writes anything at all is played to an end",
    "handle text that calls no tool, or a wrong one",
)
def ends(played: Played) -> Iterator[Problem]:
    try:
        _ = played.wide
    except RelaxError as error:
        yield Problem("a trajectory did not end as the contract asks", error.what.strip(), "a trajectory")


@check("RLX912", "The trajectory holds what was sampled, in order", "add to a trajectory through its sampler alone")
def accounts(played: Played) -> Iterator[Problem]:
    """Every turn was asked for after what the policy was to read by then, and stands there with its log-probs."""
    found = played.wide
    for number, each in enumerate(found):
        place, index = divmod(number, EACH)
        turns = [played.asked[turn_place(place, index, turn)] for turn in range(len(each.turns))]
        rows = zip(each.token_ids, each.log_probs, each.raw_mask, strict=True)
        sampled = [(token, value) for token, value, live in rows if live]
        given = [pair for _, turn in turns for pair in zip(turn.token_ids, turn.log_probs, strict=True)]
        if sampled != given:
            yield Problem("tokens are not those that were sampled", f"{len(sampled)} tokens", f"{len(given)} tokens")
        elif [list(prompt) for prompt, _ in turns] != _read(each):
            yield Problem("a turn was sampled after other tokens than those before it")


def _read(trajectory: Trajectory) -> list[list[int]]:
    """What was to be read before each turn."""
    places = [place for place, live in enumerate(trajectory.raw_mask) if live]
    begins = accumulate((len(turn.token_ids) for turn in trajectory.turns), initial=0)
    return [list(trajectory.read_before(places[begin])) for begin, _ in zip(begins, trajectory.turns, strict=False)]


@check("RLX913", "Turns and tokens stay within their budgets", "ask `trajectory.may_go_on` before each turn")
def stays_within(played: Played) -> Iterator[Problem]:
    try:
        found = played.play(NARROW)
    except RelaxError as error:
        yield Problem("with small budgets it fails", error.what.strip(), "a trajectory that is cut off")
        return
    for each in found:
        if len(each.turns) > NARROW.turns or each.room < 0:
            observed = f"{len(each.turns)} turns, {NARROW.tokens - each.room} tokens"
            yield Problem("a budget is overdrawn", observed, f"{NARROW.turns} turns, {NARROW.tokens} tokens")


@check("RLX914", "A trajectory that is cancelled ends", "let asyncio.CancelledError pass")
def stops(played: Played) -> Iterator[Problem]:
    loop = asyncio.new_event_loop()  # not `asyncio.run`, which would wait for what does not end
    loop.set_exception_handler(lambda *_: None)
    ended = loop.run_until_complete(_cancelled(played))
    loop.close()
    if not ended:
        yield Problem("it went on after it was cancelled", f"still there after {MERCY:g} s", "an end")


@check(
    "RLX915",
    "One seed gives one trajectory",
    "take what is random from the prompt, not from a global generator",
    "warning",
)
def repeats(played: Played) -> Iterator[Problem]:
    again = played.play(WIDE)
    if any(first.token_ids != second.token_ids for first, second in zip(played.wide, again, strict=True)):
        yield Problem("played again, other tokens came of it", "two trajectories", "one")


CHECKS = (ends, accounts, stays_within, stops, repeats)


def validate_environment(name: str, only: Sequence[str] = (), seed: int = 0) -> Report:
    """Everything that the checks find; `only` names ids, or how they begin. Raises LoadError for what is no environment."""
    environment = load_environment(name, Path(), WHO)
    rows = environment.generate.__globals__.get("EXAMPLES", (PROMPT,))
    if found := list(environment.problems({})):
        raise LoadError(f"{found[0][0]}: {found[0][1]}", who=WHO, fix="give every field of Config a default")
    played, chosen = Played(environment, rows, seed), [each for each in CHECKS if each.id.startswith(tuple(only) or "")]
    findings = [_finding(each, problem, name) for each in chosen for problem in _problems(each, played)]
    return Report(name, tuple(findings), tuple(each.id for each in chosen))


def _problems(each: EnvironmentCheck, played: Played) -> list[Problem]:
    """The first ones of a kind; what a broken environment cannot be asked is said by RLX911."""
    try:
        distinct = {problem.cause: problem for problem in each.find(played)}
    except (*FOREIGN, KeyError):
        return []
    return list(distinct.values())


def _finding(each: EnvironmentCheck, problem: Problem, name: str) -> Finding:
    command = f"{WHO} {name} --only {each.id}"
    fix = problem.fix or each.fix
    return Finding(each.id, name, each.severity, problem.cause, problem.observed, problem.allowed, fix, command)


async def _cancelled(played: Played) -> bool:
    """Whether one that waits for a turn ends when it is told to."""

    class Silent:
        async def sample(self, prompt: Sequence[int], params: SamplingParams, place: int) -> Completion:
            await asyncio.Event().wait()
            raise AssertionError("nobody answers")

    sampler = Sampler(Silent(), Bytes(), played.params(WIDE), EnvironmentSection())
    prompt, arguments = prompt_of(played.rows[0], WIDE), played.environment.arguments({})
    task: asyncio.Future[Any] = asyncio.ensure_future(played.environment.generate(prompt, sampler, **arguments))
    await asyncio.sleep(0.05)
    for _ in range(2):
        task.cancel()
        await asyncio.wait([task], timeout=MERCY / 2)
    return task.done()
