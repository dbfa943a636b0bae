"""The models of a rank: those under training, and the frozen ones, as weights to swap in where they have the actor's shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.transformer.module import Float16Module
from torch import Tensor

from relax_core.config import RunConfig
from relax_core.engines.megatron import checkpoint, convert
from relax_core.engines.megatron.head import VocabularyHead
from relax_core.engines.megatron.model import Trunk, build
from relax_core.engines.megatron.training import Trained
from relax_core.numerics.head import evaluating

TRAINED = ("actor", "critic")


@dataclass(frozen=True, slots=True, eq=False)
class Readable:
    """A model that can run now: its `trunk`, and the `module` around it that a schedule calls."""

    trunk: Trunk
    module: Any


class Models:
    """`wanted` has, for each role, a `path` or a `dist_ckpt`, who asks for it, and its Hugging Face configuration `hf`."""

    def __init__(
        self, run: RunConfig, wanted: Mapping[str, Any], vocabulary: int, updates: int, device: torch.device
    ) -> None:
        self.run, self.wanted, self.vocabulary, self.device = run, wanted, vocabulary, device
        bfloat16 = run.trainer.dtype == "bfloat16" or (run.trainer.dtype == "auto" and device.type == "cuda")
        self.dtype = torch.bfloat16 if bfloat16 else torch.float32
        self.others: dict[str, Readable] = {}
        self.stored: dict[str, list[Tensor]] = {}
        self.trained: dict[str, Trained] = {}
        actor = self._build("actor") if "actor" in wanted else None
        for role in sorted(set(wanted) - set(TRAINED)):
            self._freeze(role, actor)
        if actor is not None:
            self.trained["actor"] = self._train("actor", actor, run.trainer.lr, updates)
        if "critic" in wanted:
            lr = run.trainer.lr if run.trainer.critic_lr is None else run.trainer.critic_lr
            self.trained["critic"] = self._train("critic", self._build("critic"), lr, updates)

    @contextmanager
    def reading(self, role: str) -> Iterator[Readable]:
        """A role's model in eval mode, without a graph; the actor's model with a frozen role's weights, until the end."""
        with torch.no_grad():
            model = self.others.get(role) or self._readable("critic" if role == "critic" else "actor")
            weights = self.stored.get(role, [])
            _exchange(model.trunk, weights)
            try:
                with evaluating(model.module):
                    yield model
            finally:
                _exchange(model.trunk, weights)

    def head(self, trunk: Trunk) -> VocabularyHead:
        """What turns the trunk's hidden states into log-probs, on the last pipeline stage."""
        group = parallel_state.get_tensor_model_parallel_group()
        return VocabularyHead(trunk.head_weight, self.vocabulary, self.run.rollout.temperature, group)

    @torch.no_grad()
    def refresh_reference(self) -> None:
        """Copy the actor into the reference."""
        for mine, parameter in zip(self.stored["reference"], self.trained["actor"].model.parameters(), strict=True):
            mine.copy_(parameter)

    def _train(self, role: str, model: Trunk, lr: float, updates: int) -> Trained:
        self._fill(role, model)
        who = "megatron engine" if role == "actor" else role
        return Trained(model, self.run.trainer, lr, updates, who)

    def _build(self, role: str) -> Trunk:
        model: Trunk = build(self.wanted[role]["hf"], self.run, self.dtype).to(self.device)
        return model

    def _freeze(self, role: str, actor: Trunk | None) -> None:
        """The weights alone where the shape is the actor's: a device then holds one model, and the host the others."""
        if actor is not None and _shape(self.wanted[role]["hf"]) == _shape(self.wanted["actor"]["hf"]):
            self._fill(role, actor)
            self.stored[role] = [each.detach().cpu().clone() for each in actor.parameters()]
            return
        model = self._build(role).requires_grad_(False)
        self._fill(role, model)
        module = Float16Module(model.config, model) if model.config.bf16 else model
        self.others[role] = Readable(model, module)

    def _fill(self, role: str, model: Trunk) -> None:
        given = self.wanted[role]
        if given.get("dist_ckpt"):
            checkpoint.load_weights(model, Path(given["dist_ckpt"]), given["who"])
        else:
            convert.load(model, Path(given["path"]), given["hf"], given["who"])

    def _readable(self, role: str) -> Readable:
        return Readable(self.trained[role].model, self.trained[role].module)


def _exchange(model: Trunk, weights: list[Tensor]) -> None:
    """The model's weights for those that are given, which become what the model had."""
    for mine, parameter in zip(weights, model.parameters(), strict=False):
        held = parameter.detach().cpu().clone()
        parameter.copy_(mine)
        mine.copy_(held)


def _shape(hf: Mapping[str, Any]) -> dict[str, Any]:
    """What two configurations have in common when one model can hold the weights of both."""
    names = ("model_type", "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "head_dim",
             "num_key_value_heads", "vocab_size", "tie_word_embeddings", "rope_parameters", "rms_norm_eps", "num_local_experts",
             "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob")  # fmt: skip
    return {name: hf.get(name) for name in names}
