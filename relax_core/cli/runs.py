"""`relax runs list | show | diff`: what lies in the output folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from relax_core.cli.table import aligned
from relax_core.orchestration.record import METRICS
from relax_core.orchestration.resumption import differences
from relax_core.orchestration.runs import RunRecord, read_run, runs_in

VERSION = 1
REWARD = "rollout/reward_mean"


def list_runs(folder: Path, as_json: bool) -> None:
    """One line a run: how far it is, its reward, its algorithm and when its newest step was."""
    found = runs_in(folder)
    if as_json:
        print(json.dumps({"version": VERSION, "runs": [_summary(run) for run in found]}, indent=2))
        return
    rows = [("RUN", "STEPS", "REWARD", "ALGORITHM", "LAST STEP")]
    rows += [(str(run.path), f"{run.done}/{run.total}", _reward(run), run.algorithm, _when(run)) for run in found]
    print("\n".join(aligned(rows)))


def show_run(path: Path, as_json: bool) -> None:
    """One run: its newest metrics, its checkpoints, and what was changed or went wrong on the way."""
    run = read_run(path)
    if as_json:
        checkpoints = [{"step": step, "damage": damage} for step, damage in run.checkpoints()]
        incidents = [str(each) for each in run.incidents()]
        details = {**run.described, "metrics": run.last, "checkpoints": checkpoints, "incidents": incidents}
        print(json.dumps({"version": VERSION, **_summary(run), **details}, indent=2))
        return
    print("\n".join(_lines(run)))


def diff_runs(first: Path, second: Path, as_json: bool) -> None:
    """What differs between two runs: settings, plugins, and the metrics of the last step that both have."""
    before, after = read_run(first), read_run(second)
    settings = list(differences(before.config, after.config))
    settings += differences(before.described["plugins"], after.described["plugins"], "plugins.")
    step = min(before.done, after.done)
    metrics = list(differences(before.at(step), after.at(step)))
    if as_json:
        rows = {"settings": settings, "metrics": metrics}
        told = {
            name: [{"name": path, "first": old, "second": new} for path, old, new in changes]
            for name, changes in rows.items()
        }
        print(json.dumps({"version": VERSION, "step": step, **told}, indent=2))
        return
    header = [("SETTING", str(first), str(second))]
    print("\n".join(aligned(header + [(path, str(old), str(new)) for path, old, new in settings])))
    header = [(f"METRIC OF STEP {step}", str(first), str(second))]
    print("\n".join(aligned(header + [(path, _number(old), _number(new)) for path, old, new in metrics])))


def _lines(run: RunRecord) -> Iterator[str]:
    yield f"{run.path}: {run.algorithm}, {run.done} of {run.total} steps, seed {run.described['seed']}"
    for name, value in run.last.items():
        yield f"  {name} = {_number(value)}"
    for step, damage in run.checkpoints():
        yield f"checkpoint after step {step}: {damage or 'whole'}"
    for change in run.described.get("changes", []):
        yield f"changed after step {change['step']}: {change['setting']} was {change['was']}, is {change['is']}"
    for path in run.incidents():
        yield f"not finite: relax plugins replay {path}"


def _summary(run: RunRecord) -> dict[str, Any]:
    found = {"directory": str(run.path), "algorithm": run.algorithm, "steps": run.done, "total": run.total}
    return {**found, "reward": run.last.get(REWARD)}


def _reward(run: RunRecord) -> str:
    return _number(run.last.get(REWARD))


def _when(run: RunRecord) -> str:
    stamp = (run.path / METRICS).stat().st_mtime
    return datetime.fromtimestamp(stamp).isoformat(" ", "seconds")


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float | int) else "-"
