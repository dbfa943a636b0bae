"""`rollout/rloo/*`: what they mean, where they are left out, and that they change nothing."""

from __future__ import annotations

import pytest
import torch

from tests.cases.build import rollout, runtime

PREFIX = "rollout/rloo/"
MASK = [[1, 0], [1, 1, 1], [1, 1], [1, 0, 0, 1], [], [0, 1], [1] * 9, [0, 0]]
GROUPS = [0, 0, 0, 1, 1, 1, 2, 2]
REWARDS = [0.0, 3.0, 1.5, 2.0, 2.0, 2.0, 9.0, 9.0]
"""Three groups: of three with advantages −2.25, 2.25 and 0; of three equal rewards; and one of two, which is incomplete."""


def diagnostics(algorithm: str = "rloo", **config) -> dict[str, float]:
    batch = rollout([[-1.0] * len(each) for each in MASK], rewards=REWARDS, groups=GROUPS, mask=MASK)
    batch = batch.with_values(teacher_log_probs=batch.old_log_probs)
    prepared, metrics = runtime(algorithm, **config).prepare(batch)
    found = metrics.reduce(prepared.group)
    return {name.removeprefix(PREFIX): value for name, value in found.items() if name.startswith(PREFIX)}


def test_the_diagnostics_by_hand():
    assert diagnostics() == pytest.approx(
        {
            "baseline_mean": (1.5 + 2.0) / 2,
            "adv_abs_mean": (2.25 + 2.25 + 0) / 6,
            "no_signal_frac": (2 + 2 + 1) / (1 + 3 + 2 + 2 + 0 + 1),
            "empty_response_frac": 1 / 8,
            "zero_adv_group_frac": 1 / 2,
            "dropped_group_frac": 1 / 3,
        }
    )


def test_they_belong_to_the_estimator():
    assert set(diagnostics("rloo", policy_loss="gspo")) == set(diagnostics())
    assert diagnostics("grpo") == {}
    assert diagnostics("grpo", policy_loss="rloo") == {}


def test_they_are_left_out_where_another_signal_replaces_the_reward():
    assert diagnostics("rloo", opd={"enable": True, "only": True}) == {}
    assert len(diagnostics("rloo", opd={"enable": True})) == 6


def test_they_see_the_reward_alone_and_change_nothing():
    batch = rollout([[-1.0] * len(each) for each in MASK], rewards=REWARDS, groups=GROUPS, mask=MASK)
    bound = runtime("rloo")
    prepared, _ = bound.prepare(batch)
    before = {name: value.clone() for name, value in {**prepared.tokens, **prepared.sequences}.items()}
    bound.binding.estimator.call("rollout_metrics", rollout=prepared, context=None, roles=frozenset({"estimator"}))
    after = {**prepared.tokens, **prepared.sequences}
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_one_incomplete_group_of_two():
    batch = rollout([[-1.0]] * 5, rewards=[0.0, 1.0, 2.0, 0.0, 1.0], groups=[0, 0, 0, 1, 1])
    _, metrics = runtime("rloo").prepare(batch)
    assert metrics.reduce(batch.group)[f"{PREFIX}dropped_group_frac"] == 0.5
    assert metrics.reduce(batch.group)[f"{PREFIX}empty_response_frac"] == 0.0
