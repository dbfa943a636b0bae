"""`relax compare`: algorithms on equal terms."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relax_core.cli.check import FINDINGS, refused, warn_of_unusable
from relax_core.cli.interruption import INTERRUPTED, listening
from relax_core.cli.progress import progress
from relax_core.cli.table import aligned
from relax_core.orchestration.compare import PICTURE, SUMMARY, Job, Plan, execute, parse_algorithms, plan
from relax_core.orchestration.summary import Curve, draw, summarize, write

if TYPE_CHECKING:
    from relax_core.orchestration.run import StepReport


def compare(
    run: Path,
    algorithms: str,
    seeds: int,
    threshold: float,
    output: Path | None,
    overrides: Mapping[str, Any],
    plugins: Sequence[Path],
    as_json: bool,
) -> None:
    """Check all runs, make them, and print what they say; exit 1 when one would not start."""
    place = output or Path("runs") / f"compare-{datetime.now():%Y%m%d-%H%M%S}"
    todo = plan(run, parse_algorithms(algorithms), seeds, overrides, plugins, place)
    if _report(todo):
        sys.exit(FINDINGS)
    curves, summary = _run(todo, run, threshold, place)
    if curves:
        draw(todo, curves, threshold, place / PICTURE)
    if curves or as_json:
        print(json.dumps(summary, indent=2) if as_json else "\n".join(_table(summary)))
    if curves:
        print(f"numbers {place / SUMMARY}, picture {place / PICTURE}", file=sys.stderr)
    if not summary["complete"]:
        print(f"stopped: {len(curves)} of {len(todo.jobs)} runs went to the end, all are in {place}", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _report(todo: Plan) -> bool:
    warn_of_unusable(todo.jobs[0].resolved.registry)
    for name, violation in todo.violations:
        print(f"{violation.severity}: {name}: {violation.message}", file=sys.stderr)
    return refused([violation for _, violation in todo.violations])


def _run(todo: Plan, run: Path, threshold: float, place: Path) -> tuple[list[Curve], dict[str, Any]]:
    """What is finished is on disk after every run, however the comparison ends."""
    curves: list[Curve] = []
    summary = summarize(todo, run, curves, threshold)
    with listening() as interruption:
        try:
            for job in execute(todo, _watch(len(todo.jobs)), lambda: interruption.asked):
                curves.append(Curve.of(job))
                summary = summarize(todo, run, curves, threshold)
                write(summary, place / SUMMARY)
        except KeyboardInterrupt:
            print("stopped at once: nothing of the last run was saved after its checkpoint", file=sys.stderr)
    return curves, summary


def _watch(total: int) -> Callable[[int, Job], Any]:
    @contextmanager
    def watch(number: int, job: Job) -> Iterator[Callable[[StepReport], None]]:
        print(f"run {number} of {total}: {job.entry.name}, seed {job.seed}, in {job.directory}", file=sys.stderr)
        with progress(0, job.resolved.config.trainer.num_rollout) as show:
            yield show

    return watch


def _table(summary: Mapping[str, Any]) -> Iterator[str]:
    rows = [("ALGORITHM", "FINAL REWARD", "AREA", f"STEPS TO {summary['threshold']:g}", "SEEDS")]
    for each in summary["algorithms"]:
        final, area, steps = (each[name] for name in ("final_reward", "area", "steps_to_threshold"))
        rows.append((each["name"], _spread(final, 3), _spread(area, 3), _steps(steps), str(final["of"])))
    return aligned(rows)


def _spread(value: Mapping[str, Any], digits: int) -> str:
    if value["mean"] is None:
        return "-"
    spread = "" if value["std"] is None else f" ± {value['std']:.{digits}f}"
    return f"{value['mean']:.{digits}f}{spread}"


def _steps(value: Mapping[str, Any]) -> str:
    if not value["count"]:
        return "not reached" if value["of"] else "-"
    partly = "" if value["count"] == value["of"] else f" (by {value['count']} of {value['of']})"
    return _spread(value, 1) + partly
