"""What an estimator declares about its advantages: how they move with the rewards, and whether tokens have their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from relax_core.conformance.check import Check, Problem, checks_in, on_hooks, passes
from relax_core.conformance.numeric.groups import ESTIMATOR, groupless

if TYPE_CHECKING:
    from torch import Tensor

    from relax_core.conformance.call import Call

ADDED, FACTOR = 5, 3
CLOSE = 1e-4
"""A spread plus a small constant is what a reward is divided by, so that a scale never cancels altogether."""


def shifts(call: Call) -> bool:
    """It does not promise that a constant added to all rewards changes nothing."""
    declared = call.declares("reward_shift_invariant")
    return groupless(call) if declared is None else not declared


def scales(call: Call) -> bool:
    """It does not promise that a factor of all rewards changes nothing."""
    return not call.declares("reward_scale_invariant")


def per_token(call: Call) -> bool:
    """It declares that tokens of one sequence may differ."""
    return bool(call.declares("per_token"))


@on_hooks(
    "RLX884",
    "A constant that is added to all rewards changes no advantage",
    "compare rewards with their group's, as group_mean() does; or declare reward_shift_invariant=False",
    ESTIMATOR,
    exempt=shifts,
)
def shift(call: Call) -> Iterator[Problem]:
    cause = f"with {ADDED} added to every reward, an advantage changes"
    yield from unmoved(call, lambda rewards: rewards + ADDED, cause, 1e-7)


@on_hooks(
    "RLX885",
    "A factor of all rewards changes no advantage, where that is declared",
    "divide by a spread, as group_std() gives it; or declare reward_scale_invariant=False",
    ESTIMATOR,
    exempt=scales,
)
def scale(call: Call) -> Iterator[Problem]:
    yield from unmoved(
        call, lambda rewards: FACTOR * rewards, f"with rewards {FACTOR} times as large, it changes", CLOSE
    )


@on_hooks(
    "RLX886",
    "The tokens of a sequence have one advantage",
    "give each sequence a value and spread it with to_tokens(); or declare per_token=True",
    ESTIMATOR,
    exempt=per_token,
)
def broadcast(call: Call) -> Iterator[Problem]:
    import torch

    from relax_core.conformance.differences import different

    for seed in call.seeds:
        batch = call.sample(seed)
        advantages = call.evaluate(batch).values["advantages"]
        first = batch.to_tokens(batch.sequence_sum(torch.where(first_live(call, seed), advantages, 0.0)))
        expected = torch.where(batch.live, first, 0.0)
        yield from different(
            "advantages", advantages, expected, "tokens of one sequence have different advantages", 1e-12
        )


@on_hooks(
    "RLX887",
    "What is true of the advantages is declared",
    "declare it: the documentation and `relax plugins info` tell it to users",
    ESTIMATOR,
    severity="warning",
)
def undeclared(call: Call) -> Iterator[Problem]:
    claims: tuple[tuple[str, Callable[[Call], bool], Check, str], ...] = (
        ("reward_shift_invariant", shifts, shift, "a constant that is added to all rewards changes nothing"),
        ("reward_scale_invariant", scales, scale, "a factor of all rewards changes nothing"),
        ("per_token", per_token, broadcast, "the tokens of a sequence have one advantage"),
    )
    for name, exempt, check, truth in claims:
        if exempt(call) and passes(call, check):
            declared = call.declares(name) or False
            yield Problem(truth, f"{name}={declared}", f"{name}={not declared}")


def unmoved(call: Call, change: Callable[[Tensor], Tensor], cause: str, tolerance: float) -> Iterator[Problem]:
    """How the advantages differ under a change of the rewards."""
    from relax_core.conformance.differences import same_values

    for seed in call.seeds:
        batch = call.sample(seed)
        moved = batch.with_values(rewards=change(batch.read("rewards")))
        yield from same_values(call.evaluate(moved).values, call.evaluate(batch).values, cause, tolerance)


def first_live(call: Call, seed: int) -> Tensor:
    """[T] bool: the first live token of each sequence."""
    batch = call.sample(seed)
    position = batch.read("kit_position")
    before = position.new_full((batch.size,), len(position))
    first = before.scatter_reduce(0, batch.sequence_ids[batch.live], position[batch.live], "amin")
    return position == batch.to_tokens(first)


CHECKS: tuple[Check, ...] = checks_in(globals())
