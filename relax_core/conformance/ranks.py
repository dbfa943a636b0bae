"""The hooks of a plugin on two real processes that speak by gloo. `python -m relax_core.conformance.ranks JOB.json RANK`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from relax_core.batch import Batch
from relax_core.conformance import pieces
from relax_core.conformance.call import Call
from relax_core.conformance.numeric.basics import MICRO, ROLLOUT
from relax_core.conformance.numeric.invariance import without_context_parallel
from relax_core.conformance.outcome import Outcome
from relax_core.conformance.subject import Subject
from relax_core.conformance.targets import named
from relax_core.errors import FOREIGN

RANKS = 2
PATIENCE = 15
"""Seconds that a rank waits for the other in a collective."""
LIMIT = 180
"""Seconds that the processes may take together."""
STOPPED = "stopped.json"

Case = tuple[str, Call, Batch, list[Batch]]
"""Its name, the call, the whole batch, and each rank's piece of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """What each rank came to by the name of the case, and what stopped a rank."""

    outcomes: list[dict[str, Outcome]]
    stopped: list[str] = field(default_factory=list)


def cases(subject: Subject, hooks: tuple[str, ...]) -> Iterator[Case]:
    """Every hook in every configuration, cut over two ranks, and with all of it on one of them."""
    for hook in hooks:
        for index, call in enumerate(subject.calls(hook)):
            batch = call.sample()
            if hook in MICRO and not without_context_parallel(call):
                cuts = [pieces.parts(batch, 0), pieces.parts(batch, None)]
            elif hook in ROLLOUT:
                cuts = [pieces.shards(batch, RANKS), pieces.shards(batch, 1)]
            else:
                continue
            for number, cut in enumerate(cuts):
                yield f"{hook}-{index}-{number}", call, batch, cut


def run(subject: Subject) -> Ranks:
    """All cases on two processes."""
    plugin = subject.plugin
    target = plugin.distribution if plugin.distribution.endswith(".py") else plugin.name
    with tempfile.TemporaryDirectory() as directory:
        job = Path(directory) / "job.json"
        job.write_text(json.dumps({"target": target, "seed": subject.seed, "config": subject.config}))
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "relax_core.conformance.ranks", str(job)]
        started = [
            subprocess.Popen([*command, str(rank)], env=environment, stderr=subprocess.PIPE, text=True)
            for rank in range(RANKS)
        ]
        errors = [_wait(process) for process in started]
        found = [_read(Path(directory) / str(rank)) for rank in range(RANKS)]
    return Ranks(
        [outcomes for outcomes, _ in found], [each or told for (_, told), each in zip(found, errors, strict=True)]
    )


def _wait(process: subprocess.Popen[str]) -> str:
    try:
        _, errors = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"timed out after {LIMIT} s"
    return "" if process.returncode == 0 else (errors.strip().splitlines() or [f"exit code {process.returncode}"])[-1]


def _read(directory: Path) -> tuple[dict[str, Outcome], str]:
    found = {path.stem: Outcome(**torch.load(path, weights_only=True)) for path in sorted(directory.glob("*.pt"))}
    stopped = directory / STOPPED
    return found, json.loads(stopped.read_text()) if stopped.exists() else ""


def _work(job: Path, rank: int) -> None:
    """One rank: every case in the same order; the first exception ends it, as collectives would no longer meet."""
    import torch.distributed as dist

    from relax_core.groups import DistributedGroup

    given: Mapping[str, Any] = json.loads(job.read_text())
    (plugin, *_), registry = named(given["target"])
    subject = Subject(plugin, registry, seed=given["seed"], config=given["config"])
    # Before the processes meet: what is computed here, alone, must not wait for anybody.
    ready = list(cases(subject, (*ROLLOUT, *MICRO)))
    torch.set_num_threads(1)
    directory = job.parent / str(rank)
    directory.mkdir()
    meeting = f"file://{job.parent}/meeting"
    dist.init_process_group("gloo", meeting, rank=rank, world_size=RANKS, timeout=_patience())
    group = DistributedGroup(dist.group.WORLD)
    try:
        for name, call, _, cut in ready:
            outcome = call.evaluate(replace(cut[rank], group=group))
            torch.save({"values": outcome.values, "gradients": outcome.gradients}, directory / f"{name}.pt")
        dist.barrier()
    except FOREIGN as error:
        (directory / STOPPED).write_text(json.dumps(subject.described(error)))
    # Without tearing down: gloo's threads race the interpreter's exit, and under load it aborts there.
    os._exit(0)


def _patience() -> Any:
    from datetime import timedelta

    return timedelta(seconds=PATIENCE)


def put_together(ranks: Ranks, case: Case) -> Outcome | None:
    """The ranks' values and gradients in the order of the whole batch; None where a rank never got there."""
    name, _, batch, cut = case
    if any(name not in each for each in ranks.outcomes):
        return None
    return pieces.assembled([(cut[rank], ranks.outcomes[rank][name]) for rank in range(RANKS)], batch)


if __name__ == "__main__":
    _work(Path(sys.argv[1]), int(sys.argv[2]))
