"""The run directory: what a run was, what it did, and where it can go on from."""

from __future__ import annotations

import json
import re
import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from importlib.metadata import version
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from ruamel.yaml import YAML

from relax_core.binding import Binding
from relax_core.config import OutputSection, Reference
from relax_core.errors import UsageError
from relax_core.orchestration.checkpoints import Checkpoints, nothing_whole
from relax_core.orchestration.disk import write_whole, writing
from relax_core.orchestration.log import LOG, logged, say, warn
from relax_core.orchestration.trackers import Trackers, tracking
from relax_core.orchestration.trackers.types import TrackedRun
from relax_core.redaction import redacted_values
from relax_core.runfile import ResolvedRun

METRICS, SAMPLES, TIMINGS, CHECKPOINTS = "metrics.jsonl", "samples.jsonl", "timings.jsonl", "checkpoints"
RUNS, INCIDENTS = Path("runs"), "incidents"
CONFIG, RUN = "config.yaml", "run.json"
LOGGED = ("rollout/reward_mean", "eval/reward_mean", "perf/tokens_per_second")
"""What the log says of a step; the rest stands in `metrics.jsonl` and `timings.jsonl`."""


class RunDirectory:
    """`config.yaml` (resolved), `run.json`, `metrics.jsonl`, `samples.jsonl`, `timings.jsonl`, `log.jsonl`, `checkpoints/`.

    Everything but the id in `run.json`, the timings and the log is the same for two runs of one seed.
    """

    def __init__(self, path: Path, run_id: str, resolved: ResolvedRun) -> None:
        self.path, self.id, self._resolved = path, run_id, resolved
        self.checkpoints = checkpoints_of(path, resolved.config.output.keep_checkpoints)
        self._trackers = Trackers({})

    @classmethod
    @contextmanager
    def open(cls, path: Path, resolved: ResolvedRun) -> Iterator[RunDirectory]:
        """One that `claim` made or `newest_run` found; what is said inside is logged, and how the run ends."""
        run_id = _id_of(path)
        with logged(path / LOG, run_id):
            say("started", directory=str(path), relax=version("relax-rl"), steps=resolved.config.trainer.num_rollout)
            yield cls(path, run_id, resolved)

    @contextmanager
    def tracked(self) -> Iterator[None]:
        """Inside, the trackers of the run hear of every step too."""
        run = TrackedRun(self.id, self.path, anchored(self._resolved))
        with tracking(run, self._resolved.config.output) as self._trackers:
            yield

    def begin(self, binding: Binding) -> None:
        """Write what the run is, now that it is about to make its first step."""
        write_config(self.path, self._resolved)
        described = {"id": self.id, **_describe(self._resolved, binding)}
        write_whole(self.path / RUN, json.dumps(described, indent=2) + "\n")
        write_whole(self.path / METRICS, "")

    def rewind(self, step: int) -> None:
        """Take back what was written after `step` steps, a line that was cut off too; after none, everything."""
        say("rewound", step=step)
        for name in (METRICS, SAMPLES, TIMINGS):
            kept = [record for record in records_of(self.path / name) if step and record["step"] <= step]
            write_whole(self.path / name, "".join(f"{_line(record)}\n" for record in kept))

    def write_step(
        self,
        step: int,
        metrics: Mapping[str, float],
        timings: Mapping[str, float],
        samples: Sequence[Mapping[str, Any]],
    ) -> None:
        """One line of metrics, one of timings, and a few samples."""
        self._append(METRICS, {"step": step, **metrics})
        self._append(TIMINGS, {"step": step, **timings})
        for sample in samples:
            self._append(SAMPLES, {"step": step, **sample})
        values = {**metrics, **timings}
        say("step", step=step, **{name: values[name] for name in LOGGED if name in values})
        self._trackers.step(step, values)

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        path = self.path / name
        with writing(path), path.open("a", encoding="utf-8") as file:
            file.write(f"{_line(redacted_values(record))}\n")


def newest_run(output: OutputSection, name: str, given: str) -> Path:
    """The run directory to go on with: the one that is given, else `output.dir`, else the newest of this run file."""
    if given or output.dir:
        path = Path(given or str(output.dir))
        if not (path / METRICS).exists():
            raise nothing_whole(path)
        return path
    found = sorted(path for path in RUNS.glob(f"{name}-*") if (path / CHECKPOINTS).is_dir())
    if not found:
        fix = f"name the run directory: --resume RUN_DIR, or start one: relax train {name}.yaml"
        raise UsageError(f"no run of '{name}' under {RUNS}/ has a checkpoint", who="--resume", fix=fix)
    return found[-1]


