"""Cases 20, 22, 24, 25, 27 and 28, and 19a: objectives, masks and weights of the components."""

from __future__ import annotations

import math

import pytest
import torch

from relax_core.conformance.case import runtime_for
from relax_core.registry import Registry
from tests.cases.build import as_batch, given_losses, rollout, runtime


def kl_gradient(kind: str, *, unbiased: bool) -> float:
    """d/dθ of the expected KL term at p = σ(0.3), θ = 0.3, reference 0.5, by summing over the two actions."""
    theta = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    bound = runtime(ref_kl={"enable": True, "coef": 1.0, "kl_type": kind, "use_unbiased_kl": unbiased})
    log_probs = torch.nn.functional.logsigmoid(torch.stack([theta, -theta]))
    old = log_probs.detach().tolist()
    prepared, _ = bound.prepare(rollout([[old[0]], [old[1]]], ref_log_probs=[[math.log(0.5)], [math.log(0.5)]]))
    batch = as_batch(prepared)
    term = bound.binding.implementing("loss_term")[0]
    batch = batch.with_values(log_probs=log_probs)
    per_token = term.call("loss_term", batch=batch, context=None).per_token
    expected = (log_probs.detach().exp() * per_token).sum()
    return torch.autograd.grad(expected, theta)[0].item()


@pytest.mark.parametrize(
    ("kind", "unbiased", "gradient"),
    [
        ("k1", False, 0.0),
        ("k2", False, 0.073337),
        ("k3", False, 0.074443),
        ("k1", True, 0.073337),
        ("k3", True, 0.073337),
    ],
)
def test_20_the_gradient_of_the_kl_term(kind, unbiased, gradient):
    assert kl_gradient(kind, unbiased=unbiased) == pytest.approx(gradient, abs=1e-6)


def clipped_loss(ratio: float, advantage: float, **config) -> float:
    bound = runtime(advantage_norm_mode="none", **config)
    prepared, _ = bound.prepare(rollout([[-5.0]], rewards=[advantage]))
    return bound.policy_loss(
        as_batch(prepared, torch.tensor([-5.0 + math.log(ratio)], dtype=torch.float64))
    ).per_token.item()


def test_22_dual_clip_bounds_the_loss_of_a_bad_token():
    assert clipped_loss(10, -1, clip_ratio_c=3.0) == pytest.approx(3.0)


def test_22_without_dual_clip_it_is_not_bounded():
    assert clipped_loss(10, -1, clip_ratio_c=None) == pytest.approx(10.0)


def test_22_dual_clip_is_never_applied_to_a_good_token():
    assert clipped_loss(10, 1, clip_ratio_c=1.1) == pytest.approx(-1.28)


def test_24_opsm_decides_per_sequence():
    bound = runtime(opsm={"enable": True, "delta": 0.1})
    prepared, _ = bound.prepare(rollout([[-1.0, -1.0, -1.0]]))
    advantages = torch.tensor([-0.5, 0.25, -0.25], dtype=torch.float64)
    batch = as_batch(prepared.with_values(advantages=advantages), torch.full((3,), -2.0, dtype=torch.float64))
    assert bound.weights(batch)["opsm"].weight.tolist() == [0.0, 0.0, 0.0]


def test_25_the_m2po_mask_is_solved_over_the_whole_rollout():
    log_ratios = [[0.1, -0.1], [0.5, 0.05]]
    bound = runtime(m2po={"enable": True, "threshold": 0.04})
    batch = rollout([[-1.0, -1.0]] * 2, rollout_log_probs=[[-1.0 - x for x in each] for each in log_ratios])
    prepared, metrics = bound.prepare(batch)
    assert prepared.loss_mask.tolist() == [True, True, False, True]
    assert metrics.reduce(batch.group)["train/m2po_m2"] == pytest.approx(0.0681, abs=5e-5)
    left = torch.tensor([x for each in log_ratios for x in each])[prepared.loss_mask].square().mean()
    assert left.item() == pytest.approx(0.0075, abs=1e-6)


