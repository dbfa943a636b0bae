"""The checks as parametrised tests: one line in a plugin's own test file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from relax_core.conformance.check import Check, Tier
from relax_core.conformance.environments import CHECKS, validate_environment
from relax_core.conformance.report import Finding
from relax_core.conformance.subject import Subject
from relax_core.conformance.targets import named
from relax_core.conformance.validation import DEFAULT_TIERS, applies, findings_of, selected
from relax_core.environments.loading import is_environment


def suite(
    target: str | Path, *, tiers: Collection[Tier] = DEFAULT_TIERS, seed: int = 0, config: dict[str, Any] | None = None
) -> Callable[..., None]:
    """A test function with one case for each check: `test_conformance = suite("my_algorithm")`, or a path.

    `config` holds fields of an `algorithm` section. The name or path of an environment gives the checks of environments,
    which know no `tiers` and no `config`. Nothing is imported until the first case runs.
    """
    import pytest

    if is_environment(str(target)):
        return _cases(CHECKS, lambda check: validate_environment(str(target), [check.id], seed).findings)

    @cache
    def subject() -> Subject:
        found, registry = named(str(target))
        return Subject(found[0], registry, seed=seed, config=config)

    def find(check: Check) -> Iterable[Finding]:
        if not applies(check, subject()):
            pytest.skip(f"nothing for {check.id} to look at")
        return findings_of(check, subject())

    return _cases(selected(tiers), find)


def _cases(checks: Iterable[Any], find: Callable[[Any], Iterable[Finding]]) -> Callable[..., None]:
    """A test of each check, which fails with the errors that `find` gives."""
    import pytest

    def test_conformance(check: Any) -> None:
        if errors := ["\n".join(each.lines()) for each in find(check) if each.severity == "error"]:
            pytest.fail("\n\n".join(errors), pytrace=False)

    cases = [pytest.param(each, id=each.id) for each in checks]
    marked: Callable[..., None] = pytest.mark.parametrize("check", cases)(test_conformance)
    return marked
