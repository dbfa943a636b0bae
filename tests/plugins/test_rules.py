"""The start-up rules of the built-in algorithms, by their text; and those of a role that was not chosen are silent."""

from __future__ import annotations

import json

import pytest

REFERENCE = ("--ref-load", "somewhere")


@pytest.fixture
def findings(relax, run_file):
    """The findings of a run with these flags: "code severity setting: problem. Fix: fix", in their order."""

    def find(*flags: object) -> list[str]:
        report = json.loads(relax("check", run_file(), "--json", *flags).out)
        return [
            f"{each['code']} {each['severity']} {each['setting']}: {each['problem']}. Fix: {each['fix']}"
            for each in report["findings"]
        ]

    return find


NO_RATIO = "'rloo' has no ratio to correct for"

RULES = [
    # algorithm, flags, finding
    ("rloo", ("--n-samples-per-prompt", 1),
     "RLX206 error rollout.n_samples_per_prompt: 'rloo' needs groups of 2 or more. Fix: write 2 or more"),
    ("rloo", ("--global-batch-size", 4),
     f"RLX211 error trainer.global_batch_size: {NO_RATIO} a second update on the same rollout. "
     "Fix: write num_steps_per_rollout: 1, global_batch_size: 8"),
    ("rloo", ("--num-steps-per-rollout", 2),
     f"RLX211 error trainer.num_steps_per_rollout: {NO_RATIO} a second update on the same rollout. "
     "Fix: write num_steps_per_rollout: 1, global_batch_size: 8"),
    ("rloo", ("--loss-agg-mode", "seq-mean-token-mean"),
     "RLX214 error algorithm.loss_agg_mode: 'seq-mean-token-mean' changes the objective of 'rloo'. Fix: write token-mean"),
    ("rloo", ("--kl-coef", 0.1),
     "RLX551 error algorithm.kl_coef: there is no KL in the reward of a whole sequence. "
     "Fix: write kl_coef: 0, and the direct KL loss: ref_kl.enable: true"),
    ("rloo", ("--max-staleness", 1),
     f"RLX211 error trainer.max_staleness: {NO_RATIO} stale samples. Fix: write max_staleness: 0"),
    ("rloo", ("--disable-rewards-normalization",),
     "RLX552 error algorithm.normalize_rewards: the reward less the mean of the others is the estimator itself. "
     "Fix: write normalize_rewards: true, or advantage_estimator: grpo"),
    ("rloo", ("--normalize-advantages",),
     "RLX208 error algorithm.normalize_advantages: 'rloo' is not unbiased with normalised advantages. "
     "Fix: write normalize_advantages: false"),
    ("rloo", ("--fully-async",),
     f"RLX211 error trainer.mode: {NO_RATIO} async samples. Fix: write trainer.mode: sync"),
    ("rloo", ("--hybrid",),
     f"RLX211 error trainer.mode: {NO_RATIO} hybrid samples. Fix: write trainer.mode: sync"),
    ("rloo", ("--partial-rollout",),
     f"RLX211 error rollout.partial_rollout: {NO_RATIO} responses of several versions. Fix: write partial_rollout: false"),
    ("rloo", ("--use-dynamic-global-batch-size",),
     f"RLX211 error trainer.use_dynamic_global_batch_size: {NO_RATIO} late samples. "
     "Fix: write use_dynamic_global_batch_size: false"),
    ("reinforce_plus_plus", (),
     "RLX208 error algorithm.normalize_advantages: 'reinforce_plus_plus' is defined with normalised advantages. "
     "Fix: write normalize_advantages: true"),
    ("reinforce_plus_plus", ("--kl-coef", 0.01),
     "RLX202 error model.ref_hf_model_path: reinforce_plus_plus needs one reference, 0 are given. "
     "Fix: give exactly one of model.ref_hf_model_path, model.ref_dist_ckpt_path"),
    ("reinforce_plus_plus", ("--use-kl-loss", *REFERENCE),
     "RLX215 error algorithm.ref_kl.enable: 'reinforce_plus_plus' is not defined with loss:k3 (it knows: none). "
     "Fix: switch it off, or choose a kind that it knows"),
    ("reinforce_plus_plus", ("--kl-coef", -1, *REFERENCE),
     "RLX561 error algorithm.kl_coef: a negative weight rewards leaving the reference. Fix: write 0 or more"),
    ("reinforce_plus_plus", ("--gamma", 1.5),
     "RLX562 error algorithm.gamma: 1.5 is not a discount. Fix: write 0 to 1; 1 is no discount"),
    ("reinforce_plus_plus_baseline", (),
     "RLX208 error algorithm.normalize_advantages: 'reinforce_plus_plus_baseline' is defined with normalised advantages. "
     "Fix: write normalize_advantages: true"),
    ("reinforce_plus_plus_baseline", ("--n-samples-per-prompt", 1),
     "RLX206 error rollout.n_samples_per_prompt: 'reinforce_plus_plus_baseline' needs groups of 2 or more. "
     "Fix: write 2 or more"),
    ("reinforce_plus_plus_baseline", ("--kl-coef", 0.1),
     "RLX571 error algorithm.kl_coef: its KL is a separate loss, not a part of the reward. "
     "Fix: write kl_coef: 0, and ref_kl.enable: true with ref_kl.kl_type: k2"),
    ("reinforce_plus_plus_baseline", ("--use-kl-loss", *REFERENCE),
     "RLX215 error algorithm.ref_kl.enable: 'reinforce_plus_plus_baseline' is not defined with loss:k3 (it knows: loss:k2). "
     "Fix: switch it off, or choose a kind that it knows"),
    ("reinforce_plus_plus_baseline", ("--disable-rewards-normalization",),
     "RLX572 error algorithm.normalize_rewards: without the group's mean nothing is left of the baseline. "
     "Fix: write normalize_rewards: true, or advantage_estimator: reinforce_plus_plus"),
    ("ppo", ("--fully-async",),
     "RLX213 error trainer.mode: 'ppo' cannot run in mode 'async'. Fix: write trainer.mode: sync"),
    ("ppo", ("--hybrid",),
     "RLX213 error trainer.mode: 'ppo' cannot run in mode 'hybrid'. Fix: write trainer.mode: sync"),
    ("ppo", ("--use-kl-loss", *REFERENCE),
     "RLX215 error algorithm.ref_kl.enable: 'ppo' is not defined with loss:k3 (it knows: none). "
     "Fix: switch it off, or choose a kind that it knows"),
    ("ppo", ("--kl-coef", 0.1),
     "RLX216 error algorithm.kl_coef: grpo and ppo would ignore it; "
     "it belongs to reinforce_plus_plus or reinforce_plus_plus_baseline or rloo. "
     "Fix: leave it out, or choose reinforce_plus_plus or reinforce_plus_plus_baseline or rloo"),
    ("ppo", ("--gamma", -0.5), "RLX581 error algorithm.gamma: -0.5 is not a discount. Fix: write 0 to 1; 1 is no discount"),
    ("ppo", ("--lambd", 2),
     "RLX582 error algorithm.lambd: 2.0 is not a decay. Fix: write 0 to 1; 1 is the Monte Carlo return"),
    ("ppo", ("--value-clip", 0),
     "RLX583 error algorithm.value_clip: values could not move. Fix: write more than 0, 0.2 for example"),
    ("m2po", ("--context-parallel-size", 2),
     "RLX209 error topology.context_parallel_size: 'm2po' (loss) needs whole sequences, not a part on each of 2 ranks. "
     "Fix: write context_parallel_size: 1"),
    ("m2po", ("--use-dynamic-batch-size",),
     "RLX210 warning trainer.use_dynamic_batch_size: 'm2po' is solved on each micro-batch, whose size would vary. "
     "Fix: write use_dynamic_batch_size: false"),
    ("m2po", ("--eps-clip", 0.2),
     "RLX216 error algorithm.clip_ratio_low: m2po would ignore it; it belongs to cispo or grpo or gspo. "
     "Fix: leave it out, or choose cispo or grpo or gspo"),
    ("m2po", (),
     "RLX591 warning algorithm.policy_loss: every update is on-policy: the ratio is 1 and m2po does nothing. "
     "Fix: write trainer.num_steps_per_rollout: 2 or more, or policy_loss: grpo"),
    ("m2po", ("--fully-async", "--use-tis"),
     "RLX592 warning algorithm.is_correction.enable: the correction acts only after m2po has solved its bounds. "
     "Fix: write trainer.use_rollout_log_probs: true, and is_correction.enable: false"),
    ("m2po", ("--m2po-kl2-budget", -1),
     "RLX593 error algorithm.m2po_kl2_budget: a mean of squares is never negative. Fix: write 0 or more"),
    ("m2po", ("--m2po-miniclip-low", 1),
     "RLX594 error algorithm.m2po_miniclip_low: a lower clip margin is between 0 and 1. Fix: write 0 or more, less than 1"),
    ("m2po", ("--m2po-miniclip-high", -1),
     "RLX595 error algorithm.m2po_miniclip_high: an upper clip margin is never negative. Fix: write 0 or more"),
    ("gspo", ("--eps-clip", 1),
     "RLX597 error algorithm.clip_ratio_low: the lower clip margin reaches 0. Fix: write less than 1"),
    ("sapo", ("--sapo-tau-neg", 0),
     "RLX598 error algorithm.sapo_tau_neg: a gate needs a steepness above 0. Fix: write more than 0, 1.0 for example"),
    ("turn_returns", ("--gamma", 1.5),
     "RLX611 error algorithm.gamma: 1.5 is not a discount. Fix: write 0 to 1; 1 is no discount"),
    ("turn_returns_group", ("--gamma", -0.5),
     "RLX621 error algorithm.gamma: -0.5 is not a discount. Fix: write 0 to 1; 1 is no discount"),
    ("turn_returns_group", ("--n-samples-per-prompt", 1),
     "RLX206 error rollout.n_samples_per_prompt: 'turn_returns_group' needs groups of 2 or more. Fix: write 2 or more"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("algorithm", "flags", "finding"), RULES, ids=[" ".join([name, *map(str, flags)]) for name, flags, _ in RULES]
)
def test_a_rule_has_its_code_its_setting_and_a_fix(findings, algorithm, flags, finding):
    assert finding in findings("--advantage-estimator", algorithm, *flags)


WHITENED = "--normalize-advantages"

FINE = [
    ("rloo",),
    ("rloo", "--kl-coef", 0, "--num-steps-per-rollout", 1, "--global-batch-size", 8, "--calculate-per-token-loss"),
    ("rloo", "--normalize-rewards", "--use-kl-loss", "--kl-loss-coef", 0.01, *REFERENCE),
    ("reinforce_plus_plus", WHITENED, "--kl-coef", 0.01, "--gamma", 0.9, *REFERENCE),
    ("reinforce_plus_plus", WHITENED, "--n-samples-per-prompt", 1, "--eps-clip", 0.2),
    ("reinforce_plus_plus_baseline", WHITENED, "--use-kl-loss", "--kl-loss-type", "k2", *REFERENCE),
    ("m2po", "--num-steps-per-rollout", 2, "--m2po-kl2-budget", 0.04, "--use-tis"),
    ("gspo", "--eps-clip", 3e-4, "--eps-clip-high", 4e-4),
    ("cispo", "--eps-clip-high", 10, "--use-tis", "--use-kl-loss", "--kl-loss-coef", 0.001, *REFERENCE),
    ("sapo", "--sapo-tau-pos", 1.0, "--sapo-tau-neg", 1.05),
]


@pytest.mark.parametrize("flags", FINE, ids=[" ".join(map(str, flags)) for flags in FINE])
def test_a_run_that_keeps_the_rules_has_no_findings(findings, flags):
    assert findings("--advantage-estimator", *flags) == []


def test_all_that_apply_are_shown_together(findings):
    flags = ("--kl-coef", 1, "--normalize-advantages", "--disable-rewards-normalization", "--num-steps-per-rollout", 2)
    found = findings("--advantage-estimator", "rloo", "--loss-agg-mode", "seq-mean-token-mean", *flags)
    assert [each.split()[0] for each in found] == ["RLX208", "RLX211", "RLX214", "RLX551", "RLX552"]


@pytest.mark.parametrize(
    ("roles", "flags", "codes"),
    [
        # An estimator of one plugin, the loss of another: each role's rules and no other.
        (("rloo", "gspo"), ("--fully-async", "--max-staleness", 3), ["RLX105"]),
        (("rloo", "gspo"), ("--num-steps-per-rollout", 2, "--loss-agg-mode", "seq-mean-token-mean"), []),
        (("rloo", "gspo"), ("--kl-coef", 0.1, "--n-samples-per-prompt", 1), ["RLX206", "RLX551"]),
        (("m2po", "grpo"), ("--context-parallel-size", 2), ["RLX106"]),
        (("m2po", "grpo"), ("--use-dynamic-batch-size", "--eps-clip", 0.2), []),
        (("grpo", "m2po"), ("--context-parallel-size", 2, "--num-steps-per-rollout", 2), ["RLX106", "RLX209"]),
        (("grpo", "rloo"), ("--normalize-advantages", "--disable-rewards-normalization"), []),
        (("grpo", "rloo"), ("--num-steps-per-rollout", 2), ["RLX211"]),
        (("grpo", "rloo"), ("--kl-coef", 0.1), ["RLX216"]),
        (("reinforce_plus_plus", "rloo"), ("--normalize-advantages", "--eps-clip", 0.2), ["RLX216", "RLX216"]),
    ],
)
def test_each_role_carries_its_own_rules_and_no_other(findings, roles, flags, codes):
    found = findings("--advantage-estimator", roles[0], "--policy-loss", roles[1], *flags)
    assert [each.split()[0] for each in found] == codes


@pytest.mark.parametrize("name", ["rloo", "gspo", "cispo", "sapo", "m2po"])
def test_a_loss_that_is_no_estimators_partner_is_chosen_by_its_name(findings, name):
    flags = ("--num-steps-per-rollout", 2) if name == "m2po" else ()
    assert findings("--policy-loss", name, *flags) == []
