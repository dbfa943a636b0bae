"""From a resolved run to its parts: models, engines, data, the bound algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from relax_core.binding import Binding
from relax_core.data.examples import load_examples
from relax_core.data.prompts import PromptSource
from relax_core.data.rewards import RewardFunction
from relax_core.engines.hf_model import load_model, load_tokenizer, without_progress_bars
from relax_core.engines.torch import TorchEngine, TorchSettings
from relax_core.orchestration.model_path import model_directory
from relax_core.rollout.hf import HFSampler
from relax_core.runfile import ResolvedRun
from relax_core.runtime import Runtime
from relax_core.spec import capability
from relax_core.startup import topology_of
from relax_core.topology import Topology


@dataclass(frozen=True, slots=True)
class Parts:
    """What a run in one process is made of. `reference_interval`: steps between copies of the actor into it; 0 is never."""

    topology: Topology
    tokenizer: Any
    engine: TorchEngine
    sampler: HFSampler
    prompts: PromptSource
    reward: RewardFunction
    runtime: Runtime
    reference_interval: int


def assemble(resolved: ResolvedRun, binding: Binding) -> Parts:
    """Load everything; what is cheap to find wrong is looked at first."""
    without_progress_bars()
    if resolved.config.trainer.num_threads is not None:
        torch.set_num_threads(resolved.config.trainer.num_threads)
    config, topology = resolved.config, topology_of(resolved, binding)
    reward = RewardFunction(config.data.reward, config.data.reward_args, config.data.on_reward_error, resolved.base)
    examples = load_examples(config.data, resolved.base)
    path = _model_path(resolved, config.model.path, "model.path")
    tokenizer = load_tokenizer(path, who="model.path", trust_remote_code=config.model.trust_remote_code)
    model = load_model(path, who="model.path", trust_remote_code=config.model.trust_remote_code)
    prompts = PromptSource(examples, tokenizer, config.data, config.trainer.seed, _longest_prompt(resolved, model))
    interval = _reference_interval(binding)
    engine = TorchEngine(model, tokenizer, _settings(topology, binding, interval), _reference(resolved, topology))
    sampler = HFSampler(engine.model, tokenizer, max_batch=config.rollout.max_batch)
    return Parts(topology, tokenizer, engine, sampler, prompts, reward, runtime_of(resolved, binding), interval)


def runtime_of(resolved: ResolvedRun, binding: Binding) -> Runtime:
    """The bound algorithm as the configuration wants it reduced."""
    algorithm, trainer = resolved.config.algorithm, resolved.config.trainer
    return Runtime(
        binding,
        aggregation=algorithm.loss_agg_mode,
        length=algorithm.loss_agg_length or resolved.config.rollout.max_new_tokens,
        normalize_advantages=algorithm.normalize_advantages,
        seed=trainer.seed,
        total_steps=trainer.num_rollout,
    )


def _settings(topology: Topology, binding: Binding, interval: int) -> TorchSettings:
    trainer = topology.run.trainer
    return TorchSettings(
        trainer,
        temperature=topology.run.rollout.temperature,
        updates=trainer.num_rollout * topology.num_steps_per_rollout,
        entropy=binding.needs("requires_entropy"),
        moves_reference=interval > 0,
    )


def _reference_interval(binding: Binding) -> int:
    intervals: list[int] = [
        capability(role, "reference_update_interval", config)
        for _, name, role, config in binding.roles()
        if name == "component"
    ]
    return max([0, *intervals])


def _reference(resolved: ResolvedRun, topology: Topology) -> Any:
    if "reference" not in topology.roles:
        return None
    who, model = "model.ref_hf_model_path", resolved.config.model
    path = _model_path(resolved, str(model.ref_hf_model_path), who)
    return load_model(path, who=who, trust_remote_code=model.trust_remote_code)


def _model_path(resolved: ResolvedRun, reference: str, who: str) -> Path:
    cache = Path(resolved.config.model.cache_dir).expanduser()
    return model_directory(reference, who=who, base=resolved.base, cache=cache)


def _longest_prompt(resolved: ResolvedRun, model: Any) -> int | None:
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    room = None if context is None else context - resolved.config.rollout.max_new_tokens
    limits = [limit for limit in (resolved.config.data.max_prompt_tokens, room) if limit is not None]
    return min(limits, default=None)
