"""The configurations under which a plugin is checked, and what is declared for them."""

from __future__ import annotations

import pytest
from sources import component, estimator, loss

from relax_core.conformance.reading import declared, reads
from relax_core.conformance.subject import Subject
from relax_core.conformance.targets import named
from relax_core.conformance.validation import validate


def subject(target, **options):
    plugins, registry = named(str(target))
    return Subject(plugins[0], registry, **options)


def test_defaults_first_and_then_every_other_value_of_a_choice_or_a_switch():
    labels = [variant.label for variant in subject("grpo").variants]
    assert labels[0] == ""
    modes = ("group_mean", "batch_zscore", "batch_mean", "none")
    assert labels[1:] == [*(f"advantage_norm_mode={mode}" for mode in modes), "normalize_rewards=False"]


def test_what_the_plugin_refuses_itself_is_left_out():
    assert [variant.label for variant in subject("rloo").variants] == [""]


def test_a_component_is_switched_on_by_its_switch_or_by_a_number():
    assert subject("opsm").variants[0].bound.config.enable
    assert subject("entropy").variants[0].bound.config.entropy_coef == 0.1


def test_given_fields_take_the_place_of_the_defaults():
    given = {"advantage_norm_mode": "none", "is_correction": {"level": "sequence"}}
    assert subject("grpo", config=given).variants[0].bound.config.advantage_norm_mode == "none"
    first = subject("is_correction", config=given).variants[0].bound.config
    assert (first.enable, first.level) == (True, "sequence")


def test_a_hook_is_called_again_only_where_its_own_fields_differ():
    found = subject("grpo")
    assert [call.label for call in found.implementations("policy_loss")] == ["policy_loss"]
    assert len(found.implementations("compute_advantage")) == 6


def test_what_may_be_read_follows_the_configuration():
    plain, with_kl = subject("reinforce_plus_plus").variants
    assert with_kl.label == "kl_coef=0.1"
    assert "ref_log_probs" in declared(with_kl, "compute_advantage") - declared(plain, "compute_advantage")
    (call,) = subject("reinforce_plus_plus").under(with_kl, "compute_advantage")
    assert "ref_log_probs" in reads(call)


GUARDED = """
advantages = rollout.to_tokens(rollout.rewards)
if rollout.has("ref_log_probs"):
    advantages = advantages - rollout.ref_log_probs
return Advantage(advantages)
"""


@pytest.mark.parametrize(
    "source",
    [
        estimator(GUARDED, "per_token=True"),
        loss(
            "ratio, kept = batch.ratio(), batch.to_tokens(batch.read('demonstration'))\n"
            "return PolicyLoss(torch.where(kept, -ratio, -ratio) * batch.advantages)",
            more=", fields=(SequenceField('demonstration'),)",
        ),
        component("keep_group", "return rollout.group_std(rollout.rewards) > 0", arguments="rollout"),
        component("loss_term", "return None"),
    ],
    ids=["a field that is asked for first", "a field that is true or false", "a filter", "a term that adds nothing"],
)
def test_these_are_no_faults(plugin_file, source):
    (plugin,), registry = named(str(plugin_file(source)))
    assert validate(plugin, registry).findings == ()


def test_an_exception_names_the_line_of_the_plugin(plugin_file):
    source = loss("return PolicyLoss(batch.to_tokens(batch.log_probs) * batch.sequence_sum(batch.ratio()))")
    line = source.splitlines().index(
        "    return PolicyLoss(batch.to_tokens(batch.log_probs) * batch.sequence_sum(batch.ratio()))"
    )
    (plugin,), registry = named(str(plugin_file(source)))
    (finding,) = validate(plugin, registry).findings
    assert finding.id == "RLX801"
    assert finding.observed.endswith(f"(mine.py:{line + 1})")
