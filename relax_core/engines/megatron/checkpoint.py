"""Checkpoints of a model under training that another parallel layout can load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing

from relax_core.engines.megatron.training import Trained
from relax_core.errors import LoadError

SHARDING = {"distrib_optim_sharding_type": "fully_reshardable"}
"""Of the distributed optimizer: the form that can be loaded in another layout."""

HYPERPARAMETERS = ("lr", "max_lr", "min_lr", "weight_decay", "betas", "eps")


def save(trained: Trained, directory: Path) -> None:
    """Weights, optimizer and schedule; all ranks take part and write to one directory."""
    state = {"schedule": trained.schedule.state_dict(), "model": trained.model.sharded_state_dict()}
    if trained.schedule.num_steps:
        state["optimizer"] = trained.optimizer.sharded_state_dict(state["model"], metadata=SHARDING)
    write(state, directory)


def load(trained: Trained, directory: Path) -> None:
    """Go on from what `save` wrote, in any layout. An optimizer that had made no update has no state to load."""
    common = _common(directory)
    state: dict[str, Any] = {"model": trained.model.sharded_state_dict()}
    if common["schedule"]["num_steps"]:
        state["optimizer"] = trained.optimizer.sharded_state_dict(state["model"], is_loading=True, metadata=SHARDING)
    found = dist_checkpointing.load(state, str(directory))
    trained.model.load_state_dict(found["model"])
    with torch.no_grad():
        if "optimizer" in found:
            _load_optimizer(trained.optimizer, found["optimizer"])
    trained.schedule.num_steps = 0  # what is loaded is added to it
    trained.schedule.load_state_dict(common["schedule"])


def _load_optimizer(optimizer: Any, state: Any) -> None:
    """Moments and step counts are the checkpoint's; rates, betas and decays stay those of the configuration."""
    own = [{name: group[name] for name in HYPERPARAMETERS if name in group} for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, kept in zip(optimizer.param_groups, own, strict=True):
        group.update(kept)


def write(state: dict[str, Any], directory: Path) -> None:
    """A directory that holds a sharded state."""
    directory.mkdir(parents=True, exist_ok=True)
    dist_checkpointing.save(state, str(directory))


def load_weights(model: Any, directory: Path, who: str) -> None:
    """The weights alone, of a `dist_ckpt` directory."""
    _common(directory, who)
    model.load_state_dict(dist_checkpointing.load({"model": model.sharded_state_dict()}, str(directory))["model"])


def _common(directory: Path, who: str = "--resume") -> Any:
    if not (directory / "metadata.json").is_file():
        fix = "name one that trainer.engine: megatron wrote"
        raise LoadError(f"'{directory}' is no Megatron checkpoint", who=who, fix=fix)
    return dist_checkpointing.load_common_state_dict(str(directory))
