"""Two tensors that should be equal: where they differ most, as what was observed against what is allowed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from relax_core.conformance.call import Call
from relax_core.conformance.check import Problem
from relax_core.conformance.outcome import Outcome

TOLERANCE = 1e-9


def different(
    name: str, observed: Tensor, expected: Tensor, cause: str, tolerance: float = TOLERANCE
) -> Iterator[Problem]:
    """The largest difference, if one is beyond the tolerance (absolute and relative); NaN differs from everything."""
    if observed.shape != expected.shape:
        yield Problem(cause, f"{name} of shape {list(observed.shape)}", f"{list(expected.shape)}")
        return
    left, right = observed.detach().double().flatten(), expected.detach().double().flatten()
    excess = (left - right).abs() - tolerance * (1 + right.abs())
    wrong = ~(excess <= 0) & ~((left == right) | (left.isnan() & right.isnan()))
    if wrong.any():
        worst = int(torch.where(wrong, excess.nan_to_num(nan=torch.inf), -torch.inf).argmax())
        place = [int(each) for each in torch.unravel_index(torch.tensor(worst), observed.shape)]
        yield Problem(cause, f"{name}{place} = {float(left[worst]):.9g}", f"{float(right[worst]):.9g} ± {tolerance:g}")


def same(observed: Outcome, expected: Outcome, cause: str, tolerance: float = TOLERANCE) -> Iterator[Problem]:
    """How two outcomes differ in values and gradients."""
    yield from same_values(observed.values, expected.values, cause, tolerance)
    for name, gradient in expected.gradients.items():
        yield from different(f"gradient of {name}", observed.gradients[name], gradient, cause, tolerance)


def same_values(
    observed: Mapping[str, Tensor], expected: Mapping[str, Tensor], cause: str, tolerance: float = TOLERANCE
) -> Iterator[Problem]:
    """How two outcomes differ in their values."""
    if observed.keys() != expected.keys():
        yield Problem(cause, f"gives {', '.join(observed) or 'nothing'}", f"gives {', '.join(expected) or 'nothing'}")
        return
    for name, value in expected.items():
        yield from different(name, observed[name], value, cause, tolerance)


def not_finite(name: str, value: Tensor, cause: str) -> Iterator[Problem]:
    """The first value that is NaN or infinite."""
    wrong = ~value.detach().flatten().double().isfinite()
    if wrong.any():
        first = int(wrong.nonzero()[0])
        yield Problem(cause, f"{name}[{first}] = {float(value.detach().flatten()[first])}", "a finite number")


def is_finite(call: Call) -> bool:
    """Whether a plain sample gives finite numbers."""
    outcome = call.evaluate(call.sample())
    return all(bool(each.isfinite().all()) for each in (*outcome.values.values(), *outcome.gradients.values()))


def not_zero(name: str, value: Tensor, cause: str) -> Iterator[Problem]:
    """The largest value that is not exactly 0."""
    yield from different(name, value, torch.zeros_like(value), cause, 0.0)
