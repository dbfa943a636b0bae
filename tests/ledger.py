"""What the tests that break things did, and what it cost: the figures behind docs/reliability.md.

A test with the mark `ledger(what)` counts into the fixture of that name. `RELIABILITY=FILE` has the figures of the tests
that ran written into that file, in the place of what the same tests gave before.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

PROPERTY = "ledger"
_found: dict[str, dict[str, int | str]] = {}


@pytest.fixture
def ledger(request, record_property):
    """Counts `faults`, `survived`, `lost`, `duplicated`, or `inputs` and `tracebacks`; kept where the test fails too."""
    (what,) = request.node.get_closest_marker("ledger").args
    figures: Counter[str] = Counter()
    yield figures
    if figures:  # a test whose preparation failed has done nothing
        record_property(PROPERTY, {"what": what, **figures})


def pytest_runtest_logreport(report):
    """Properties come with reports from the workers of xdist too, where nothing is written."""
    if report.when == "teardown" and "PYTEST_XDIST_WORKER" not in os.environ:
        for value in (value for name, value in report.user_properties if name == PROPERTY):
            _found[report.nodeid] = value


def pytest_sessionfinish():
    if _found and (place := os.environ.get("RELIABILITY")):
        path = Path(place)
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(known | _found, indent=2, sort_keys=True) + "\n")


def prompts_of(run: Path) -> Counter[str]:
    """How often each prompt was trained on, by its id: once for every step that has it."""
    rows = [json.loads(line) for line in (run / "samples.jsonl").read_text().split("\n") if line]
    return Counter(prompt for _, prompt in {(row["step"], row["id"]) for row in rows})


def survived(ledger: Counter[str], faults: int, run: Path, expected: Counter[str]) -> None:
    """Count that a run came to its end after so many faults, and its prompts against those of a run left alone."""
    used = prompts_of(run)
    lost, duplicated = (expected - used).total(), (used - expected).total()
    ledger.update(survived=faults, lost=lost, duplicated=duplicated)
    assert (lost, duplicated) == (0, 0), f"lost {expected - used}, duplicated {used - expected}"
