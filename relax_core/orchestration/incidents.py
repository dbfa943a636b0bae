"""What becomes of an update whose numbers went wrong: it is located, kept as a case, and skipped or the end of the run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from relax_core.batch import LossBatch, Rollout
from relax_core.config import RunConfig
from relax_core.conformance.case import TOKEN_FIELDS
from relax_core.engines.types import Update
from relax_core.errors import RunError
from relax_core.faults import Fault, NotFinite, faults_in
from relax_core.orchestration.collect import Response
from relax_core.orchestration.disk import write_whole, writing
from relax_core.orchestration.log import warn
from relax_core.orchestration.record import INCIDENTS
from relax_core.redaction import redacted_values
from relax_core.reductions import Metrics, mean_of

SAMPLED = "look for a policy that has diverged, or a dtype that is too narrow; trainer.on_nonfinite: skip goes on"


class Incidents:
    """Those of one run, as `incidents/step_000012.json` in its directory: cases for `relax plugins replay`."""

    def __init__(self, directory: Path, config: RunConfig, fields: Sequence[str]) -> None:
        self.directory, self.config, self.fields = directory / INCIDENTS, config, fields

    def settle(self, error: NotFinite, responses: Sequence[Response], step: int) -> Update:
        """An update that was not made, where the run is to go on; raises `error`, with all that is known, where not."""
        told = error.what
        if error.faults:
            told += ": " + "; ".join(_told(each, responses) for each in error.faults)
        elif error.batch is not None:
            told += f": every value is finite before the backward pass; {_of_gradients(error.parameters)}"
        if error.batch is not None and error.batch.has("log_probs"):
            told += f". Its batch: relax plugins replay {self._keep(error.batch, step)}"
        if self.config.trainer.on_nonfinite == "stop":
            raise NotFinite(told, error.who, error.lr)
        warn(f"{error.who}: {told}. The update is skipped")
        metrics = Metrics()
        metrics.put("train/nonfinite_updates", mean_of(1.0))
        return Update(metrics, 0.0, error.lr, applied=False)

    def sampled(self, responses: Sequence[Response], rollout: Rollout) -> Metrics:
        """How many log-probs of the rollout engine are no numbers, told with the first; raises RunError where none may be."""
        metrics, who = Metrics(), f"rollout engine '{self.config.rollout.engine}'"
        for fault in faults_in(
            "rollout engine", "rollout_log_probs", rollout.rollout_log_probs, rollout.raw_mask, rollout
        ):
            told = f"sampled log-probs are not finite: {_told(fault, responses)}"
            if self.config.trainer.on_nonfinite == "stop":
                raise RunError(told, who=who, fix=SAMPLED)
            warn(f"{who}: {told}")
            metrics.put("rollout/nonfinite_log_probs", mean_of(float(fault.count)))
        return metrics

    def _keep(self, batch: LossBatch, step: int) -> Path:
        with writing(self.directory):
            self.directory.mkdir(exist_ok=True)
        path = self.directory / f"step_{step + 1:06d}.json"
        algorithm = redacted_values(self.config.algorithm.model_dump(mode="json", exclude={"plugins"}))
        name = algorithm["advantage_estimator"] or ""
        case = {"name": path.stem, "algorithm": name, "config": {"algorithm": algorithm}}
        sequences = list(sequences_of(batch, self.fields))
        write_whole(path, json.dumps({**case, "sequences": sequences}, indent=1) + "\n")
        return path


def _told(fault: Fault, responses: Sequence[Response]) -> str:
    return fault.told(f"sequence {fault.sequence} ({responses[fault.sequence].sample.id})")


def _of_gradients(parameters: Sequence[str]) -> str:
    """Which of them are not finite: the pass goes from the loss through the model, so the last is nearest to the fault."""
    if not parameters:
        return "so is every gradient, but not their norm"
    return f"the gradients of {len(parameters)} parameters are not, that of {parameters[-1]} nearest to the loss"


def sequences_of(batch: LossBatch, fields: Sequence[str]) -> list[dict[str, Any]]:
    """The sequences of a batch in the form of a case; `fields` are those of plugins."""
    lengths = torch.bincount(batch.sequence_ids, minlength=batch.size).tolist()
    names = {**TOKEN_FIELDS, "logp": "log_probs", "entropy": "entropy", "mask": "raw_mask"}
    names |= {each: each for each in fields if each in batch.tokens}
    columns = {
        key: [part.tolist() for part in torch.split(batch.tokens[name].detach().cpu(), lengths)]
        for key, name in names.items()
        if name in batch.tokens
    }
    columns |= {each: batch.sequences[each].tolist() for each in fields if each in batch.sequences}
    columns |= {"group": batch.sequences["group_ids"].tolist(), "reward": batch.sequences["rewards"].tolist()}
    return [{key: values[index] for key, values in columns.items()} for index in range(batch.size)]
