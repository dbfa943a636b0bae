"""The log-probs of the engine that samples are those of the engine that trains, whatever the weights have become."""

from __future__ import annotations

import pytest

from relax_core.rollout.types import SamplingParams
from tests.vllm.conftest import KNOWN, PROMPTS

TOLERANCE = 1e-4


def sample(pair, temperature, **options):
    return pair.engine.generate(PROMPTS, SamplingParams(4, 24, temperature=temperature, seed=pair.version, **options))


def test_log_probs_agree_before_and_after_each_of_three_updates(pair):
    for _ in range(4):
        for temperature in (0.7, 1.0, 1.3):
            groups = sample(pair, temperature)
            assert [len(group) for group in groups] == [4, 4, 4, 4]
            assert pair.gap(PROMPTS, groups, temperature) < TOLERANCE
            for each in (each for group in groups for each in group):
                assert each.versions == [pair.version] * len(each.token_ids)
                assert max(each.log_probs) <= 0
                assert max(each.token_ids) < KNOWN
        pair.change()
        pair.publish()


def test_without_the_reset_of_the_prefix_cache_log_probs_are_wrong(pair, monkeypatch):
    sample(pair, 1.0)
    pair.change()
    with monkeypatch.context() as patch:
        patch.setattr(pair.engine._engine, "reset_prefix_cache", lambda **_: True)
        pair.publish()
    assert pair.gap(PROMPTS, sample(pair, 1.0), 1.0) > 100 * TOLERANCE
    pair.publish()
    assert pair.gap(PROMPTS, sample(pair, 1.0), 1.0) < TOLERANCE


@pytest.mark.parametrize(("top_k", "top_p"), [(5, 1.0), (0, 0.6)])
def test_log_probs_of_truncated_sampling_are_those_of_the_truncated_distribution(pair, top_k, top_p):
    groups = sample(pair, 0.9, top_k=top_k, top_p=top_p)
    rows = [(prompt, each) for prompt, group in zip(PROMPTS, groups, strict=True) for each in group]
    whole = pair.scores([row[0] for row in rows], [row[1].token_ids for row in rows], 0.9).tolist()
    truncated = [value for row in rows for value in row[1].log_probs]
    assert all(inside >= outside - TOLERANCE for inside, outside in zip(truncated, whole, strict=True))
    assert max(inside - outside for inside, outside in zip(truncated, whole, strict=True)) > 0.1
