"""The primitives of a batch, against numbers worked out by hand and against plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from rollouts import EMPTY, SILENT, packed, random_rollout
from torch._subclasses.fake_tensor import FakeTensorMode

from relax_core.batch import CriticBatch, LossBatch, Rollout, build
from relax_core.conformance.threads import run_ranks
from relax_core.errors import PluginError
from relax_core.packing import loss_batch, select_sequences, select_tokens
from relax_core.reductions import Metrics
from relax_core.results import Sum

MASK = [[1, 0, 1], [], [0, 0], [1, 1, 0, 1]]
X = torch.tensor([1.0, 100.0, 2.0, 100.0, 100.0, 3.0, 5.0, 100.0, 10.0], dtype=torch.float64)


@pytest.fixture
def rollout():
    """Sequences of 2, 0, 0 and 3 live tokens; X holds 100 where masked."""
    return packed(
        mask=MASK,
        rewards=[1.0, 2.0, 4.0, 9.0],
        groups=[0, 0, 1, 1],
        old_log_probs=[[-1.0] * len(each) for each in MASK],
    )


@pytest.fixture
def batch(rollout):
    """A micro-batch in which one more token, the last but one that is live, is dropped from the loss."""
    keep = rollout.raw_mask.clone()
    keep[6] = False
    log_probs = torch.tensor([-1.0, -5.0, -2.0, -5.0, -5.0, -0.5, -5.0, -5.0, -1.5], dtype=torch.float64)
    prepared = rollout.with_values(loss_mask=keep, advantages=torch.ones(9, dtype=torch.float64))
    return loss_batch(prepared, log_probs=log_probs.requires_grad_())


def shard(whole, group):
    """This rank's groups; rank 2 of 3 has none."""
    mine = (whole.group_ids % 3 == group.rank).nonzero().flatten()
    part = select_sequences(whole, mine)
    return build(Rollout, part.sequence_ids, part.tokens, part.sequences, group), mine


# -- a rollout: from tokens to sequences and back ----------------------------------------------------------------------


def test_to_tokens_shows_a_sequence_to_its_tokens(rollout):
    assert rollout.to_tokens(rollout.rewards).tolist() == [1, 1, 1, 4, 4, 9, 9, 9, 9]


def test_sequence_sum_and_mean_look_at_live_tokens_and_are_0_without_any(rollout):
    assert rollout.sequence_sum(X).tolist() == [3.0, 0.0, 0.0, 18.0]
    assert rollout.sequence_mean(X).tolist() == [1.5, 0.0, 0.0, 6.0]


def test_a_mask_may_be_given(rollout):
    every = torch.ones_like(rollout.raw_mask)
    assert rollout.sequence_sum(X, mask=every).tolist() == [103.0, 0.0, 200.0, 118.0]
    assert rollout.sequence_mean(X, mask=every).tolist() == pytest.approx([103 / 3, 0.0, 100.0, 29.5])
    assert rollout.token_mean(X, mask=~rollout.raw_mask).item() == 100.0


def test_a_loss_batch_takes_the_final_mask_and_a_rollout_the_raw_one(rollout, batch):
    assert rollout.sequence_sum(X).tolist() == [3.0, 0.0, 0.0, 18.0]
    assert batch.sequence_sum(X).tolist() == [3.0, 0.0, 0.0, 13.0]


def test_group_statistics_are_seen_from_each_sequence(rollout):
    assert rollout.group_sum(rollout.rewards).tolist() == [3.0, 3.0, 13.0, 13.0]
    assert rollout.group_mean(rollout.rewards).tolist() == [1.5, 1.5, 6.5, 6.5]
    assert rollout.group_std(rollout.rewards).tolist() == pytest.approx([0.5**0.5] * 2 + [12.5**0.5] * 2)
    assert rollout.group_std(rollout.rewards, unbiased=False).tolist() == pytest.approx([0.5, 0.5, 2.5, 2.5])


def test_groups_need_not_stand_together():
    rollout = packed(mask=[[1]] * 4, rewards=[1.0, 10.0, 3.0, 30.0], groups=[1, 0, 1, 0])
    assert rollout.group_mean(rollout.rewards).tolist() == [2.0, 20.0, 2.0, 20.0]


def test_batch_statistics_are_over_sequences_and_token_statistics_over_live_tokens(rollout):
    assert rollout.batch_mean(rollout.rewards).item() == 4.0
    assert rollout.batch_std(rollout.rewards).item() == pytest.approx((38 / 3) ** 0.5)
    assert rollout.batch_std(rollout.rewards, unbiased=False).item() == pytest.approx(9.5**0.5)
    assert rollout.token_mean(X).item() == pytest.approx(4.2)
    assert rollout.token_std(X).item() == pytest.approx((50.8 / 4) ** 0.5)
    assert rollout.token_std(X, unbiased=False).item() == pytest.approx((50.8 / 5) ** 0.5)


