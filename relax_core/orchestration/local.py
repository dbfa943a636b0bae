"""Everything in one process: generate, reward, train, and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from relax_core.batch import FinishReason, Rollout
from relax_core.binding import Binding
from relax_core.data.prompts import Prompt, PromptSource, load_examples
from relax_core.data.references import load_callable
from relax_core.data.rewards import RewardFunction, Sample
from relax_core.engines.hf_model import check_directory, load_model, load_tokenizer
from relax_core.engines.torch import TorchEngine, TorchSettings
from relax_core.engines.types import Update
from relax_core.orchestration.collect import Response, pack, tokens_of
from relax_core.orchestration.record import RunDirectory, latest_checkpoint
from relax_core.packing import select_sequences
from relax_core.reductions import Metrics
from relax_core.rollout.hf import HFSampler
from relax_core.rollout.types import SamplingParams
from relax_core.runfile import ResolvedRun
from relax_core.runtime import Runtime
from relax_core.spec import SequenceField
from relax_core.startup import topology_of

LOOP_STATE = "loop.pt"


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a finished step says: `step` counts from 1."""

    step: int
    total: int
    metrics: Mapping[str, float]
    tokens_per_second: float


class LocalRun:
    """A synchronous run in this process."""

    def __init__(self, resolved: ResolvedRun, binding: Binding) -> None:
        config = resolved.config
        self.config, self.binding = config, binding
        self.topology = topology_of(resolved, binding)
        self.base = resolved.base
        self.reward = RewardFunction(config.data.reward, config.data.reward_args, config.data.on_reward_error, self.base)
        examples = load_examples(config.data, self.base)
        path = self._model_path(config.model.path, "model.path")
        self.tokenizer = load_tokenizer(path, who="model.path", trust_remote_code=config.model.trust_remote_code)
        model = load_model(path, who="model.path", trust_remote_code=config.model.trust_remote_code)
        self.prompts = PromptSource(examples, self.tokenizer, config.data, config.trainer.seed, self._longest_prompt(model))
        self.engine = TorchEngine(model, self.tokenizer, self._settings(), self._reference())
        self.sampler = HFSampler(self.engine.model, self.tokenizer, max_batch=config.rollout.max_batch)
        self.runtime = self._runtime()
        self.step = self.cursor = 0

    def run(
        self, directory: RunDirectory, on_step: Callable[[StepReport], None], interrupted: Callable[[], bool]
    ) -> bool:
        """All steps that are left; True when it went to the end, False when it was interrupted. Saves at either."""
        total, every = self.config.trainer.num_rollout, self.config.output.save_interval
        while self.step < total and not interrupted():
            on_step(self._one_step(directory))
            if every and self.step % every == 0 and self.step < total:
                self._save(directory)
        self._save(directory)
        return self.step == total

    def resume(self, path: Path) -> int:
        """Go on from the newest checkpoint of a run directory; gives the steps that are done."""
        checkpoint = latest_checkpoint(path)
        self.engine.load(checkpoint)
        state = torch.load(checkpoint / LOOP_STATE, weights_only=True)
        self.step, self.cursor = state["step"], state["cursor"]
        for plugin in self.binding.active:
            plugin.state.update(state["plugins"].get(plugin.name, {}))
        self.sampler.update_weights((), self.step)
        return self.step

    # -- a step ------------------------------------------------------------------------------------------------------

    def _one_step(self, directory: RunDirectory) -> StepReport:
        clock = [time.perf_counter()]
        metrics = Metrics()
        responses, extra = self._generate()
        clock.append(time.perf_counter())
        rollout, found = self.runtime.prepare(self._scored(responses), self.step)
        metrics.update(found.partials.items())
        updates = list(self._updates(responses, rollout))
        for update in updates:
            metrics.update(update.metrics.partials.items())
        clock.append(time.perf_counter())
        self.step += 1
        self._publish()
        values = {**metrics.reduce(rollout.group), **_describe_updates(updates), **_describe(rollout), **extra}
        values = dict(sorted(values.items()))
        spent = {"perf/generate_seconds": clock[1] - clock[0], "perf/train_seconds": clock[2] - clock[1]}
        speed = int(rollout.lengths.sum()) / (clock[2] - clock[0])
        directory.write_step(self.step, values, {**spent, "perf/tokens_per_second": speed}, self._shown(responses))
        return StepReport(self.step, self.config.trainer.num_rollout, values, speed)

    def _generate(self) -> tuple[list[Response], dict[str, float]]:
        """Groups until there are enough that every `keep_group` plugin keeps, or the refills are used up."""
        wanted, kept, seen, errors, dropped = self.config.rollout.rollout_batch_size, [], [], 0, 0
        for attempt in range(self.config.rollout.max_refills + 1):
            missing = wanted - len({each.group for each in kept})
            if missing == 0:
                break
            fresh, failed = self._sample(self.prompts.take(self.cursor, missing), attempt)
            self.cursor += missing
            good = self._filter(fresh)
            seen, kept, errors = [*seen, *fresh], [*kept, *good], errors + failed
            dropped += missing - len({each.group for each in good})
        scores = torch.tensor([each.score for each in seen])
        found = {
            "rollout/reward_mean": float(scores.mean()),
            "rollout/reward_std": float(scores.std()) if len(scores) > 1 else 0.0,
            "rollout/reward_errors": float(errors),
            "rollout/dropped_groups": float(dropped),
        }
        return kept, found

    def _sample(self, prompts: list[Prompt], attempt: int) -> tuple[list[Response], int]:
        completions = self.sampler.generate([prompt.token_ids for prompt in prompts], self._params(attempt))
        pairs = [(prompt, each) for prompt, group in zip(prompts, completions, strict=True) for each in group]
        texts = self.tokenizer.batch_decode([each.token_ids for _, each in pairs], skip_special_tokens=True)
        samples = [
            Sample.of(prompt, text, each.token_ids, each.finish_reason)
            for (prompt, each), text in zip(pairs, texts, strict=True)
        ]
        scored = self.reward.score(samples)
        size, first = self.config.rollout.n_samples_per_prompt, attempt * self.config.rollout.rollout_batch_size
        responses = [
            Response(prompt, completion, sample, first + i // size, reward, reward)
            for i, ((prompt, completion), sample, reward) in enumerate(zip(pairs, samples, scored.rewards, strict=True))
        ]
        return responses, scored.errors

    def _filter(self, responses: list[Response]) -> list[Response]:
        rollout = self.runtime.shape_rewards(self._pack(responses), self.step)
        for response, reward in zip(responses, rollout.rewards.tolist(), strict=True):
            response.reward = reward
        keep = self.runtime.kept_groups(rollout, self.step).tolist()
        return [response for response, kept in zip(responses, keep, strict=True) if kept]

    def _scored(self, responses: list[Response]) -> Rollout:
        rollout, tokens = self._pack(responses), tokens_of(responses)
        if not responses:
            return rollout.with_values(old_log_probs=rollout.rollout_log_probs, ref_log_probs=rollout.rollout_log_probs)
        taken = self.config.trainer.use_rollout_log_probs
        old = rollout.rollout_log_probs if taken else self.engine.score(tokens, "actor")
        rollout = rollout.with_values(old_log_probs=old)
        if "reference" in self.topology.roles:
            rollout = rollout.with_values(ref_log_probs=self.engine.score(tokens, "reference"))
        return rollout

    def _updates(self, responses: list[Response], rollout: Rollout) -> Iterator[Update]:
        tokens = tokens_of(responses)
        for index in torch.arange(rollout.size).split(self.topology.global_batch_size):
            part = select_sequences(rollout, index.to(rollout.sequence_ids.device))
            yield self.engine.update(tokens.select(index.tolist()), part, self.runtime, self.step)

    def _publish(self) -> None:
        """The sampler reads the trained parameters themselves; what is left is to say that they are new."""
        self.sampler.update_weights((), self.step)
        for _, _, role, config in self.binding.roles():
            interval = getattr(role, "reference_update_interval", -1)
            interval = interval(config) if callable(interval) else interval
            if interval > 0 and self.step % interval == 0:
                self.engine.refresh_reference()

    # -- parts -------------------------------------------------------------------------------------------------------

    def _pack(self, responses: list[Response]) -> Rollout:
        fields = [each for plugin in self.binding.active for each in plugin.spec.fields]
        return pack(responses, self.step, [each for each in fields if isinstance(each, SequenceField)], self.engine.device)

    def _params(self, attempt: int) -> SamplingParams:
        rollout = self.config.rollout
        seed = (self.config.trainer.seed * 1_000_003 + self.step) * 1_000 + attempt
        return SamplingParams(
            n=rollout.n_samples_per_prompt,
            max_new_tokens=rollout.max_new_tokens,
            temperature=rollout.temperature,
            top_k=rollout.top_k,
            top_p=rollout.top_p,
            stop_token_ids=tuple(rollout.stop_token_ids),
            stop=tuple(rollout.stop),
            seed=seed,
        )

    def _settings(self) -> TorchSettings:
        moves = any(
            (interval(config) if callable(interval) else interval) > 0
            for _, _, role, config in self.binding.roles()
            if (interval := getattr(role, "reference_update_interval", -1))
        )
        trainer = self.config.trainer
        updates = trainer.num_rollout * self.topology.num_steps_per_rollout
        return TorchSettings(trainer, self.config.rollout.temperature, updates, self.binding.needs("requires_entropy"), moves)

    def _runtime(self) -> Runtime:
        algorithm = self.config.algorithm
        return Runtime(
            self.binding,
            aggregation=algorithm.loss_agg_mode,
            length=algorithm.loss_agg_length or self.config.rollout.max_new_tokens,
            normalize_advantages=algorithm.normalize_advantages,
            seed=self.config.trainer.seed,
            total_steps=self.config.trainer.num_rollout,
        )

    def _reference(self) -> Any:
        if "reference" not in self.topology.roles:
            return None
        who = "model.ref_hf_model_path"
        return load_model(self._model_path(str(self.config.model.ref_hf_model_path), who), who=who)

    def _model_path(self, reference: str, who: str) -> Path:
        if ":" in reference:
            builder = load_callable(reference, who=who, base=self.base)
            return Path(builder(Path(self.config.model.cache_dir).expanduser()))
        beside = self.base / reference
        path = beside if beside.is_dir() else Path(reference).expanduser()
        check_directory(path, who=who)
        return path

    def _longest_prompt(self, model: Any) -> int | None:
        context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        room = None if context is None else context - self.config.rollout.max_new_tokens
        limits = [limit for limit in (self.config.data.max_prompt_tokens, room) if limit is not None]
        return min(limits, default=None)

    def _save(self, directory: RunDirectory) -> None:
        directory.checkpoint(self.step, self._write)

    def _write(self, path: Path) -> None:
        self.engine.save(path)
        states = {plugin.name: plugin.state for plugin in self.binding.active if plugin.state}
        torch.save({"step": self.step, "cursor": self.cursor, "plugins": states}, path / LOOP_STATE)

    def _shown(self, responses: list[Response]) -> list[dict[str, Any]]:
        size = max(1, self.config.rollout.n_samples_per_prompt)
        shown = [*responses[::size], *(each for i, each in enumerate(responses) if i % size)]
        return [
            {
                "id": each.sample.id,
                "prompt": each.prompt.text,
                "response": each.sample.response,
                "answer": each.sample.answer,
                "reward": each.score,
                "tokens": len(each.completion.token_ids),
                "finish_reason": each.completion.finish_reason,
            }
            for each in shown[: self.config.output.samples_per_step]
        ]


def _describe(rollout: Rollout) -> dict[str, float]:
    if not rollout.size:
        return {}
    staleness = rollout.staleness.double()
    return {
        "rollout/response_length_mean": float(rollout.lengths.double().mean()),
        "rollout/truncated_ratio": float((rollout.finish_reasons == FinishReason.LENGTH).double().mean()),
        "rollout/staleness_mean": float(rollout.token_mean(staleness)),
        "rollout/staleness_max": float(staleness.max()) if len(staleness) else 0.0,
    }


def _describe_updates(updates: list[Update]) -> dict[str, float]:
    applied = [update for update in updates if update.applied]
    norms = {"train/grad_norm": sum(update.grad_norm for update in applied) / len(applied)} if applied else {}
    rates = {"train/lr": updates[-1].lr} if updates else {}
    return {**norms, **rates, "train/skipped_updates": float(len(updates) - len(applied))}
