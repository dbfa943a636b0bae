"""Whether a loss descends on what it says: its gradient against the policy gradient and against finite differences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from relax_core.conformance.check import Check, Problem, checks_in, on_hooks
from relax_core.conformance.numeric.basics import ALL

if TYPE_CHECKING:
    from torch import Tensor

    from relax_core.conformance.call import Call
    from relax_core.conformance.outcome import Outcome

LOSS = ("policy_loss",)
STEP = 1e-6
LOOSE = 1e-5
"""How closely finite differences in float64 meet a gradient."""


def no_policy_gradient(call: Call) -> bool:
    """It declares another objective than the policy gradient."""
    return not call.declares("policy_gradient", True)


def surrogate(call: Call) -> bool:
    """It declares, with a reason, that it differs from its finite differences."""
    return bool(call.declares("surrogate_gradient", ""))


def with_advantages(call: Call, seed: int, factor: float) -> Outcome:
    """What it comes to with the advantages multiplied."""
    batch = call.sample(seed)
    return call.evaluate(batch.with_values(advantages=batch.read("advantages") * factor))


@on_hooks(
    "RLX831",
    "On policy, the gradient is that of −A·log π",
    "check the sign and the scale; or declare policy_gradient=False",
    LOSS,
    exempt=no_policy_gradient,
)
def on_policy(call: Call) -> Iterator[Problem]:
    import torch

    from relax_core.conformance.differences import different

    for seed in call.seeds:
        batch = call.sample(seed)
        advantages = batch.to_tokens(batch.rewards - 0.5) if call.declares("scope") == "sequence" else batch.advantages
        batch = batch.with_values(log_probs=batch.old_log_probs, advantages=advantages)
        expected = torch.where(batch.live, -advantages * batch.to_tokens(batch.read("kit_weight")), 0.0)
        gradient = call.evaluate(batch).gradients["log_probs"]
        yield from different("gradient of log_probs", gradient, expected, "on policy it is not the policy gradient")


@on_hooks(
    "RLX832",
    "An advantage of 0 gives a gradient of 0",
    "multiply by the advantages of the batch as they are; or declare policy_gradient=False",
    LOSS,
    exempt=no_policy_gradient,
)
def zero_advantage(call: Call) -> Iterator[Problem]:
    from relax_core.conformance.differences import not_zero

    for seed in call.seeds:
        for name, gradient in with_advantages(call, seed, 0.0).gradients.items():
            yield from not_zero(f"gradient of {name}", gradient, "without any advantage there is a gradient")


@on_hooks(
    "RLX833",
    "The gradient is proportional to the advantages",
    "whiten, clip or square advantages in an estimator, not in the loss; or declare policy_gradient=False",
    LOSS,
    exempt=no_policy_gradient,
)
def proportional(call: Call) -> Iterator[Problem]:
    from relax_core.conformance.differences import different

    for seed in call.seeds:
        once, thrice = with_advantages(call, seed, 1.0), with_advantages(call, seed, 3.0)
        for name, gradient in once.gradients.items():
            cause = "with three times the advantages, the gradient is not three times as large"
            yield from different(f"gradient of {name}", thrice.gradients[name], 3 * gradient, cause)


@on_hooks(
    "RLX834",
    "The gradient is that of the value, by finite differences",
    "take the detach() away; or say in surrogate_gradient why a part is a constant to autograd",
    ("policy_loss", "loss_term", "value_loss"),
    exempt=surrogate,
)
def finite_differences(call: Call) -> Iterator[Problem]:
    import torch

    batch = call.sample()
    for name, gradient in call.evaluate(batch).gradients.items():
        places = batch.live.nonzero().flatten()[::3]
        for place in places.tolist():
            step = torch.zeros_like(batch.tokens[name])
            step[place] = STEP
            ahead, behind = (weighted(call, batch_with(call, name, way * step)) for way in (1, -1))
            slope, found = (ahead - behind) / (2 * STEP), float(gradient[place].sum())
            if abs(slope - found) > LOOSE * (1 + abs(slope)):
                cause = "the gradient is not the slope of the value"
                yield Problem(cause, f"gradient of {name}[{place}] = {found:.9g}", f"{slope:.9g} ± {LOOSE:g}")
                break


def batch_with(call: Call, name: str, step: Tensor) -> Outcome:
    """What it comes to a step away."""
    batch = call.sample()
    return call.evaluate(replace(batch, tokens={**batch.tokens, name: batch.tokens[name] + step}))


def weighted(call: Call, outcome: Outcome) -> float:
    """The weighted sum whose gradient is taken."""
    batch = call.sample()
    (value,) = outcome.values.values()
    return float((value * batch.to_tokens(batch.read("kit_weight"))).sum())


@on_hooks(
    "RLX835",
    "float32 and bfloat16 give what float64 gives, as closely as they can",
    "take statistics in float64 and give back the type of the input: x.double() … .to(x.dtype)",
    ALL,
)
def precision(call: Call) -> Iterator[Problem]:
    import torch

    from relax_core.conformance.differences import is_finite, not_finite, same_values
    from relax_core.conformance.padding import converted

    if not is_finite(call):
        return
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 0.1)):
        rounded = converted(call.sample(), dtype)
        found = call.evaluate(rounded)
        if call.hook in ("pre_loss_mask", "post_loss_weight", "keep_group"):
            for name, value in found.values.items():
                yield from not_finite(name, value, f"in {dtype} a value is not finite")
        else:
            expected = call.evaluate(converted(rounded, torch.float64))
            yield from same_values(found.values, expected.values, f"in {dtype} the value is another", tolerance)


CHECKS: tuple[Check, ...] = checks_in(globals())