@pytest.mark.parametrize("gap", [200.0, -200.0, 1e4])
@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_27_extreme_log_ratios_are_finite_and_counted(gap, level, kind):
    bound = runtime(
        advantage_norm_mode="none",
        is_correction={"enable": True, "level": level},
        ref_kl={"enable": True, "kl_type": kind, "use_unbiased_kl": True},
    )
    shifted = {"rollout_log_probs": [[-300.0 - gap]], "ref_log_probs": [[-300.0 + gap]]}
    prepared, found = bound.prepare(rollout([[-300.0]], rewards=[-1.0], **shifted))
    batch = as_batch(prepared, torch.tensor([-300.0 + gap], dtype=torch.float64))
    output = bound.loss(batch)
    (gradient,) = torch.autograd.grad(output.sum, batch.log_probs)
    assert torch.isfinite(output.sum)
    assert torch.isfinite(gradient).all()
    assert output.metrics.reduce(batch.group)["train/nan_ratio"] == 1.0
    assert found.reduce(batch.group)["train/is_nan_ratio"] == 1.0


def test_28_truncated_importance_sampling_uses_old_over_rollout_log_probs():
    tis = {"enable": True, "level": "token", "action": "clip", "lower_bound": 0.0, "upper_bound": 2.0}
    bound = runtime(is_correction=tis)
    old, sampled = [[-1.0, -2.0], [-3.0, -0.5]], [[-1.5, -1.0], [-6.0, -0.5]]
    prepared, _ = bound.prepare(rollout(old, rollout_log_probs=sampled))
    weight = bound.weights(as_batch(prepared, torch.full((4,), -9.0, dtype=torch.float64)))["is_correction"].weight
    assert weight.tolist() == pytest.approx([math.exp(0.5), math.exp(-1.0), 2.0, 1.0])


def test_19a_a_token_dropped_from_the_loss_moves_no_reward():
    _, whole = given_losses([[0.0] * 4], given={"enable": True})
    _, dropped = given_losses([[0.0] * 4], keep=[[True, True, True, False]], given={"enable": True})
    assert dropped.advantages.tolist() == whole.advantages.tolist()
    assert dropped.discounted_sum(dropped.at_last(torch.ones(1, dtype=torch.float64)), 0.5).tolist() == [
        0.125,
        0.25,
        0.5,
        1.0,
    ]


def test_the_weight_of_a_sequence_is_clamped_as_a_whole():
    bound = runtime(is_correction={"enable": True, "level": "sequence", "lower_bound": 0.0, "upper_bound": 1e30})
    prepared, _ = bound.prepare(rollout([[-20.0] * 4], rollout_log_probs=[[-35.0] * 4]))
    weight = bound.weights(as_batch(prepared))["is_correction"].weight
    assert weight.tolist() == pytest.approx([math.exp(20)] * 4)


def test_opsm_leaves_a_sequence_without_a_signal_alone():
    bound = runtime(opsm={"enable": True})
    prepared, _ = bound.prepare(rollout([[-1.0, -1.0]]))
    batch = as_batch(prepared, torch.full((2,), -9.0, dtype=torch.float64))
    assert prepared.advantages.tolist() == [0.0, 0.0]
    assert bound.weights(batch)["opsm"].weight.tolist() == [1.0, 1.0]


def test_the_m2po_mask_keeps_what_just_meets_the_threshold():
    bound = runtime(m2po={"enable": True, "threshold": 0.5})
    prepared, _ = bound.prepare(rollout([[-1.0, -1.0, -1.0]], rollout_log_probs=[[-1.0, -2.0, -3.0]]))
    assert prepared.loss_mask.tolist() == [True, True, False]


WEIGHT = """
import torch
from relax_core import AlgorithmSpec, Component, ComponentConfig, Mask, Weight, hookimpl

class Config(ComponentConfig):
    pass

@hookimpl
def algorithm():
    return AlgorithmSpec("weigher", "Weighs", component=Component(config=Config, supports_context_parallel=True))

@hookimpl
def pre_loss_mask(rollout):
    return Mask(rollout.old_log_probs > -2)

@hookimpl
def post_loss_weight(batch):
    return Weight(torch.where(batch.loss_mask, batch.ratio(), torch.nan))
"""


def test_a_weight_is_a_constant_and_counts_for_nothing_where_its_token_was_dropped(plugin_file):
    """On policy the ratio is 1: the gradient is −A, not −2A, and not NaN at the dropped token."""
    registry = Registry.load([plugin_file(WEIGHT, "weigher.py")])
    config = {"advantage_norm_mode": "none", "policy_loss": "cispo", "weigher": {"enable": True}}
    bound = runtime_for({"algorithm": "grpo", "config": {"algorithm": config}}, registry)
    prepared, _ = bound.prepare(rollout([[-1.0, -3.0]], rewards=[2.0]))
    batch = as_batch(prepared)
    (gradient,) = torch.autograd.grad(bound.loss(batch).sum, batch.log_probs)
    assert gradient.tolist() == [-2.0, 0.0]
