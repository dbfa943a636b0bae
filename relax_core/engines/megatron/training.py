"""A Megatron-core model under training on this rank: forward and backward, one scaling, clipping, a schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.module import Float16Module
from torch import Tensor

from relax_core.config import TrainerSection
from relax_core.engines.megatron.model import Trunk, chosen
from relax_core.engines.megatron.sequence import Packed
from relax_core.faults import NotFinite
from relax_core.rules.megatron_args import can_shard_optimizer

Found = dict[str, Any]
Loss = Callable[[Tensor, int], tuple[Tensor, Tensor, Found]]
"""Of the last hidden states of a micro-batch and its number: a loss summed over what it counts, the count, and the rest.

An update reads `sum`, the same loss without a graph, in the rest.
"""


def run(module: Any, packed: Sequence[Packed], loss: Loss, *, forward_only: bool) -> list[Found]:
    """Forward, and backward, of all micro-batches by Megatron's schedule; what `loss` found, on the last stage alone."""

    def forward(numbers: Iterator[int], model: Any) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor, Found]]]:
        number = next(numbers)
        each = packed[number]
        hidden = model(each.ids[None], None, None, packed_seq_params=_boundaries(each))
        return hidden, lambda states: loss(states, number)

    found: list[Found] = get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=iter(range(len(packed))),
        model=[module],
        num_microbatches=len(packed),
        seq_length=1,  # not read: the lengths vary
        micro_batch_size=1,
        forward_only=forward_only,
    )
    return found


def _boundaries(packed: Packed) -> PackedSeqParams:
    ends, longest = packed.boundaries, packed.longest
    return PackedSeqParams("thd", ends, ends, ends, ends, max_seqlen_q=longest, max_seqlen_kv=longest)


class Trained:
    """A model with gradients, optimizer and schedule; `updates` is how many the schedule is for, `who` is named in errors."""

    def __init__(self, model: Trunk, trainer: TrainerSection, lr: float, updates: int, who: str) -> None:
        self.model, self.who, self.count = model, who, 0
        self.device: torch.device = next(model.parameters()).device
        config, arguments = model.config, trainer.megatron_args
        buckets = {"grad_reduce_in_fp32": True, "use_distributed_optimizer": can_shard_optimizer()}
        settings = DistributedDataParallelConfig(**{**buckets, **chosen(DistributedDataParallelConfig, arguments)})
        inner = Float16Module(config, model) if config.bf16 else model
        self.module = DistributedDataParallel(config, settings, inner)
        config.finalize_model_grads_func = self._finalize
        config.no_sync_func = self.module.no_sync if settings.overlap_grad_reduce else None
        # No overrides: like the embedded engine's AdamW, decay of every parameter.
        self.optimizer = get_megatron_optimizer(
            _optimizer(trainer, lr, settings, config), [self.module], config_overrides={}
        )
        self.schedule = _schedule(self.optimizer, trainer, lr, updates)

    @property
    def lr(self) -> float:
        """Of the next update."""
        return float(self.optimizer.param_groups[0]["lr"])

    def update(self, packed: Sequence[Packed], loss: Loss, step: int) -> tuple[list[Found], float, bool]:
        """What `loss` found, the gradient's true norm before clipping, and whether anything counted and was applied.

        Raises NotFinite on every rank, before a weight or a moment is changed, where a loss or the norm is no number on any.
        """
        self.module.zero_grad_buffer()
        self.optimizer.zero_grad()
        found = run(self.module, packed, loss, forward_only=False)
        if self.count == 0:
            return found, 0.0, False
        if wrong := self._wrong(found):
            raise NotFinite(f"the {wrong} of step {step + 1} is not finite", self.who, self.lr)
        _, norm, _ = self.optimizer.step()
        self.schedule.step(1)
        if self.module.ddp_config.overlap_param_gather:
            self.module.start_param_sync(force_sync=True)
        return found, float(norm), True

    def _wrong(self, found: Sequence[Found]) -> str:
        """What is not finite: the loss of some rank, or else the gradient; empty where both are finite."""
        self.optimizer.prepare_grads()
        loss = not all(each["sum"].isfinite() for each in found)
        flags = torch.tensor(
            [loss, not self.optimizer.get_grad_norm() < torch.inf], dtype=torch.int, device=self.device
        )
        dist.all_reduce(flags, dist.ReduceOp.MAX)
        return "loss" if flags[0] else "gradient" if flags[1] else ""

    def _finalize(self, model: list[Any], count: Tensor | None = None, **options: Any) -> None:
        """Megatron's, which scales the gradients once by what all ranks counted; that number is kept."""
        assert count is not None
        finalize_model_grads(model, count, **options)
        self.count = int(count)


def _optimizer(trainer: TrainerSection, lr: float, buckets: Any, config: Any) -> OptimizerConfig:
    settings = {
        "optimizer": "adam",
        "lr": lr,
        "min_lr": 0.0,
        "weight_decay": trainer.weight_decay,
        "adam_beta1": trainer.adam_beta1,
        "adam_beta2": trainer.adam_beta2,
        "adam_eps": trainer.adam_eps,
        "clip_grad": trainer.clip_grad or torch.inf,
        "params_dtype": config.params_dtype,
        "bf16": config.bf16,
        "use_distributed_optimizer": buckets.use_distributed_optimizer,
        "overlap_param_gather": buckets.overlap_param_gather,
    }
    return OptimizerConfig(**{**settings, **chosen(OptimizerConfig, trainer.megatron_args)})


def _schedule(optimizer: Any, trainer: TrainerSection, lr: float, updates: int) -> OptimizerParamScheduler:
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=lr,
        min_lr=0.0,
        lr_warmup_steps=trainer.lr_warmup_steps,
        lr_decay_steps=updates,
        lr_decay_style=trainer.lr_schedule,
        start_wd=trainer.weight_decay,
        end_wd=trainer.weight_decay,
        wd_incr_steps=updates,
        wd_incr_style="constant",
        use_checkpoint_opt_param_scheduler=False,
        override_opt_param_scheduler=True,  # a run that is gone on with has the rates of its configuration
    )
