"""From a resolved run to its parts: models, engines, data, the bound algorithm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from relax_core.binding import Binding
from relax_core.data.examples import Example, load_examples
from relax_core.data.prompts import Prompt, PromptSource
from relax_core.data.rewards import RewardFunction
from relax_core.engines.critic import TorchCritic
from relax_core.engines.hf_model import (
    load_critic,
    load_model,
    load_skeleton,
    load_tokenizer,
    without_progress_bars,
)
from relax_core.engines.placement import placement
from relax_core.engines.torch import TorchEngine, TorchSettings
from relax_core.engines.types import CriticEngine, TrainingEngine
from relax_core.environments.loading import Environment, load_environment
from relax_core.errors import LoadError
from relax_core.orchestration.episodes import Episodes
from relax_core.orchestration.evaluation import held_out_examples, sampling
from relax_core.orchestration.model_path import model_directory
from relax_core.rollout.factory import rollout_engine
from relax_core.rollout.types import Completion, RolloutEngine, SamplingParams
from relax_core.runfile import ResolvedRun
from relax_core.runtime import Runtime
from relax_core.startup import topology_of
from relax_core.topology import Topology

WINDOW = "rollout.environment.max_context_tokens"


@dataclass(frozen=True, slots=True)
class Parts:
    """What a run in one process is made of.

    `held_out` are the prompts of an evaluation. `reference_interval`: steps between copies of the actor into it; 0 is never.
    `environment` is None where a response is one turn.
    """

    topology: Topology
    tokenizer: Any
    engine: TrainingEngine
    critic: CriticEngine | None
    sampler: RolloutEngine
    prompts: PromptSource
    held_out: list[Prompt]
    reward: RewardFunction
    runtime: Runtime
    reference_interval: int
    environment: Episodes | None = None

    def sample(
        self, prompts: Sequence[Prompt], params: SamplingParams, places: Sequence[int]
    ) -> list[list[Completion]]:
        """`params.n` responses to each prompt: those of the environment, or of one turn each."""
        if self.environment is not None:
            return self.environment.generate(prompts, params, places)
        return self.sampler.generate([each.token_ids for each in prompts], params, places)

    def close(self) -> None:
        """End what the environment has under way."""
        if self.environment is not None:
            self.environment.close()


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a run reads: its tokenizer, its model, its prompts. `longest`: tokens of the longest sequence there can be."""

    topology: Topology
    tokenizer: Any
    path: Path
    model: Any
    prompts: PromptSource
    held_out: list[Prompt]
    longest: int
    reward: RewardFunction
    environment: Environment | None

    def parts(
        self,
        engine: TrainingEngine,
        critic: CriticEngine | None,
        sampler: RolloutEngine,
        reward: Any,
        runtime: Runtime,
        interval: int,
    ) -> Parts:
        """A whole run, with what computes."""
        read = (self.prompts, self.held_out)
        config, found = self.topology.run, self.environment
        episodes = None if found is None else Episodes(found, config, sampler, self.tokenizer)
        return Parts(self.topology, self.tokenizer, engine, critic, sampler, *read, reward, runtime, interval, episodes)


def assemble(resolved: ResolvedRun, binding: Binding) -> Parts:
    """Load everything; what is cheap to find wrong is looked at first."""
    config = resolved.config
    is_read = config.trainer.engine == "torch" or config.rollout.engine == "hf"
    inputs = read_inputs(resolved, binding, load_model if is_read else load_skeleton)
    interval = binding.most("reference_update_interval")
    engine, critic = _engines(resolved, binding, inputs.topology, inputs.tokenizer, inputs.model)
    check_candidates(engine, binding.most("candidates"))
    # The embedded engine trains this very model; any other engine has its own, and sends the sampler its weights.
    device = placement(config.trainer)[0].type
    sampler = rollout_engine(config, inputs.model, inputs.tokenizer, inputs.path, inputs.longest, device)
    return inputs.parts(engine, critic, sampler, inputs.reward, Runtime.of(config, binding), interval)


def read_inputs(resolved: ResolvedRun, binding: Binding, load: Callable[..., Any]) -> Inputs:
    """Everything but what computes; `load` gives the model of a directory, with its weights or without."""
    without_progress_bars()
    if resolved.config.trainer.num_threads is not None:
        torch.set_num_threads(resolved.config.trainer.num_threads)
    config, data = resolved.config, resolved.config.data
    reward = RewardFunction(data.reward, data.reward_args, data.on_reward_error, resolved.base)
    name = config.rollout.environment.name
    environment = None if name is None else load_environment(name, resolved.base)
    examples, held_out = load_examples(data, resolved.base), held_out_examples(config, resolved.base)
    path = model_path(resolved, config.model.path, "model.path")
    tokenizer = load_tokenizer(path, who="model.path", trust_remote_code=config.model.trust_remote_code)
    model = load(path, who="model.path", trust_remote_code=config.model.trust_remote_code)
    prompts = _prompts(resolved, examples, tokenizer, model, "rollout", config.rollout.max_new_tokens)
    response = sampling(config).max_new_tokens
    asked = _prompts(resolved, held_out, tokenizer, model, "evaluation", response).prompts
    longest = max(
        config.rollout.at_once(_longest(prompts.prompts), config.rollout.max_new_tokens),
        config.rollout.at_once(_longest(asked), response),
    )
    topology = topology_of(config, binding)
    return Inputs(topology, tokenizer, path, model, prompts, asked, longest, reward, environment)


