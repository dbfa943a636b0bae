"""Ranks as threads: what they exchange, and how they fail."""

from __future__ import annotations

import pytest
import torch

from relax_core.conformance.threads import CollectiveError, run_grid, run_ranks


def test_every_rank_gets_the_reduction_of_all():
    def work(group):
        x = torch.tensor([1.0 + group.rank, -group.rank])
        return [group.all_reduce(x, operation).tolist() for operation in ("sum", "max", "min")]

    assert run_ranks(3, work) == [[[6.0, -3.0], [3.0, 0.0], [1.0, -2.0]]] * 3


def test_gathers_unequal_lengths_in_the_order_of_ranks():
    gathered = run_ranks(3, lambda group: torch.cat(group.all_gather(torch.full((group.rank,), group.rank))).tolist())
    assert gathered == [[1, 2, 2]] * 3


def test_a_rank_of_a_grid_speaks_to_its_row_its_column_and_to_all():
    def work(grid):
        me = torch.tensor([10 * grid.data.rank + grid.context.rank])
        return [torch.cat(group.all_gather(me)).tolist() for group in (grid.data, grid.context, grid.world)]

    everybody = [0, 1, 10, 11]
    assert run_grid(2, 2, work) == [
        [[0, 10], [0, 1], everybody],
        [[1, 11], [0, 1], everybody],
        [[0, 10], [10, 11], everybody],
        [[1, 11], [10, 11], everybody],
    ]


def test_the_first_cause_is_raised_and_nobody_hangs():
    def work(group):
        if group.rank == 1:
            raise ValueError("the cause")
        return group.all_reduce(torch.ones(1), "sum")

    with pytest.raises(ValueError, match="the cause"):
        run_ranks(3, work)


def test_a_collective_that_one_rank_skips_is_an_error():
    with pytest.raises(CollectiveError, match=r"waits in .*sum.* for rank 0, which has left"):
        run_ranks(2, lambda group: group.rank and group.all_reduce(torch.ones(1), "sum"))


def test_different_collectives_in_one_round_are_an_error():
    with pytest.raises(CollectiveError, match="different collectives"):
        run_ranks(2, lambda group: group.all_reduce(torch.ones(1), "sum" if group.rank else "max"))


def test_different_shapes_in_one_reduction_are_an_error():
    with pytest.raises(CollectiveError, match="different collectives"):
        run_ranks(2, lambda group: group.all_reduce(torch.ones(1 + group.rank), "sum"))
