"""The core alone: what stands at masked positions, in whichever field, reaches no hook, no value and no gradient (case 14)."""

from __future__ import annotations

import pytest
import torch

from relax_core.batch import CriticBatch, LossBatch, Rollout, build
from relax_core.conformance.case import runtime_for
from relax_core.conformance.samples import Recipe, sample
from relax_core.registry import Registry
from relax_core.spec import TokenField

READS_EVERYTHING = """
import torch
from relax_core import *

class Section(ComponentConfig):
    enable: bool = True

@hookimpl
def algorithm():
    return AlgorithmSpec("greedy", "Reads every field", config=AlgorithmConfig, estimator=Estimator(requires_critic=True),
                         loss=Loss(), component=Component(config=Section), fields=(TokenField("turn_reward"),))

def everything(batch):
    total = 0.0
    for name in sorted(batch.tokens):
        value = batch.read(name)
        assert value.isfinite().all(), name
        total = total + value.double().reshape(len(batch.sequence_ids), -1).sum(-1)
    return total

@hookimpl
def shape_rewards(rollout):
    return rollout.rewards + rollout.sequence_sum(everything(rollout))

@hookimpl
def pre_loss_mask(rollout):
    return Mask(everything(rollout) > -3, {"kept": TokenMean(everything(rollout))})

@hookimpl
def compute_advantage(rollout):
    advantages = rollout.discounted_sum(everything(rollout), 0.9) + rollout.to_tokens(rollout.rewards)
    return Advantage(advantages, returns=rollout.next_live(everything(rollout)), metrics={"seen": Max(advantages)})

@hookimpl
def adjust_advantage(rollout, advantages):
    return advantages + rollout.token_mean(everything(rollout))

@hookimpl
def post_loss_weight(batch):
    return Weight(everything(batch).detach().sigmoid())

@hookimpl
def policy_loss(batch):
    return PolicyLoss(everything(batch) * batch.ratio(), {"most": Max(everything(batch))})

@hookimpl
def loss_term(batch):
    return LossTerm(batch.to_tokens(batch.sequence_mean(everything(batch).square())), 0.1)

@hookimpl
def value_loss(batch):
    return ValueLoss(everything(batch).square())
"""
GIVEN = {"candidates": 2, "fields": (TokenField("turn_reward"),)}
FORWARD = ("log_probs", "entropy", "candidate_log_probs")
MASKS = ("raw_mask", "loss_mask")
GARBAGE = [float("nan"), float("inf"), float("-inf"), 1e30]


def fields(kind):
    """The per-token fields of numbers that a batch of this kind holds."""
    return sorted(name for name, value in given(kind).tokens.items() if value.dtype.is_floating_point)


def given(kind):
    return sample(Recipe(kind=kind, **GIVEN))


def poisoned(tokens, name, garbage):
    """The tokens with garbage in one field where the raw mask is false."""
    live = tokens["raw_mask"].reshape(-1, *[1] * (tokens[name].dim() - 1))
    return {**tokens, name: torch.where(live, tokens[name].detach(), garbage)}


@pytest.fixture
def greedy(plugin_file):
    registry = Registry.load(files=[plugin_file(READS_EVERYTHING, "greedy.py")])
    return runtime_for({"algorithm": "greedy", "config": {"algorithm": {"normalize_advantages": True}}}, registry)


@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_rollout_gives_the_same_masks_advantages_and_returns(greedy, garbage):
    batch = given(Rollout)
    clean, metrics = greedy.prepare(greedy.shape_rewards(batch))
    for name in fields(Rollout):
        tokens = poisoned(batch.tokens, name, garbage)
        dirty = build(Rollout, batch.sequence_ids, tokens, batch.sequences)
        for each in (dirty, batch.with_values(**{name: tokens[name]})):
            found, seen = greedy.prepare(greedy.shape_rewards(each))
            for key in ("loss_mask", "advantages", "returns"):
                assert torch.equal(found.read(key), clean.read(key)), (name, key)
            assert seen.reduce(found.group) == metrics.reduce(clean.group), name


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize(("kind", "call"), [(LossBatch, "loss"), (CriticBatch, "value_loss")])
def test_a_micro_batch_gives_the_same_loss_and_gradients(greedy, kind, call, garbage):
    batch, leaves = given(kind), FORWARD if call == "loss" else ("values",)
    clean = outcome(greedy, call, batch, batch.tokens, leaves)
    assert all(gradient.abs().max() > 1e-3 for gradient in clean[3])
    for name in fields(kind):
        loss, count, metrics, gradients = outcome(greedy, call, batch, poisoned(batch.tokens, name, garbage), leaves)
        assert (loss, count, metrics) == clean[:3], name
        for gradient, expected in zip(gradients, clean[3], strict=True):
            assert torch.equal(gradient, expected), name
            assert not gradient[~batch.raw_mask].any(), name


def outcome(runtime, call, batch, tokens, leaves):
    """Loss, count, metrics, and the gradients of what the forward pass gave."""
    inputs = {name: tokens[name].detach().clone().requires_grad_() for name in leaves}
    made = build(type(batch), batch.sequence_ids, {**tokens, **inputs}, batch.sequences)
    output = getattr(runtime, call)(made)
    gradients = torch.autograd.grad(output.sum, list(inputs.values()))
    return output.sum.item(), int(output.count), output.metrics.reduce(made.group), gradients
