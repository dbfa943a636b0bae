"""Cases 9, 10 and 13: degenerate batches."""

from __future__ import annotations

import pytest
import torch

from tests.cases.build import as_batch, rollout, runtime

GROUP_MODES = ["group_zscore", "group_mean", "batch_zscore", "batch_mean"]


@pytest.mark.parametrize("mode", GROUP_MODES)
@pytest.mark.parametrize(("reward", "size"), [(100.1, 7), (0.7, 3), (1e6 + 0.1, 5)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_9_equal_rewards_give_exact_zeros(mode, reward, size, dtype):
    batch = rollout([[-1.0, -1.0]] * size, rewards=[reward] * size, dtype=dtype)
    prepared, _ = runtime(advantage_norm_mode=mode).prepare(batch)
    assert prepared.advantages.tolist() == [0.0] * (2 * size)


def test_9_equal_rewards_whitened_give_exact_zeros():
    batch = rollout([[-1.0, -1.0]] * 3, rewards=[0.7] * 3)
    prepared, _ = runtime(normalize_advantages=True).prepare(batch)
    assert prepared.advantages.tolist() == [0.0] * 6


def test_10_every_advantage_zero_has_a_zero_gradient():
    bound = runtime()
    prepared, _ = bound.prepare(rollout([[-1.0], [-2.0]], rewards=[1.0, 1.0]))
    batch = as_batch(prepared, torch.tensor([-0.5, -2.5], dtype=torch.float64))
    output = bound.loss(batch)
    (gradient,) = torch.autograd.grad(output.sum, batch.log_probs)
    assert gradient.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_10_a_fully_masked_batch_has_a_zero_loss_with_a_graph(mode):
    everything = {
        "entropy_coef": 0.1,
        "ref_kl": {"enable": True},
        "is_correction": {"enable": True, "level": "sequence"},
        "opsm": {"enable": True},
        "m2po": {"enable": True},
    }
    bound = runtime(loss_agg_mode=mode, **everything)
    extra = {"rollout_log_probs": [[-1.0, -2.0], [-1.0]], "ref_log_probs": [[-1.0, -2.0], [-1.0]]}
    prepared, _ = bound.prepare(rollout([[-1.0, -2.0], [-1.0]], rewards=[1.0, 0.0], mask=[[0, 0], [0]], **extra))
    batch = as_batch(prepared, entropy=torch.full((3,), torch.nan, dtype=torch.float64))
    output = bound.loss(batch)
    (gradient,) = torch.autograd.grad(output.sum, batch.log_probs)
    assert output.sum.item() == 0.0
    assert gradient.tolist() == [0.0] * 3
    assert int(output.count) == (2 if mode == "seq-mean-token-sum-norm" else 0)


def test_13_three_right_of_eight():
    rewards = [1.0] * 3 + [0.0] * 5
    batch = rollout([[-1.0]] * 8, rewards=rewards)
    zscore, _ = runtime(advantage_norm_mode="group_zscore").prepare(batch)
    mean, _ = runtime(advantage_norm_mode="group_mean").prepare(batch)
    assert zscore.advantages[[0, 7]].tolist() == pytest.approx([1.2076, -0.7246], abs=1e-4)
    assert mean.advantages[[0, 7]].tolist() == pytest.approx([0.625, -0.375], abs=1e-12)
