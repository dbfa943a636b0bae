"""What a process does that trains with the embedded engine for a driver elsewhere: the commands of a rank, of which it is all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relax_core.engines.critic import TorchCritic
from relax_core.engines.hf_model import load_critic, load_model, load_tokenizer
from relax_core.engines.job import Origin, bound, origins
from relax_core.engines.torch import TorchEngine, TorchSettings
from relax_core.engines.types import Policy, Tokens
from relax_core.faults import FORWARD, NotFinite
from relax_core.packing import rollout_of
from relax_core.runtime import Runtime
from relax_core.states import plain_states, put_states

BUCKET = 2**28
"""Bytes of weights that are sent at once."""


class TorchWorker:
    """The models of a run, or those of its roles that this process was given."""

    def open(self, job: Mapping[str, Any]) -> dict[str, Origin]:
        """Load the plugins and the models; says where the plugins are from."""
        self.config, self.binding = bound(job["run"])
        if self.config.trainer.num_threads is not None:
            torch.set_num_threads(self.config.trainer.num_threads)
        self.runtime = Runtime.of(self.config, self.binding)
        models, trust = dict(job["models"]), self.config.model.trust_remote_code
        self.trained: dict[str, Any] = {}
        if critic := models.pop("critic", None):
            model = load_critic(Path(critic["path"]), who=critic["who"], trust_remote_code=trust)
            self.trained["critic"] = TorchCritic(model, self.config.trainer, job["updates"])
        loaded = {
            role: load_model(Path(each["path"]), who=each["who"], trust_remote_code=trust)
            for role, each in models.items()
        }
        if loaded:
            self._open(loaded, Path(next(iter(models.values()))["path"]), job["updates"])
        return origins(self.binding)

    def score(self, tokens: list[list[list[int]]], policy: Policy) -> dict[str, Any]:
        """Log-probs of response tokens."""
        return _answer(self.engine.score(Tokens(tokens[0], tokens[1]), policy))

    def candidates(self, tokens: list[list[list[int]]], count: int) -> dict[str, Any]:
        """The teacher's log-probs of response tokens, the ids that it finds likeliest there, and theirs."""
        return _answer(*self.engine.candidates(Tokens(tokens[0], tokens[1]), count))

    def values(self, tokens: list[list[list[int]]]) -> dict[str, Any]:
        """The critic's values."""
        return _answer(self.trained["critic"].values(Tokens(tokens[0], tokens[1])))

    def update(
        self, tokens: list[list[list[int]]], rollout: dict[str, Any], step: int, states: dict[str, Any], role: str
    ) -> dict[str, Any]:
        """One optimizer update on a mini-batch; `states` are the plugins' own. `nonfinite` says what is not finite."""
        put_states(self.binding.active, states)
        engine = self.trained[role]
        try:
            update = engine.update(Tokens(tokens[0], tokens[1]), rollout_of(rollout, engine.device), self.runtime, step)
        except NotFinite as error:
            return {"nonfinite": error.plain(), **_forward(error)}
        result = {"metrics": update.metrics.plain(), "grad_norm": update.grad_norm, "lr": update.lr}
        return {**result, "applied": update.applied, "states": plain_states(self.binding.active)}

    def weights(self, role: str) -> Iterator[dict[str, Tensor]]:
        """The weights by name, bucket by bucket."""
        bucket: dict[str, Tensor] = {}
        for name, tensor in self.trained[role].weights():
            bucket[name] = tensor.cpu().clone()
            if sum(each.nbytes for each in bucket.values()) >= BUCKET:
                yield bucket
                bucket = {}
        if bucket:
            yield bucket

    def refresh_reference(self) -> None:
        """Copy the actor into the reference."""
        self.engine.refresh_reference()

    def save(self, directory: str, role: str, reference: bool = False) -> None:
        """A model for `from_pretrained`, and what training goes on from."""
        self.trained[role].save(Path(directory))

    def load(self, directory: str, role: str, reference: bool = False) -> None:
        """Go on from what `save` wrote."""
        self.trained[role].load(Path(directory))

    def leave(self) -> None:
        """Nothing waits for this process."""

    def _open(self, loaded: dict[str, Any], path: Path, updates: int) -> None:
        settings = TorchSettings(
            self.config.trainer,
            temperature=self.config.rollout.temperature,
            updates=updates,
            entropy=self.binding.needs("requires_entropy"),
            moves_reference=self.binding.most("reference_update_interval") > 0,
        )
        tokenizer = load_tokenizer(path, who="model.path", trust_remote_code=self.config.model.trust_remote_code)
        # A process of frozen models alone still needs one to read with: what is never trained costs no more.
        actor = loaded.get("actor") or next(iter(loaded.values()))
        frozen = {role: model for role, model in loaded.items() if role != "actor"}
        self.engine = TorchEngine(actor, tokenizer, settings, **frozen)
        if "actor" in loaded:
            self.trained["actor"] = self.engine


def _forward(error: NotFinite) -> dict[str, Any]:
    """What the forward pass gave for the whole batch, by name; nothing where that is not known."""
    if error.batch is None:
        return {}
    found = {name: error.batch.tokens[name] for name in FORWARD if error.batch.has(name)}
    return {"names": list(found), **_answer(*found.values())}


def _answer(*values: Tensor) -> dict[str, Any]:
    """Values of the whole batch, in its order."""
    return {"values": [each.cpu() for each in values], "places": torch.arange(len(values[0]))}
