"""The embedded engine: a Hugging Face causal LM trained in one process, on a CPU or one GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relax_core.batch import Rollout
from relax_core.config import TrainerSection
from relax_core.engines.hf_model import can_share_prompts, response_log_probs
from relax_core.engines.microbatch import by_count, by_tokens
from relax_core.engines.types import Policy, Tokens, Update
from relax_core.errors import LoadError, RunError
from relax_core.numerics.head import check_head, evaluating, vocabulary_limit
from relax_core.packing import loss_batch, select_sequences
from relax_core.reductions import Metrics
from relax_core.runtime import Runtime

STATE = "trainer.pt"
REFERENCE = "reference.safetensors"


@dataclass(frozen=True, slots=True)
class TorchSettings:
    """What the engine reads of a run. `entropy`: something asks for it; `moves_reference`: it is part of a checkpoint."""

    trainer: TrainerSection
    temperature: float
    updates: int
    entropy: bool
    moves_reference: bool


class TorchEngine:
    """A `TrainingEngine` in this process. The model's parameters stay float32; on a GPU the arithmetic is bfloat16."""

    def __init__(self, model: Any, tokenizer: Any, settings: TorchSettings, reference: Any = None) -> None:
        self.settings = settings
        self.device, self._autocast = _placement(settings.trainer)
        self.tokenizer = tokenizer
        self.model = model.to(self.device)
        self.reference: Any = None if reference is None else reference.to(self.device).requires_grad_(False).eval()
        check_head(self.model)
        self._vocabulary = vocabulary_limit(self.model, tokenizer)
        self._share = can_share_prompts(self.model)
        if settings.trainer.gradient_checkpointing:
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.model.train()
        self.optimizer, self.schedule = _optimizer(self.model, settings)

    def score(self, tokens: Tokens, policy: Policy) -> Tensor:
        """[T] log-probs of the response tokens under the actor or the reference, cut as training cuts them."""
        model: Any = self.model if policy == "actor" else self.reference
        index = self._cuts(tokens)
        with torch.no_grad(), evaluating(model):
            parts = [self._forward(model, tokens.select(cut), entropy=False)[0] for cut in index]
        return _restore(parts, index, [len(response) for response in tokens.responses])

    def update(self, tokens: Tokens, rollout: Rollout, runtime: Runtime, step: int) -> Update:
        """Accumulate Σ grad over the micro-batches, divide once by Σ count, clip, and step."""
        self.optimizer.zero_grad(set_to_none=True)
        metrics, count = Metrics(), torch.zeros((), device=self.device)
        for cut in self._cuts(tokens):
            part = select_sequences(rollout, torch.tensor(cut, device=self.device))
            log_probs, entropy = self._forward(self.model, tokens.select(cut), entropy=self.settings.entropy)
            extra = {"log_probs": log_probs} if entropy is None else {"log_probs": log_probs, "entropy": entropy}
            output = runtime.loss(loss_batch(part, None, **extra), step)
            output.sum.backward()  # type: ignore[no-untyped-call]
            count = count + output.count
            metrics.update(output.metrics.partials.items())
        return self._apply(metrics, float(count), step)

    def _apply(self, metrics: Metrics, count: float, step: int) -> Update:
        lr = self.optimizer.param_groups[0]["lr"]
        if count == 0:
            self.optimizer.zero_grad(set_to_none=True)
            return Update(metrics, 0.0, lr, applied=False)
        parameters = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        torch._foreach_div_([parameter.grad for parameter in parameters], count)
        limit = self.settings.trainer.clip_grad or torch.inf
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, limit))
        if not norm < torch.inf:
            fix = "look at the learning rate and at the samples of this step"
            raise RunError(f"the gradient of step {step} is not finite", who="torch engine", fix=fix)
        self.optimizer.step()
        self.schedule.step()
        return Update(metrics, norm, lr, applied=True)

    def refresh_reference(self) -> None:
        """Copy the actor into the reference."""
        self.reference.load_state_dict(self.model.state_dict())

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The actor's parameters by name; they are the ones that a sampler in this process reads."""
        for name, parameter in self.model.named_parameters():
            yield name, parameter.detach()

    def save(self, directory: Path) -> None:
        """Model and tokenizer for `from_pretrained`; optimizer and schedule beside them; a reference that has moved."""
        self.model.save_pretrained(directory)
        self.tokenizer.save_pretrained(directory)
        torch.save(
            {"optimizer": self.optimizer.state_dict(), "schedule": self.schedule.state_dict()}, directory / STATE
        )
        if self.settings.moves_reference:
            from safetensors.torch import save_model

            save_model(self.reference, str(directory / REFERENCE))

    def load(self, directory: Path) -> None:
        """Go on from what `save` wrote. Nothing that is read is executed: safetensors and `weights_only`."""
        from safetensors.torch import load_model

        try:
            load_model(self.model, str(directory / "model.safetensors"))
            state = torch.load(directory / STATE, weights_only=True, map_location=self.device)
            self.optimizer.load_state_dict(state["optimizer"])
            self.schedule.load_state_dict(state["schedule"])
            if self.settings.moves_reference:
                load_model(self.reference, str(directory / REFERENCE))
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise LoadError(f"checkpoint '{directory}' cannot be read: {reason}", who="--resume") from None

    def _cuts(self, tokens: Tokens) -> list[list[int]]:
        trainer = self.settings.trainer
        if trainer.use_dynamic_batch_size:
            return by_tokens(tokens.lengths(), trainer.max_tokens_per_micro_batch)
        return by_count(len(tokens.prompts), trainer.micro_batch_size)

    def _forward(self, model: Any, tokens: Tokens, *, entropy: bool) -> tuple[Tensor, Tensor | None]:
        with self._autocast:
            return response_log_probs(
                model,
                tokens,
                temperature=self.settings.temperature,
                entropy=entropy,
                vocabulary=self._vocabulary,
                share=self._share,
            )


def _placement(trainer: TrainerSection) -> tuple[torch.device, AbstractContextManager[Any]]:
    available = torch.cuda.is_available()
    if trainer.device == "cuda" and not available:
        raise LoadError("there is no GPU here", who="trainer.device", fix="write device: auto")
    name = trainer.device if trainer.device != "auto" else "cuda" if available else "cpu"
    bfloat16 = trainer.dtype == "bfloat16" or (trainer.dtype == "auto" and name == "cuda")
    context: AbstractContextManager[Any] = torch.autocast(name, torch.bfloat16) if bfloat16 else nullcontext()
    return torch.device(name), context


def _optimizer(model: Any, settings: TorchSettings) -> tuple[Any, Any]:
    from transformers import get_scheduler

    trainer = settings.trainer
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=trainer.lr,
        betas=(trainer.adam_beta1, trainer.adam_beta2),
        eps=trainer.adam_eps,
        weight_decay=trainer.weight_decay,
    )
    name = "constant_with_warmup" if trainer.lr_schedule == "constant" else trainer.lr_schedule
    schedule = get_scheduler(
        name, optimizer, num_warmup_steps=trainer.lr_warmup_steps, num_training_steps=settings.updates
    )
    return optimizer, schedule


def _restore(parts: list[Tensor], index: list[list[int]], lengths: list[int]) -> Tensor:
    """Put the sequences of all cuts back in the order of the batch."""
    order = [i for cut in index for i in cut]
    pieces = torch.split(torch.cat(parts), [lengths[i] for i in order])
    return torch.cat([piece for _, piece in sorted(zip(order, pieces, strict=True), key=lambda pair: pair[0])])
