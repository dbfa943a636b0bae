"""How good the policy is on held-out prompts: sampled with settings of their own, and scored by the reward alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from relax_core.config import PromptOrigin, RunConfig
from relax_core.data.examples import Example, load_examples
from relax_core.data.rewards import RewardBatch
from relax_core.orchestration.collect import Response, decoded, scores_of
from relax_core.orchestration.failures import Failures
from relax_core.rollout.seeds import held_out_place
from relax_core.rollout.types import SamplingParams

if TYPE_CHECKING:
    from relax_core.orchestration.assemble import Parts


class Evaluation:
    """The evaluations of a run. They call no hook, and draw from no generator that training draws from."""

    def __init__(self, parts: Parts) -> None:
        self.parts, self.params = parts, sampling(parts.topology.run)
        self._failures = Failures()
        self.places = [held_out_place(index) for index in range(len(parts.held_out))]

    def run(self, step: int) -> dict[str, float]:
        """The `eval/*` metrics of the policy as it is after `step` steps, where one is due then; else none.

        Seeds and places are the same each time: equal weights give equal numbers. The rollout engine has to be awake.
        Raises RunError for a reward that fails, unless `data.on_reward_error` says otherwise.
        """
        if not self._is_due(step):
            return {}
        prompts = self.parts.held_out
        groups = self.parts.sample(prompts, self.params, self.places)
        rows = zip(self.places, prompts, groups, strict=True)
        found = [(place, prompt, each) for place, prompt, group in rows for each in group]
        responses = decoded(found, self.parts.tokenizer)
        scored = scores_of(responses, self.parts.reward)
        self._failures.tell(scored)
        return described(responses, scored, self.params.n)

    def _is_due(self, step: int) -> bool:
        evaluation, total = self.parts.topology.run.evaluation, self.parts.topology.run.trainer.num_rollout
        if not evaluation.interval:
            return False
        return evaluation.at_start if step == 0 else step % evaluation.interval == 0 or step == total


def described(responses: Sequence[Response], scored: RewardBatch, samples: int) -> dict[str, float]:
    """The metrics of `samples` responses to each prompt, one prompt after another."""
    rewards = torch.tensor(scored.rewards, dtype=torch.float64)
    lengths = [len(each.completion.token_ids) for each in responses]
    metrics = {
        "eval/reward_mean": float(rewards.mean()),
        "eval/reward_std": float(rewards.std()) if len(rewards) > 1 else 0.0,
        "eval/response_length_mean": sum(lengths) / len(lengths),
        "eval/truncated_ratio": sum(each.completion.finish_reason == "length" for each in responses) / len(lengths),
        "eval/reward_errors": float(scored.errors),
    }
    best = {"eval/reward_best": float(rewards.view(-1, samples).amax(1).mean())} if samples > 1 else {}
    return metrics | best


def sampling(config: RunConfig) -> SamplingParams:
    """How held-out prompts are sampled from."""
    evaluation, rollout = config.evaluation, config.rollout
    return SamplingParams(
        n=evaluation.n_samples_per_prompt,
        max_new_tokens=evaluation.max_new_tokens or rollout.max_new_tokens,
        temperature=evaluation.temperature,
        top_k=evaluation.top_k,
        top_p=evaluation.top_p,
        stop_token_ids=tuple(rollout.stop_token_ids),
        stop=tuple(rollout.stop),
        seed=config.trainer.seed,
    )


def held_out_examples(config: RunConfig, base: Path) -> list[Example]:
    """What `evaluation` names, with keys as in `data`; none for a run without evaluations. Raises as `load_examples`."""
    if not config.evaluation.interval:
        return []
    origin = {name: getattr(config.evaluation, name) for name in PromptOrigin.model_fields}
    examples = load_examples(config.data.model_copy(update=origin), base, "evaluation")
    return examples[: config.evaluation.num_prompts]
