"""Partial rollouts: a response stops at a budget, and goes on later with other weights."""

from __future__ import annotations

import pytest

from relax_core.rollout.types import Budget, SamplingParams
from tests.vllm.conftest import PROMPTS

N, MOST = 4, 20


def test_a_token_budget_cuts_and_versions_tell_the_parts_apart(qwen3):
    params, groups, seen = SamplingParams(N, MOST, seed=3), [[]] * len(PROMPTS), []
    for _ in range(4):
        before, first = groups, qwen3.version
        groups = qwen3.engine.proceed(PROMPTS, before, params, Budget(tokens=6))
        scores = iter(
            qwen3.scores([p for p in PROMPTS for _ in range(N)], [c.token_ids for g in groups for c in g], 1.0)
        )
        for old, new in (
            (a, b) for x, y in zip(before or [], groups, strict=True) for a, b in zip(x or [None] * N, y, strict=True)
        ):
            start = len(old.token_ids) if old else 0
            assert new.token_ids[:start] == (old.token_ids if old else [])
            assert new.log_probs[:start] == (old.log_probs if old else [])
            assert new.versions[start:] == [first] * (len(new.token_ids) - start)
            assert len(new.token_ids) - start <= 6
            mine = [float(next(scores)) for _ in new.token_ids]
            assert new.log_probs[start:] == pytest.approx(mine[start:], abs=1e-4)
            if old and old.finish_reason != "abort":
                assert new is old
        seen.append({c.finish_reason for g in groups for c in g})
        qwen3.change()
        qwen3.publish()
    assert seen[0] >= {"abort"}
    assert "abort" not in seen[-1]
    whole = [c for g in groups for c in g if c.finish_reason == "length"]
    assert whole
    assert all(len(c.token_ids) == MOST for c in whole)
    assert {len(set(c.versions)) for c in whole} == {4}


def test_parts_of_a_response_do_not_repeat_their_random_numbers(qwen3):
    """With a flat distribution the same numbers would give the same tokens again."""
    params = SamplingParams(16, 24, temperature=1.9, seed=5)
    groups = qwen3.engine.proceed([[11]], [[]], params, Budget(tokens=12))
    (group,) = qwen3.engine.proceed([[11]], groups, params, Budget())
    whole = [each.token_ids for each in group if len(each.token_ids) == 24]
    assert whole
    assert all(ids[:12] != ids[12:] for ids in whole)


def test_a_time_budget_cuts_and_what_was_sampled_is_kept(qwen3):
    params, groups, rounds = SamplingParams(8, 100, seed=9), [[]], 0
    while not groups[0] or any(each.finish_reason == "abort" for each in groups[0]):
        before, rounds = groups, rounds + 1
        groups = qwen3.engine.proceed([[11]], before, params, Budget(seconds=0.02))
        for old, new in zip(before[0], groups[0], strict=False):
            assert new.token_ids[: len(old.token_ids)] == old.token_ids
    assert rounds > 1
    assert qwen3.gap([[11]], groups, 1.0) < 1e-4
    assert qwen3.engine.generate([[11]], SamplingParams(1, 3))[0][0].token_ids
