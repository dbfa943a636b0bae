"""relax: reinforcement-learning algorithms for language models, as plugins. These are the names that a plugin may import."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relax_core.batch import CriticBatch, FinishReason, LossBatch, Rollout
    from relax_core.context import Context
    from relax_core.environments.sampler import Sampler
    from relax_core.environments.trajectory import EnvironmentConfig, EnvironmentPrompt, Trajectory, Turn
    from relax_core.hookspecs import hookimpl
    from relax_core.numerics.kl import MAX_LOG_RATIO, kl_estimate
    from relax_core.results import (
        Advantage,
        LossTerm,
        Mask,
        Max,
        Min,
        PolicyLoss,
        SequenceMean,
        Sum,
        TokenMean,
        ValueLoss,
        Weight,
    )
    from relax_core.spec import (
        AlgorithmConfig,
        AlgorithmSpec,
        Component,
        ComponentConfig,
        Estimator,
        Flag,
        Loss,
        SequenceField,
        TokenField,
    )
    from relax_core.topology import Topology, Violation

_HOMES = {
    "batch": ("CriticBatch", "FinishReason", "LossBatch", "Rollout"),
    "context": ("Context",),
    "environments.sampler": ("Sampler",),
    "environments.trajectory": ("EnvironmentConfig", "EnvironmentPrompt", "Trajectory", "Turn"),
    "hookspecs": ("hookimpl",),
    "numerics.kl": ("MAX_LOG_RATIO", "kl_estimate"),
    "results": (
        "Advantage", "LossTerm", "Mask", "Max", "Min", "PolicyLoss", "SequenceMean", "Sum", "TokenMean", "ValueLoss", "Weight",
    ),
    "spec": (
        "AlgorithmConfig", "AlgorithmSpec", "Component", "ComponentConfig", "Estimator", "Flag", "Loss", "SequenceField",
        "TokenField",
    ),
    "topology": ("Topology", "Violation"),
}  # fmt: skip
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "MAX_LOG_RATIO",
    "Advantage",
    "AlgorithmConfig",
    "AlgorithmSpec",
    "Component",
    "ComponentConfig",
    "Context",
    "CriticBatch",
    "EnvironmentConfig",
    "EnvironmentPrompt",
    "Estimator",
    "FinishReason",
    "Flag",
    "Loss",
    "LossBatch",
    "LossTerm",
    "Mask",
    "Max",
    "Min",
    "PolicyLoss",
    "Rollout",
    "Sampler",
    "SequenceField",
    "SequenceMean",
    "Sum",
    "TokenField",
    "TokenMean",
    "Topology",
    "Trajectory",
    "Turn",
    "ValueLoss",
    "Violation",
    "Weight",
    "hookimpl",
    "kl_estimate",
]


def __getattr__(name: str) -> Any:
    """Names are imported when they are first used, so that importing relax_core imports no torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'relax_core' has no attribute '{name}'")
    return getattr(import_module(f"relax_core.{_HOME[name]}"), name)
