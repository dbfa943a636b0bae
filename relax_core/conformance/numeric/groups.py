"""What an estimator that compares a group's rewards owes: those that declare min_group_size or requires_equal_groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from relax_core.conformance.check import Check, Problem, checks_in, on_hooks

if TYPE_CHECKING:
    from relax_core.conformance.call import Call

ESTIMATOR = ("compute_advantage",)


def groupless(call: Call) -> bool:
    """It does not declare that it needs groups."""
    return not (call.declares("requires_equal_groups", False) or call.declares("min_group_size", 1) > 1)


def beyond_rewards(call: Call) -> bool:
    """It does not declare that it needs groups, or it declares that tokens of one sequence may differ."""
    return groupless(call) or bool(call.declares("per_token", False))


@on_hooks(
    "RLX881",
    "A group's advantages do not depend on the other groups, on their rewards or on their sizes",
    "use group_mean(), group_std() and group_sum(); the batch's statistics are the core's normalisation",
    ESTIMATOR,
    exempt=groupless,
)
def isolated(call: Call) -> Iterator[Problem]:
    import torch

    from relax_core.conformance import pieces
    from relax_core.conformance.differences import same_values
    from relax_core.packing import select_sequences

    for seed in call.seeds:
        batch = call.sample(seed)
        sizes = torch.tensor([0] * 5 + [1] * 2 + [2] * (batch.size - 7))
        for each in (batch, batch.with_values(group_ids=sizes)):
            groups = [
                select_sequences(each, (each.group_ids == group).nonzero().flatten())
                for group in range(int(each.group_ids.max()) + 1)
            ]
            found = pieces.assembled(pieces.alone(call, groups), each)
            cause = "beside other groups, a group has other advantages than alone"
            yield from same_values(call.evaluate(each).values, found.values, cause)


@on_hooks(
    "RLX882",
    "Equal rewards in a group give advantages of exactly 0",
    "subtract group_mean(), which gives equal values exactly, and divide by the spread plus a small constant",
    ESTIMATOR,
    exempt=beyond_rewards,
)
def equal_rewards(call: Call) -> Iterator[Problem]:
    import torch

    from relax_core.conformance.differences import not_zero

    for size, reward in ((7, 100.1), (3, 0.7)):
        batch = call.sample(group_size=size)
        equal = batch.with_values(rewards=torch.full_like(batch.rewards, reward))
        cause = f"with all rewards {reward} in groups of {size}, an advantage is not 0"
        yield from not_zero("advantages", call.evaluate(equal).values["advantages"], cause)


@on_hooks(
    "RLX883",
    "A group of one gives advantages of 0",
    "keep the divisor of G − 1 and the spread away from 0",
    ESTIMATOR,
    exempt=beyond_rewards,
)
def group_of_one(call: Call) -> Iterator[Problem]:
    from relax_core.conformance.differences import not_zero

    advantages = call.evaluate(call.sample(group_size=1)).values["advantages"]
    yield from not_zero("advantages", advantages, "in a group of one an advantage is not 0")


CHECKS: tuple[Check, ...] = checks_in(globals())
