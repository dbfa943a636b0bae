"""M2PO (arXiv:2510.01161): clip margins from a budget for the second moment of the log ratio.

    A = R
    harmful tokens H: live, A·Δ > 0;  d = Δ² on H ascending, n = |H|
    Σd/n ≤ budget: no clipping.  Otherwise τ = √d_{k−1}·(1 + 1e-5) with k the first index where
    d_k·(n − k − 1) + Σ_{j≤k} d_j ≥ n·budget;  τ = 0 at k = 0
    ε_low = max(1 − e^{−τ}, floor_low), ε_high = max(e^τ − 1, floor_high)
    loss = −min(r·A, clip(r, 1 − ε_low, 1 + ε_high)·A)

For stale or reused data: asynchronous runs with a large staleness, several updates a rollout, a late collapse. On-policy
its ratio is 1 and it does nothing. In asynchronous runs give it the behaviour policy (`--use-rollout-logprobs`): TIS acts
only after the bounds are solved. Recommended: a budget of 0.01 to 0.04 (the paper's is 0.04) and floors of 0.2 and 0.28.
The margins are those of one micro-batch, so give it a large one.
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
    Topology,
    Violation,
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
        estimator=Estimator(config=AlgorithmConfig, formula="R"),
        loss=Loss(
            formula="−min(r·A, clip(r)·A), margins solved for mean(Δ²) ≤ budget on harmful tokens",
            scope="microbatch",
            supports_context_parallel=False,
        ),
        kl="loss (ref_kl)",
    )


@hookimpl
def compute_advantage(rollout: Rollout) -> Advantage:
    return Advantage(rollout.to_tokens(rollout.rewards))


@hookimpl
def policy_loss(batch: LossBatch, config: Config) -> PolicyLoss:
    ratio, advantages = batch.ratio(), batch.advantages
    log_ratio = batch.log_ratio().detach().double()
    tau, before, after = solve(log_ratio, advantages, batch.live, config.m2po_kl2_budget)
    bounded = before > config.m2po_kl2_budget
    low = torch.where(bounded, -(-tau).expm1(), UNCLIPPED_LOW).clamp(min=config.m2po_miniclip_low)
    high = torch.where(bounded, tau.expm1(), UNCLIPPED_HIGH).clamp(min=config.m2po_miniclip_high)
    clipped = ratio.clamp((1 - low).to(ratio.dtype), (1 + high).to(ratio.dtype))
    gain, clipped_gain = ratio * advantages, clipped * advantages
    solved = {"ppo_kl_m2_before": before, "ppo_kl_m2_after": after, "m2po_eps_low": low, "m2po_eps_high": high}
    metrics = {name: TokenMean(value) for name, value in solved.items()}
    return PolicyLoss(-torch.minimum(gain, clipped_gain), metrics | {"pg_clipfrac": TokenMean(clipped_gain < gain)})


def solve(log_ratio: Tensor, advantages: Tensor, live: Tensor, budget: float) -> tuple[Tensor, Tensor, Tensor]:
    """[T] each -> scalars: the bound τ of |Δ|, and the mean of d on the harmful tokens before and under it."""
    harmful = live & harms(log_ratio, advantages)
    n = harmful.sum()
    # The others sort to the end; one more of them keeps every shape above 0.
    d = torch.where(harmful, log_ratio.square(), torch.inf)
    d = torch.cat([d, d.new_full((1,), torch.inf)]).sort().values
    index = torch.arange(d.shape[0], device=d.device)
    d = torch.where(index < n, d, 0.0)
    total = d.cumsum(0)
    before = total[-1] / n.clamp(min=1)
    k = ((index < n) & (d * (n - 1 - index) + total >= n * budget)).int().argmax()
    below = (k - 1).clamp(min=0)
    breakpoint_below = torch.where(k > 0, d.take(below), 0.0)
    capped = (breakpoint_below * (n - k) + total.take(below)) / n.clamp(min=1)
    after = torch.where(k > 0, capped, before * (budget > 0))
    return breakpoint_below.sqrt() * (1 + 1e-5), before, torch.where(before > budget, after, before)


def harms(log_ratio: Tensor, advantages: Tensor) -> Tensor:
    """[T] bool: the policy has moved the way that the advantage pushes it."""
    rising = (advantages > TOLERANCE) & (log_ratio > TOLERANCE)
    falling = (advantages < -TOLERANCE) & (log_ratio < -TOLERANCE)
    return rising | falling


@hookimpl
def validate_topology(topology: Topology, config: Config, roles: frozenset[str]) -> list[Violation]:
    return [*hints(topology), *out_of_range(config)] if "loss" in roles else []


def hints(topology: Topology) -> list[Violation]:
    found = []
    if topology.on_policy:
        problem = "every update is on-policy: the ratio is 1 and m2po does nothing"
        fix = "write trainer.num_steps_per_rollout: 2 or more, or policy_loss: grpo"
        found.append(Violation("RLX591", "algorithm.policy_loss", problem, fix, severity="warning"))
    correction = getattr(topology.run.algorithm, "is_correction", None)
    if topology.mode != "sync" and correction is not None and correction.enable:
        problem = "the correction acts only after m2po has solved its bounds"
        fix = "write trainer.use_rollout_log_probs: true, and is_correction.enable: false"
        found.append(Violation("RLX592", "algorithm.is_correction.enable", problem, fix, severity="warning"))
    return found


def out_of_range(config: Config) -> list[Violation]:
    found = []
    if config.m2po_kl2_budget < 0:
        problem = "a mean of squares is never negative"
        found.append(Violation("RLX593", "algorithm.m2po_kl2_budget", problem, "write 0 or more"))
    if not 0 <= config.m2po_miniclip_low < 1:
        problem = "a lower clip margin is between 0 and 1"
        found.append(Violation("RLX594", "algorithm.m2po_miniclip_low", problem, "write 0 or more, less than 1"))
    if config.m2po_miniclip_high < 0:
        problem = "an upper clip margin is never negative"
        found.append(Violation("RLX595", "algorithm.m2po_miniclip_high", problem, "write 0 or more"))
    return found
