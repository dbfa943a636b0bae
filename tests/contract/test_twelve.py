"""Twelve algorithms written against the public names alone, and the other built-ins: cut as a cluster cuts them, and
against known numbers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from rollouts import packed, random_rollout
from torch._subclasses.fake_tensor import FakeTensorMode

from relax_core.batch import LossBatch
from relax_core.conformance.case import runtime_for
from relax_core.conformance.cuts import Cut, Layout, cut, train_actor, train_critic
from relax_core.packing import loss_batch, select_sequences
from relax_core.registry import Registry
from relax_core.spec import capability

PLUGINS = Path(__file__).parent / "plugins"

TWELVE = {
    "gspo": {"advantage_estimator": "gspo"},
    "gmpo": {"advantage_estimator": "gmpo", "loss_agg_mode": "seq-mean-token-mean"},
    "m2po": {"advantage_estimator": "m2po"},
    "m2po_mask": {"advantage_estimator": "grpo", "m2po": {"enable": True, "threshold": 0.01}},
    "reinforce_plus_plus": {"advantage_estimator": "reinforce_plus_plus", "kl_coef": 0.1, "gamma": 0.9},
    "ppo": {"advantage_estimator": "ppo", "gamma": 0.97, "lambd": 0.9, "normalize_advantages": True},
    "dr_grpo": {"advantage_estimator": "dr_grpo", "loss_agg_mode": "seq-mean-token-sum-norm", "loss_agg_length": 8},
    "clip_cov": {"advantage_estimator": "grpo", "clip_cov": {"enable": True, "ratio": 0.2, "low": 0.05}},
    "dapo": {"advantage_estimator": "grpo", "dapo": {"enable": True, "max_length": 8, "cache_length": 4}},
    "luffy": {"advantage_estimator": "luffy"},
    "topk_distillation": {"advantage_estimator": "grpo", "topk_distillation": {"enable": True, "divergence": "jsd"}},
    "turn_level": {"advantage_estimator": "turn_level", "policy_loss": "grpo", "turn_gamma": 0.9},
}
OTHERS = {
    "cispo": {"advantage_estimator": "cispo", "clip_ratio_high": 10.0},
    "reinforce_plus_plus_baseline": {"advantage_estimator": "reinforce_plus_plus_baseline"},
    "rloo": {"advantage_estimator": "rloo"},
    "sapo": {"advantage_estimator": "sapo", "sapo_tau_neg": 2.0},
    "turn_returns": {"advantage_estimator": "turn_returns", "gamma": 0.9},
    "turn_returns_group": {"advantage_estimator": "turn_returns_group", "gamma": 0.9},
}
ALL = TWELVE | OTHERS
ROOT = Path(__file__).parents[2]
PACKAGES = {
    path.parent.name.removeprefix("relax_"): path for path in ROOT.glob("examples/packages/*/src/*/__init__.py")
}
FILES = {name: PLUGINS / f"{name}.py" for name in ALL if (PLUGINS / f"{name}.py").exists()} | PACKAGES
"""Those that are no built-ins."""


def runtime(name, **changes):
    registry = Registry.load(files=[FILES[name]] if name in FILES else [])
    return runtime_for({"algorithm": "grpo", "config": {"algorithm": ALL[name] | changes}}, registry)


def declared(bound, name):
    """The values of a capability over the roles that are played."""
    return [capability(role, name, config) for _, _, role, config in bound.binding.roles() if hasattr(role, name)]


def assert_same(cut_outcome, whole):
    assert cut_outcome.loss == pytest.approx(whole.loss, abs=1e-9)
    for name, gradient in whole.gradients.items():
        torch.testing.assert_close(cut_outcome.gradients[name], gradient, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(cut_outcome.advantages, whole.advantages, rtol=1e-9, atol=1e-9)
    assert torch.equal(cut_outcome.loss_mask, whole.loss_mask)
    assert cut_outcome.metrics == pytest.approx(whole.metrics, abs=1e-9)


@pytest.mark.parametrize("name", ALL)
def test_no_cut_changes_value_gradient_advantages_or_metrics(name):
    bound = runtime(name)
    context_parallel = 2 if all(declared(bound, "supports_context_parallel")) else 1
    micro_batches = 1 if "microbatch" in declared(bound, "scope") else 3
    data_parallel = 1 if "microbatch" in declared(bound, "scope") else 2
    for seed in range(3):
        rollout, forward = random_rollout(seed)
        whole = train_actor(bound, rollout, forward)
        assert whole.gradients["log_probs"].abs().max() > 1e-3
        assert not whole.gradients["log_probs"].isnan().any()
        for layout in (Layout(data_parallel, context_parallel, micro_batches), Layout(1, context_parallel, 1)):
            assert_same(train_actor(bound, rollout, forward, cut(rollout, layout, seed)), whole)


@pytest.mark.parametrize("name", [name for name in ALL if name != "m2po"])
def test_a_rank_without_sequences_and_a_micro_batch_without_tokens_change_nothing(name):
    bound = runtime(name)
    rollout, forward = random_rollout(3)
    cuts = cut(rollout, Layout(4, 2, 9), 1)
    assert len(cuts.shards.unique()) < 4
    assert_same(train_actor(bound, rollout, forward, cuts), train_actor(bound, rollout, forward))


@pytest.mark.parametrize("divergence", ["forward", "reverse", "jsd"])
def test_distillation_survives_cuts_in_each_form(divergence):
    bound = runtime(
        "topk_distillation", topk_distillation={"enable": True, "divergence": divergence, "loss_weight": 1.0}
    )
    rollout, forward = random_rollout()
    whole = train_actor(bound, rollout, forward)
    assert whole.gradients["candidate_log_probs"].abs().max() > 1e-3
    assert whole.gradients["log_probs"].abs().max() == 0
    assert_same(train_actor(bound, rollout, forward, cut(rollout, Layout(2, 2, 3))), whole)


def test_the_critic_of_ppo_survives_cuts():
    bound = runtime("ppo")
    rollout, _ = random_rollout()
    forward = {"values": rollout.values + torch.linspace(-0.5, 0.5, len(rollout.values), dtype=torch.float64)}
    whole = train_critic(bound, rollout, forward)
    assert 0 < whole.metrics["train/value_clipfrac"] < 1
    assert_same(train_critic(bound, rollout, forward, cut(rollout, Layout(2, 2, 3))), whole)


def test_a_microbatch_loss_depends_on_what_is_in_a_micro_batch_and_on_nothing_else():
    """M2PO: one partition gives one result, as ranks or as micro-batches; another partition another."""
    bound = runtime("m2po", m2po_miniclip_low=0.0, m2po_miniclip_high=0.0)
    assert declared(bound, "scope") == ["microbatch"]
    assert declared(bound, "supports_context_parallel") == [False]
    rollout, forward = random_rollout()
    ranks = cut(rollout, Layout(data_parallel=2))
    alone = Cut(Layout(micro_batches=2), torch.zeros_like(ranks.shards), ranks.shards, torch.zeros_like(ranks.parts))
    by_ranks, whole = train_actor(bound, rollout, forward, ranks), train_actor(bound, rollout, forward)
    assert_same(by_ranks, train_actor(bound, rollout, forward, alone))
    torch.testing.assert_close(by_ranks.advantages, whole.advantages, rtol=1e-9, atol=1e-9)
    assert by_ranks.metrics["train/m2po_eps_low"] != pytest.approx(whole.metrics["train/m2po_eps_low"], abs=1e-3)


def test_the_order_of_sequences_in_a_micro_batch_is_of_no_account_to_m2po():
    bound = runtime("m2po", m2po_miniclip_low=0.0, m2po_miniclip_high=0.0)
    rollout, forward = random_rollout()
    position = torch.arange(len(rollout.sequence_ids))
    order = torch.randperm(rollout.size, generator=torch.Generator().manual_seed(0))
    turned = select_sequences(rollout.with_values(position=position), order)
    there = turned.read("position")
    whole = train_actor(bound, rollout, forward)
    other = train_actor(bound, turned, {name: value[there] for name, value in forward.items()})
    torch.testing.assert_close(other.gradients["log_probs"], whole.gradients["log_probs"][there], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ALL)
def test_every_loss_traces_with_fake_tensors(name):
    """No host synchronisation, no shape that depends on the data."""
    bound = runtime(name)
    rollout, forward = random_rollout()
    prepared, _ = bound.prepare(rollout)
    batch = loss_batch(prepared, **forward)
    mode = FakeTensorMode()
    tokens = {key: mode.from_tensor(value.detach()) for key, value in batch.tokens.items()}
    sequences = {key: mode.from_tensor(value) for key, value in batch.sequences.items()}
    tokens["log_probs"].requires_grad_()
    with mode:
        output = bound.loss(LossBatch(mode.from_tensor(batch.sequence_ids), tokens, sequences))
        output.sum.backward()
    assert output.sum.shape == ()
    assert tokens["log_probs"].grad.shape == batch.log_probs.shape


def policy(name, rollout, advantages, log_probs, **changes):
    """Per-token losses and the gradient of their sum for given advantages."""
    prepared = rollout.with_values(advantages=torch.tensor(advantages).double(), loss_mask=rollout.raw_mask)
    leaf = torch.tensor(log_probs).double().requires_grad_()
    per_token = runtime(name, **changes).policy_loss(loss_batch(prepared, log_probs=leaf)).per_token
    (gradient,) = torch.autograd.grad(per_token.sum(), leaf)
    return per_token.tolist(), gradient.tolist()


def test_gspo_has_one_ratio_for_a_sequence():
    rollout = packed(mask=[[1, 1, 1]], old_log_probs=[[-2.0, -2.0, -2.0]])
    wide = {"clip_ratio_low": 0.9, "clip_ratio_high": 9.0}
    loss, gradient = policy("gspo", rollout, [1.0] * 3, [-1.8, -2.1, -1.5], **wide)
    assert loss == pytest.approx([-math.exp(0.2)] * 3)
    assert gradient == pytest.approx([-math.exp(0.2)] * 3)


@pytest.mark.parametrize(
    ("advantage", "loss", "gradient"),
    [
        (1.0, -math.exp(0.5 / 3), [-math.exp(0.5 / 3), -math.exp(0.5 / 3), 0.0]),
        (-1.0, math.exp(0.2), [math.exp(0.2)] * 3),
    ],
)
def test_gmpo_is_the_geometric_mean_of_clipped_ratios(advantage, loss, gradient):
    rollout = packed(mask=[[1, 1, 1]], old_log_probs=[[-2.0, -2.0, -2.0]])
    found, slope = policy("gmpo", rollout, [advantage] * 3, [-1.8, -2.1, -1.5])
    assert found == pytest.approx([loss] * 3)
    assert slope == pytest.approx(gradient)


def test_m2po_mask_drops_the_one_token_that_moved():
    rollout = packed(mask=[[1, 1, 1, 1]], old_log_probs=[[0.1, -0.1, 0.5, 0.05]], rollout_log_probs=[[0.0] * 4])
    prepared, metrics = runtime("m2po_mask", m2po={"enable": True, "threshold": 0.04}).prepare(rollout)
    assert prepared.loss_mask.tolist() == [True, True, False, True]
    assert metrics.reduce(rollout.group)["train/m2po_m2"] == pytest.approx(0.068125)


def test_reinforce_plus_plus_discounts_live_tokens_only():
    rollout = packed(mask=[[1, 0, 1]], rewards=[1.0], old_log_probs=[[0.0] * 3])
    bound = runtime("reinforce_plus_plus", gamma=0.5, kl_coef=0.0)
    result = bound.binding.estimator.call("compute_advantage", rollout=rollout, context=None)
    assert result.advantages.tolist() == [0.5, 0.0, 1.0]


def test_ppo_passes_over_tool_tokens():
    rollout = packed(mask=[[1, 1, 0, 1]], rewards=[1.0], values=[[0.5, 0.6, 9.0, 0.7]])
    prepared, _ = runtime("ppo", gamma=1.0, lambd=0.95, normalize_advantages=False).prepare(rollout)
    assert prepared.advantages.tolist() == pytest.approx([0.46575, 0.385, 0.0, 0.3])
    assert prepared.read("returns").tolist() == pytest.approx([0.96575, 0.985, 0.0, 1.0])


def test_dr_grpo_divides_by_a_constant_length():
    lengths = (1, 3, 2, 2)
    old = [[-1.0] * length for length in lengths]
    rollout = packed(mask=[[1] * n for n in lengths], rewards=[1, 0, 9, 5], groups=[0, 0, 1, 1], old_log_probs=old)
    outcome = train_actor(runtime("dr_grpo", loss_agg_length=4), rollout, {"log_probs": rollout.old_log_probs})
    assert outcome.loss == pytest.approx((-0.5 + 3 * 0.5 - 2 * 2.0 + 2 * 2.0) / (4 * 4))
    gradient = [-0.5, *[0.5] * 3, *[-2.0] * 2, *[2.0] * 2]
    assert outcome.gradients["log_probs"].tolist() == pytest.approx([each / 16 for each in gradient])


def test_clip_cov_silences_the_largest_covariance_and_keeps_the_denominator():
    rollout = packed(mask=[[1, 1], [1, 1]], rewards=[1.0, -1.0], old_log_probs=[[-1.0, -3.0], [-1.0, -3.5]])
    changes = {"advantage_norm_mode": "none", "clip_cov": {"enable": True, "ratio": 0.25, "low": 1.0, "high": 5.0}}
    outcome = train_actor(runtime("clip_cov", **changes), rollout, {"log_probs": rollout.old_log_probs})
    assert outcome.advantages.tolist() == [1.0, 1.0, -1.0, 0.0]
    assert outcome.loss == pytest.approx(-0.25)


def test_dapo_shapes_overlong_rewards_and_drops_groups_without_signal():
    rollout = packed(
        mask=[[1] * length for length in (2, 6, 10, 5)],
        rewards=[1.0, 0.0, 1.0, 1.0],
        groups=[0, 0, 1, 1],
        sequences={"correct": [1.0, 0.0, 1.0, 1.0]},
    )
    bound = runtime("dapo")
    shaped = bound.shape_rewards(rollout)
    assert shaped.rewards.tolist() == [1.0, -0.5, 0.0, 0.75]
    assert bound.kept_groups(shaped).tolist() == [True, True, False, False]


def test_luffy_shapes_demonstrations_and_clips_samples():
    rollout = packed(mask=[[1], [1]], sequences={"demonstration": [True, False]}, old_log_probs=[[-9.0], [-1.0]])
    loss, gradient = policy("luffy", rollout, [1.0, 1.0], [math.log(0.1), -0.5])
    assert loss == pytest.approx([-0.5, -1.2])
    assert gradient == pytest.approx([-0.25, 0.0])


@pytest.mark.parametrize(("divergence", "value"), [("forward", 0.1308122), ("reverse", 0.1438410), ("jsd", 0.0338222)])
def test_distillation_on_two_candidates(divergence, value):
    bound = runtime(
        "topk_distillation", topk_distillation={"enable": True, "divergence": divergence, "loss_weight": 1.0}
    )
    rollout = packed(mask=[[1]], teacher_candidate_log_probs=[[[math.log(0.6), math.log(0.2)]]])
    forward = {"log_probs": torch.zeros(1).double(), "candidate_log_probs": torch.tensor([[0.3, 0.3]]).double().log()}
    outcome = train_actor(bound, rollout, forward)
    assert outcome.loss == pytest.approx(value, abs=1e-6)
    if divergence == "forward":
        assert outcome.gradients["candidate_log_probs"].tolist()[0] == pytest.approx([0.5 - 0.75, 0.5 - 0.25])


def test_turn_level_discounts_turns_not_tokens():
    rollout = packed(
        mask=[[1, 1, 0, 0, 1, 1], [1, 1]], turn_reward=[[0, 3, 9, 0, 0, 2], [0, 1]], old_log_probs=[[0] * 6, [0] * 2]
    )
    prepared, metrics = runtime("turn_level", turn_gamma=0.5).prepare(rollout)
    assert prepared.advantages.tolist() == [4, 4, 0, 0, 2, 2, 1, 1]
    assert metrics.reduce(rollout.group)["rollout/tool_calls"] == 1
