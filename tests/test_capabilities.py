"""Every capability is acted on before a run starts, with the plugin, the setting and the fix in its message."""

from __future__ import annotations

from pathlib import Path

import pytest

from relax_core.binding import bind
from relax_core.errors import PluginError
from relax_core.registry import Registry
from relax_core.runfile import RunFile, resolve
from relax_core.startup import check

PLUGIN = """
from relax_core import *

class Config(AlgorithmConfig):
    strength: float = 0.0

class Section(ComponentConfig):
    pass

@hookimpl
def algorithm():
    return AlgorithmSpec("demanding", "Demands things", config=Config, fields=(FIELDS),
                         estimator=Estimator(ESTIMATOR), loss=Loss(LOSS))

@hookimpl
def compute_advantage(rollout):
    return Advantage(rollout.to_tokens(rollout.rewards))

@hookimpl
def policy_loss(batch):
    return PolicyLoss(-batch.ratio() * batch.advantages)
"""


@pytest.fixture
def violations(tmp_path):
    """The violations of a run of a plugin with these capabilities, as text by code."""

    def find(
        estimator: str = "", loss: str = "supports_context_parallel=True", fields: str = "", rule: str = "", **sections
    ) -> dict[str, str]:
        source = PLUGIN.replace("ESTIMATOR", estimator).replace("LOSS", loss).replace("FIELDS", fields)
        path = tmp_path / "demanding.py"
        path.write_text(source + rule)
        values = {"model": {"path": "m"}, "data": {"path": "d.jsonl"}, "rollout": {}, "trainer": {}, "topology": {}}
        values |= {"algorithm": {"advantage_estimator": "demanding", **sections.pop("algorithm", {})}, **sections}
        values["model"].setdefault("path", "m")
        resolved = resolve(RunFile(Path("run.yaml"), values, {}), {}, [path])
        binding = bind(resolved.registry, resolved.choice, resolved.config.algorithm)
        return {
            each.code: f"{each.severity}: {each.setting}: {each.problem}. Fix: {each.fix}"
            for each in check(resolved, binding)
        }

    return find


def test_a_plugin_without_demands_has_no_violations(violations):
    assert violations() == {}


