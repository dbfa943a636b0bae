"""The rollout engine that a run names: the one place that knows their names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from relax_core.numerics.head import vocabulary_limit
from relax_core.rollout.hf import HFSampler, eos_ids
from relax_core.rollout.types import RolloutEngine

if TYPE_CHECKING:
    from relax_core.config import RunConfig


def rollout_engine(
    config: RunConfig, model: Any, tokenizer: Any, path: Path, longest: int, device: str
) -> RolloutEngine:
    """An engine that samples from `model`, or from a copy that it loads from `path` and that updates keep the same.

    Such an engine reads no weights of `model`. `longest` is how many tokens the longest prompt and response have
    together; `device` is the kind that the trainer has.
    """
    if config.rollout.engine == "hf":
        of_a_rollout = config.rollout.rollout_batch_size * config.rollout.n_samples_per_prompt
        return HFSampler(model, tokenizer, max_batch=config.rollout.max_batch or of_a_rollout)
    from relax_core.rollout.vllm.arguments import VLLMSettings
    from relax_core.rollout.vllm.engine import VLLMEngine

    settings = VLLMSettings(
        config.rollout,
        path,
        eos_ids=tuple(sorted(eos_ids(model, tokenizer))),
        vocabulary=vocabulary_limit(model, tokenizer),
        model_config=model.config,
        longest=longest,
        shapes={name: tuple(each.shape) for name, each in model.named_parameters()},
        device=device,
        seed=config.trainer.seed,
        threads=config.trainer.num_threads,
        in_flight=config.trainer.mode == "async",
        trust_remote_code=config.model.trust_remote_code,
    )
    return VLLMEngine(settings)
