"""What lies in a folder of runs: plain files, read as they are, finished or not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from relax_core.errors import UsageError
from relax_core.orchestration.checkpoints import damage_of, step_of
from relax_core.orchestration.record import CONFIG, INCIDENTS, METRICS, RUN, checkpoints_of, records_of


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as its directory tells it: resolved `config`, `described` (`run.json`), and a line of metrics a step.

    A line of step 0 is an evaluation before the first.
    """

    path: Path
    config: dict[str, Any]
    described: dict[str, Any]
    metrics: list[dict[str, float]]

    @property
    def total(self) -> int:
        """Steps that it is to make."""
        return int(self.config["trainer"]["num_rollout"])

    @property
    def last(self) -> dict[str, float]:
        """The metrics of the newest line; empty before the first."""
        return self.metrics[-1] if self.metrics else {}

    @property
    def done(self) -> int:
        """Steps that it has made."""
        return int(self.last.get("step", 0))

    def at(self, step: int) -> dict[str, float]:
        """The metrics of a step; empty where there are none."""
        return next((each for each in self.metrics if each["step"] == step), {})

    @property
    def algorithm(self) -> str:
        """The estimator, and the loss where another plugin's was chosen; the rest of the plugins with a plus."""
        chosen = self.config["algorithm"]
        names = [chosen.get("advantage_estimator"), chosen.get("policy_loss")]
        return "+".join(dict.fromkeys(name for name in (*names, *self.described["plugins"]) if name))

    def checkpoints(self) -> Iterator[tuple[int, str]]:
        """The step of each, and what is damaged in it."""
        for path in checkpoints_of(self.path).all():
            yield step_of(path), damage_of(path)

    def incidents(self) -> list[Path]:
        """Cases of updates whose numbers went wrong."""
        return sorted((self.path / INCIDENTS).glob("*.json"))


def read_run(path: Path) -> RunRecord:
    """Raises UsageError for what is no run directory."""
    try:
        config = YAML(typ="safe").load((path / CONFIG).read_text(encoding="utf-8"))
        described = json.loads((path / RUN).read_text(encoding="utf-8"))
        records = list(records_of(path / METRICS, missing_ok=False))
        if not isinstance(config, dict) or not isinstance(described, dict):
            raise ValueError(f"{CONFIG} or {RUN} holds no mapping")
        return RunRecord(path, config, described, records)
    except (OSError, ValueError, YAMLError) as error:
        raise UsageError(f"'{path}' is not a run directory: {error}", who="RUN_DIR") from None


def runs_in(folder: Path) -> list[RunRecord]:
    """Every run below a folder, the newest last. Raises UsageError for a folder that there is not."""
    if not folder.is_dir():
        raise UsageError(f"'{folder}' is no directory", who="DIR", fix="name the folder that holds run directories")
    homes = {path.parent for path in folder.rglob(METRICS)}
    return [read_run(path) for path in sorted(homes, key=lambda path: ((path / METRICS).stat().st_mtime, path))]
