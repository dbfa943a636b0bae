"""M2PO's trust region as a mask (arXiv:2510.01161): drop the tokens that moved furthest from the policy that sampled them.

    d_t = (log π_old − log π_rollout)²: the tokens with the largest d leave the loss until the mean of d over the rest
    is at most `threshold`; at least one token stays.

Solved once over the whole rollout and all ranks. Tokens of equal d stay or leave together, so the order of sequences is
of no account.
"""

from __future__ import annotations

import torch

from relax_core import (
    AlgorithmSpec,
    Component,
    ComponentConfig,
    Mask,
    Rollout,
    TokenMean,
    Topology,
    Violation,
    hookimpl,
)


class Config(ComponentConfig):
    threshold: float = 0.04
    """Largest mean of the squared log ratio over the tokens that stay."""


@hookimpl
def algorithm() -> AlgorithmSpec:
    return AlgorithmSpec(
        "m2po_mask",
        "Drops the tokens with the largest squared log ratio",
        paper="arXiv:2510.01161",
        config=Config,
        component=Component(
            section="m2po",
            formula="keep the smallest (log π_old/π_rollout)² whose mean is ≤ threshold",
            requires_rollout_log_probs=True,
            requires_old_log_probs=True,
            supports_context_parallel=True,
        ),
    )


@hookimpl
def pre_loss_mask(rollout: Rollout, config: Config) -> Mask:
    squared = (rollout.old_log_probs - rollout.rollout_log_probs).double().square()
    keep = squared <= largest_kept(rollout.all_live(squared), config.threshold)
    return Mask(keep, {"m2po_m2": TokenMean(squared), "m2po_clip_ratio": TokenMean(~keep)})


def largest_kept(squared: torch.Tensor, threshold: float) -> torch.Tensor:
    """[N] -> scalar: the largest value such that the mean of all values up to it is within the threshold."""
    if not squared.numel():
        return squared.new_zeros(())
    ascending = squared.sort().values
    means = ascending.cumsum(0) / torch.arange(1, len(ascending) + 1, device=squared.device)
    ends_a_tie = torch.cat([ascending[1:] > ascending[:-1], ascending.new_ones(1, dtype=torch.bool)])
    within = ends_a_tie & (means <= threshold)
    return torch.where(within, ascending, ascending[0]).max()


@hookimpl
def validate_topology(topology: Topology, config: Config) -> list[Violation]:
    problems = []
    if topology.run.trainer.use_rollout_log_probs:
        problems.append(
            Violation(
                "RLX521",
                "algorithm.m2po.enable",
                "with use_rollout_log_probs the old policy is the sampler's, so every log ratio is 0",
                "write trainer.use_rollout_log_probs: false, or m2po.enable: false",
            )
        )
    if config.threshold < 0:
        problems.append(
            Violation("RLX522", "algorithm.m2po.threshold", "a mean of squares is never negative", "write 0 or more")
        )
    return problems
