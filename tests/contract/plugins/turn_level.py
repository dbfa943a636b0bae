"""Credit for each turn of a dialogue with tools (after arXiv:2505.11821).

    r_t = the reward of the turn at its last token, + R at the last live token of the sequence
    A_t = r_t + γ_t·A of the next live token;  γ_t = γ where tool output lies between the two, else 1

Every token of a turn has the turn's return; the discount counts turns, not tokens. A turn's reward belongs on a token
that the policy wrote: on tool output it would be lost.
"""

from __future__ import annotations

import torch
from torch import Tensor

from relax_core import Advantage, AlgorithmConfig, AlgorithmSpec, Estimator, Rollout, Sum, TokenField, hookimpl


class Config(AlgorithmConfig):
    turn_gamma: float = 1.0
    """Discount from one turn to the next."""


@hookimpl
def algorithm() -> AlgorithmSpec:
    return AlgorithmSpec(
        "turn_level",
        "Each turn earns what comes after it",
        paper="arXiv:2505.11821",
        config=Config,
        estimator=Estimator(
            formula="Σ over later turns of γ^turns · reward", normalization="population", per_token=True
        ),
        fields=(TokenField("turn_reward", "the turn's reward on its last token, 0 elsewhere"),),
    )


@hookimpl
def compute_advantage(rollout: Rollout, config: Config) -> Advantage:
    ends = turn_ends(rollout)
    decay = torch.where(ends, config.turn_gamma, 1.0)
    rewards = rollout.read("turn_reward") + rollout.at_last(rollout.rewards)
    return Advantage(rollout.discounted_sum(rewards, decay), metrics={"tool_calls": Sum(ends)})


def turn_ends(rollout: Rollout) -> Tensor:
    """[T] bool: the next live token of the sequence is not the next token."""
    position = torch.arange(len(rollout.sequence_ids), device=rollout.sequence_ids.device)
    return rollout.next_live(position) > position + 1
