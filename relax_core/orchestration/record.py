"""The run directory: what a run was, what it did, and where it can go on from."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from relax_core.binding import Binding
from relax_core.config import OutputSection, Reference
from relax_core.errors import LoadError, UsageError
from relax_core.runfile import ResolvedRun

METRICS, SAMPLES, TIMINGS, CHECKPOINTS = "metrics.jsonl", "samples.jsonl", "timings.jsonl", "checkpoints"
RUN = "run.json"


class RunDirectory:
    """`config.yaml` (resolved), `run.json`, `metrics.jsonl`, `samples.jsonl`, `timings.jsonl`, TensorBoard, `checkpoints/`.

    Everything but the timings is the same for two runs of one seed.
    """

    def __init__(self, path: Path, *, tensorboard: bool) -> None:
        self.path = path
        self._board = _board(path) if tensorboard else None

    @classmethod
    def create(cls, path: Path, resolved: ResolvedRun, binding: Binding) -> RunDirectory:
        """A directory that `claim` made, with the resolved configuration in it."""
        _write_config(path, resolved)
        (path / RUN).write_text(json.dumps(_describe(resolved, binding), indent=2) + "\n")
        (path / METRICS).touch()
        return cls(path, tensorboard=resolved.config.output.tensorboard)

    @classmethod
    def reopen(cls, path: Path, step: int, *, tensorboard: bool) -> RunDirectory:
        """An existing directory, with what was written after `step` steps taken back."""
        for name in (METRICS, SAMPLES, TIMINGS):
            lines = (path / name).read_text().splitlines() if (path / name).exists() else []
            kept = [line for line in lines if json.loads(line)["step"] <= step]
            (path / name).write_text("".join(f"{line}\n" for line in kept))
        return cls(path, tensorboard=tensorboard)

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

    def checkpoint(self, step: int, write: Callable[[Path], None]) -> Path:
        """Write a checkpoint under a temporary name, then rename it: it is there whole or not at all."""
        final = self.path / CHECKPOINTS / f"step_{step:06d}"
        partial = final.with_name(f".{final.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        write(partial)
        shutil.rmtree(final, ignore_errors=True)
        partial.replace(final)
        return final

    def close(self) -> None:
        """Flush what is open."""
        if self._board is not None:
            self._board.close()

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def claim(output: OutputSection, name: str) -> Path:
    """The directory of a new run. Raises `UsageError` where one cannot be written or already holds a run."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    path = Path(output.dir) if output.dir else Path("runs") / f"{name}-{stamp}"
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


def latest_checkpoint(path: Path) -> Path:
    """The newest checkpoint of a run directory. Raises `LoadError` when there is none."""
    found = sorted((path / CHECKPOINTS).glob("step_*"))
    if not found:
        raise LoadError(f"'{path}' holds no checkpoint", who="--resume", fix="name the run directory of a saved run")
    return found[-1]


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The lines of `metrics.jsonl`. Raises `UsageError` when there are none."""
    try:
        lines = (path / METRICS).read_text().splitlines()
        records = [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise UsageError(f"'{path}' is not a run directory: {error}", who="RUN_DIR") from None
    if not records:
        raise UsageError(f"'{path}' has no finished step yet", who="RUN_DIR", fix="wait for the first step")
    return records


def _describe(resolved: ResolvedRun, binding: Binding) -> dict[str, Any]:
    config = resolved.config
    return {
        "relax": version("relax-rl"),
        "seed": config.trainer.seed,
        "base": str(resolved.base),
        "plugins": {
            each.name: {"from": each.plugin.distribution, "version": each.plugin.version} for each in binding.active
        },
        **({"trust_remote_code": True} if config.model.trust_remote_code else {}),
    }


def _write_config(path: Path, resolved: ResolvedRun) -> None:
    yaml = YAML()
    yaml.default_flow_style = False
    with (path / "config.yaml").open("w", encoding="utf-8") as file:
        yaml.dump(_anchored(resolved), file)


def _anchored(resolved: ResolvedRun) -> dict[str, Any]:
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
