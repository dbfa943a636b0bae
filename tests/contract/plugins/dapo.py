"""Dynamic sampling and overlong reward shaping of DAPO (arXiv:2503.14476, §3.2 and §3.4), beside any estimator.

    keep a group where 0 < number of right answers < G
    R + 0 up to L_max − L_cache tokens, − (length − (L_max − L_cache)) / L_cache up to L_max, − 1 beyond

Its wider upper margin is `clip_ratio_high`, its token-level loss `loss_agg_mode: token-mean`.
"""

from __future__ import annotations

from torch import Tensor

from relax_core import (
    AlgorithmSpec,
    Component,
    ComponentConfig,
    Rollout,
    SequenceField,
    SequenceMean,
    Topology,
    Violation,
    hookimpl,
)


class Config(ComponentConfig):
    max_length: int = 20480
    """L_max: response tokens from which on the penalty is whole."""
    cache_length: int = 4096
    """L_cache: the tokens below L_max over which the penalty grows."""


@hookimpl
def algorithm() -> AlgorithmSpec:
    return AlgorithmSpec(
        "dapo",
        "Dynamic sampling and a soft penalty for overlong responses",
        paper="arXiv:2503.14476",
        config=Config,
        component=Component(
            formula="R − overlong; groups that are all right or all wrong leave", supports_context_parallel=True
        ),
        # Rewards are shaped before groups are chosen, and a length penalty would make every group look mixed.
        fields=(SequenceField("correct", "1 where the answer is right"),),
    )


def overlong(rollout: Rollout, config: Config) -> Tensor:
    beyond = rollout.lengths - (config.max_length - config.cache_length)
    return (beyond.to(rollout.rewards.dtype) / config.cache_length).clamp(0.0, 1.0)


@hookimpl
def shape_rewards(rollout: Rollout, config: Config) -> Tensor:
    return rollout.rewards - overlong(rollout, config)


@hookimpl
def keep_group(rollout: Rollout) -> Tensor:
    return rollout.group_std(rollout.read("correct")) > 0


@hookimpl
def rollout_metrics(rollout: Rollout, config: Config) -> dict[str, SequenceMean]:
    return {"overlong_penalty": SequenceMean(overlong(rollout, config))}


@hookimpl
def validate_topology(topology: Topology, config: Config) -> list[Violation]:
    if 0 < config.cache_length <= config.max_length:
        return []
    return [
        Violation("DAPO1", "algorithm.dapo.cache_length", "no room for the penalty to grow", "write 1 … max_length")
    ]
