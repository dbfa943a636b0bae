"""Everything in one process: generate, reward, train, and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from relax_core.batch import FinishReason, Rollout
from relax_core.binding import Binding
from relax_core.engines.state import read_state, readable
from relax_core.engines.types import CriticEngine, Tokens, TrainingEngine, Update
from relax_core.faults import NotFinite
from relax_core.orchestration.assemble import assemble
from relax_core.orchestration.collect import Response, tokens_of
from relax_core.orchestration.generation import Generation, shown
from relax_core.orchestration.incidents import Incidents
from relax_core.orchestration.mismatch import METRIC, refuse, warnings
from relax_core.orchestration.record import RunDirectory
from relax_core.orchestration.symptoms import Watch
from relax_core.packing import select_sequences
from relax_core.reductions import Metrics, mean_of
from relax_core.runfile import ResolvedRun
from relax_core.spec import SequenceField

LOOP_STATE = "loop.pt"


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a finished step says: `step` counts from 1; `warnings` are sentences."""

    step: int
    total: int
    metrics: Mapping[str, float]
    tokens_per_second: float
    warnings: Sequence[str] = ()


class LocalRun:
    """A synchronous run in this process."""

    def __init__(self, resolved: ResolvedRun, binding: Binding) -> None:
        self.config, self.binding = resolved.config, binding
        self.parts = assemble(resolved, binding)
        fields = [each for plugin in binding.active for each in plugin.spec.fields]
        self.generation = Generation(self.parts, [each for each in fields if isinstance(each, SequenceField)])
        self.step, self.watch = 0, Watch(self.config.output.warn_after)

    def run(
        self, directory: RunDirectory, on_step: Callable[[StepReport], None], interrupted: Callable[[], bool]
    ) -> bool:
        """All steps that are left; True when it went to the end, False when it was interrupted. Saves at either.

        The rollout engine is closed then, however it ends.
        """
        fields = [each.name for plugin in self.binding.active for each in plugin.spec.fields]
        self.incidents = Incidents(directory.path, self.config, fields)
        total, every = self.config.trainer.num_rollout, self.config.output.save_interval
        with closing(self.parts.sampler):
            while self.step < total and not interrupted():
                on_step(self._one_step(directory))
                if every and self.step % every == 0 and self.step < total:
                    directory.checkpoints.write(self.step, self._write)
            directory.checkpoints.write(self.step, self._write)
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
        for plugin in self.binding.active:
            plugin.state.update(state["plugins"].get(plugin.name, {}))
        self._publish_weights()
        return self.step

    def close(self) -> None:
        """Give back what the engines hold."""
        self.parts.engine.close()

    def _one_step(self, directory: RunDirectory) -> StepReport:
        started = time.perf_counter()
        generated = self.generation.run(self.step)
        self.parts.sampler.sleep()
        sampled = time.perf_counter()
        metrics, rollout, updates = self._train(generated.kept)
        trained = time.perf_counter()
        self.step += 1
        self._publish()
        values = {
            **metrics.reduce(rollout.group),
            **_describe_updates(updates),
            **_describe_rollout(rollout),
            **generated.metrics(),
        }
        values = dict(sorted(values.items()))
        speed = int(rollout.lengths.sum()) / (trained - started)
        timings = {
            "perf/generate_seconds": sampled - started,
            "perf/train_seconds": trained - sampled,
            "perf/tokens_per_second": speed,
        }
        size, count = self.config.rollout.n_samples_per_prompt, self.config.output.samples_per_step
        directory.write_step(self.step, values, timings, shown(generated.kept, size, count))
        total, rollout_config = self.config.trainer.num_rollout, self.config.rollout
        said = [*warnings(values.get(METRIC), rollout_config), *self.watch.warnings(values)]
        return StepReport(self.step, total, values, speed, said)

    def _train(self, responses: Sequence[Response]) -> tuple[Metrics, Rollout, list[Update]]:
        metrics, rollout = Metrics(), self.generation.pack(responses, self.step)
        if not responses:
            return metrics, rollout, []
        rollout, found = self.parts.runtime.prepare(self._score(responses, rollout), self.step)
        refuse(found.reduce(rollout.group).get(METRIC), self.config.rollout)
        metrics.update(found.partials.items())
        updates = list(self._updates(responses, rollout, metrics))
        for update in updates:
            metrics.update(update.metrics.partials.items())
        return metrics, rollout, updates

    def _score(self, responses: Sequence[Response], rollout: Rollout) -> Rollout:
        """The passes that the algorithm needs, without a graph: old log-probs, reference, teacher, critic."""
        tokens, engine, roles = tokens_of(responses), self.parts.engine, self.parts.topology.roles
        found: dict[str, Tensor] = {}
        if self.parts.runtime.policy_weight:
            taken = self.config.trainer.use_rollout_log_probs
            found["old_log_probs"] = rollout.rollout_log_probs if taken else engine.score(tokens, "actor")
        if "reference" in roles:
            found["ref_log_probs"] = engine.score(tokens, "reference")
        if count := self.binding.most("candidates"):
            names = ("teacher_log_probs", "candidate_ids", "teacher_candidate_log_probs")
            found |= zip(names, engine.candidates(tokens, count), strict=True)
        elif "teacher" in roles:
            found["teacher_log_probs"] = engine.score(tokens, "teacher")
        if self.parts.critic is not None:
            found["values"] = self.parts.critic.values(tokens)
        return rollout.with_values(**found)

    def _updates(self, responses: Sequence[Response], rollout: Rollout, metrics: Metrics) -> Iterator[Update]:
        """The actor's updates; the critic's, one for each, only leave their metrics."""
        tokens, parts = tokens_of(responses), self.parts
        for index in torch.split(torch.arange(rollout.size), parts.topology.global_batch_size):
            mine, part = tokens.select(index.tolist()), select_sequences(rollout, index.to(rollout.sequence_ids.device))
            if self.step >= self.config.trainer.num_critic_only_steps:
                yield self._update(parts.engine, mine, part, [responses[i] for i in index])
            if parts.critic is not None:
                update = self._update(parts.critic, mine, part, [responses[i] for i in index])
                metrics.update(update.metrics.partials.items())
                metrics.put("train/critic_grad_norm", mean_of(update.grad_norm))
                metrics.put("train/critic_lr", mean_of(update.lr))

    def _update(
        self, engine: TrainingEngine | CriticEngine, tokens: Tokens, part: Rollout, responses: Sequence[Response]
    ) -> Update:
        try:
            return engine.update(tokens, part, self.parts.runtime, self.step)
        except NotFinite as error:
            return self.incidents.settle(error, responses, self.step)

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
        states = {plugin.name: plugin.state for plugin in self.binding.active if plugin.state}
        state = {"step": self.step, "generation": self.generation.state(), "plugins": states}
        torch.save(state, path / LOOP_STATE)


def _describe_rollout(rollout: Rollout) -> dict[str, float]:
    if not rollout.size:
        return {}
    staleness = rollout.staleness.double()
    return {
        "rollout/response_length_mean": float(rollout.lengths.double().mean()),
        "rollout/truncated_ratio": float((rollout.finish_reasons == FinishReason.LENGTH).double().mean()),
        "rollout/staleness_mean": float(rollout.token_mean(staleness)),
        "rollout/staleness_max": float(staleness.max()) if len(staleness) else 0.0,
    }


def _describe_updates(updates: Sequence[Update]) -> dict[str, float]:
    applied = [update for update in updates if update.applied]
    norms = {"train/grad_norm": sum(update.grad_norm for update in applied) / len(applied)} if applied else {}
    rates = {"train/lr": updates[-1].lr} if updates else {}
    return {**norms, **rates, "train/skipped_updates": float(len(updates) - len(applied))}
