"""`relax plot`: curves of a run as a picture, and the reward in the terminal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from relax_core.orchestration.record import read_metrics

PANELS = (
    ("reward", r"(rollout|eval)/reward_mean"),
    ("loss", r"train/(value_)?loss"),
    ("response length", r"(rollout|eval)/response_length_mean"),
    ("KL", r"train/.*kl"),
)
"""What is drawn: a title, and a pattern of the names of metrics."""
BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 60


def plot(run_dir: Path, output: Path | None) -> None:
    """Write the picture; print the reward's curve, that of evaluations where there are any, and where the picture is."""
    records = read_metrics(run_dir)
    picture = output or run_dir / "curves.png"
    _draw(records, picture, run_dir.name)
    for name, metric, unit in (
        ("reward", "rollout/reward_mean", "steps"),
        ("eval reward", "eval/reward_mean", "evaluations"),
    ):
        if values := [record[metric] for record in records if metric in record]:
            print(f"{name} {values[0]:.3f} {sparkline(values)} {values[-1]:.3f}  ({len(values)} {unit})")
    print(picture)


def sparkline(values: list[float]) -> str:
    """A curve in one line of text, at most `WIDTH` wide."""
    size = -(-len(values) // WIDTH)
    means = [sum(values[i : i + size]) / len(values[i : i + size]) for i in range(0, len(values), size)]
    low, span = min(means), (max(means) - min(means)) or 1.0
    return "".join(BLOCKS[round((mean - low) / span * (len(BLOCKS) - 1))] for mean in means)


def _draw(records: list[dict[str, float]], picture: Path, title: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    figure, axes = pyplot.subplots(2, 2, figsize=(10, 6), sharex=True, layout="constrained")
    for axis, (name, pattern) in zip(axes.flat, PANELS, strict=True):
        _panel(axis, records, pattern)
        axis.set_title(name)
        axis.grid(alpha=0.3)
    for axis in axes[1]:
        axis.set_xlabel("step")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.suptitle(title)
    figure.savefig(picture, dpi=120)
    pyplot.close(figure)


def _panel(axis: Any, records: list[dict[str, float]], pattern: str) -> None:
    names = {name for record in records for name in record}
    present = sorted(name for name in names if re.fullmatch(pattern, name))
    for key in present:
        points = [(record["step"], record[key]) for record in records if key in record]
        axis.plot(*zip(*points, strict=True), label=key, marker="." if len(points) < 40 else None)
    if len(present) > 1:
        axis.legend(fontsize="small")
