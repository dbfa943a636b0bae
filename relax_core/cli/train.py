"""`relax train`: check, run, report."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
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
    output = resolved.config.output
    place = claim(output, run.stem) if resume is None else newest_run(output, run.stem, resume)
    with listening() as interruption:
        try:
            with RunDirectory.open(place, resolved) as directory:
                checkpoint = None if resume is None else _found(place, resolved, binding, allow_changes)
                with (
                    directory.tracked(),
                    _started(directory, resolved, binding, resume is None, checkpoint) as job,
                    progress(job.step, resolved.config.trainer.num_rollout) as show,
                ):
                    finished = job.run(directory, show, lambda: interruption.asked)
        except KeyboardInterrupt:
            print("stopped at once: nothing was saved after the last checkpoint", file=sys.stderr)
            sys.exit(INTERRUPTED)
    _say_goodbye(place, job.step, finished)


def _found(place: Path, resolved: ResolvedRun, binding: Binding, allow_changes: bool) -> Path | None:
    """The checkpoint to go on from, of a run that may go on as it is asked to."""
    checkpoint = newest_checkpoint(place)
    step = 0 if checkpoint is None else step_of(checkpoint)
    settle_changes(place, step, resolved, binding, allowed=allow_changes)
    return checkpoint


@contextmanager
def _started(
    directory: RunDirectory, resolved: ResolvedRun, binding: Binding, is_new: bool, checkpoint: Path | None
) -> Iterator[Run]:
    """A run that is ready for its next step, and its directory too."""
    from relax_core.orchestration.start import start

    with closing(start(resolved, binding)) as job:
        if checkpoint is not None:
            job.resume(checkpoint)
        if is_new:
            directory.begin(binding)
        else:
            directory.rewind(job.step)
        yield job


def _say_goodbye(directory: Path, step: int, finished: bool) -> None:
    if not finished:
        print(f"stopped after step {step}, saved in {directory}", file=sys.stderr)
        print(f"go on with: relax train {directory}/config.yaml --resume {directory}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    print(f"done: {step} steps, run directory {directory}", file=sys.stderr)
    print(f"curves: relax plot {directory}", file=sys.stderr)
