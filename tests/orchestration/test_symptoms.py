"""What is said of a run that learns nothing."""

from __future__ import annotations

import pytest

from relax_core.orchestration.symptoms import SYMPTOMS, Watch

HEALTHY = {
    "rollout/reward_std": 0.3,
    "rollout/adv_zero_ratio": 0.5,
    "rollout/truncated_ratio": 0.2,
    "train/entropy": 1.0,
    "train/approx_kl": 0.01,
    "train/ref_kl": 0.1,
}
BAD = {
    "rollout/reward_std": 0.0,
    "rollout/adv_zero_ratio": 1.0,
    "rollout/truncated_ratio": 1.0,
    "train/entropy": 0.0,
    "train/approx_kl": -2.0,
    "train/ref_kl": 50.0,
}


def told(watch, **changed):
    return list(watch.warnings(HEALTHY | {key.replace("__", "/"): value for key, value in changed.items()}))


def test_a_healthy_run_is_left_alone():
    watch = Watch(2)
    assert [told(watch) for _ in range(5)] == [[]] * 5


@pytest.mark.parametrize("symptom", SYMPTOMS, ids=lambda each: each.metric)
def test_each_is_said_once_and_again_after_it_was_gone(symptom):
    watch, steps = Watch(3), 3 if symptom.lasting else 1
    sick = {symptom.metric.replace("/", "__"): BAD[symptom.metric]}
    said = [len(told(watch, **sick)) for _ in range(6)]
    assert said == [int(step == steps) for step in range(1, 7)]
    told(watch)
    assert [len(told(watch, **sick)) for _ in range(3)] == [int(step == steps) for step in range(1, 4)]


def test_the_sentence_names_metric_value_duration_and_cause():
    watch = Watch(2)
    told(watch, rollout__reward_std=0.0)
    (sentence,) = told(watch, rollout__reward_std=0.0)
    assert sentence.startswith("rollout/reward_std is 0 for 2 steps: every reward is the same, so nothing is learned")


def test_a_metric_that_is_not_there_says_nothing():
    watch = Watch(1)
    assert list(watch.warnings({})) == []
