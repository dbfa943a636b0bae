"""The embedded critic."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForTokenClassification

from relax_core.config import TrainerSection
from relax_core.engines.critic import TorchCritic
from relax_core.engines.hf_model import load_critic
from tests.cases.build import rollout, runtime
from tests.engines.conftest import TOKENS

RETURNS = [[1.0, 0.5, 0.25, 0.0], [2.0], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], [-1.0, 1.0]]


@pytest.fixture
def make_critic(tiny_model):
    def make(scale: float = 0.0, **trainer) -> TorchCritic:
        model = load_critic(tiny_model, who="test")
        with torch.random.fork_rng():
            torch.manual_seed(1)
            model.score.weight.data.normal_(std=scale) if scale else None
        return TorchCritic(model, TrainerSection(**{"lr": 1e-2, **trainer}), updates=100)

    return make


def batch(values: torch.Tensor, mask=None):
    pieces = torch.split(values, [len(each) for each in RETURNS])
    return rollout(
        [[-1.0] * len(each) for each in RETURNS],
        mask=mask,
        dtype=torch.float32,
        values=[piece.tolist() for piece in pieces],
        returns=RETURNS,
    ).with_values(loss_mask=torch.ones(len(values), dtype=torch.bool))


def test_a_new_critic_values_everything_at_zero(make_critic):
    assert make_critic().values(TOKENS).tolist() == [0.0] * 14


def test_a_value_is_of_the_state_before_its_token_in_its_own_sequence_alone(make_critic):
    critic = make_critic(scale=0.5, micro_batch_size=3)
    expected = []
    for prompt, response in zip(TOKENS.prompts, TOKENS.responses, strict=True):
        values = critic.model(input_ids=torch.tensor([prompt + response])).logits[0, :, 0]
        expected.append(values[len(prompt) - 1 : -1])
    torch.testing.assert_close(critic.values(TOKENS), torch.cat(expected).detach(), atol=2e-6, rtol=1e-5)


def test_the_temperature_never_touches_values(make_critic):
    """29: a critic has no temperature to be told."""
    assert not hasattr(make_critic(), "temperature")


@pytest.mark.parametrize("size", [1, 2, 4])
def test_3_the_gradient_does_not_depend_on_the_cut(make_critic, size):
    bound = runtime("ppo")
    critic = make_critic(scale=0.5, micro_batch_size=size, clip_grad=0.0, lr=0.0)
    old = critic.values(TOKENS) + 0.05
    update = critic.update(TOKENS, batch(old), bound, 0)
    actual = {name: parameter.grad.clone() for name, parameter in critic.model.named_parameters()}

    plain = make_critic(scale=0.5).model
    values = torch.cat(
        [
            plain(input_ids=torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1, 0]
            for prompt, response in zip(TOKENS.prompts, TOKENS.responses, strict=True)
        ]
    )
    returns = torch.tensor([x for each in RETURNS for x in each])
    clipped = old + (values - old).clamp(-0.2, 0.2)
    loss = torch.maximum((values - returns) ** 2, (clipped - returns) ** 2).mean()
    loss.backward()
    expected = {name: parameter.grad for name, parameter in plain.named_parameters()}
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)
    assert update.metrics.reduce(batch(old).group)["train/value_loss"] == pytest.approx(loss.item(), rel=1e-5)


def test_the_critic_learns_its_returns(make_critic):
    bound = runtime("ppo", value_clip=100.0)
    critic = make_critic()
    errors = []
    for step in range(60):
        update = critic.update(TOKENS, batch(critic.values(TOKENS)), bound, step)
        errors.append(update.metrics.reduce(batch(torch.zeros(14)).group)["train/value_loss"])
    assert errors[-1] < 0.05 * errors[0]


def test_the_critic_has_its_own_learning_rate(make_critic):
    bound = runtime("ppo")
    assert make_critic(critic_lr=0.5).update(TOKENS, batch(torch.zeros(14)), bound, 0).lr == 0.5
    assert make_critic(lr=0.25).update(TOKENS, batch(torch.zeros(14)), bound, 0).lr == 0.25


def test_a_checkpoint_loads_with_from_pretrained_and_goes_on_to_the_same_numbers(make_critic, tmp_path):
    bound = runtime("ppo")
    critic, resumed = make_critic(), make_critic(scale=0.5)
    critic.update(TOKENS, batch(torch.zeros(14)), bound, 0)
    critic.save(tmp_path)
    resumed.load(tmp_path)
    for each in (critic, resumed):
        each.update(TOKENS, batch(torch.zeros(14)), bound, 1)
    assert torch.equal(critic.values(TOKENS), resumed.values(TOKENS))

    critic.save(tmp_path)
    loaded = load_critic(tmp_path / "critic", who="test")
    assert torch.equal(loaded.score.weight, critic.model.score.weight)
    AutoModelForTokenClassification.from_pretrained(tmp_path / "critic")
