"""A case against what it expects: the error of each field, and whether all are close enough (MATH.md, first paragraph)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from relax_core.errors import FOREIGN, RelaxError, describe

if TYPE_CHECKING:
    import torch

    from relax_core.registry import Registry

TOLERANCES = {"float64": 1e-9, "float32": 1e-5}
"""By the name of the dtype: |x − y| ≤ tolerance · (1 + |y|)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case. `result` holds the expected names, or all that was computed where nothing is expected."""

    name: str
    status: Literal["ok", "differs", "error"]
    max_error: dict[str, float] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    def as_json(self) -> dict[str, Any]:
        """JSON has no NaN and no infinity: they are the strings "NaN", "Infinity" and "-Infinity"."""
        found = {"name": self.name, "status": self.status, "max_error": self.max_error, "result": self.result}
        shown: dict[str, Any] = _jsonable(found | ({"error": self.error} if self.error else {}))
        return shown

    @property
    def worst(self) -> str:
        """The field with the largest error; empty where nothing is expected."""
        return max(self.max_error, key=lambda name: self.max_error[name], default="")


def outcomes(cases: Iterable[Mapping[str, Any]], registry: Registry, dtype: str) -> Iterator[Outcome]:
    """Compute the cases and compare each; one that cannot be computed leaves the others alone."""
    import torch

    for case in cases:
        yield _outcome(case, registry, getattr(torch, dtype), TOLERANCES[dtype])


def _outcome(case: Mapping[str, Any], registry: Registry, dtype: torch.dtype, tolerance: float) -> Outcome:
    from relax_core.conformance.case import replay

    try:
        computed = replay(case, registry, dtype)
    except ValidationError as error:
        return Outcome(case["name"], "error", error="; ".join(_invalid(error)))
    except RelaxError as error:
        return Outcome(case["name"], "error", error=error.message)
    except FOREIGN as error:  # a defect in one case is no reason to lose the others
        return Outcome(case["name"], "error", error=describe(error))
    expected = case.get("expected") or {}
    errors = largest_errors(computed, expected)
    close = all(error <= tolerance for error in errors.values())
    return Outcome(case["name"], "ok" if close else "differs", errors, selected(computed, expected))


def largest_errors(computed: Mapping[str, Any], expected: Mapping[str, Any]) -> dict[str, float]:
    """The largest |x − y| / (1 + |y|) of each expected field."""
    return {name: _largest(computed.get(name), value) for name, value in expected.items()}


def selected(computed: Mapping[str, Any], expected: Mapping[str, Any]) -> dict[str, Any]:
    """The expected names of what was computed, `None` where it was not; all of it where nothing is expected."""
    if not expected:
        return dict(computed)
    return {name: _part(computed.get(name), value) for name, value in expected.items()}


def _part(value: Any, expected: Any) -> Any:
    both = isinstance(value, Mapping) and isinstance(expected, Mapping)
    return {name: value.get(name) for name in expected} if both else value


def _largest(x: Any, y: Any) -> float:
    """Infinite where the two have not the same structure, where a name is missing, and where either is NaN."""
    if isinstance(y, Mapping):
        return (
            max((_largest(x.get(name), value) for name, value in y.items()), default=0.0)
            if isinstance(x, Mapping)
            else math.inf
        )
    if isinstance(y, list):
        same = isinstance(x, list) and len(x) == len(y)
        return max((_largest(*pair) for pair in zip(x, y, strict=True)), default=0.0) if same else math.inf
    if not isinstance(x, int | float):
        return math.inf
    error = 0.0 if x == y else abs(x - y) / (1 + abs(y))
    return math.inf if math.isnan(error) else error


def _invalid(error: ValidationError) -> Iterator[str]:
    for each in error.errors():
        path = ".".join(str(part) for part in ("config.algorithm", *each["loc"]))
        reason = "unknown key" if each["type"] == "extra_forbidden" else each["msg"].removeprefix("Value error, ")
        yield f"{path}: {reason}"


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _jsonable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_jsonable(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
