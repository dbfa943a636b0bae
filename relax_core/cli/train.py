"""`relax train`: check, run, report."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relax_core.binding import Binding
from relax_core.cli.check import FINDINGS, prepare, report
from relax_core.cli.interruption import INTERRUPTED, listening
from relax_core.cli.progress import progress
from relax_core.orchestration.checkpoints import step_of
from relax_core.orchestration.record import RunDirectory, claim, newest_checkpoint, newest_run
from relax_core.orchestration.resumption import settle_changes
from relax_core.runfile import ResolvedRun

if TYPE_CHECKING:
    from relax_core.orchestration.run import Run


def train(
    run: Path, overrides: Mapping[str, Any], plugins: Sequence[Path], resume: str | None, allow_changes: bool
) -> None:
    """Run to the end, or until Ctrl-C; say where everything is. `resume` "" is the newest run of this run file."""
    resolved, binding, violations = prepare(run, overrides, plugins)
    if report(violations, sys.stderr):
        sys.exit(FINDINGS)
    with listening() as interruption:
        try:
            if resume is None:
                job, directory = _begin(run, resolved, binding)
            else:
                job, directory = _go_on(run, resolved, binding, resume, allow_changes)
            with closing(job), progress(job.step, resolved.config.trainer.num_rollout) as show:
                finished = job.run(directory, show, lambda: interruption.asked)
            directory.close()
        except KeyboardInterrupt:
            print("stopped at once: nothing was saved after the last checkpoint", file=sys.stderr)
            sys.exit(INTERRUPTED)
    _say_goodbye(directory.path, job.step, finished)


def _begin(run: Path, resolved: ResolvedRun, binding: Binding) -> tuple[Run, RunDirectory]:
    from relax_core.orchestration.start import start

    place = claim(resolved.config.output, run.stem)
    job = start(resolved, binding)
    return job, RunDirectory.create(place, resolved, binding)


def _go_on(
    run: Path, resolved: ResolvedRun, binding: Binding, resume: str, allow_changes: bool
) -> tuple[Run, RunDirectory]:
    from relax_core.orchestration.start import start

    place = newest_run(resolved.config.output, run.stem, resume)
    checkpoint = newest_checkpoint(place)
    step = 0 if checkpoint is None else step_of(checkpoint)
    settle_changes(place, step, resolved, binding, allowed=allow_changes)
    job = start(resolved, binding)
    if checkpoint is not None:
        job.resume(checkpoint)
    return job, RunDirectory.reopen(place, step, resolved.config.output)


def _say_goodbye(directory: Path, step: int, finished: bool) -> None:
    if not finished:
        print(f"stopped after step {step}, saved in {directory}", file=sys.stderr)
        print(f"go on with: relax train {directory}/config.yaml --resume {directory}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    print(f"done: {step} steps, run directory {directory}", file=sys.stderr)
    print(f"curves: relax plot {directory}", file=sys.stderr)
