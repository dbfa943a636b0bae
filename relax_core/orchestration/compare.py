"""Algorithms on equal terms: one run file and one budget; every algorithm with every seed is an ordinary run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relax_core.binding import Binding, bind
from relax_core.errors import LoadError, UsageError
from relax_core.orchestration.record import METRICS, RunDirectory, claim
from relax_core.runfile import ResolvedRun, RunFile, read, resolve
from relax_core.startup import check
from relax_core.topology import Violation

if TYPE_CHECKING:
    from relax_core.orchestration.run import StepReport

ESTIMATOR, LOSS, DIRECTORY = "algorithm.advantage_estimator", "algorithm.policy_loss", "output.dir"
TAKEN = {ESTIMATOR: "--algorithms", LOSS: "--algorithms", DIRECTORY: "--output"}
SUMMARY, PICTURE = "compare.json", "compare.png"


@dataclass(frozen=True, slots=True)
class Entry:
    """One algorithm of a comparison: `name` as it was asked for, an estimator, and a loss where it is not its own."""

    name: str
    estimator: str
    loss: str | None


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a comparison."""

    entry: Entry
    seed: int
    directory: Path
    resolved: ResolvedRun
    binding: Binding


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that will run, seed by seed, so that what is there after an interruption can be compared too."""

    jobs: tuple[Job, ...]
    violations: tuple[tuple[str, Violation], ...]

    @property
    def entries(self) -> list[Entry]:
        """The algorithms, in the order given."""
        return list(dict.fromkeys(job.entry for job in self.jobs))

    @property
    def seeds(self) -> list[int]:
        """Consecutive, from `trainer.seed` on."""
        return list(dict.fromkeys(job.seed for job in self.jobs))

    @property
    def steps(self) -> int:
        """The budget of each run."""
        return self.jobs[0].resolved.config.trainer.num_rollout


def parse_algorithms(text: str) -> list[Entry]:
    """`grpo,rloo+gspo` -> an estimator each, some with another's loss. Raises `UsageError` for anything else."""
    entries: list[Entry] = []
    for name in (part.strip() for part in text.split(",")):
        estimator, plus, loss = name.partition("+")
        if not estimator or (plus and not loss) or "+" in loss:
            fix = "write ESTIMATOR or ESTIMATOR+LOSS, separated by commas"
            raise UsageError(f"'{text}' does not name algorithms", who="--algorithms", fix=fix)
        if name in {each.name for each in entries}:
            raise UsageError(f"'{name}' is named twice", who="--algorithms", fix="name it once")
        entries.append(Entry(name, estimator, loss or None))
    return entries


def plan(
    run: Path, entries: Sequence[Entry], seeds: int, overrides: Mapping[str, Any], plugins: Sequence[Path], output: Path
) -> Plan:
    """Resolve and check every run, without loading a model. Raises `UsageError` where a run's directory holds one."""
    for path in TAKEN.keys() & overrides.keys():
        raise UsageError(f"a comparison sets {path} itself", who=f"flag --{path}", fix=f"use {TAKEN[path]}")
    run_file = read(run)
    resolved = [_resolve(run_file, each, overrides, plugins) for each in entries]
    common = _ignored_by_all(resolved)
    violations = []
    for entry, each in zip(entries, resolved, strict=True):
        binding = bind(each.registry, each.choice, each.config.algorithm)
        violations += [(entry.name, found) for found in check(replace(each, ignored=common), binding)]
    first = resolved[0].config.trainer.seed
    jobs = [
        _job(entry, each, first + i, output / entry.name / f"seed-{first + i}")
        for i in range(seeds)
        for entry, each in zip(entries, resolved, strict=True)
    ]
    _refuse_what_is_there(jobs)
    return Plan(tuple(jobs), tuple(violations))


def execute(
    todo: Plan,
    watch: Callable[[int, Job], AbstractContextManager[Callable[[StepReport], None]]],
    interrupted: Callable[[], bool],
) -> Iterator[Job]:
    """Make the runs one after another, and give each that went to the end; `watch` takes the steps of one."""
    for number, job in enumerate(todo.jobs, start=1):
        if interrupted():
            return
        with watch(number, job) as show:
            finished = _train(job, show, interrupted)
        if not finished:
            return
        yield job


def _train(job: Job, show: Callable[[StepReport], None], interrupted: Callable[[], bool]) -> bool:
    """One run, whose models are gone when the next one loads its own."""
    from relax_core.orchestration.start import start

    place = claim(job.resolved.config.output, job.entry.name)
    with (
        RunDirectory.open(place, job.resolved) as directory,
        directory.tracked(),
        closing(start(job.resolved, job.binding)) as run,
    ):
        directory.begin(job.binding)
        return run.run(directory, show, interrupted)


def _resolve(run_file: RunFile, entry: Entry, overrides: Mapping[str, Any], plugins: Sequence[Path]) -> ResolvedRun:
    mine = {**overrides, ESTIMATOR: entry.estimator, LOSS: entry.loss}
    try:
        return resolve(run_file, mine, plugins)
    except (UsageError, LoadError) as error:
        if error.who in (ESTIMATOR, LOSS):
            raise type(error)(error.what, who=f"--algorithms {entry.name}", fix=error.fix) from None
        raise


def _job(entry: Entry, resolved: ResolvedRun, seed: int, place: Path) -> Job:
    """Bound anew: a binding holds the plugins' state, which no two runs share."""
    config = resolved.config
    trainer = config.trainer.model_copy(update={"seed": seed})
    output = config.output.model_copy(update={"dir": str(place)})
    mine = replace(resolved, config=config.model_copy(update={"trainer": trainer, "output": output}))
    return Job(entry, seed, place, mine, bind(mine.registry, mine.choice, mine.config.algorithm))


def _ignored_by_all(resolved: Sequence[ResolvedRun]) -> tuple[tuple[str, str], ...]:
    """An option that one algorithm reads is no mistake in the runs of the others."""
    everywhere = set.intersection(*({setting for setting, _ in each.ignored} for each in resolved))
    return tuple(each for each in resolved[0].ignored if each[0] in everywhere)


def _refuse_what_is_there(jobs: Sequence[Job]) -> None:
    for job in jobs:
        if (job.directory / METRICS).exists():
            raise UsageError(f"'{job.directory}' already holds a run", who="--output", fix="give another directory")