@pytest.mark.parametrize(
    ("estimator", "loss", "sections", "code", "message"),
    [
        (
            "", "", {"trainer": {"critic_lr": 1e-3}}, "RLX201",
            "error: trainer.critic_lr: 'demanding' has no critic. Fix: leave it out, or choose an estimator with one",
        ),
        (
            "", "", {"trainer": {"num_critic_only_steps": 2}}, "RLX201",
            "error: trainer.num_critic_only_steps: 'demanding' has no critic. "
            "Fix: leave it out, or choose an estimator with one",
        ),
        (
            "requires_reference=lambda config: config.strength > 0", "", {"algorithm": {"strength": 1.0}}, "RLX202",
            "error: model.ref_hf_model_path: demanding needs one reference, 0 are given. "
            "Fix: give exactly one of model.ref_hf_model_path, model.ref_dist_ckpt_path",
        ),
        (
            "requires_reference=True", "", {"model": {"ref_dist_ckpt_path": "x"}}, "RLX203",
            "error: model.ref_dist_ckpt_path: the torch engine cannot read a Megatron checkpoint. "
            "Fix: give model.ref_hf_model_path instead, or write trainer.engine: megatron",
        ),
        (
            "", "requires_teacher=True", {}, "RLX205",
            "error: model.teacher_path: 'demanding' needs a teacher. Fix: give model.teacher_path",
        ),
        (
            "", "candidates=4", {}, "RLX205",
            "error: model.teacher_path: 'demanding' needs a teacher. Fix: give model.teacher_path",
        ),
        (
            "min_group_size=4", "", {"rollout": {"n_samples_per_prompt": 2}}, "RLX206",
            "error: rollout.n_samples_per_prompt: 'demanding' needs groups of 4 or more. Fix: write 4 or more",
        ),
        (
            "requires_equal_groups=True", "", {"rollout": {"partial_rollout": True}, "trainer": {"mode": "hybrid"}}, "RLX207",
            "error: rollout.partial_rollout: 'demanding' needs whole groups. Fix: write partial_rollout: false",
        ),
        (
            "normalization='population', normalization_use='required'", "", {}, "RLX208",
            "error: algorithm.normalize_advantages: 'demanding' is defined with normalised advantages. "
            "Fix: write normalize_advantages: true",
        ),
        (
            "normalization_use='forbidden'", "", {"algorithm": {"normalize_advantages": True}}, "RLX208",
            "error: algorithm.normalize_advantages: 'demanding' is not unbiased with normalised advantages. "
            "Fix: write normalize_advantages: false",
        ),
        (
            "", "supports_context_parallel=False", {"topology": {"context_parallel_size": 2}}, "RLX209",
            "error: topology.context_parallel_size: 'demanding' (loss) needs whole sequences, not a part on each of 2 ranks. "
            "Fix: write context_parallel_size: 1",
        ),
        (
            "", "scope='microbatch'", {"trainer": {"use_dynamic_batch_size": True}}, "RLX210",
            "warning: trainer.use_dynamic_batch_size: 'demanding' is solved on each micro-batch, whose size would vary. "
            "Fix: write use_dynamic_batch_size: false",
        ),
        (
            "", "requires_on_policy=True", {"trainer": {"num_steps_per_rollout": 2}}, "RLX211",
            "error: trainer.num_steps_per_rollout: 'demanding' has no ratio to correct for a second update on the same "
            "rollout. Fix: write num_steps_per_rollout: 1, global_batch_size: 64",
        ),
        (
            "", "requires_on_policy=True", {"trainer": {"mode": "hybrid"}}, "RLX211",
            "error: trainer.mode: 'demanding' has no ratio to correct for hybrid samples. Fix: write trainer.mode: sync",
        ),
        (
            "max_staleness=1", "", {"trainer": {"mode": "async", "max_staleness": 3}}, "RLX212",
            "error: trainer.max_staleness: 'demanding' stands 1 at most. Fix: write max_staleness: 1",
        ),
        (
            "", "supports_async=False", {"trainer": {"mode": "async"}}, "RLX213",
            "error: trainer.mode: 'demanding' cannot run in mode 'async'. Fix: write trainer.mode: sync",
        ),
        (
            "", "aggregations=frozenset({'token-mean'})", {"algorithm": {"loss_agg_mode": "seq-mean-token-mean"}}, "RLX214",
            "error: algorithm.loss_agg_mode: 'seq-mean-token-mean' changes the objective of 'demanding'. Fix: write token-mean",
        ),
        (
            "kl_modes=frozenset({'loss:k2'})", "",
            {"algorithm": {"ref_kl": {"enable": True, "kl_type": "k3"}}, "model": {"ref_hf_model_path": "r"}}, "RLX215",
            "error: algorithm.ref_kl.enable: 'demanding' is not defined with loss:k3 (it knows: loss:k2). "
            "Fix: switch it off, or choose a kind that it knows",
        ),
    ],
)  # fmt: skip
def test_a_capability_that_the_run_does_not_meet(violations, estimator, loss, sections, code, message):
    assert violations(estimator, loss, **sections)[code] == message


def test_a_capability_that_the_run_meets(violations):
    found = violations(
        "min_group_size=8, kl_modes=frozenset({'loss:k2'}), requires_reference=True",
        "requires_on_policy=True, aggregations=frozenset({'token-mean'})",
        algorithm={"ref_kl": {"enable": True, "kl_type": "k2"}},
        model={"ref_hf_model_path": "r"},
    )
    assert found == {}


