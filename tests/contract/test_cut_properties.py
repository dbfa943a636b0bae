"""The gradient belongs to the data, not to how it is cut, ordered or packed (arbitrary ones, by hypothesis)."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rollouts import packed, random_rollout

from relax_core.aggregation import AGGREGATIONS
from relax_core.conformance.case import runtime_for
from relax_core.conformance.cuts import Cut, Layout, cut, train_actor
from relax_core.packing import select_sequences
from relax_core.registry import Registry

ALGORITHM = {
    "entropy_coef": 0.01,
    "normalize_advantages": True,
    "loss_agg_length": 8,
    "is_correction": {"enable": True, "level": "geometric", "action": "mask", "lower_bound": 0.95, "upper_bound": 1.05},
    "opsm": {"enable": True, "delta": 0.0},
}
few = settings(max_examples=15, deadline=None, derandomize=True)


@functools.cache
def runtime(aggregation, plain=False):
    algorithm = {"loss_agg_mode": aggregation} | ({"loss_agg_length": 8} if plain else ALGORITHM)
    return runtime_for({"algorithm": "grpo", "config": {"algorithm": algorithm}}, Registry.load())


@functools.cache
def whole(aggregation):
    rollout, forward = random_rollout()
    return train_actor(runtime(aggregation), rollout, forward)


def assert_same(outcome, expected, position=slice(None)):
    assert outcome.loss == pytest.approx(expected.loss, abs=1e-12)
    for name, gradient in outcome.gradients.items():
        torch.testing.assert_close(gradient, expected.gradients[name][position], rtol=1e-9, atol=1e-12)
    assert outcome.metrics == pytest.approx(expected.metrics, abs=1e-12)


def test_the_reference_has_something_to_lose():
    """Weights, masks and clipping all act, so that each could break what is asserted below."""
    outcome = whole("token-mean")
    for name in ("is_clip_ratio", "opsm_drop_ratio", "pg_clipfrac"):
        assert 0 < outcome.metrics[f"train/{name}"] < 1
    assert (outcome.gradients["log_probs"] != 0).sum() > 10
    assert (outcome.gradients["entropy"] != 0).sum() > 10


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@few
@given(data=st.data())
def test_the_same_for_every_assignment_to_micro_batches(aggregation, data):
    rollout, forward = random_rollout()
    index = st.integers(0, 3)
    micro_batches = torch.tensor(data.draw(st.lists(index, min_size=rollout.size, max_size=rollout.size)))
    nowhere = torch.zeros(rollout.size, dtype=torch.long)
    cuts = Cut(Layout(micro_batches=4), nowhere, micro_batches, nowhere[rollout.sequence_ids])
    assert_same(train_actor(runtime(aggregation), rollout, forward, cuts), whole(aggregation))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@few
@given(sizes=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4)), seed=st.integers(0, 1000))
def test_the_same_for_every_layout_of_ranks(aggregation, sizes, seed):
    rollout, forward = random_rollout()
    cuts = cut(rollout, Layout(*sizes), seed)
    assert_same(train_actor(runtime(aggregation), rollout, forward, cuts), whole(aggregation))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@few
@given(order=st.permutations(range(15)))
def test_the_same_for_every_order_of_sequences(aggregation, order):
    rollout, forward = random_rollout()
    numbered = rollout.with_values(position=torch.arange(len(rollout.sequence_ids)))
    turned = select_sequences(numbered, torch.tensor(order))
    position = turned.read("position")
    outcome = train_actor(runtime(aggregation), turned, {name: value[position] for name, value in forward.items()})
    assert_same(outcome, whole(aggregation), position)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@few
@given(data=st.data())
def test_masked_tokens_change_nothing_wherever_they_stand(aggregation, data):
    """The live tokens alone, and the same with garbage packed before, between and after them."""
    gaps = data.draw(st.lists(st.integers(0, 3), min_size=20, max_size=20))
    bare, padded = spaced([0] * 20), spaced(gaps)
    expected, outcome = (train_actor(runtime(aggregation, plain=True), *each) for each in (bare, padded))
    assert outcome.loss == pytest.approx(expected.loss, abs=1e-12)
    live, gradient = padded[0].raw_mask, outcome.gradients["log_probs"]
    torch.testing.assert_close(gradient[live], expected.gradients["log_probs"], rtol=1e-9, atol=1e-12)
    assert (gradient[~live] == 0).all()


def spaced(gaps):
    """Four sequences of 1 to 4 live tokens, each token after as many masked ones as `gaps` says."""
    gap, mask, old, new, count = iter(gaps), [], [], [], 0
    for length in (1, 3, 4, 2):
        mask.append([])
        old.append([])
        new.append([])
        for _ in range(length):
            empty, count = next(gap), count + 1
            mask[-1] += [0] * empty + [1]
            old[-1] += [float("nan")] * empty + [-0.1 * count]
            new[-1] += [float("inf")] * empty + [-0.3 + 0.02 * count]
        trailing = next(gap)
        mask[-1] += [0] * trailing
        old[-1] += [-9999.0] * trailing
        new[-1] += [float("nan")] * trailing
    rollout = packed(mask=mask, rewards=[1.0, 0.0, 0.3, 1.0], groups=[0, 0, 1, 1], old_log_probs=old)
    return rollout, {"log_probs": torch.tensor([value for each in new for value in each], dtype=torch.float64)}


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [("token-mean", -0.5), ("seq-mean-token-mean", 0.0), ("seq-mean-token-sum-norm", -0.125)],
)
def test_token_losses_of_1_and_of_three_minus_1_in_two_micro_batches(aggregation, expected):
    algorithm = {"loss_agg_mode": aggregation, "loss_agg_length": 8, "advantage_norm_mode": "none"}
    bound = runtime_for({"algorithm": "grpo", "config": {"algorithm": algorithm}}, Registry.load())
    rollout = packed(mask=[[1], [1, 1, 1]], rewards=[-1.0, 1.0], old_log_probs=[[-1.0], [-1.0] * 3])
    apart = Cut(Layout(micro_batches=2), torch.tensor([0, 0]), torch.tensor([0, 1]), torch.tensor([0] * 4))
    for cuts in (None, apart):
        assert train_actor(bound, rollout, {"log_probs": rollout.old_log_probs}, cuts).loss == pytest.approx(expected)