def test_next_live_passes_over_masked_tokens_and_ends_with_the_sequence(rollout):
    found = rollout.next_live(X)
    assert found[rollout.raw_mask].tolist() == [2.0, 0.0, 5.0, 10.0, 0.0]
    assert found.tolist()[1] == 2.0


def test_discounted_sum_takes_no_step_over_masked_tokens(rollout):
    assert rollout.discounted_sum(X, 0.5).tolist() == [2.0, 0.0, 2.0, 0.0, 0.0, 8.0, 10.0, 0.0, 10.0]


def test_at_last_is_the_last_live_token(rollout):
    assert rollout.at_last(rollout.rewards).tolist() == [0, 0, 1.0, 0, 0, 0, 0, 0, 9.0]


def test_all_live_is_every_live_value_without_a_graph(rollout):
    found = rollout.all_live(X.clone().requires_grad_())
    assert found.tolist() == [1.0, 2.0, 3.0, 5.0, 10.0]
    assert not found.requires_grad


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("per_token", [False, True])
def test_discounted_sum_is_the_plain_loop(seed, per_token):
    rollout, _ = random_rollout(seed)
    x = torch.randn(len(rollout.sequence_ids), dtype=torch.float64)
    decay = torch.rand(len(x), dtype=torch.float64) if per_token else 0.9
    decays = decay if per_token else torch.full_like(x, decay)
    expected, following = torch.zeros_like(x), torch.zeros(rollout.size, dtype=torch.float64)
    for t in reversed(range(len(x))):
        if rollout.raw_mask[t]:
            expected[t] = x[t] + decays[t] * following[rollout.sequence_ids[t]]
            following[rollout.sequence_ids[t]] = expected[t]
    torch.testing.assert_close(rollout.discounted_sum(x, decay), expected, rtol=1e-12, atol=1e-12)


def test_a_long_sequence_is_one_geometric_series():
    rollout = packed(mask=[[1] * 1000])
    found = rollout.discounted_sum(torch.ones(1000, dtype=torch.float64), 0.99)
    assert found[0].item() == pytest.approx((1 - 0.99**1000) / 0.01, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("reward", "size"), [(100.1, 7), (0.7, 3)])
def test_equal_rewards_have_exactly_no_spread(dtype, reward, size):
    rollout = packed(mask=[[1, 1]] * size, rewards=[reward] * size)
    rewards = rollout.rewards.to(dtype)
    for mean in (rollout.group_mean(rewards), rollout.batch_mean(rewards).expand(size)):
        assert (rewards - mean).tolist() == [0.0] * size
    assert rollout.group_std(rewards).tolist() == [0.0] * size
    assert rollout.batch_std(rewards).item() == 0.0
    assert rollout.token_std(rollout.to_tokens(rewards)).item() == 0.0


def test_statistics_survive_a_large_offset_in_single_precision():
    rollout = packed(mask=[[1]] * 4, rewards=[0.0] * 4)
    rewards = torch.tensor([1e6, 1e6 + 1, 1e6 + 2, 1e6 + 3])
    assert rollout.group_std(rewards).tolist() == pytest.approx([(5 / 3) ** 0.5] * 4, rel=1e-6)


def test_one_value_has_no_spread_and_none_has_no_mean():
    one = packed(mask=[[1]], rewards=[3.0])
    assert one.group_std(one.rewards).tolist() == [0.0]
    assert one.batch_std(one.rewards).item() == 0.0
    silent = packed(mask=[[0, 0]])
    assert silent.token_mean(torch.ones(2)).item() == 0.0
    assert silent.token_std(torch.ones(2)).item() == 0.0


# -- a rollout over ranks ----------------------------------------------------------------------------------------------


def test_batch_statistics_are_those_of_all_ranks_an_empty_one_too():
    whole, _ = random_rollout()
    whole = select_sequences(whole, (whole.group_ids < 2).nonzero().flatten())
    x = whole.old_log_probs

    def statistics(rollout):
        values = (
            rollout.batch_mean(rollout.rewards), rollout.batch_std(rollout.rewards),
            rollout.token_mean(rollout.old_log_probs), rollout.token_std(rollout.old_log_probs, unbiased=False),
            rollout.all_live(rollout.old_log_probs).sum(),
        )  # fmt: skip
        return [value.item() for value in values]

    for found in run_ranks(3, lambda group: statistics(shard(whole, group)[0])):
        assert found == pytest.approx(statistics(whole), rel=1e-12)
    assert whole.all_live(x).shape == (int(whole.raw_mask.sum()),)


