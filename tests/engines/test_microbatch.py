"""How mini-batches are cut."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from relax_core.engines.microbatch import by_count, by_tokens


def test_by_count():
    assert by_count(5, 2) == [[0, 1], [2, 3], [4]]
    assert by_count(0, 2) == []


def test_by_tokens_puts_similar_lengths_together():
    assert by_tokens([2, 9, 3, 8], 18) == [[1, 3], [2, 0]]


def test_a_sequence_over_the_budget_goes_alone():
    assert by_tokens([50, 3, 4], 10) == [[0], [2, 1]]


@settings(deadline=None)
@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 100))
def test_every_sequence_is_in_one_cut_within_the_budget(lengths, budget):
    cuts = by_tokens(lengths, budget)
    assert sorted(i for cut in cuts for i in cut) == list(range(len(lengths)))
    assert all(len(cut) == 1 or len(cut) * max(lengths[i] for i in cut) <= budget for cut in cuts)
