"""Cases 1 to 7: aggregation."""

from __future__ import annotations

import pytest
import torch

from tests.cases.build import as_batch, given_losses, reduced, rollout, runtime

CUTS = [[[0, 1]], [[0], [1]], [[1], [0]], [[1, 0]]]


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize(("mode", "loss"), [("token-mean", -0.5), ("seq-mean-token-mean", 0.0)])
def test_1_the_loss_does_not_depend_on_the_cut(cuts, mode, loss):
    bound, prepared = given_losses([[1.0], [-1.0, -1.0, -1.0]], loss_agg_mode=mode)
    assert reduced(bound, prepared, cuts)[0] == pytest.approx(loss, abs=1e-12)


def test_1_a_constant_denominator_counts_sequences():
    bound, prepared = given_losses([[1.0], [-1.0] * 3], loss_agg_mode="seq-mean-token-sum-norm", loss_agg_length=4)
    assert reduced(bound, prepared, [[0], [1]])[0] == pytest.approx(-2 / 8)


def test_2_micro_batches_are_weighted_by_their_tokens():
    bound, prepared = given_losses([[1.0] * 10, [2.0] * 6])
    assert reduced(bound, prepared, [[0], [1]])[0] == pytest.approx(1.375)


def test_4_counts_are_taken_after_every_mask_is_final():
    bound, prepared = given_losses([[-1.0] * 4], keep=[[True, False, True, False]], given={"enable": True})
    output = bound.loss(as_batch(prepared))
    assert int(output.count) == 2
    assert output.sum.item() / 2 == pytest.approx(-1.0)


def test_5_dropped_tokens_leave_the_denominator_of_the_kept_weight():
    correction = {"enable": True, "action": "mask", "lower_bound": 0.5, "upper_bound": 2.0}
    bound = runtime(is_correction=correction)
    log_ratios = [0.1, -1.5, 0.8, -10.0, 0.3]
    prepared, _ = bound.prepare(rollout([[-12.0] * 5], rollout_log_probs=[[-12.0 - x for x in log_ratios]]))
    batch = as_batch(prepared)
    weight = bound.weights(batch)["is_correction"].weight
    assert prepared.loss_mask.tolist() == [True, False, False, False, True]
    assert weight[prepared.loss_mask].mean().item() == pytest.approx(1.2275, abs=5e-5)


def test_6_tool_tokens_are_in_no_denominator():
    bound, prepared = given_losses([[2.0, 7.0, 4.0]], mask=[[1, 0, 1]])
    loss, metrics = reduced(bound, prepared, [[0]])
    assert loss == pytest.approx(3.0)
    assert metrics["train/mean"] == pytest.approx(3.0)


@pytest.mark.parametrize("cuts", [[[0], [1]], [[0, 1]]])
def test_7_metrics_follow_their_declared_reduction(cuts):
    bound, prepared = given_losses([[100.0] * 50, [1.0] * 10])
    _, metrics = reduced(bound, prepared, cuts)
    assert metrics["train/mean"] == pytest.approx(83.5)
    assert metrics["train/max"] == 100.0
    assert metrics["train/min"] == 1.0
    assert metrics["train/sum"] == pytest.approx(5010.0)


def test_18_inputs_are_not_mutated():
    bound = runtime(ref_kl={"enable": True, "coef": 0.5, "kl_type": "k2"})
    prepared, _ = bound.prepare(rollout([[-1.0, -2.0]], ref_log_probs=[[-1.5, -1.0]]))
    batch = as_batch(prepared)
    before = {name: (value.clone(), value._version) for name, value in batch.tokens.items()}
    metrics = bound.loss(batch).metrics.reduce(batch.group)
    assert metrics["train/ref_kl"] == pytest.approx((0.5**2 / 2 + 1.0**2 / 2) / 2)
    for name, (value, version) in before.items():
        assert torch.equal(batch.tokens[name], value), name
        assert batch.tokens[name]._version == version, name