def test_a_token_field_that_no_engine_fills(violations):
    assert violations(fields="TokenField('turn_reward'),")["RLX217"] == (
        "error: rollout.environment.name: 'demanding' reads 'turn_reward' of every token, which an environment gives. "
        "Fix: name an environment that rewards turns"
    )


def test_a_token_field_that_no_environment_fills(violations):
    assert violations(fields="TokenField('surprise'),")["RLX217"] == (
        "error: rollout.environment.name: 'demanding' reads 'surprise' of every token, and environments give "
        "'turn_reward' alone. Fix: declare 'turn_reward'"
    )


def test_the_roles_of_two_plugins_carry_their_own_rules_alone(tmp_path):
    """An estimator with a loss of another plugin: the rules of the role that was not chosen are not in force."""
    source = PLUGIN.replace("ESTIMATOR", "").replace("LOSS", "requires_on_policy=True").replace("FIELDS", "")
    path = tmp_path / "demanding.py"
    path.write_text(source)
    values = {
        "model": {"path": "m"},
        "data": {"path": "d.jsonl"},
        "trainer": {"num_steps_per_rollout": 2},
        "algorithm": {"advantage_estimator": "demanding", "policy_loss": "grpo"},
    }
    resolved = resolve(RunFile(Path("run.yaml"), values, {}), {}, [path])
    assert check(resolved, bind(resolved.registry, resolved.choice, resolved.config.algorithm)) == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("yield 1 / 0", f"raised ZeroDivisionError: division by zero (demanding.py:{PLUGIN.count(chr(10)) + 3})"),
        ("return 3", "gave 3. Fix: give nothing but Violation(…)"),
        ('return ["no"]', "gave 'no'. Fix: give nothing but Violation(…)"),
    ],
)
def test_a_rule_of_a_plugin_that_does_not_work_is_named(violations, body, message):
    with pytest.raises(PluginError) as caught:
        violations(rule=f"@hookimpl\ndef validate_topology(topology):\n    {body}\n")
    assert str(caught.value) == f"plugin 'demanding': validate_topology {message}"


def test_a_field_of_a_plugin_may_not_shadow_one_of_the_batch(violations):
    assert violations(fields="SequenceField('rewards'),")["RLX219"] == (
        "error: algorithm: 'demanding' declares 'rewards', which a batch has by itself. Fix: give the field another name"
    )


def test_two_plugins_may_not_mean_different_things_by_one_field(violations, plugin_file):
    other = plugin_file(
        """
        from relax_core import *

        @hookimpl
        def algorithm():
            return AlgorithmSpec("other", "Another", config=ComponentConfig, component=Component(),
                                 fields=(SequenceField("turn_reward"),))

        @hookimpl
        def keep_group(rollout):
            return rollout.rewards > 0
        """,
        "other.py",
    )
    found = violations(
        fields="TokenField('turn_reward'),", algorithm={"plugins": [str(other)], "other": {"enable": True}}
    )
    assert found["RLX219"] == (
        "error: algorithm: 'turn_reward' is a TokenField of 'demanding' and a SequenceField of 'other'. "
        "Fix: choose one of the two, or rename a field"
    )


def test_every_rule_has_its_own_code():
    from relax_core.startup import RULES

    codes = [rule.code for rule in RULES]
    assert len(codes) == len(set(codes))


def test_an_estimator_may_name_the_loss_of_another(tmp_path):
    source = PLUGIN.replace("ESTIMATOR", "default_loss='grpo'").replace(", loss=Loss(LOSS)", "").replace("FIELDS", "")
    path = tmp_path / "demanding.py"
    path.write_text(source)
    values = {"model": {"path": "m"}, "data": {"path": "d"}, "algorithm": {"advantage_estimator": "demanding"}}
    assert resolve(RunFile(Path("run.yaml"), values, {}), {}, [path]).choice.loss.name == "grpo"


def test_the_default_estimator_is_the_one_that_declares_itself_so():
    assert Registry.load().default_estimator() == "grpo"