def claim(output: OutputSection, name: str) -> Path:
    """The directory of a new run. Raises `UsageError` where one cannot be written or already holds a run."""
    path = Path(output.dir) if output.dir else _free(f"{name}-{datetime.now():%Y%m%d-%H%M%S}")
    if (path / METRICS).exists():
        fix = f"give another --output.dir, or go on with --resume {path}"
        raise UsageError(f"'{path}' already holds a run", who="output.dir", fix=fix)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise UsageError(f"'{path}' cannot be written: {error.strerror}", who="output.dir") from None
    return path


def _free(name: str) -> Path:
    """A directory that no other run has, not even one that began in the same second."""
    names = (name if number == 1 else f"{name}-{number}" for number in count(1))
    return next(path for path in map(RUNS.joinpath, names) if not path.exists())


def checkpoints_of(path: Path, keep: int = 0) -> Checkpoints:
    """Those of a run directory."""
    return Checkpoints(path / CHECKPOINTS, keep)


def newest_checkpoint(path: Path) -> Path | None:
    """The newest whole checkpoint of a run directory; None, said on stderr, for a run that was stopped before its first."""
    checkpoints = checkpoints_of(path)
    if not (path / METRICS).exists():
        return checkpoints.newest()
    if (found := checkpoints.newest_or_none()) is None:
        warn(f"'{path}' was stopped before its first checkpoint: it begins again")
    return found


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The whole lines of `metrics.jsonl`. Raises `UsageError` when there are none of a step."""
    try:
        records = list(records_of(path / METRICS, missing_ok=False))
    except (OSError, ValueError) as error:
        raise UsageError(f"'{path}' is not a run directory: {error}", who="RUN_DIR") from None
    if not any(record["step"] for record in records):
        raise UsageError(f"'{path}' has no finished step yet", who="RUN_DIR", fix="wait for the first step")
    return records


def records_of(path: Path, *, missing_ok: bool = True) -> Iterator[dict[str, Any]]:
    """One for each line that was written to its end."""
    if missing_ok and not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False)


def _id_of(path: Path) -> str:
    """The id of the run in a directory, or a new one: its name, and what no other run of that name has."""
    try:
        return str(json.loads((path / RUN).read_text(encoding="utf-8"))["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"{re.sub(r'[^A-Za-z0-9._-]', '-', path.resolve().name)}-{secrets.token_hex(4)}"


def _describe(resolved: ResolvedRun, binding: Binding) -> dict[str, Any]:
    config = resolved.config
    return {
        "relax": version("relax-rl"),
        "seed": config.trainer.seed,
        "base": str(resolved.base),
        "plugins": described_plugins(binding),
        **({"trust_remote_code": True} if config.model.trust_remote_code else {}),
    }


def described_plugins(binding: Binding) -> dict[str, dict[str, str]]:
    """Where each active plugin is from, and its version."""
    return {each.name: {"from": each.plugin.distribution, "version": each.plugin.version} for each in binding.active}


def write_config(path: Path, resolved: ResolvedRun) -> None:
    """`config.yaml`: every field, resolved."""
    yaml, text = YAML(), StringIO()
    yaml.default_flow_style = False
    yaml.dump(anchored(resolved), text)
    write_whole(path / CONFIG, text.getvalue())


def anchored(resolved: ResolvedRun) -> dict[str, Any]:
    """The configuration as values without secrets, with the files that it names beside the run file named from anywhere."""
    values = resolved.config.model_dump(mode="json")
    _anchor(values, resolved.config, resolved.base)
    without: dict[str, Any] = redacted_values(values)
    return without


def _anchor(values: dict[str, Any], model: BaseModel, base: Path) -> None:
    for name, info in type(model).model_fields.items():
        if isinstance(section := getattr(model, name), BaseModel):
            _anchor(values[name], section, base)
        elif any(isinstance(each, Reference) for each in info.metadata) and values[name]:
            file, colon, function = values[name].partition(":")
            if (base / file).exists():
                values[name] = f"{(base / file).resolve()}{colon}{function}"
