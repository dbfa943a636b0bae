"""The embedded engine: a Hugging Face causal LM trained in one process, on a CPU or one GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relax_core.batch import Rollout
from relax_core.config import TrainerSection
from relax_core.engines.hf_model import Reading, can_share_prompts, likeliest, response_log_probs, row_width
from relax_core.engines.optimization import Optimization
from relax_core.engines.placement import Part, parts, placement, restore
from relax_core.engines.state import read_state, readable
from relax_core.engines.types import Policy, Tokens, Update
from relax_core.faults import NotFinite, locate
from relax_core.numerics.head import check_head, evaluating, vocabulary_limit
from relax_core.packing import loss_batch, select_sequences
from relax_core.runtime import LossOutput, Runtime

STATE = "trainer.pt"
REFERENCE = "reference.safetensors"


@dataclass(frozen=True, slots=True)
class TorchSettings:
    """What the engine reads of a run. `entropy`: something asks for it; `moves_reference`: it is part of a checkpoint."""

    trainer: TrainerSection
    temperature: float
    updates: int
    entropy: bool = False
    moves_reference: bool = False


class TorchEngine:
    """A `TrainingEngine` in this process. `frozen` holds the reference and the teacher, where the run has them."""

    copies_weights = False

    def __init__(self, model: Any, tokenizer: Any, settings: TorchSettings, **frozen: Any) -> None:
        self.settings, self.tokenizer = settings, tokenizer
        self.device, self._autocast = placement(settings.trainer)
        self.models: dict[Policy, Any] = {"actor": model.to(self.device)}
        for name, other in frozen.items():
            self.models[name] = other.to(self.device).requires_grad_(False).eval()  # type: ignore[index]
        for each in self.models.values():
            check_head(each)
        self._readings = {name: self._reading(each) for name, each in self.models.items()}
        if settings.trainer.gradient_checkpointing:
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.model.train()
        self.optimization = Optimization(
            self.model, settings.trainer, settings.trainer.lr, settings.updates, "torch engine"
        )

    @property
    def model(self) -> Any:
        """The actor."""
        return self.models["actor"]

    @property
    def vocabulary(self) -> int:
        """Ids that the actor can give."""
        rows: int = self.model.get_output_embeddings().weight.shape[0]
        return self._readings["actor"].vocabulary or rows

    def score(self, tokens: Tokens, policy: Policy) -> Tensor:
        """[T] log-probs of the response tokens under a policy, cut as training cuts them."""
        model, cut = self.models[policy], self._parts(tokens, policy)
        with torch.no_grad(), evaluating(model), self._autocast:
            found = [response_log_probs(model, part.tokens, self._readings[policy])[0] for part in cut]
        return restore(found, cut, tokens)

    def candidates(self, tokens: Tokens, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """The teacher's log-probs [T] of the response tokens, the ids [T, count] it finds likeliest there, and theirs."""
        model, cut = self.models["teacher"], self._parts(tokens, "teacher")
        with torch.no_grad(), evaluating(model), self._autocast:
            found = [likeliest(model, part.tokens, self._readings["teacher"], count) for part in cut]
        log_probs, ids, theirs = (restore(list(each), cut, tokens) for each in zip(*found, strict=True))
        return log_probs, ids, theirs

    def update(self, tokens: Tokens, rollout: Rollout, runtime: Runtime, step: int) -> Update:
        """One optimizer update on a mini-batch, in micro-batches."""

        def loss(part: Part) -> LossOutput:
            mine = select_sequences(rollout, torch.tensor(part.index, device=self.device))
            return runtime.loss(loss_batch(mine, None, **self._forward(part.tokens, mine)), step)

        try:
            return self.optimization.update(map(loss, self._parts(tokens, "actor")), step)
        except NotFinite as error:
            error.batch = loss_batch(rollout, None, **self._whole(tokens, rollout))
            error.faults = locate(runtime, error.batch, step)
            raise

    def refresh_reference(self) -> None:
        """Copy the actor into the reference."""
        self.models["reference"].load_state_dict(self.model.state_dict())

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The actor's parameters by name; they are the ones that a sampler in this process reads."""
        for name, parameter in self.model.named_parameters():
            yield name, parameter.detach()

    def save(self, directory: Path) -> None:
        """Model and tokenizer for `from_pretrained`; optimizer and schedule beside them; a reference that has moved."""
        self.model.save_pretrained(directory)
        self.tokenizer.save_pretrained(directory)
        torch.save(self.optimization.state_dict(), directory / STATE)
        if self.settings.moves_reference:
            from safetensors.torch import save_model

            save_model(self.models["reference"], str(directory / REFERENCE))

    def load(self, directory: Path) -> None:
        """Go on from what `save` wrote. Nothing that is read is executed: safetensors and `weights_only`."""
        from safetensors.torch import load_model

        with readable(directory):
            load_model(self.model, str(directory / "model.safetensors"))
            self.optimization.load_state_dict(read_state(directory / STATE, self.device))
            if self.settings.moves_reference:
                load_model(self.models["reference"], str(directory / REFERENCE))

    def close(self) -> None:
        """Let the models go."""
        self.models.clear()

    def _forward(self, tokens: Tokens, part: Rollout) -> dict[str, Tensor]:
        ids = part.candidate_ids if part.has("candidate_ids") else None
        with self._autocast:
            log_probs, entropy, candidates = response_log_probs(
                self.model, tokens, self._readings["actor"], entropy=self.settings.entropy, candidates=ids
            )
        found = {"log_probs": log_probs, "entropy": entropy, "candidate_log_probs": candidates}
        return {name: value for name, value in found.items() if value is not None}

    @torch.no_grad()
    def _whole(self, tokens: Tokens, rollout: Rollout) -> dict[str, Tensor]:
        """What the forward pass gives for all of a mini-batch."""
        cut = self._parts(tokens, "actor")
        found = [
            self._forward(part.tokens, select_sequences(rollout, torch.tensor(part.index, device=self.device)))
            for part in cut
        ]
        return {name: restore([each[name] for each in found], cut, tokens) for name in found[0]}

    def _parts(self, tokens: Tokens, policy: Policy) -> list[Part]:
        width = row_width(self.models[policy], share=self._readings[policy].share)
        return parts(tokens, self.settings.trainer, width)

    def _reading(self, model: Any) -> Reading:
        return Reading(self.settings.temperature, vocabulary_limit(model, self.tokenizer), can_share_prompts(model))
