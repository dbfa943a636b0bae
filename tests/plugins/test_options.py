"""Every option that an algorithm declares reaches its formula: changing it changes the result."""

from __future__ import annotations

import json

import pytest

from relax_core.conformance.case import replay
from relax_core.registry import Registry, spec_of
from tests.conftest import VECTORS

ALGORITHMS = (
    "cispo", "gspo", "m2po", "ppo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "rloo", "sapo",
    "turn_returns", "turn_returns_group",
)  # fmt: skip
REFUSED = {"kl_coef", "normalize_rewards"}
"""Of rloo and reinforce_plus_plus_baseline: any value but the default is refused at start-up (see test_rules)."""

CHANGES = [
    ("gspo-0", {"clip_ratio_low": 0.01}, "per_token_loss"),
    ("gspo-0", {"clip_ratio_high": 0.01}, "per_token_loss"),
    ("gspo-0", {"loss_agg_mode": "seq-mean-token-mean"}, "loss"),
    ("gspo-0", {"advantage_norm_mode": "group_mean"}, "advantages"),
    ("gspo-0", {"normalize_rewards": False}, "advantages"),
    ("gspo-0", {"normalize_advantages": True}, "advantages"),
    ("cispo-0", {"clip_ratio_low": 0.01}, "per_token_loss"),
    ("cispo-0", {"clip_ratio_high": 0.01}, "per_token_loss"),
    ("sapo-0", {"sapo_tau_pos": 2.0}, "per_token_loss"),
    ("sapo-0", {"sapo_tau_neg": 2.0}, "per_token_loss"),
    ("m2po-budget-0.002-0", {"m2po_kl2_budget": 0.05}, "per_token_loss"),
    ("m2po-budget-0.0-0", {"m2po_miniclip_low": 0.2}, "per_token_loss"),
    ("m2po-budget-0.0-0", {"m2po_miniclip_high": 0.2}, "per_token_loss"),
    ("reinforce-plus-plus-0", {"kl_coef": 0.0}, "advantages"),
    ("reinforce-plus-plus-0", {"gamma": 0.9}, "advantages"),
    ("reinforce-plus-plus-0", {"clip_ratio_low": 0.01}, "per_token_loss"),
    ("reinforce-plus-plus-0", {"clip_ratio_high": 0.01}, "per_token_loss"),
    ("reinforce-plus-plus-0", {"clip_ratio_c": 1.001}, "per_token_loss"),
    ("reinforce-plus-plus-baseline-0", {"clip_ratio_low": 0.01}, "per_token_loss"),
    ("reinforce-plus-plus-baseline-0", {"policy_loss": "sapo"}, "per_token_loss"),
    ("ppo-0", {"gamma": 0.9}, "advantages"),
    ("ppo-0", {"lambd": 0.9}, "advantages"),
    ("ppo-0", {"normalize_advantages": True}, "advantages"),
    ("ppo-0", {"clip_ratio_high": 0.01}, "per_token_loss"),
    ("turn-returns-0", {"gamma": 0.9}, "advantages"),
    ("turn-returns-group-0", {"gamma": 0.9}, "advantages"),
    ("value-loss-0", {"value_clip": 0.01}, "loss"),
]


def by_name(name: str) -> dict:
    return json.loads((VECTORS / f"{name}.json").read_text())


@pytest.mark.parametrize(
    ("name", "change", "result"), CHANGES, ids=[f"{name}-{next(iter(c))}" for name, c, _ in CHANGES]
)
def test_an_option_changes_the_result(name, change, result, registry):
    case = by_name(name)
    changed = {**case, "config": {"algorithm": {**case["config"]["algorithm"], **change}}}
    assert replay(changed, registry)[result] != replay(case, registry)[result]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_option_is_left_out(algorithm):
    (plugin,) = (plugin for plugin in Registry.load().usable if plugin.name == algorithm)
    spec = spec_of(plugin)
    declared = {name for role in spec.roles for name in spec.config_of(role).model_fields}
    tested = {name for vector, change, _ in CHANGES if by_name(vector)["algorithm"] == algorithm for name in change}
    refused = REFUSED if algorithm in ("rloo", "reinforce_plus_plus_baseline") else set()
    assert declared <= tested | refused


def test_the_name_of_a_loss_alone_takes_the_groups_advantage(registry):
    """`advantage_estimator: gspo` and `policy_loss: gspo` are one run."""
    case = by_name("gspo-0")
    other = {**case, "algorithm": "grpo", "config": {"algorithm": {"policy_loss": "gspo"}}}
    assert replay(other, registry) == replay(case, registry)


@pytest.mark.parametrize(
    "algorithm",
    ["ppo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "turn_returns", "turn_returns_group"],
)
def test_an_estimator_alone_takes_the_clipped_ratio(algorithm, registry):
    case = by_name(f"{algorithm.replace('_', '-')}-0")
    named = {**case, "config": {"algorithm": {**case["config"]["algorithm"], "policy_loss": "grpo"}}}
    assert replay(named, registry) == replay(case, registry)
