"""How mini-batches are cut."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from relax_core.config import TrainerSection
from relax_core.engines.microbatch import by_count, by_tokens
from relax_core.engines.placement import parts
from relax_core.engines.rows import lay_out
from relax_core.engines.types import Tokens


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


@given(
    groups=st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=6), min_size=1, max_size=6),
    width=st.sampled_from([None, 8, 1024]),
)
def test_every_sequence_stands_once_and_no_micro_batch_is_too_large(groups, width):
    prompts = [[number + 1] * 5 for number, group in enumerate(groups) for _ in group]
    tokens = Tokens(prompts, [[1] * length for group in groups for length in group])
    trainer = TrainerSection(use_dynamic_batch_size=True, max_tokens_per_micro_batch=60)
    found = parts(tokens, trainer, width)
    assert sorted(i for part in found for i in part.index) == list(range(len(prompts)))
    for part in found:
        layout = lay_out(part.tokens, width)
        assert layout.ids.numel() <= 60
        assert layout.responses.tolist() == [1] * sum(len(tokens.responses[i]) for i in part.index)
        assert len(layout.ids) == len(part.tokens.rows)


def test_the_longest_responses_share_a_row_as_far_as_there_is_room():
    """Rows of 2 + 4 + 4, 1 + 9 and 2 + 3 tokens where a micro-batch has 10; of 2 + 4 + 4 + 3 and 1 + 9 where it has 20."""
    tokens = Tokens([[7, 7], [7, 7], [7, 7], [8]], [[1] * 3, [1] * 4, [1] * 4, [1] * 9])
    assert told(tokens, 10) == [([1, 2], (2,)), ([3], (1,)), ([0], (1,))]
    assert told(tokens, 20) == [([1, 2, 0], (3,)), ([3], (1,))]


def told(tokens, budget):
    trainer = TrainerSection(use_dynamic_batch_size=True, max_tokens_per_micro_batch=budget)
    return [(part.index, part.tokens.rows) for part in parts(tokens, trainer, 2**20)]
