"""How a run shows itself: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relax_core.orchestration.run import StepReport


@contextmanager
def progress(done: int, total: int) -> Iterator[Callable[[StepReport], None]]:
    """Gives the function that takes each step's report. Everything goes to stderr."""
    if sys.stderr.isatty():
        yield from _bar(done, total)
    else:
        yield _lines(done)


def _bar(done: int, total: int) -> Iterator[Callable[[StepReport], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[status]}"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("training", total=total, completed=done, status="starting")

        def show(report: StepReport) -> None:
            bar.update(task, completed=report.step, status=_status(report))
            for warning in report.warnings:
                bar.console.print(f"warning: step {report.step}: {warning}", markup=False, highlight=False)

        yield show


def _lines(done: int) -> Callable[[StepReport], None]:
    start = time.monotonic()

    def show(report: StepReport) -> None:
        line = f"step {report.step}/{report.total} {_status(report)}"
        if made := report.step - done:
            line += f" left {_clock((time.monotonic() - start) / made * (report.total - report.step))}"
        for text in (line, *(f"warning: step {report.step}: {warning}" for warning in report.warnings)):
            print(text, file=sys.stderr, flush=True)

    return show


def _status(report: StepReport) -> str:
    evaluated = report.metrics.get("eval/reward_mean")
    told = [] if evaluated is None else [f"eval reward {evaluated:.3f}"]
    return " ".join([*(_trained(report) if report.step else ()), *told])


def _trained(report: StepReport) -> list[str]:
    metrics = report.metrics
    parts = [f"reward {metrics['rollout/reward_mean']:.3f}"]
    losses = [name for name in ("train/loss", "train/value_loss") if name in metrics]
    parts += [f"loss {metrics[losses[0]]:+.4f}"] if losses else ["nothing to train on"]
    parts += (
        [f"length {metrics['rollout/response_length_mean']:.1f}"] if "rollout/response_length_mean" in metrics else []
    )
    return [*parts, f"{report.tokens_per_second:.0f} tokens/s"]


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