def _engines(
    resolved: ResolvedRun, binding: Binding, topology: Topology, tokenizer: Any, model: Any
) -> tuple[TrainingEngine, CriticEngine | None]:
    if topology.run.trainer.engine == "megatron":
        from relax_core.orchestration.roles import engines

        return engines(resolved, binding, topology, tokenizer)
    settings = _settings(topology, binding, binding.most("reference_update_interval"))
    engine = TorchEngine(model, tokenizer, settings, **_frozen(resolved, topology, tokenizer))
    return engine, _critic(resolved, topology)


def _settings(topology: Topology, binding: Binding, interval: int) -> TorchSettings:
    return TorchSettings(
        topology.run.trainer,
        temperature=topology.run.rollout.temperature,
        updates=topology.updates,
        entropy=binding.needs("requires_entropy"),
        moves_reference=interval > 0,
    )


def _frozen(resolved: ResolvedRun, topology: Topology, tokenizer: Any) -> dict[str, Any]:
    """The models that are only read: reference and teacher, where the run has them."""
    model = resolved.config.model
    wanted = {
        "reference": ("model.ref_hf_model_path", model.ref_hf_model_path),
        "teacher": ("model.teacher_path", model.teacher_path),
    }
    found = {}
    for role in sorted(topology.roles & set(wanted)):
        who, reference = wanted[role]
        path = model_path(resolved, str(reference), who)
        check_tokenizer(path, tokenizer, who, model.trust_remote_code)
        found[role] = load_model(path, who=who, trust_remote_code=model.trust_remote_code)
    return found


def check_tokenizer(path: Path, tokenizer: Any, who: str, trust: bool) -> None:
    """Refuse a model whose ids mean other tokens than the policy's."""
    if load_tokenizer(path, who=who, trust_remote_code=trust).get_vocab() != tokenizer.get_vocab():
        fix = "give a model with the policy's tokenizer"
        raise LoadError(f"'{path}' has another vocabulary than the policy", who=who, fix=fix)


def check_candidates(engine: TrainingEngine, count: int) -> None:
    known = engine.vocabulary
    if count > known:
        problem = f"{count} candidates a token are asked for, the vocabulary has {known}"
        raise LoadError(problem, who="algorithm", fix=f"ask for {known} or fewer")


def _critic(resolved: ResolvedRun, topology: Topology) -> TorchCritic | None:
    if "critic" not in topology.roles:
        return None
    model = resolved.config.model
    who = "model.path" if model.critic_path is None else "model.critic_path"
    path = model_path(resolved, model.critic_path or model.path, who)
    loaded = load_critic(path, who=who, trust_remote_code=model.trust_remote_code)
    return TorchCritic(loaded, resolved.config.trainer, topology.updates)


def model_path(resolved: ResolvedRun, reference: str, who: str) -> Path:
    """The directory that a reference to a model means; `who` is the setting that has it."""
    cache = Path(resolved.config.model.cache_dir).expanduser()
    return model_directory(reference, who=who, base=resolved.base, cache=cache)


def _prompts(
    resolved: ResolvedRun, examples: list[Example], tokenizer: Any, model: Any, section: str, response: int
) -> PromptSource:
    """Those of a section, whose responses have up to `response` tokens, as far as they fit into every context."""
    config = resolved.config
    contexts = [getattr(model.config.get_text_config(), "max_position_embeddings", None), config.rollout.max_model_len]
    context = min((each for each in contexts if each is not None), default=None)
    room, fix = None if context is None else context - response, f"lower {section}.max_new_tokens"
    environment = config.rollout.environment
    if environment.name is not None and (most := environment.max_context_tokens) is not None:
        if context is not None and most > context:
            raise LoadError(f"{most} is more than the {context} that the model can read", who=WINDOW, fix="lower it")
        room, fix = most - 1, f"raise {WINDOW}"
    return PromptSource(examples, tokenizer, config.data, config.trainer.seed, room, fix)


def _longest(prompts: Sequence[Prompt]) -> int:
    """In tokens; 0 of none."""
    return max((len(each.token_ids) for each in prompts), default=0)
