"""`relax train`: check, run, report."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from relax_core.cli.check import FINDINGS, prepare, report
from relax_core.cli.interruption import INTERRUPTED, listening
from relax_core.cli.progress import progress
from relax_core.orchestration.record import RunDirectory, claim, latest_checkpoint


def train(run: Path, overrides: Mapping[str, Any], plugins: Sequence[Path], resume: Path | None) -> None:
    """Run to the end, or until Ctrl-C; say where everything is."""
    resolved, binding, violations = prepare(run, overrides, plugins)
    if report(violations, sys.stderr):
        sys.exit(FINDINGS)
    from relax_core.orchestration.local import LocalRun

    with listening() as interruption:
        try:
            output = resolved.config.output
            place = claim(output, run.stem) if resume is None else latest_checkpoint(resume)
            with closing(LocalRun(resolved, binding)) as job:
                if resume is None:
                    directory = RunDirectory.create(place, resolved, binding)
                else:
                    directory = RunDirectory.reopen(resume, job.resume(place), tensorboard=output.tensorboard)
                with progress(job.step, resolved.config.trainer.num_rollout) as show:
                    finished = job.run(directory, show, lambda: interruption.asked)
            directory.close()
        except KeyboardInterrupt:
            print("stopped at once: nothing was saved after the last checkpoint", file=sys.stderr)
            sys.exit(INTERRUPTED)
    _say_goodbye(directory.path, job.step, finished)


def _say_goodbye(directory: Path, step: int, finished: bool) -> None:
    if not finished:
        print(f"stopped after step {step}, saved in {directory}", file=sys.stderr)
        print(f"go on with: relax train {directory}/config.yaml --resume {directory}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    print(f"done: {step} steps, run directory {directory}", file=sys.stderr)
    print(f"curves: relax plot {directory}", file=sys.stderr)