def test_group_statistics_and_recursions_need_no_other_rank():
    whole, _ = random_rollout()
    expected = whole.group_std(whole.rewards)

    def work(group):
        rollout, mine = shard(whole, group)
        tokens = rollout.discounted_sum(rollout.at_last(rollout.rewards), 0.9)
        return mine, rollout.group_std(rollout.rewards), rollout.sequence_sum(tokens)

    returns = whole.sequence_sum(whole.discounted_sum(whole.at_last(whole.rewards), 0.9))
    for mine, spread, total in run_ranks(3, work):
        torch.testing.assert_close(spread, expected[mine])
        torch.testing.assert_close(total, returns[mine])


def test_primitives_of_an_empty_shard_are_empty():
    whole, _ = random_rollout()
    empty = select_sequences(whole, torch.tensor([], dtype=torch.long))
    x = empty.old_log_probs
    per_token = (
        empty.next_live(x),
        empty.discounted_sum(x, 0.9),
        empty.at_last(empty.rewards),
        empty.all_live(x),
        empty.to_tokens(empty.rewards),
    )
    per_sequence = (
        empty.sequence_sum(x),
        empty.sequence_mean(x),
        empty.group_mean(empty.rewards),
        empty.group_std(empty.rewards),
    )
    assert {value.shape for value in per_token + per_sequence} == {(0,)}
    assert [empty.batch_mean(empty.rewards).item(), empty.token_std(x).item()] == [0.0, 0.0]


def test_sequences_without_a_token_or_without_a_live_one_are_zero():
    rollout, _ = random_rollout()
    sums, means = rollout.sequence_sum(rollout.old_log_probs), rollout.sequence_mean(rollout.old_log_probs)
    assert [sums[EMPTY], sums[SILENT], means[EMPTY], means[SILENT]] == [0.0] * 4


# -- a micro-batch -----------------------------------------------------------------------------------------------------


def test_the_ratio_is_1_where_masked_and_finite_everywhere(rollout):
    log_probs = torch.tensor([-1.0, torch.nan, 199.0, torch.inf, 0, -201.0, -0.5, 0, -1.5], dtype=torch.float64)
    prepared = rollout.with_values(loss_mask=rollout.raw_mask)
    batch = loss_batch(prepared, log_probs=log_probs)
    expected = [0.0, 0.0, 20.0, 0.0, 0.0, -20.0, 0.5, 0.0, -0.5]
    assert batch.log_ratio().tolist() == expected
    assert batch.ratio().tolist() == pytest.approx([math.exp(each) for each in expected])


def test_local_statistics_are_those_of_the_final_mask(batch):
    assert batch.local_mean(X).item() == 4.0
    assert batch.local_std(X).item() == pytest.approx((50 / 3) ** 0.5)


def test_local_statistics_of_nothing_are_zero(rollout):
    batch = loss_batch(
        rollout.with_values(loss_mask=torch.zeros_like(rollout.raw_mask)), log_probs=rollout.old_log_probs
    )
    assert [batch.local_mean(X).item(), batch.local_std(X).item()] == [0.0, 0.0]


def test_sequence_sum_is_whole_on_each_context_parallel_rank():
    whole, forward = random_rollout()
    prepared = whole.with_values(loss_mask=whole.raw_mask)
    expected = loss_batch(prepared, **forward)

    def work(group):
        part = torch.arange(len(whole.sequence_ids)) % 3 == group.rank
        batch = loss_batch(select_tokens(prepared, part), group, log_probs=forward["log_probs"][part])
        return batch.sequence_sum(batch.log_probs), batch.sequence_mean(batch.log_probs)

    for total, mean in run_ranks(3, work):
        torch.testing.assert_close(total, expected.sequence_sum(expected.log_probs))
        torch.testing.assert_close(mean, expected.sequence_mean(expected.log_probs))


def test_a_sequence_counts_once_in_a_metric_though_every_context_parallel_rank_has_it(rollout):
    def work(group):
        part = torch.arange(len(X)) % 2 == group.rank
        prepared = select_tokens(rollout.with_values(loss_mask=rollout.raw_mask, x=X), part)
        batch, metrics = loss_batch(prepared, group, log_probs=X[part]), Metrics()
        metrics.add("train", {"rewards": Sum(batch.rewards, over="sequence"), "x": Sum(batch.x)}, batch)
        return metrics.reduce(group)

    assert run_ranks(2, work) == [{"train/rewards": 16.0, "train/x": 21.0}] * 2


@pytest.mark.parametrize("primitive", ["sequence_sum", "sequence_mean"])
def test_sequence_sums_are_differentiable(batch, primitive):
    x = X.clone().requires_grad_()
    assert torch.autograd.gradcheck(getattr(batch, primitive), (x,))


