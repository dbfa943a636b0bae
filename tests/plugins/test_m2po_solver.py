"""The solver of M2PO: against its definition read out word by word, and without loops, synchronisation or dynamic shapes."""

from __future__ import annotations

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from relax_plugins.m2po import solve
from tests.cases.build import as_batch, rollout, runtime


def solved(log_ratio, advantages=None, live=None, budget=0.01) -> list[float]:
    log_ratio = torch.as_tensor(log_ratio, dtype=torch.float64)
    advantages = log_ratio.sign() if advantages is None else torch.as_tensor(advantages, dtype=torch.float64)
    live = torch.ones_like(log_ratio, dtype=torch.bool) if live is None else torch.as_tensor(live)
    return [float(x) for x in solve(log_ratio, advantages, live, budget)]


def by_definition(log_ratio, advantages, live, budget):
    """MATH.md, "M2PO solver", one token after the other."""
    d = sorted(
        x * x
        for x, a, alive in zip(log_ratio, advantages, live, strict=True)
        if alive and ((a > 1e-12 and x > 1e-12) or (a < -1e-12 and x < -1e-12))
    )
    n = len(d)
    before = sum(d) / n if n else 0.0
    if before <= budget:
        return 0.0, before, before
    k = next(k for k in range(n) if d[k] * (n - k - 1) + sum(d[: k + 1]) >= n * budget)
    if k == 0:
        return 0.0, before, before if budget > 0 else 0.0
    return math.sqrt(d[k - 1]) * (1 + 1e-5), before, (d[k - 1] * (n - k) + sum(d[:k])) / n


def test_by_hand():
    """d = .01 .04 .09 .16, target .2: .04, .13, .23, so k = 2, τ = .2 and (.04·2 + .05)/4 is left of .075."""
    tau, before, after = solved([0.3, 0.1, -0.4, 0.2], budget=0.05)
    assert tau == pytest.approx(0.2 * (1 + 1e-5), rel=1e-12)
    assert (before, after) == pytest.approx((0.075, 0.0325))


def test_harmless_masked_and_still_tokens_are_not_in_it():
    log_ratio, advantages = [0.3, 0.1, -0.4, 0.2, 5.0, 0.7, 0.9], [1, 1, -1, 1, -1, 0, 1]
    found = solved(log_ratio, advantages, [True] * 6 + [False], budget=0.05)
    assert found == solved([0.3, 0.1, -0.4, 0.2], budget=0.05)


@pytest.mark.parametrize(
    ("log_ratio", "budget", "result"),
    [
        ([], 0.01, (0.0, 0.0, 0.0)),  # nothing at all
        ([0.0, 0.0], 0.01, (0.0, 0.0, 0.0)),  # nothing harmful
        ([0.1, 0.1], 0.02, (0.0, 0.01, 0.01)),  # within the budget
        ([0.3, 0.3, 0.3], 0.01, (0.0, 0.09, 0.09)),  # k = 0: the second moment stays the uncapped one
        ([0.1, 0.2], 0.0, (0.0, 0.025, 0.0)),  # no budget at all
    ],
)
def test_the_edges(log_ratio, budget, result):
    assert solved(log_ratio, budget=budget) == pytest.approx(result)


@pytest.mark.parametrize("seed", range(40))
def test_agrees_with_its_definition(seed):
    generator = torch.Generator().manual_seed(seed)
    count = int(torch.randint(1, 60, (), generator=generator))
    log_ratio = torch.randn(count, generator=generator, dtype=torch.float64) * 0.3
    if seed % 2:
        log_ratio = log_ratio.round(decimals=1)  # ties
    advantages = torch.randn(count, generator=generator, dtype=torch.float64).round(decimals=1)
    live = torch.rand(count, generator=generator) < 0.8
    for budget in (0.0, 1.3e-4, 0.011, 0.043, 0.23):
        expected = by_definition(log_ratio.tolist(), advantages.tolist(), live.tolist(), budget)
        assert solved(log_ratio, advantages, live, budget) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def loss_metrics(log_ratio: list[float], **config) -> dict[str, float]:
    bound = runtime("m2po", **config)
    prepared, _ = bound.prepare(rollout([[-1.0 - x for x in log_ratio]], rewards=[1.0]))
    output = bound.loss(as_batch(prepared, torch.full((len(log_ratio),), -1.0, dtype=torch.float64)))
    return {name.removeprefix("train/"): value for name, value in output.metrics.reduce(prepared.group).items()}


def test_nothing_is_clipped_within_the_budget():
    found = loss_metrics([0.05, 0.1], m2po_kl2_budget=0.01, m2po_miniclip_low=0.0, m2po_miniclip_high=0.0)
    assert (found["m2po_eps_low"], found["m2po_eps_high"], found["pg_clipfrac"]) == (1.0, 1e5, 0.0)
    assert found["ppo_kl_m2_after"] == found["ppo_kl_m2_before"] == pytest.approx(0.00625)


def test_the_token_on_the_bound_stays_inside_and_floors_come_after():
    free = loss_metrics([0.1, 0.2, 0.3, 0.4], m2po_kl2_budget=0.05, m2po_miniclip_low=0.0, m2po_miniclip_high=0.0)
    assert free["pg_clipfrac"] == 0.5
    assert free["m2po_eps_low"] == pytest.approx(1 - math.exp(-0.2), abs=1e-5)
    assert free["m2po_eps_high"] == pytest.approx(math.exp(0.2) - 1, abs=1e-5)
    floored = loss_metrics([0.1, 0.2, 0.3, 0.4], m2po_kl2_budget=0.05, m2po_miniclip_low=0.6, m2po_miniclip_high=0.8)
    assert (floored["m2po_eps_low"], floored["m2po_eps_high"], floored["pg_clipfrac"]) == (0.6, 0.8, 0.0)
    assert floored["ppo_kl_m2_after"] == free["ppo_kl_m2_after"] == pytest.approx(0.0325)


class Operations(TorchDispatchMode):
    """Counts what is dispatched; a host synchronisation is `_local_scalar_dense`."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_the_same_few_operations_for_any_number_of_tokens():
    seen = []
    for count in (3, 5000):
        with Operations() as operations:
            solve(torch.linspace(-1, 1, count).double(), torch.ones(count), torch.ones(count, dtype=torch.bool), 0.01)
        seen.append(operations.seen)
    assert seen[0] == seen[1]
    assert [name for name in seen[0] if "_local_scalar_dense" in name or "nonzero" in name] == []


def test_it_traces_with_fake_tensors():
    with FakeTensorMode():
        found = solve(torch.randn(9, dtype=torch.float64), torch.randn(9), torch.ones(9, dtype=torch.bool), 0.01)
    assert [x.shape for x in found] == [(), (), ()]


def test_it_compiles_into_one_graph():
    compiled = torch.compile(solve, fullgraph=True, backend="eager")
    inputs = (
        torch.tensor([0.3, 0.1, -0.4, 0.2]).double(),
        torch.tensor([1.0, 1, -1, 1]),
        torch.ones(4, dtype=torch.bool),
    )
    assert [float(x) for x in compiled(*inputs, 0.05)] == [float(x) for x in solve(*inputs, 0.05)]
