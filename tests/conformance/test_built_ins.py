"""What comes with the project passes its own checks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relax_core.conformance.targets import everything, named
from relax_core.conformance.validation import validate

PLUGINS = Path(__file__).parents[1] / "contract" / "plugins"


def test_all_built_ins_are_clean(relax):
    result = relax("plugins", "validate", "--all", "--json")
    reports = json.loads(result.out)["reports"]
    assert len(reports) == len(everything()[0])
    found = {report["plugin"]: {each["id"] for each in report["findings"]} for report in reports if report["findings"]}
    assert found == {}
    assert result.code == 0


@pytest.mark.parametrize("path", sorted(PLUGINS.glob("*.py")), ids=lambda path: path.stem)
def test_algorithms_of_others_are_clean(path):
    """Those that `tests/contract` checks against known numbers."""
    (plugin,), registry = named(str(path))
    assert {each.id for each in validate(plugin, registry).findings} == set()
