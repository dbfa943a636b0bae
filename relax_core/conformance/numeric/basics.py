"""What the core asks of every hook before anything else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from relax_core.conformance.check import Check, Problem, checks_in, numeric, on_hooks

if TYPE_CHECKING:
    from relax_core.conformance.call import Call
    from relax_core.conformance.subject import Subject

MICRO = ("policy_loss", "loss_term", "post_loss_weight", "value_loss")
PER_TOKEN_ROLLOUT = ("compute_advantage", "adjust_advantage", "pre_loss_mask")
PER_SEQUENCE = ("shape_rewards", "keep_group")
ROLLOUT = (*PER_TOKEN_ROLLOUT, *PER_SEQUENCE)
ALL = (*ROLLOUT, *MICRO)
METRICS = (*ALL, "rollout_metrics")


def implements(subject: Subject) -> bool:
    """Whether there is a hook to call."""
    return any(subject.implementations(hook) for hook in METRICS)


@numeric("RLX801", "Every hook runs on a plain sample", "read the line that is named", applies=implements)
def runs(subject: Subject) -> Iterator[Problem]:
    for hook in METRICS:
        failed = [call for call in subject.implementations(hook) if call.failure and not call.lacks_a_field]
        for call in failed[:1]:
            yield Problem(f"{call.label}: it raised an exception", call.failure, "a result")


@numeric(
    "RLX802",
    "A result has the type and the shape that the hook promises",
    "return the hook's own result type, with one value for each token ([T]) or sequence ([S]); reduce nothing",
    applies=implements,
)
def promised_shape(subject: Subject) -> Iterator[Problem]:
    for hook in METRICS:
        wrong = [(call, found) for call in subject.implementations(hook) if (found := call.malformation)]
        for call, found in wrong[:1]:
            yield Problem(f"{call.label}: {found.cause}", found.observed, found.allowed)


@on_hooks("RLX803", "Values and gradients are finite on a plain sample", "guard the division, root or logarithm", ALL)
def finite(call: Call) -> Iterator[Problem]:
    from relax_core.conformance.differences import not_finite

    for seed in call.seeds:
        outcome = call.evaluate(call.sample(seed))
        for name, value in outcome.values.items():
            yield from not_finite(name, value, "a value is not finite")
        for name, value in outcome.gradients.items():
            yield from not_finite(f"gradient of {name}", value, "a gradient is not finite")


CHECKS: tuple[Check, ...] = checks_in(globals())
