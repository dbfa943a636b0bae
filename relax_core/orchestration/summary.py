"""What a comparison says: three numbers a run, their mean and spread over the seeds, and a picture."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relax_core.orchestration.compare import Entry, Job, Plan
from relax_core.orchestration.disk import write_whole
from relax_core.orchestration.record import read_metrics

VERSION = 1
REWARD = "rollout/reward_mean"
MEASURES = ("final_reward", "area", "steps_to_threshold")
LINES = ("-", "--", "-.", ":")


@dataclass(frozen=True, slots=True)
class Curve:
    """The reward of one finished run, step by step."""

    job: Job
    rewards: tuple[float, ...]

    @classmethod
    def of(cls, job: Job) -> Curve:
        """As the run directory has it."""
        return cls(job, tuple(record[REWARD] for record in read_metrics(job.directory) if record["step"]))

    def measures(self, threshold: float) -> dict[str, float | int | None]:
        """Reward over the last tenth of the steps (one at least), mean reward over all steps, first step that reaches."""
        last = self.rewards[-max(1, len(self.rewards) // 10) :]
        reached = (step for step, reward in enumerate(self.rewards, start=1) if reward >= threshold)
        return {
            "final_reward": statistics.fmean(last),
            "area": statistics.fmean(self.rewards),
            "steps_to_threshold": next(reached, None),
        }


def summarize(plan: Plan, run: Path, curves: Sequence[Curve], threshold: float) -> dict[str, Any]:
    """`compare.json`: every run, and every algorithm over its seeds; `complete` when no run is missing."""
    return {
        "version": VERSION,
        "run": str(run),
        "steps": plan.steps,
        "seeds": plan.seeds,
        "threshold": threshold,
        "complete": len(curves) == len(plan.jobs),
        "algorithms": [_algorithm(entry, _of(entry, curves), threshold) for entry in plan.entries],
    }


def _of(entry: Entry, curves: Sequence[Curve]) -> list[Curve]:
    return [curve for curve in curves if curve.job.entry == entry]


def _algorithm(entry: Entry, curves: Sequence[Curve], threshold: float) -> dict[str, Any]:
    found = [curve.measures(threshold) for curve in curves]
    choice = {"name": entry.name, "estimator": entry.estimator, "loss": entry.loss}
    if curves:
        chosen = curves[0].job.resolved.choice
        choice |= {"estimator": chosen.estimator.name, "loss": chosen.loss.name}
    runs = [
        {"seed": curve.job.seed, "directory": str(curve.job.directory), **each}
        for curve, each in zip(curves, found, strict=True)
    ]
    return {**choice, **{name: _spread([each[name] for each in found]) for name in MEASURES}, "runs": runs}


def _spread(values: Sequence[float | None]) -> dict[str, Any]:
    """Mean and standard deviation (n − 1) of those that are there; null where there are too few."""
    there = [value for value in values if value is not None]
    return {
        "mean": statistics.fmean(there) if there else None,
        "std": statistics.stdev(there) if len(there) > 1 else None,
        "count": len(there),
        "of": len(values),
    }


def write(summary: Mapping[str, Any], path: Path) -> None:
    """Whole, or not at all."""
    write_whole(path, json.dumps(summary, indent=2) + "\n")


def draw(plan: Plan, curves: Sequence[Curve], threshold: float, picture: Path) -> None:
    """The mean reward of each algorithm, in a band of one standard deviation over its seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    figure, axis = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for index, entry in enumerate(plan.entries):
        _band(axis, entry.name, _of(entry, curves), LINES[index % len(LINES)])
    axis.axhline(threshold, color="gray", linewidth=0.8, linestyle=(0, (1, 3)))
    axis.set(xlabel="step", ylabel="reward", title=f"mean ± standard deviation over {len(plan.seeds)} seeds")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(picture, dpi=120)
    pyplot.close(figure)


def _band(axis: Any, name: str, curves: Sequence[Curve], line: str) -> None:
    columns = list(zip(*(curve.rewards for curve in curves), strict=True))
    if not columns:
        return
    steps = range(1, len(columns) + 1)
    means = [statistics.fmean(column) for column in columns]
    spreads = [statistics.stdev(column) if len(column) > 1 else 0.0 for column in columns]
    (drawn,) = axis.plot(steps, means, line, label=name, marker="." if len(columns) < 40 else None)
    low, high = ([m + sign * s for m, s in zip(means, spreads, strict=True)] for sign in (-1, 1))
    axis.fill_between(steps, low, high, color=drawn.get_color(), alpha=0.15, linewidth=0)
