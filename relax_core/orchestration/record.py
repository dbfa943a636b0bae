"""The run directory: what a run was, what it did, and where it can go on from."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from relax_core.binding import Binding
from relax_core.config import OutputSection, Reference
from relax_core.errors import UsageError
from relax_core.orchestration.checkpoints import Checkpoints
from relax_core.runfile import ResolvedRun

METRICS, SAMPLES, TIMINGS, CHECKPOINTS = "metrics.jsonl", "samples.jsonl", "timings.jsonl", "checkpoints"
RUNS, INCIDENTS = Path("runs"), "incidents"
CONFIG, RUN = "config.yaml", "run.json"


class RunDirectory:
    """`config.yaml` (resolved), `run.json`, `metrics.jsonl`, `samples.jsonl`, `timings.jsonl`, TensorBoard, `checkpoints/`.

    Everything but the timings is the same for two runs of one seed.
    """

    def __init__(self, path: Path, output: OutputSection) -> None:
        self.path = path
        self.checkpoints = checkpoints_of(path, output.keep_checkpoints)
        self._board = _board(path) if output.tensorboard else None

    @classmethod
    def create(cls, path: Path, resolved: ResolvedRun, binding: Binding) -> RunDirectory:
        """A directory that `claim` made, with the resolved configuration in it."""
        write_config(path, resolved)
        (path / RUN).write_text(json.dumps(_describe(resolved, binding), indent=2) + "\n")
        (path / METRICS).touch()
        return cls(path, resolved.config.output)

    @classmethod
    def reopen(cls, path: Path, step: int, output: OutputSection) -> RunDirectory:
        """An existing directory, as it was after `step` steps."""
        directory = cls(path, output)
        directory.rewind(step)
        return directory

    def rewind(self, step: int) -> None:
        """Take back what was written after `step` steps, a line that was cut off too; after none, everything."""
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
        if self._board is not None:
            for name, value in {**metrics, **timings}.items():
                self._board.add_scalar(name, value, step)
            self._board.flush()

    def close(self) -> None:
        """Flush what is open."""
        if self._board is not None:
            self._board.close()

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.write(f"{_line(record)}\n")


def newest_run(output: OutputSection, name: str, given: str) -> Path:
    """The run directory to go on with: the one that is given, else `output.dir`, else the newest of this run file."""
    if given or output.dir:
        return Path(given or str(output.dir))
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
    if checkpoints.all() or not (path / METRICS).exists():
        return checkpoints.newest()
    print(f"warning: '{path}' was stopped before its first checkpoint: it begins again", file=sys.stderr)
    return None


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


def write_whole(path: Path, text: str) -> None:
    """Whole, or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


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
    """The configuration as values, with the files that it names beside the run file named from anywhere."""
    values = resolved.config.model_dump(mode="json")
    for section, model in resolved.config:
        for name, info in type(model).model_fields.items():
            if any(isinstance(each, Reference) for each in info.metadata) and values[section][name]:
                file, colon, function = values[section][name].partition(":")
                if (resolved.base / file).exists():
                    values[section][name] = f"{(resolved.base / file).resolve()}{colon}{function}"
    return values


def _board(path: Path) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(path))
