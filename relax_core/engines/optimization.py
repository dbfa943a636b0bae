"""The optimizer's half of an update: one division by the count, clipping by the true norm, a schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from relax_core.config import TrainerSection
from relax_core.engines.types import Update
from relax_core.faults import NotFinite
from relax_core.reductions import Metrics
from relax_core.runtime import LossOutput


class Optimization:
    """AdamW on a model's parameters; `updates` is how many the schedule is for, `who` is named in errors."""

    def __init__(self, model: Any, trainer: TrainerSection, lr: float, updates: int, who: str) -> None:
        from transformers import get_scheduler

        self._model, self._limit, self._who = model, trainer.clip_grad or torch.inf, who
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=lr,
            betas=(trainer.adam_beta1, trainer.adam_beta2),
            eps=trainer.adam_eps,
            weight_decay=trainer.weight_decay,
        )
        name = "constant_with_warmup" if trainer.lr_schedule == "constant" else trainer.lr_schedule
        self.schedule: Any = get_scheduler(
            name, self.optimizer, num_warmup_steps=trainer.lr_warmup_steps, num_training_steps=updates
        )

    def update(self, outputs: Iterable[LossOutput], step: int) -> Update:
        """Accumulate Σ grad over the micro-batches' losses, divide once by Σ count, clip, and step.

        `outputs` is taken one at a time, so that one graph lives at once.
        """
        self.optimizer.zero_grad(set_to_none=True)
        metrics = Metrics()
        count: Tensor | float = 0.0
        total: Tensor | float = 0.0
        for output in outputs:
            output.sum.backward()  # type: ignore[no-untyped-call]
            count, total = count + output.count, total + output.sum.detach()
            metrics.update(output.metrics.partials.items())
        return self._apply(metrics, float(count), float(total), step)

    def _apply(self, metrics: Metrics, count: float, total: float, step: int) -> Update:
        """With nothing counted nothing changes, moments and schedule included."""
        lr = self.optimizer.param_groups[0]["lr"]
        if count == 0:
            self.optimizer.zero_grad(set_to_none=True)
            return Update(metrics, 0.0, lr, applied=False)
        parameters = [parameter for parameter in self._model.parameters() if parameter.grad is not None]
        gradients = [parameter.grad for parameter in parameters]
        torch._foreach_div_(gradients, count)
        norm = torch.nn.utils.get_total_norm(gradients)
        if not (norm < torch.inf and math.isfinite(total)):
            wrong = [name for name, each in self._model.named_parameters() if not _is_finite(each.grad)]
            self.optimizer.zero_grad(set_to_none=True)
            what = "gradient" if math.isfinite(total) else "loss"
            raise NotFinite(f"the {what} of step {step + 1} is not finite", self._who, lr, wrong)
        torch.nn.utils.clip_grads_with_norm_(parameters, self._limit, norm)
        self.optimizer.step()
        self.schedule.step()
        return Update(metrics, float(norm), lr, applied=True)

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` goes on from."""
        return {"optimizer": self.optimizer.state_dict(), "schedule": self.schedule.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state: moments, and how far the schedule is. Rates and decays stay those of the configuration."""
        own, base = self.optimizer.state_dict()["param_groups"], self.schedule.base_lrs
        self.optimizer.load_state_dict({"state": state["optimizer"]["state"], "param_groups": own})
        self.schedule.load_state_dict(state["schedule"])
        self.schedule.base_lrs = base
        rates = [rate * at(self.schedule.last_epoch) for rate, at in zip(base, self.schedule.lr_lambdas, strict=True)]
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


def _is_finite(gradient: Tensor | None) -> bool:
    return gradient is None or bool(gradient.isfinite().all())
