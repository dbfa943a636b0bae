{% if cookiecutter.kind == "environment" %}
"""Questions about letters, with a tool that counts them.

    How many r are in strawberry? r in strawberry?3
    3

After the prompt the policy wrote `r in strawberry?` and the last `3`; the tool gave the first one and the line end. The
policy may call as often as there is room; a turn that does not end with `?` is its answer.
"""

from __future__ import annotations

from relax_core import EnvironmentConfig, EnvironmentPrompt, Sampler, Trajectory

EXAMPLES = [
    {"prompt": "How many r are in strawberry? ", "answer": "3"},
    {"prompt": "How many s are in banana? ", "answer": "0"},
]
"""Rows that `relax plugins validate` plays it on."""


class Config(EnvironmentConfig):
    hint: str = ""
    """Shown before the first turn."""


def count(call: str) -> int:
    """How often a letter is in a word: `r in strawberry` gives 3. ValueError for anything else."""
    letter, _, word = call.strip().partition(" in ")
    if len(letter) != 1 or not word:
        raise ValueError("write a letter, ' in ' and a word")
    return word.count(letter)


async def generate(prompt: EnvironmentPrompt, sampler: Sampler, config: Config) -> Trajectory:
    """1 for the right answer after the last call, else 0."""
    trajectory, answer = Trajectory(prompt), ""
    sampler.observe(trajectory, config.hint)
    while trajectory.may_go_on:
        turn = await sampler.sample(trajectory, stop=("?",))
        if not turn.text.endswith("?"):
            answer = turn.text
            break
        await sampler.call(trajectory, count, turn.text.removesuffix("?"), after="\n")
    trajectory.reward = float(answer.strip() == str(prompt.answer))
    return trajectory
{% else %}
{% if cookiecutter.kind == "estimator-and-loss" %}
"""REINFORCE with a group baseline.

    A = R − μ_group
    loss = −sg(min(r, c))·A·log π

The advantage of a response is its reward less the mean of its group. The loss is the policy gradient; the ratio r of
the policy to the one that sampled corrects it where several updates are made on one rollout, and is cut at c.
"""
{% elif cookiecutter.kind == "loss" %}
"""REINFORCE with a truncated ratio, for the advantages of any estimator.

    loss = −sg(min(r, c))·A·log π

The policy gradient; the ratio r of the policy to the one that sampled corrects it where several updates are made on one
rollout, and is cut at c.
"""
{% elif cookiecutter.kind == "mask" %}
"""Drops the tokens that were least likely when they were sampled.

    keep = log π_old ≥ min_log_prob

Such a token is often a slip of the sampler, and its gradient is among the largest.
"""
{% else %}
"""Weighs a token by how undecided the policy was about it.

    w = (1 − π_old)^gamma

What the policy would have written anyway teaches it little.
"""
{% endif %}

from __future__ import annotations

{% if cookiecutter.kind == "estimator-and-loss" %}
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
{% elif cookiecutter.kind == "loss" %}
from relax_core import AlgorithmConfig, AlgorithmSpec, Loss, LossBatch, PolicyLoss, TokenMean, hookimpl
{% elif cookiecutter.kind == "mask" %}
from relax_core import AlgorithmSpec, Component, ComponentConfig, Mask, Rollout, TokenMean, hookimpl
{% else %}
from relax_core import AlgorithmSpec, Component, ComponentConfig, LossBatch, TokenMean, Weight, hookimpl
{% endif %}


{% if cookiecutter.kind in ("estimator-and-loss", "loss") %}
class Config(AlgorithmConfig):
    max_ratio: float = 2.0
    """Largest weight of a token; 1 or more."""
{% elif cookiecutter.kind == "mask" %}
class Config(ComponentConfig):
    min_log_prob: float = -10.0
    """Tokens sampled with a smaller log-probability are dropped from the loss."""
{% else %}
class Config(ComponentConfig):
    gamma: float = 1.0
    """How fast the weight falls with the token's probability; 0 weighs all alike."""
{% endif %}


@hookimpl
def algorithm() -> AlgorithmSpec:
    return AlgorithmSpec(
        "{{ cookiecutter.plugin }}",
{% if cookiecutter.kind == "estimator-and-loss" %}
        "REINFORCE with a group baseline",
        config=Config,
        estimator=Estimator(formula="R − μ_group", min_group_size=2),
        loss=Loss(
            formula="−sg(min(r, c))·A·log π",
            supports_context_parallel=True,
            surrogate_gradient="the truncated ratio is a constant to autograd",
        ),
    )


@hookimpl
def compute_advantage(rollout: Rollout) -> Advantage:
    return Advantage(rollout.to_tokens(rollout.rewards - rollout.group_mean(rollout.rewards)))
{% elif cookiecutter.kind == "loss" %}
        "REINFORCE with a truncated ratio",
        config=Config,
        loss=Loss(
            formula="−sg(min(r, c))·A·log π",
            supports_context_parallel=True,
            surrogate_gradient="the truncated ratio is a constant to autograd",
            default_estimator="grpo",
        ),
    )
{% elif cookiecutter.kind == "mask" %}
        "Drops tokens that were very unlikely when they were sampled",
        config=Config,
        component=Component(
            formula="keep log π_old ≥ min_log_prob",
            requires_old_log_probs=True,
            supports_context_parallel=True,
        ),
    )
{% else %}
        "Weighs tokens by how undecided the policy was",
        config=Config,
        component=Component(formula="w = (1 − π_old)^gamma", supports_context_parallel=True),
    )
{% endif %}


@hookimpl
{% if cookiecutter.kind in ("estimator-and-loss", "loss") %}
def policy_loss(batch: LossBatch, config: Config) -> PolicyLoss:
    ratio = batch.ratio().detach()
    weight = ratio.clamp(max=config.max_ratio)
    return PolicyLoss(-weight * batch.advantages * batch.log_probs, {"pg_clipfrac": TokenMean(ratio > weight)})
{% elif cookiecutter.kind == "mask" %}
def pre_loss_mask(rollout: Rollout, config: Config) -> Mask:
    keep = rollout.old_log_probs >= config.min_log_prob
    return Mask(keep, {"unlikely_frac": TokenMean(~keep)})
{% else %}
def post_loss_weight(batch: LossBatch, config: Config) -> Weight:
    weight = (1 - batch.old_log_probs.clamp(max=0).exp()).pow(config.gamma)
    return Weight(weight, {"weight_mean": TokenMean(weight)})
{% endif %}
{% endif %}
