"""`relax plugins replay`: algorithms on given numbers."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from relax_core.cli.check import FINDINGS
from relax_core.cli.table import aligned
from relax_core.conformance.case_file import read_cases
from relax_core.conformance.compare_case import TOLERANCES, Outcome, outcomes
from relax_core.registry import Registry


def replay(files: Sequence[Path], dtype: str, plugins: Sequence[Path], as_json: bool) -> None:
    """Compute every case and print what became of it; exit 1 where one differs or cannot be computed."""
    found = list(outcomes(read_cases(files), Registry.load(plugins), dtype))
    if as_json:
        print(json.dumps([each.as_json() for each in found], indent=1, allow_nan=False))
    else:
        for line in _table(found, dtype):
            print(line)
    sys.exit(FINDINGS if any(each.status != "ok" for each in found) else 0)


def _table(found: Sequence[Outcome], dtype: str) -> Iterator[str]:
    yield from aligned([("NAME", "STATUS", "WORST FIELD", "ERROR"), *(_row(each) for each in found)])
    counts: Counter[str] = Counter(each.status for each in found)
    summary = ", ".join(
        f"{counts[status]} {word}" for status, word in (("ok", "ok"), ("differs", "differ"), ("error", "failed"))
    )
    yield f"{len(found)} cases in {dtype}, tolerance {TOLERANCES[dtype]:g}: {summary}"


def _row(outcome: Outcome) -> tuple[str, str, str, str]:
    if outcome.status == "error":
        return outcome.name, outcome.status, "-", outcome.error
    if not outcome.worst:
        return outcome.name, outcome.status, "-", f"nothing is expected; loss {outcome.result['loss']:.9g}"
    missing = outcome.result[outcome.worst] is None
    return (
        outcome.name,
        outcome.status,
        outcome.worst,
        "not computed" if missing else f"{outcome.max_error[outcome.worst]:.3g}",
    )
