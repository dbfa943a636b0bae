"""Clipped importance-sampling weights, as in MiniMax-M1 (arXiv:2506.13585, §3.1).

    loss = −sg(clip(r, 1 − ε_low, 1 + ε_high))·A·log π

The weight is clipped and the log-probability kept, so that no token loses its gradient: the rare ones that open a line of
thought have the largest ratios. The advantage is grpo's, or that of any other estimator. Recommended: ε_high 10, a KL loss
of 0.001 and truncated importance sampling (`--use-tis`).
"""

from __future__ import annotations

from relax_core import AlgorithmConfig, AlgorithmSpec, Flag, Loss, LossBatch, PolicyLoss, TokenMean, hookimpl


class Config(AlgorithmConfig):
    clip_ratio_low: float = 0.2
    """Lower clip margin of the importance ratio."""
    clip_ratio_high: float = 0.28
    """Upper clip margin of the importance ratio."""


@hookimpl
def algorithm() -> AlgorithmSpec:
    return AlgorithmSpec(
        "cispo",
        "Clips the importance weight and keeps every token's gradient",
        paper="arXiv:2506.13585",
        config=Config,
        loss=Loss(
            formula="−sg(clip(r))·A·log π",
            supports_context_parallel=True,
            surrogate_gradient="the clipped ratio is a constant to autograd",
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
    ratio = batch.ratio().detach()
    weight = ratio.clamp(1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
    return PolicyLoss(-weight * batch.advantages * batch.log_probs, {"pg_clipfrac": TokenMean(weight != ratio)})
