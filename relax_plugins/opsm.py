"""Off-policy sequence masking, as in DeepSeek-V3.2 (arXiv:2512.02556, §3.1).

    weight 0 on a whole sequence where mean(A) < 0 and mean(log π_old − log π) > delta, else 1

Means are over the sequence's live tokens; denominators do not change.
"""

from __future__ import annotations

from relax_core import (
    MAX_LOG_RATIO,
    AlgorithmSpec,
    Component,
    ComponentConfig,
    LossBatch,
    SequenceMean,
    Topology,
    Violation,
    Weight,
    hookimpl,
)


class Config(ComponentConfig):
    delta: float = 0.1
    """How far the policy may have moved away from a bad sequence, in nats a token."""


@hookimpl
def algorithm() -> AlgorithmSpec:
    return AlgorithmSpec(
        "opsm",
        "Silences bad sequences that the policy has already left",
        paper="arXiv:2512.02556",
        config=Config,
        component=Component(
            formula="weight 0 on a sequence where mean(A) < 0 and mean(log π_old − log π) > delta",
            supports_context_parallel=True,
        ),
    )


@hookimpl
def post_loss_weight(batch: LossBatch, config: Config) -> Weight:
    departed = (batch.old_log_probs - batch.log_probs.detach()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    far = batch.sequence_mean(departed, mask=batch.raw_mask) > config.delta
    bad = batch.sequence_mean(batch.advantages, mask=batch.raw_mask) < 0
    dropped = far & bad
    weight = batch.to_tokens((~dropped).to(batch.advantages.dtype))
    return Weight(weight, {"opsm_drop_ratio": SequenceMean(dropped)})


@hookimpl
def validate_topology(topology: Topology, config: Config) -> list[Violation]:
    if config.delta >= 0:
        return []
    return [
        Violation(
            "RLX531", "algorithm.opsm.delta", "a negative delta drops sequences that did not move", "write 0 or more"
        )
    ]
