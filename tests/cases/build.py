"""Small batches by hand."""

from __future__ import annotations

from pathlib import Path

import torch

from relax_core.batch import LossBatch, Rollout, build
from relax_core.conformance.case import runtime_for
from relax_core.packing import loss_batch, select_sequences
from relax_core.reductions import Metrics
from relax_core.registry import Registry
from relax_core.runtime import Runtime

GIVEN = Path(__file__).with_name("given.py")


def rollout(
    sequences: list[list[float]], *, rewards=None, groups=None, mask=None, dtype=torch.float64, **tokens
) -> Rollout:
    """A rollout of sequences whose old log-probs are given; other per-token values by name, as lists per sequence."""
    lengths = torch.tensor([len(each) for each in sequences])
    flat = {name: torch.tensor([x for each in value for x in each]) for name, value in tokens.items()}
    flat = {name: value if value.dtype == torch.bool else value.to(dtype) for name, value in flat.items()}
    live = torch.ones(int(lengths.sum()), dtype=torch.bool)
    if mask is not None:
        live = torch.tensor([bool(x) for each in mask for x in each])
    return build(
        Rollout,
        torch.arange(len(sequences)).repeat_interleave(lengths),
        {"raw_mask": live, "old_log_probs": torch.tensor([x for each in sequences for x in each], dtype=dtype), **flat},
        {
            "rewards": torch.tensor(rewards or [0.0] * len(sequences), dtype=dtype),
            "group_ids": torch.tensor(groups or [0] * len(sequences)),
            "lengths": lengths,
        },
    )


def runtime(algorithm: str = "grpo", **config) -> Runtime:
    """A runtime of the installed plugins and of `given`."""
    return runtime_for({"algorithm": algorithm, "config": {"algorithm": config}}, Registry.load([GIVEN]))


def given_losses(losses: list[list[float]], *, keep=None, mask=None, **config) -> tuple[Runtime, Rollout]:
    """A prepared rollout whose per-token losses are these numbers."""
    keep = keep or [[True] * len(each) for each in losses]
    bound = runtime("given", **config)
    prepared, _ = bound.prepare(rollout([[-1.0] * len(each) for each in losses], given=losses, keep=keep, mask=mask))
    return bound, prepared


def as_batch(prepared: Rollout, log_probs: torch.Tensor | None = None, **tokens) -> LossBatch:
    """The whole rollout as one micro-batch; on policy when no log-probs are given."""
    leaf = prepared.old_log_probs.clone() if log_probs is None else log_probs
    return loss_batch(prepared, None, log_probs=leaf.requires_grad_(), **tokens)


def reduced(bound: Runtime, prepared: Rollout, cuts: list[list[int]]) -> tuple[float, dict[str, float]]:
    """Loss and metrics of a mini-batch that is cut into micro-batches of these sequences."""
    metrics, total, count = Metrics(), 0.0, 0
    for cut in cuts:
        output = bound.loss(as_batch(select_sequences(prepared, torch.tensor(cut))))
        total, count = total + output.sum.item(), count + int(output.count)
        metrics.update(output.metrics.partials.items())
    return total / max(count, 1), metrics.reduce(prepared.group)
