"""The paper's formula on numbers worked out by hand."""

from __future__ import annotations

from itertools import chain
from math import exp, sqrt
from typing import Any

import pytest
import torch
from relax_core.conformance.case import replay, rollout_of, runtime_for
from relax_core.conformance.cuts import Cut, Layout, train_actor
from relax_core.registry import Registry

# Log ratios 0.2 and 0.6 of the good answer, −0.6 and 0.5 of the bad one, whose last token is masked.
CASE: dict[str, Any] = {
    "algorithm": "gmpo",
    "config": {"algorithm": {"loss_agg_mode": "seq-mean-token-mean"}},
    "sequences": [
        {"group": 0, "reward": 1.0, "mask": [1, 1], "old_logp": [-1.0, -2.0], "logp": [-0.8, -1.4]},
        {"group": 0, "reward": 0.0, "mask": [1, 1, 0], "old_logp": [-1.0, -2.0, -9.0], "logp": [-1.6, -1.5, -3.0]},
    ],
}
A = 0.5 / (sqrt(0.5) + 1e-6)
GOOD, BAD = exp((0.2 + 0.4) / 2), exp((-0.4 + 0.5) / 2)


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return replay(CASE, Registry.load())


def test_the_advantage_is_divided_by_the_spread(result: dict[str, Any]) -> None:
    assert [pytest.approx(each) for each in result["advantages"]] == [[A, A], [-A, -A, 0.0]]


def test_a_sequence_has_one_ratio_the_geometric_mean_of_the_clipped_ones(result: dict[str, Any]) -> None:
    assert [pytest.approx(each) for each in result["per_token_loss"]] == [[-A * GOOD] * 2, [A * BAD, A * BAD, 0.0]]
    assert result["metrics"]["pg_clipfrac"] == pytest.approx(2 / 4)


def test_the_loss_is_the_mean_over_sequences(result: dict[str, Any]) -> None:
    assert result["denominator"] == 2
    assert result["loss"] == pytest.approx((-A * GOOD + A * BAD) / 2)


def test_the_gradient_is_shared_by_the_unclipped_tokens_of_the_sequence(result: dict[str, Any]) -> None:
    first, second = result["grad_logp"]
    assert first == pytest.approx([-A * GOOD / 2 / 2, 0.0])
    assert second == pytest.approx([0.0, A * BAD / 2 / 2, 0.0])


def test_a_sequence_spread_over_two_ranks_has_the_same_loss_and_gradient(result: dict[str, Any]) -> None:
    none, parts = torch.zeros(2, dtype=torch.long), torch.tensor([0, 1, 1, 0, 1])
    rollout = rollout_of(CASE, torch.float64)
    log_probs = torch.tensor([value for each in CASE["sequences"] for value in each["logp"]], dtype=torch.float64)
    runtime = runtime_for(CASE, Registry.load())
    spread = train_actor(runtime, rollout, {"log_probs": log_probs}, Cut(Layout(1, 2, 1), none, none, parts))
    assert spread.loss == pytest.approx(result["loss"])
    assert spread.gradients["log_probs"].tolist() == pytest.approx(list(chain(*result["grad_logp"])))
