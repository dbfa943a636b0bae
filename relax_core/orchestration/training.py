"""The training half of a step: passes without a graph, advantages, and one update for each mini-batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from relax_core.batch import FinishReason, Rollout
from relax_core.binding import Binding
from relax_core.engines.types import CriticEngine, Tokens, TrainingEngine, Update
from relax_core.faults import NotFinite
from relax_core.orchestration.assemble import Parts
from relax_core.orchestration.collect import Response, tokens_of
from relax_core.orchestration.incidents import Incidents
from relax_core.orchestration.mismatch import FRESH, gap_of, refuse
from relax_core.packing import select_sequences
from relax_core.reductions import Metrics, mean_of

Engine: TypeAlias = TrainingEngine | CriticEngine


class Training:
    """What a run trains with; `incidents` settles updates whose numbers go wrong.

    `gap` is the last step's between the log-probs of the two engines, `prepared` the rollout that it trained on.
    """

    def __init__(self, parts: Parts, binding: Binding, incidents: Incidents) -> None:
        self.parts, self.binding, self.incidents = parts, binding, incidents
        self.config = parts.topology.run
        self.gap: float | None = None
        self.prepared: Rollout | None = None

    def run(self, responses: Sequence[Response], rollout: Rollout, step: int) -> dict[str, float]:
        """Score, prepare and update; gives the metrics. `rollout` is the responses packed; with none nothing is done."""
        metrics, updates, self.prepared = Metrics(), list[Update](), None
        if responses:
            metrics.update(self.incidents.sampled(responses, rollout).partials.items())
            rollout, found = self.parts.runtime.prepare(self._score(responses, rollout), step)
            self.gap = gap_of(rollout)
            self.prepared = rollout
            refuse(self.gap, self.config.rollout)
            metrics.update(found.partials.items())
            updates = list(self._updates(responses, rollout, metrics, step))
        for update in updates:
            metrics.update(update.metrics.partials.items())
        values = metrics.reduce(rollout.group)
        self.gap = values.get(FRESH) if self.gap is None else self.gap
        return {**values, **_describe_updates(updates), **_describe_rollout(rollout)}

    def _score(self, responses: Sequence[Response], rollout: Rollout) -> Rollout:
        """The passes that the algorithm needs, without a graph: old log-probs, reference, teacher, critic."""
        tokens, engine, roles = tokens_of(responses), self.parts.engine, self.parts.topology.roles
        found: dict[str, Tensor] = {}
        if self.parts.runtime.policy_weight and self.config.trainer.use_rollout_log_probs:
            found["old_log_probs"] = rollout.rollout_log_probs
        elif self.parts.runtime.policy_weight and self._needs_old(rollout):
            found["old_log_probs"] = engine.score(tokens, "actor")
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

    def _needs_old(self, rollout: Rollout) -> bool:
        """Not where the one update that there is can take them from its own forward: the weights are the same."""
        updated_again = rollout.size > self.parts.topology.global_batch_size
        looked_at = self.config.rollout.mismatch_stop is not None or self.binding.needs("requires_old_log_probs")
        return updated_again or looked_at

    def _updates(
        self, responses: Sequence[Response], rollout: Rollout, metrics: Metrics, step: int
    ) -> Iterator[Update]:
        """The actor's updates; the critic's, one for each, only leave their metrics."""
        tokens, parts = tokens_of(responses), self.parts
        for index in torch.split(torch.arange(rollout.size), parts.topology.global_batch_size):
            mine, part = tokens.select(index.tolist()), select_sequences(rollout, index.to(rollout.sequence_ids.device))
            if step >= self.config.trainer.num_critic_only_steps:
                yield self._update(parts.engine, mine, part, [responses[i] for i in index], step)
            if parts.critic is not None:
                update = self._update(parts.critic, mine, part, [responses[i] for i in index], step)
                metrics.update(update.metrics.partials.items())
                metrics.put("train/critic_grad_norm", mean_of(update.grad_norm))
                metrics.put("train/critic_lr", mean_of(update.lr))

    def _update(
        self, engine: Engine, tokens: Tokens, part: Rollout, responses: Sequence[Response], step: int
    ) -> Update:
        try:
            return engine.update(tokens, part, self.parts.runtime, step)
        except NotFinite as error:
            return self.incidents.settle(error, responses, step)


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
