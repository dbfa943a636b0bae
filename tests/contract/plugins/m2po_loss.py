"""M2PO as a loss (arXiv:2510.01161): the clip margins that keep the second moment of the log ratio within a budget.

    A = R
    d = Δ² on the harmful tokens (live, A·Δ > 0), ascending; n of them
    τ = √d_{k−1}·(1 + 1e-5), with k the first index where d_k·(n − k − 1) + Σ_{j≤k} d_j ≥ n·budget; 0 at k = 0
    ε_low = max(1 − e^{−τ}, floor), ε_high = max(e^τ − 1, floor);  no clipping where Σd/n ≤ budget
    loss = −min(r·A, clip(r, 1 − ε_low, 1 + ε_high)·A)

For stale or reused data; on-policy every ratio is 1 and it does nothing. The margins are those of one micro-batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from relax_core import (
    Advantage,
    AlgorithmConfig,
    AlgorithmSpec,
    Estimator,
    Loss,
    LossBatch,
    PolicyLoss,
    Rollout,
    TokenMean,
    hookimpl,
)

TOLERANCE = 1e-12
UNCLIPPED_LOW, UNCLIPPED_HIGH = 1.0, 1e5


class Config(AlgorithmConfig):
    m2po_kl2_budget: float = 0.01
    """Largest mean of Δ² over the harmful tokens."""
    m2po_miniclip_low: float = 0.3
    """Least lower margin."""
    m2po_miniclip_high: float = 0.5
    """Least upper margin."""


@hookimpl
def algorithm() -> AlgorithmSpec:
    return AlgorithmSpec(
        "m2po",
        "Clip margins from a budget for the second moment of the log ratio",
        paper="arXiv:2510.01161",
        config=Config,
        estimator=Estimator(formula="R"),
        loss=Loss(formula="−min(r·A, clip(r)·A), margins solved for E[Δ²] ≤ budget", scope="microbatch"),
    )


@hookimpl
def compute_advantage(rollout: Rollout) -> Advantage:
    return Advantage(rollout.to_tokens(rollout.rewards))


@hookimpl
def policy_loss(batch: LossBatch, config: Config) -> PolicyLoss:
    tau, before, after = solve(
        batch.log_ratio().detach().double(), batch.advantages, batch.live, config.m2po_kl2_budget
    )
    bounded = before > config.m2po_kl2_budget
    low = torch.where(bounded, -(-tau).expm1(), UNCLIPPED_LOW).clamp(min=config.m2po_miniclip_low)
    high = torch.where(bounded, tau.expm1(), UNCLIPPED_HIGH).clamp(min=config.m2po_miniclip_high)
    ratio, advantages = batch.ratio(), batch.advantages
    clipped = ratio.clamp((1 - low).to(ratio.dtype), (1 + high).to(ratio.dtype))
    solved = {"ppo_kl_m2_before": before, "ppo_kl_m2_after": after, "m2po_eps_low": low, "m2po_eps_high": high}
    return PolicyLoss(
        -torch.minimum(ratio * advantages, clipped * advantages),
        {name: TokenMean(value) for name, value in solved.items()}
        | {"pg_clipfrac": TokenMean(clipped * advantages < ratio * advantages)},
    )


def solve(log_ratio: Tensor, advantages: Tensor, live: Tensor, budget: float) -> tuple[Tensor, Tensor, Tensor]:
    """[T] each -> scalars: the bound τ of |Δ|, and the mean of d on the harmful tokens before and after it."""
    rising = (advantages > TOLERANCE) & (log_ratio > TOLERANCE)
    falling = (advantages < -TOLERANCE) & (log_ratio < -TOLERANCE)
    harmful = live & (rising | falling)
    n = harmful.sum()
    # The others sort to the end; one more of them keeps every shape above 0.
    d = torch.where(harmful, log_ratio.square(), torch.inf)
    d = torch.cat([d, d.new_full((1,), torch.inf)]).sort().values
    index = torch.arange(len(d), device=d.device)
    d = torch.where(index < n, d, 0.0)
    total = d.cumsum(0)
    before = total[-1] / n.clamp(min=1)
    reached = (d * (n - index - 1) + total >= n * budget) & (index < n)
    k = reached.int().argmax()
    below = torch.where(index < k, d, 0.0)
    tau = below.max().sqrt() * (1 + 1e-5)
    capped = (below.max() * (n - k) + below.sum()) / n.clamp(min=1)
    after = torch.where(k > 0, capped, before * (budget > 0))
    return tau, before, torch.where(before > budget, after, before)
