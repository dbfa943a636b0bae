"""The checks as parametrised tests: one line in a plugin's own test file."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path
from typing import Any

from relax_core.conformance.check import Tier
from relax_core.conformance.subject import Subject
from relax_core.conformance.targets import named
from relax_core.conformance.validation import DEFAULT_TIERS, applies, findings_of, selected


def suite(
    target: str | Path, *, tiers: Collection[Tier] = DEFAULT_TIERS, seed: int = 0, config: dict[str, Any] | None = None
) -> Callable[..., None]:
    """A test function with one case for each check: `test_conformance = suite("my_algorithm")`, or a path.

    `config` holds fields of an `algorithm` section. Nothing is imported until the first case runs.
    """
    import pytest

    @cache
    def subject() -> Subject:
        found, registry = named(str(target))
        return Subject(found[0], registry, seed=seed, config=config)

    cases = [pytest.param(each, id=each.id) for each in selected(tiers)]

    def test_conformance(check: Any) -> None:
        if not applies(check, subject()):
            pytest.skip(f"nothing for {check.id} to look at")
        found = findings_of(check, subject())
        if errors := ["\n".join(each.lines()) for each in found if each.severity == "error"]:
            pytest.fail("\n\n".join(errors), pytrace=False)

    marked: Callable[..., None] = pytest.mark.parametrize("check", cases)(test_conformance)
    return marked
