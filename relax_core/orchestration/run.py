"""Generate, reward, train, and again, whoever does it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from relax_core.binding import Binding
from relax_core.engines.state import read_state, readable
from relax_core.orchestration.ahead import Ahead
from relax_core.orchestration.assemble import Parts
from relax_core.orchestration.continuous import Continuous
from relax_core.orchestration.evaluation import Evaluation
from relax_core.orchestration.generation import Generation
from relax_core.orchestration.incidents import Incidents
from relax_core.orchestration.log import say
from relax_core.orchestration.mismatch import warnings
from relax_core.orchestration.record import RunDirectory
from relax_core.orchestration.samples import shown
from relax_core.orchestration.symptoms import Watch
from relax_core.orchestration.training import Training
from relax_core.runfile import ResolvedRun
from relax_core.states import plain_states, put_states

LOOP_STATE = "loop.pt"
GENERATIONS = {"sync": Generation, "hybrid": Ahead, "async": Continuous}
"""What gives the rollouts, by mode."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a finished step says: `step` counts from 1, 0 is an evaluation before the first; `warnings` are sentences."""

    step: int
    total: int
    metrics: Mapping[str, float]
    tokens_per_second: float
    warnings: Sequence[str] = ()


class Run:
    """A run of these parts, which `generation` gives rollouts for."""

    def __init__(self, resolved: ResolvedRun, binding: Binding, parts: Parts) -> None:
        self.config, self.binding, self.parts = resolved.config, binding, parts
        fields = [each for plugin in binding.active for each in plugin.spec.fields]
        self.generation = GENERATIONS[self.config.trainer.mode](self.parts, fields)
        self.evaluation = Evaluation(self.parts)
        self.step, self.watch = 0, Watch(self.config.output.warn_after)

    def run(
        self, directory: RunDirectory, on_step: Callable[[StepReport], None], interrupted: Callable[[], bool]
    ) -> bool:
        """All steps that are left; True when it went to the end, False when it was interrupted. Saves at either."""
        fields = [each.name for plugin in self.binding.active for each in plugin.spec.fields]
        self.training = Training(self.parts, self.binding, Incidents(directory.path, self.config, fields))
        total, every = self.config.trainer.num_rollout, self.config.output.save_interval
        if self.step == 0:
            self._evaluate_first(directory, on_step)
        while self.step < total and not interrupted():
            on_step(self._one_step(directory))
            if every and self.step % every == 0 and self.step < total:
                directory.checkpoints.write(self.step, self._write)
        directory.checkpoints.write(self.step, self._write)
        say("finished" if self.step == total else "stopped", step=self.step)
        return self.step == total

    def resume(self, checkpoint: Path) -> int:
        """Go on from a checkpoint; gives the steps that are done."""
        self.parts.engine.load(checkpoint)
        if self.parts.critic is not None:
            self.parts.critic.load(checkpoint)
        with readable(checkpoint):
            state = read_state(checkpoint / LOOP_STATE)
        self.step = state["step"]
        self.generation.restore(state["generation"])
        put_states(self.binding.active, state["plugins"])
        self._publish_weights()
        return self.step

    def close(self) -> None:
        """Give back what the engines hold."""
        self.generation.close()
        self.parts.close()
        self.parts.sampler.close()
        self.parts.engine.close()

    def _one_step(self, directory: RunDirectory) -> StepReport:
        started = time.perf_counter()
        generated = self.generation.next(self.step)
        sampled = time.perf_counter()
        rollout = self.generation.pack(generated.kept, self.step)
        values = self.training.run(generated.kept, rollout, self.step)
        trained = time.perf_counter()
        plain_states(self.binding.active)  # what no checkpoint can hold is said now, and not hours later
        self.step += 1
        self.generation.before_new_weights()
        self._publish()
        evaluated, spent = self._evaluate()
        values = dict(sorted((values | generated.metrics() | evaluated).items()))
        speed = int(rollout.lengths.sum()) / (trained - started)
        timings = {
            "perf/generate_seconds": sampled - started,
            "perf/train_seconds": trained - sampled,
            "perf/tokens_per_second": speed,
            "perf/queue_depth": self.generation.depth,
            **spent,
        }
        samples = shown(generated.kept, self.training.prepared, self.config, self.parts.tokenizer)
        directory.write_step(self.step, values, timings, samples)
        total, rollout_config = self.config.trainer.num_rollout, self.config.rollout
        said = [*warnings(self.training.gap, rollout_config), *self.watch.warnings(values)]
        for warning in said:
            say("warning", logging.WARNING, step=self.step, message=warning)
        return StepReport(self.step, total, values, speed, said)

    def _evaluate_first(self, directory: RunDirectory, on_step: Callable[[StepReport], None]) -> None:
        """What the policy is worth before it is trained, as the line of step 0."""
        values, spent = self._evaluate()
        if values:
            directory.write_step(0, dict(sorted(values.items())), spent, ())
            on_step(StepReport(0, self.config.trainer.num_rollout, values, 0.0))

    def _evaluate(self) -> tuple[dict[str, float], dict[str, float]]:
        """Metrics and timings of the evaluation that is due now, with the weights that were published last; else none."""
        started = time.perf_counter()
        values = self.evaluation.run(self.step)
        return values, {"perf/evaluate_seconds": time.perf_counter() - started} if values else {}

    def _publish(self) -> None:
        self._publish_weights()
        interval = self.parts.reference_interval
        if interval and self.step % interval == 0:
            self.parts.engine.refresh_reference()

    def _publish_weights(self) -> None:
        """Give the weights to a sampler that holds a copy; one that shares them only hears that they are new."""
        sampler, engine = self.parts.sampler, self.parts.engine
        shared = sampler.shares_weights and not engine.copies_weights
        sampler.update_weights(() if shared else engine.weights(), self.step)

    def _write(self, path: Path) -> None:
        self.parts.engine.save(path)
        if self.parts.critic is not None:
            self.parts.critic.save(path)
        states = plain_states(self.binding.active)
        state = {"step": self.step, "generation": self.generation.state(), "plugins": states}
        torch.save(state, path / LOOP_STATE)
