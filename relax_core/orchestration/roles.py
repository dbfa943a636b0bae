"""From a resolved run to engines in other processes: which models they hold, and a last look at them before they start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from relax_core.binding import Binding
from relax_core.engines.hf_model import load_config
from relax_core.engines.megatron.engine import MegatronCritic, MegatronEngine
from relax_core.engines.placement import placement
from relax_core.engines.ranked import Role, Setting
from relax_core.engines.types import CriticEngine, TrainingEngine
from relax_core.errors import LoadError, UsageError
from relax_core.orchestration.assemble import check_tokenizer, model_path
from relax_core.rules import Run
from relax_core.runfile import ResolvedRun
from relax_core.startup import violations
from relax_core.topology import Topology

WHO = {
    "actor": "model.path",
    "critic": "model.critic_path",
    "reference": "model.ref_hf_model_path",
    "teacher": "model.teacher_path",
}


def engines(
    resolved: ResolvedRun, binding: Binding, topology: Topology, tokenizer: Any
) -> tuple[TrainingEngine, CriticEngine | None]:
    """Megatron's for the actor and the critic, on the same processes of this machine."""
    setting = setting_of(resolved, binding, topology, tokenizer)
    _check_devices(topology)
    engine = MegatronEngine(setting, tokenizer)
    return engine, MegatronCritic(engine) if "critic" in setting.models else None


def setting_of(resolved: ResolvedRun, binding: Binding, topology: Topology, tokenizer: Any) -> Setting:
    """What an engine elsewhere is told: its models by role. Raises UsageError where their shapes do not fit the run."""
    models = {role: _role(resolved, role, tokenizer) for role in sorted(topology.roles - {"rollout"})}
    shapes = {WHO[role]: dict(each.hf) for role, each in models.items()}
    found = [
        each.message
        for each in violations(Run(topology, binding, base=resolved.base, shapes=shapes))
        if each.severity == "error"
    ]
    if found:
        raise UsageError("\n".join(found))
    known = max(tokenizer.get_vocab().values()) + 1
    moves = binding.most("reference_update_interval") > 0
    return Setting(resolved, binding, models, known, topology.updates, moves)


def _role(resolved: ResolvedRun, role: str, tokenizer: Any) -> Role:
    model, who = resolved.config.model, WHO[role]
    if role == "reference" and model.ref_dist_ckpt_path is not None:
        path = model_path(resolved, model.path, "model.path")
        place = (resolved.base / Path(model.ref_dist_ckpt_path).expanduser()).resolve()
        return Role(path, _config(resolved, path, who, role), "model.ref_dist_ckpt_path", place)
    given = getattr(model, who.removeprefix("model.")) or model.path
    path = model_path(resolved, given, who)
    if role in ("reference", "teacher"):
        check_tokenizer(path, tokenizer, who, model.trust_remote_code)
    return Role(path, _config(resolved, path, who, role), who)


def _config(resolved: ResolvedRun, path: Path, who: str, role: str) -> dict[str, Any]:
    found = load_config(path, who=who, trust_remote_code=resolved.config.model.trust_remote_code)
    return {**found, "critic": True, "tie_word_embeddings": False} if role == "critic" else found


def _check_devices(topology: Topology) -> None:
    """What this machine may still have wrong, before a process starts."""
    placement(topology.run.trainer)
    if torch.cuda.is_available() and topology.run.trainer.device == "cpu":
        fix = "write device: auto, or hide the GPUs with CUDA_VISIBLE_DEVICES"
        raise LoadError("Megatron-core trains on the GPU where there is one", who="trainer.device", fix=fix)
    ranks, devices = topology.run.topology.ranks, torch.cuda.device_count()
    if torch.cuda.is_available() and ranks > devices:
        problem = f"{ranks} ranks need as many GPUs, here are {devices}"
        raise LoadError(problem, who="topology", fix=f"make the product of its sizes {devices} or less")
