"""The embedded critic: the same trunk with a value head, its own optimizer, and the same reduction of its loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relax_core.batch import Rollout
from relax_core.config import TrainerSection
from relax_core.engines.hf_model import can_share_prompts, row_width, states
from relax_core.engines.optimization import Optimization
from relax_core.engines.placement import Part, parts, placement, restore
from relax_core.engines.state import read_state, readable
from relax_core.engines.types import Tokens, Update
from relax_core.faults import NotFinite, locate
from relax_core.numerics.head import evaluating
from relax_core.packing import critic_batch, select_sequences
from relax_core.runtime import LossOutput, Runtime

WEIGHTS = "critic"
STATE = "critic.pt"


class TorchCritic:
    """A `CriticEngine` in this process. The temperature of sampling never touches its values."""

    def __init__(self, model: Any, trainer: TrainerSection, updates: int) -> None:
        self.trainer = trainer
        self.device, self._autocast = placement(trainer)
        self.model = model.to(self.device).train()
        self._share = can_share_prompts(self.model)
        lr = trainer.lr if trainer.critic_lr is None else trainer.critic_lr
        self.optimization = Optimization(self.model, trainer, lr, updates, "critic")

    def values(self, tokens: Tokens) -> Tensor:
        """[T] the value of the state before each response token, in eval mode and without a graph."""
        cut = self._parts(tokens)
        with torch.no_grad(), evaluating(self.model):
            return restore([self._forward(part.tokens) for part in cut], cut, tokens)

    def update(self, tokens: Tokens, rollout: Rollout, runtime: Runtime, step: int) -> Update:
        """One optimizer update on a mini-batch, in micro-batches."""

        def loss(part: Part) -> LossOutput:
            mine = select_sequences(rollout, torch.tensor(part.index, device=self.device))
            return runtime.value_loss(critic_batch(mine, self._forward(part.tokens)), step)

        try:
            return self.optimization.update(map(loss, self._parts(tokens)), step)
        except NotFinite as error:
            error.batch = critic_batch(rollout, self.values(tokens))
            error.faults = locate(runtime, error.batch, step)
            raise

    def save(self, directory: Path) -> None:
        """A directory that `from_pretrained` loads; optimizer and schedule beside it."""
        self.model.save_pretrained(directory / WEIGHTS)
        torch.save(self.optimization.state_dict(), directory / STATE)

    def load(self, directory: Path) -> None:
        """Go on from what `save` wrote."""
        from safetensors.torch import load_model

        with readable(directory):
            load_model(self.model, str(directory / WEIGHTS / "model.safetensors"))
            self.optimization.load_state_dict(read_state(directory / STATE, self.device))

    def _parts(self, tokens: Tokens) -> list[Part]:
        return parts(tokens, self.trainer, row_width(self.model, share=self._share))

    def _forward(self, tokens: Tokens) -> Tensor:
        with self._autocast:
            hidden, _ = states(self.model, tokens, share=self._share)
            values: Tensor = self.model.score(hidden)
        return values.squeeze(-1).float()
