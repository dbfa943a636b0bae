"""One round of generation: sample, reward, shape, keep the groups worth training on, and replace the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from relax_core.batch import Rollout
from relax_core.data.prompts import Prompt
from relax_core.orchestration.assemble import Parts
from relax_core.orchestration.collect import Response, decoded, pack, scores_of
from relax_core.orchestration.failures import Failures
from relax_core.orchestration.unfinished import Group
from relax_core.rollout.types import Budget, Completion, PartialRolloutEngine, SamplingParams
from relax_core.spec import SequenceField, TokenField

COUNTED = ("tool_calls", "tool_errors", "tool_timeouts", "tool_truncated", "environment_errors")
"""What a run with an environment counts in each step."""


@dataclass
class Round:
    """What a round gave: the responses of the groups that are kept, and what was seen on the way.

    `counts` are those of environments, empty without one.
    """

    kept: list[Response] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    errors: int = 0
    dropped: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def state(self) -> dict[str, Any]:
        """Plain values, for a checkpoint; `Generation.restored` makes the round of them again."""
        kept = [(each.group, each.completion.row(), each.score, each.reward) for each in self.kept]
        seen = {"scores": self.scores, "errors": self.errors, "dropped": self.dropped, "counts": dict(self.counts)}
        return {"kept": kept, **seen}

    def metrics(self) -> dict[str, float]:
        """Of all that was sampled, dropped groups included."""
        scores = torch.tensor(self.scores, dtype=torch.float64)
        return {
            "rollout/reward_mean": float(scores.mean()),
            "rollout/reward_std": float(scores.std()) if len(scores) > 1 else 0.0,
            "rollout/reward_errors": float(self.errors),
            "rollout/dropped_groups": float(self.dropped),
            **self._counted(),
        }

    def _counted(self) -> dict[str, float]:
        if not self.counts:
            return {}
        turns = {"rollout/turns_mean": self.counts["turns"] / len(self.scores)}
        return turns | {f"rollout/{name}": float(self.counts[name]) for name in COUNTED}


class Generation:
    """Rounds of generation. `cursor` counts the prompts that were used; `unfinished` groups go on in the next round."""

    def __init__(self, parts: Parts, fields: Sequence[SequenceField | TokenField]) -> None:
        self.parts, self.fields = parts, fields
        self.config = parts.topology.run
        self.cursor = 0
        self.unfinished: list[Group] = []
        self._failures = Failures()

    def next(self, step: int) -> Round:
        """The rollout that step `step` trains on."""
        result = self.run(step)
        self.parts.sampler.sleep()
        return result

    @property
    def depth(self) -> int:
        """Groups that were begun and are not trained on yet."""
        return len(self.unfinished)

    def before_new_weights(self) -> None:
        """Nothing is under way between two rollouts."""

    def close(self) -> None:
        """Nothing is under way between two rollouts."""

    def run(self, step: int) -> Round:
        """Groups until there are enough that every `keep_group` plugin keeps, or the refills are used up.

        A partial rollout is not refilled: it has as many groups as ended within its budget, one at least.
        """
        result, rollout = Round(), self.config.rollout
        for _ in range(1 if rollout.partial_rollout else rollout.max_refills + 1):
            missing = rollout.rollout_batch_size - len({each.group for each in result.kept})
            if missing:
                self._attempt(result, missing, step)
        return result

    def state(self) -> dict[str, Any]:
        """What a checkpoint has to hold, in plain values."""
        return {"cursor": self.cursor, "unfinished": [group.state() for group in self.unfinished]}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        self.cursor, self.unfinished = state["cursor"], [Group.restored(each) for each in state["unfinished"]]

    def restored(self, state: dict[str, Any]) -> Round:
        """The round that gave `state`."""
        rows = [(group, self._prompt(Group(group)), Completion(*row)) for group, row, _, _ in state["kept"]]
        kept = decoded(rows, self.parts.tokenizer)
        for response, (_, _, score, reward) in zip(kept, state["kept"], strict=True):
            response.score, response.reward = score, reward
        return Round(kept, state["scores"], state["errors"], state["dropped"], Counter(state.get("counts", {})))

    def restart(self) -> None:
        """Begin again with the first prompt."""
        self.restore({"cursor": 0, "unfinished": []})

    def pack(self, responses: Sequence[Response], step: int) -> Rollout:
        """The responses as a rollout on the training device."""
        mask = self.config.rollout.mask_offpolicy_in_partial_rollout
        return pack(responses, step, self.fields, self.parts.engine.device, mask_stale=mask)

    def _attempt(self, result: Round, groups: int, step: int) -> None:
        responses, errors = self._sampled(groups, step)
        kept = self._filter(responses, step)
        result.kept += kept
        result.scores += [each.score for each in responses]
        result.errors += errors
        for each in responses:
            result.counts.update(each.completion.counts)
        result.dropped += len({each.group for each in responses}) - len({each.group for each in kept})

    def _sampled(self, groups: int, step: int) -> tuple[list[Response], int]:
        """The scored responses of so many groups, or of those of them that ended, and how many rewards failed."""
        return self.scored(self._sample(self._open(groups)))

    def scored(self, groups: Sequence[Group]) -> tuple[list[Response], int]:
        """The responses of groups with their scores, and how many rewards failed."""
        responses = self._responses(groups)
        scored = scores_of(responses, self.parts.reward)
        self._failures.tell(scored)
        for response, reward in zip(responses, scored.rewards, strict=True):
            response.score = response.reward = reward
        return responses, scored.errors

    def _open(self, count: int) -> list[Group]:
        """`count` groups to sample: those that are not at their ends, then new ones."""
        begun, self.unfinished = self.unfinished, []
        new = [Group(self.cursor + i) for i in range(count - len(begun))]
        self.cursor += len(new)
        return begun + new

    def _sample(self, groups: list[Group]) -> list[Group]:
        """The groups that ended, with their responses; the others are kept for the next round."""
        prompts, places = [self._prompt(group) for group in groups], [group.place for group in groups]
        params = self._params()
        if not self.config.rollout.partial_rollout:
            sampled = self.parts.sample(prompts, params, places)
            return [Group(group.place, each) for group, each in zip(groups, sampled, strict=True)]
        ids = [each.token_ids for each in prompts]
        engine, budget = cast("PartialRolloutEngine", self.parts.sampler), self._budget()
        while not any(group.ended for group in groups):
            sampled = engine.proceed(ids, [group.responses for group in groups], params, budget, places)
            groups = [Group(group.place, each) for group, each in zip(groups, sampled, strict=True)]
        self.unfinished = [group for group in groups if not group.ended]
        return [group for group in groups if group.ended]

    def _prompt(self, group: Group) -> Prompt:
        return self.parts.prompts.take(group.place, 1)[0]

    def _responses(self, groups: Sequence[Group]) -> list[Response]:
        found = [(group.place, self._prompt(group), each) for group in groups for each in group.responses]
        return decoded(found, self.parts.tokenizer)

    def _filter(self, responses: list[Response], step: int) -> list[Response]:
        rollout = self.parts.runtime.shape_rewards(self.pack(responses, step), step)
        for response, reward in zip(responses, rollout.rewards.tolist(), strict=True):
            response.reward = reward
        keep = self.parts.runtime.kept_groups(rollout, step).tolist()
        return [response for response, kept in zip(responses, keep, strict=True) if kept]

    def _budget(self) -> Budget:
        return Budget(self.config.rollout.token_budget, self.config.rollout.time_budget)

    def _params(self) -> SamplingParams:
        rollout = self.config.rollout
        return SamplingParams(
            n=rollout.n_samples_per_prompt,
            max_new_tokens=rollout.max_new_tokens,
            temperature=rollout.temperature,
            top_k=rollout.top_k,
            top_p=rollout.top_p,
            stop_token_ids=tuple(rollout.stop_token_ids),
            stop=tuple(rollout.stop),
            seed=self.config.trainer.seed,
        )