def test_the_backward_over_context_parallel_ranks_is_that_of_one_rank():
    whole, forward = random_rollout()
    prepared = whole.with_values(loss_mask=whole.raw_mask)

    def gradient(part, group=None):
        leaf = forward["log_probs"][part].requires_grad_()
        batch = loss_batch(select_tokens(prepared, part), group, log_probs=leaf)
        per_token = batch.to_tokens(batch.sequence_mean(batch.log_probs).exp()) * batch.old_log_probs
        return torch.autograd.grad(torch.where(batch.live, per_token, 0.0).sum(), leaf)[0]

    every = torch.arange(len(whole.sequence_ids))
    expected = gradient(every >= 0)
    for rank, found in enumerate(run_ranks(2, lambda group: gradient(every % 2 == group.rank, group))):
        torch.testing.assert_close(found, expected[every % 2 == rank], rtol=1e-12, atol=1e-12)


# -- all ---------------------------------------------------------------------------------------------------------------


def of_a_rollout(rollout):
    x, rewards = rollout.old_log_probs, rollout.rewards
    return (
        rollout.to_tokens(rewards), rollout.sequence_sum(x), rollout.sequence_mean(x),
        rollout.group_sum(rewards), rollout.group_mean(rewards), rollout.group_std(rewards),
        rollout.batch_mean(rewards), rollout.batch_std(rewards), rollout.token_mean(x), rollout.token_std(x),
        rollout.next_live(x), rollout.discounted_sum(x, 0.9), rollout.discounted_sum(x, x.exp()),
        rollout.at_last(rewards),
    )  # fmt: skip


def of_a_micro_batch(batch):
    x = batch.log_probs
    return batch.sequence_sum(x), batch.sequence_mean(x), batch.ratio(), batch.local_mean(x), batch.local_std(x)


@pytest.fixture
def both():
    rollout, forward = random_rollout()
    rollout = rollout.with_values(loss_mask=rollout.raw_mask)
    return rollout, loss_batch(rollout, **forward)


def rebuilt(kind, batch, convert):
    """The same batch of converted tensors."""
    tokens, sequences = (
        {name: convert(value) for name, value in part.items()} for part in (batch.tokens, batch.sequences)
    )
    return kind(convert(batch.sequence_ids), tokens, sequences)


def test_primitives_trace_under_fake_tensors(both):
    rollout, batch = both
    mode = FakeTensorMode()
    fakes = rebuilt(Rollout, rollout, mode.from_tensor), rebuilt(LossBatch, batch, mode.from_tensor)
    with mode:
        found = of_a_rollout(fakes[0]) + of_a_micro_batch(fakes[1])
    expected = of_a_rollout(rollout) + of_a_micro_batch(batch)
    assert [value.shape for value in found] == [value.shape for value in expected]


def test_primitives_compile_into_one_graph(both):
    for primitives, batch in zip((of_a_rollout, of_a_micro_batch), both, strict=True):
        compiled = torch.compile(primitives, fullgraph=True, backend="eager")
        for found, expected in zip(compiled(batch), primitives(batch), strict=True):
            torch.testing.assert_close(found, expected)


def test_no_primitive_changes_its_input(both):
    rollout, batch = both
    before = [value.clone() for each in both for part in (each.tokens, each.sequences) for value in part.values()]
    of_a_rollout(rollout)
    of_a_micro_batch(batch)
    after = [value for each in both for part in (each.tokens, each.sequences) for value in part.values()]
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old, new)


def test_results_keep_the_type_of_their_input(both):
    rollout, _ = both
    single = rebuilt(Rollout, rollout, lambda value: value.float() if value.is_floating_point() else value)
    assert {value.dtype for value in of_a_rollout(single)} == {torch.float32}


def test_masked_positions_are_finite_in_every_batch(rollout):
    raw = torch.where(rollout.raw_mask, X, torch.nan)
    tokens = {"raw_mask": rollout.raw_mask, "values": raw, "candidate_log_probs": raw[:, None].expand(-1, 2)}
    batch = build(CriticBatch, rollout.sequence_ids, tokens, rollout.sequences)
    assert batch.values.isfinite().all()
    assert batch.candidate_log_probs.isfinite().all()


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("ref_log_probs", "declare requires_reference"),
        ("teacher_log_probs", "declare requires_teacher"),
        ("rollout_log_probs", "declare requires_rollout_log_probs"),
        ("values", "declare requires_critic"),
        ("turn_reward", "declare TokenField('turn_reward') or SequenceField('turn_reward') in the spec"),
    ],
)
def test_a_missing_value_says_what_to_declare(rollout, name, fix):
    assert not rollout.has(name)
    with pytest.raises(PluginError) as error:
        getattr(rollout, name)
    assert str(error.value) == f"Rollout: this batch has no '{name}'. Fix: {fix}"


def test_a_misspelt_name_names_itself(batch):
    with pytest.raises(PluginError, match="this batch has no 'old_logprobs'"):
        batch.old_logprobs  # noqa: B018
