"""`DistributedGroup` on two real processes: what each rank found, asserted here."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from rollouts import packed

from relax_core.batch import LossBatch, Rollout, build
from relax_core.groups import DistributedGroup
from relax_core.normalization import normalize
from relax_core.packing import select_sequences

RANKS = 2


def work(rank, directory):
    dist.init_process_group("gloo", init_method=f"file://{directory}/meeting", rank=rank, world_size=RANKS)
    group = DistributedGroup(dist.group.WORLD)
    found = {"place": [group.rank, group.size], **collectives(group), **statistics(group), **sequence_sums(group)}
    (Path(directory) / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    # Without tearing down: gloo's threads race the interpreter's exit, and under load it aborts there.
    os._exit(0)


def collectives(group):
    x = torch.tensor([1.0 + group.rank, -2.0 * group.rank])
    reduced = {operation: group.all_reduce(x, operation).tolist() for operation in ("sum", "max", "min")}
    gathered = {
        "unequal": torch.arange(1.0 + 2 * group.rank),
        "one empty": torch.arange(3.0 * group.rank),
        "all empty": torch.empty(0),
        "integers": torch.tensor([2**40 + group.rank]),
    }
    parts = {name: [part.tolist() for part in group.all_gather(part)] for name, part in gathered.items()}
    return {"reduced": reduced, "input": x.tolist(), "gathered": parts}


def statistics(group):
    values = [[1.0, 2.0], [3.0, 8.0]][group.rank]
    shard = packed(mask=[[1, 1]], rewards=[values[0]])
    shard = build(Rollout, shard.sequence_ids, shard.tokens, shard.sequences, group)
    nothing = select_sequences(shard, torch.arange(0 if group.rank else 1))
    return {
        "whitened": normalize(shard, torch.tensor(values, dtype=torch.float64), "unbiased").tolist(),
        "means with an empty rank": [
            nothing.batch_mean(nothing.rewards).item(),
            nothing.all_live(nothing.raw_mask).tolist(),
        ],
    }


def sequence_sums(group):
    """Tokens 1, 2, 3 of one sequence and 4, 6 of another, the third and the last on rank 1."""
    x = torch.tensor([[1.0, 2.0, 4.0], [3.0, 6.0]][group.rank], dtype=torch.float64, requires_grad=True)
    ids = torch.tensor([[0, 0, 1], [0, 1]][group.rank])
    mask = torch.ones(len(ids), dtype=torch.bool)
    tokens = {"raw_mask": mask, "loss_mask": mask}
    batch = build(LossBatch, ids, tokens, {"rewards": torch.zeros(2)}, group)
    total = batch.sequence_sum(x)
    batch.to_tokens(total.square()).sum().backward()
    return {"totals": total.tolist(), "gradient": x.grad.tolist(), "owns": batch.owns_sequences}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    directory = tmp_path_factory.mktemp("ranks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        multiprocessing.spawn(work, args=(str(directory),), nprocs=RANKS)
    return [json.loads((directory / f"{rank}.json").read_text()) for rank in range(RANKS)]


def test_each_rank_knows_its_place(found):
    assert [each["place"] for each in found] == [[0, 2], [1, 2]]
    assert [each["owns"] for each in found] == [True, False]


def test_every_rank_gets_the_reduction_of_all_and_keeps_its_own(found):
    assert [each["reduced"] for each in found] == [{"sum": [3.0, -2.0], "max": [2.0, 0.0], "min": [1.0, -2.0]}] * 2
    assert [each["input"] for each in found] == [[1.0, 0.0], [2.0, -2.0]]


def test_shards_of_any_length_are_gathered_in_the_order_of_ranks(found):
    expected = {
        "unequal": [[0.0], [0.0, 1.0, 2.0]],
        "one empty": [[], [0.0, 1.0, 2.0]],
        "all empty": [[], []],
        "integers": [[2**40], [2**40 + 1]],
    }
    assert [each["gathered"] for each in found] == [expected] * 2


def test_whitening_is_over_both_ranks(found):
    assert [each["whitened"] for each in found] == [
        pytest.approx([-0.804, -0.482], abs=5e-4),
        pytest.approx([-0.161, 1.447], abs=5e-4),
    ]


def test_an_empty_rank_takes_part(found):
    assert [each["means with an empty rank"] for each in found] == [[1.0, [True, True]]] * 2


def test_a_sequence_sum_is_whole_and_its_gradient_sums_over_the_ranks(found):
    assert [each["totals"] for each in found] == [[6.0, 10.0]] * 2
    assert [each["gradient"] for each in found] == [[3 * 12.0, 3 * 12.0, 2 * 20.0], [3 * 12.0, 2 * 20.0]]
