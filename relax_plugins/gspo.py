"""Group Sequence Policy Optimization (arXiv:2507.18071), in its token form (§4.3).

    s_t = exp(sg(mean over the sequence of Δ) + log π_t − sg(log π_t)),  Δ = log π − log π_old
    loss = −min(s·A, clip(s, 1 − ε_low, 1 + ε_high)·A)

One ratio a sequence, the geometric mean of its tokens' ratios; each token carries its own gradient. The advantage is
grpo's, or that of any other estimator. A sequence ratio moves far less than a token's: the paper clips at 3e-4 and 4e-4.
"""

from __future__ import annotations

import torch

from relax_core import (
    AlgorithmConfig,
    AlgorithmSpec,
    Flag,
    Loss,
    LossBatch,
    PolicyLoss,
    TokenMean,
    Topology,
    Violation,
    hookimpl,
)


class Config(AlgorithmConfig):
    clip_ratio_low: float = 0.2
    """Lower clip margin of the importance ratio."""
    clip_ratio_high: float = 0.28
    """Upper clip margin of the importance ratio."""


@hookimpl
def algorithm() -> AlgorithmSpec:
    return AlgorithmSpec(
        "gspo",
        "One importance ratio for each sequence",
        paper="arXiv:2507.18071",
        config=Config,
        loss=Loss(
            formula="−min(s·A, clip(s)·A), s = (π/π_old)^(1/length) of the sequence",
            scope="sequence",
            supports_context_parallel=True,
            surrogate_gradient="the sequence's mean log ratio is a constant to autograd; each token has its own gradient",
            default_estimator="grpo",
        ),
        kl="loss (ref_kl)",
        flags=(
            Flag("--eps-clip", ("clip_ratio_low", "clip_ratio_high"), summary="Both clip margins."),
            Flag("--eps-clip-high", ("clip_ratio_high",), summary="The upper clip margin alone."),
        ),
    )


@hookimpl
def policy_loss(batch: LossBatch, config: Config) -> PolicyLoss:
    log_ratio = batch.to_tokens(batch.sequence_mean(batch.log_ratio().detach()))
    ratio = (log_ratio + batch.log_probs - batch.log_probs.detach()).exp()
    clipped = ratio.clamp(1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
    gain, clipped_gain = ratio * batch.advantages, clipped * batch.advantages
    return PolicyLoss(-torch.minimum(gain, clipped_gain), {"pg_clipfrac": TokenMean(clipped_gain < gain)})


@hookimpl
def validate_topology(topology: Topology, config: Config) -> list[Violation]:
    if config.clip_ratio_low < 1:
        return []
    return [Violation("RLX597", "algorithm.clip_ratio_low", "the lower clip margin reaches 0", "write less than 1")]
