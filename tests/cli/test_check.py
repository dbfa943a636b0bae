"""`relax check`, flags, and the other commands that load no model."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from pydantic import create_model

from tests.conftest import RUN


def findings(result) -> dict[str, str]:
    """Code -> message."""
    report = json.loads(result.out)
    assert report["version"] == 1
    return {each["code"]: f"{each['setting']}: {each['problem']}. Fix: {each['fix']}" for each in report["findings"]}


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (
            ("--use-tis", "--use-rollout-logprobs"),
            "RLX511",
            "algorithm.is_correction.enable: with use_rollout_log_probs the old policy is the sampler's, so every weight is 1. "
            "Fix: write trainer.use_rollout_log_probs: false, or is_correction.enable: false",
        ),
        (
            ("--algorithm.m2po.enable", "--use-rollout-logprobs"),
            "RLX521",
            "algorithm.m2po.enable: with use_rollout_log_probs the old policy is the sampler's, so every log ratio is 0. "
            "Fix: write trainer.use_rollout_log_probs: false, or m2po.enable: false",
        ),
        (
            ("--use-kl-loss",),
            "RLX202",
            "model.ref_hf_model_path: ref_kl needs one reference, 0 are given. "
            "Fix: give exactly one of model.ref_hf_model_path, model.ref_dist_ckpt_path",
        ),
        (
            ("--use-kl-loss", "--ref-load", "a", "--ref-dist-ckpt-path", "b"),
            "RLX202",
            "model.ref_hf_model_path: ref_kl needs one reference, 2 are given. "
            "Fix: give exactly one of model.ref_hf_model_path, model.ref_dist_ckpt_path",
        ),
        (
            ("--algorithm.is_correction.enable", "--lower-bound", "3"),
            "RLX512",
            "algorithm.is_correction.lower_bound: bounds out of order: [3.0, 2.0]. Fix: write 0 ≤ lower_bound ≤ upper_bound",
        ),
        (
            ("--global-batch-size", "3"),
            "RLX102",
            "trainer.global_batch_size: 2 prompts × 4 samples = 8 sequences cannot be cut into updates of 3. "
            "Fix: write one of 1, 2, 4, 8",
        ),
        (
            ("--num-steps-per-rollout", "3"),
            "RLX102",
            "trainer.num_steps_per_rollout: 2 prompts × 4 samples = 8 sequences cannot be cut into 3 equal updates. "
            "Fix: write one of 1, 2, 4, 8",
        ),
        (
            ("--num-steps-per-rollout", "2", "--global-batch-size", "8"),
            "RLX102",
            "trainer.global_batch_size: 2 updates of 8 are not the 8 sequences of a rollout (2 prompts × 4 samples). "
            "Fix: write global_batch_size: 4, or leave it out",
        ),
        (
            ("--temperature", "0"),
            "RLX103",
            "rollout.temperature: 0.0 is not a temperature to learn at. Fix: write more than 0, 1.0 for example",
        ),
        (
            ("--n-samples-per-prompt", "1"),
            "RLX501",
            "rollout.n_samples_per_prompt: a group of one has no signal under group_zscore: every advantage is 0. "
            "Fix: write 2 or more, or advantage_norm_mode: batch_mean",
        ),
        (
            ("--partial-rollout", "--hybrid"),
            "RLX207",
            "rollout.partial_rollout: 'grpo' needs whole groups. Fix: write partial_rollout: false",
        ),
        (
            ("--use-dynamic-global-batch-size", "--hybrid"),
            "RLX207",
            "trainer.use_dynamic_global_batch_size: 'grpo' needs whole groups. "
            "Fix: write use_dynamic_global_batch_size: false",
        ),
        (
            ("--fully-async",),
            "RLX105",
            "trainer.mode: the local orchestrator cannot run 'async'. "
            "Fix: write trainer.mode: sync, or topology.orchestrator: ray",
        ),
        (
            ("--context-parallel-size", "2"),
            "RLX106",
            "topology.context_parallel_size: the torch engine trains in one process, not on 2 ranks. "
            "Fix: write context_parallel_size: 1, or trainer.engine: megatron",
        ),
        (
            ("--loss-agg-length", "5"),
            "RLX108",
            "algorithm.loss_agg_length: 'token-mean' does not read it. "
            "Fix: write loss_agg_mode: seq-mean-token-sum-norm, or leave it out",
        ),
        (
            ("--max-staleness", "1"),
            "RLX107",
            "trainer.max_staleness: a synchronous run has no stale samples. Fix: write max_staleness: 0",
        ),
        (
            ("--eps-clip-c", "1"),
            "RLX503",
            "algorithm.clip_ratio_c: a dual clip of 1 or less clips every token. Fix: write more than 1, or null",
        ),
    ],
)
def test_a_violation_has_its_code_its_setting_and_a_fix(relax, run_file, flags, code, message):
    result = relax("check", run_file(), "--json", *flags)
    assert result.code == 1
    assert findings(result)[code] == message


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (("--use-kl-loss", "--kl-loss-type", "k1", "--ref-load", "x"), "RLX541"),
        (("--top-p", "0.9"), "RLX104"),
        (("--ref-load", "x"), "RLX204"),
        (("--lr-warmup-steps", "50"), "RLX110"),
        (("--use-dynamic-batch-size", "--max-tokens-per-gpu", "3"), "RLX109"),
    ],
)
def test_a_warning_does_not_fail_the_check(relax, run_file, flags, code):
    result = relax("check", run_file(), "--json", *flags)
    assert result.code == 0
    assert [each["code"] for each in json.loads(result.out)["findings"]] == [code]


def test_all_violations_are_shown_at_once(relax, run_file):
    flags = ("--temperature", "0", "--global-batch-size", "3", "--use-tis", "--use-rollout-logprobs", "--use-kl-loss")
    result = relax("check", run_file(), *flags)
    assert result.code == 1
    codes = [line.split()[1] for line in result.out.splitlines() if line.startswith("error:")]
    assert codes == ["RLX102", "RLX103", "RLX202", "RLX511"]
    assert result.out.splitlines()[-1].endswith("4 errors, 0 warnings")


def test_train_refuses_what_check_refuses(relax, run_file):
    result = relax("train", run_file(), "--temperature", "0")
    assert result.code == 1
    assert "error: RLX103 rollout.temperature" in result.err


OTHER = """
from typing import Literal
from relax_core import Advantage, AlgorithmConfig, AlgorithmSpec, Estimator, hookimpl

class Config(AlgorithmConfig):
    sharpness: float = 1.0
    \"\"\"How sharp.\"\"\"

@hookimpl
def algorithm():
    return AlgorithmSpec("sharp", "Sharp advantages", config=Config, estimator=Estimator())

@hookimpl
def compute_advantage(rollout, config):
    return Advantage(rollout.to_tokens(rollout.rewards * config.sharpness))
"""


def test_an_option_that_the_chosen_plugins_would_ignore(relax, run_file, plugin_file):
    flags = ("--plugin", plugin_file(OTHER, "sharp.py"), "--sharpness", "2")
    result = relax("check", run_file(), "--json", *flags)
    assert result.code == 1
    expected = "algorithm.sharpness: grpo would ignore it; it belongs to sharp. Fix: leave it out, or choose sharp"
    assert findings(result)["RLX216"] == expected


def test_an_option_of_a_role_that_was_not_chosen(relax, run_file, plugin_file):
    """`advantage_norm_mode` is the estimator's: with another estimator, grpo's loss alone would ignore it."""
    flags = ("--plugin", plugin_file(OTHER, "sharp.py"), "--advantage-estimator", "sharp", "--policy-loss", "grpo")
    assert relax("check", run_file(), *flags, "--eps-clip", "0.1").code == 0
    result = relax("check", run_file(), "--json", *flags, "--advantage-norm-mode", "none")
    assert list(findings(result)) == ["RLX216"]


def test_a_loss_left_out_is_the_estimators_own(relax, run_file, plugin_file):
    flags = ("--plugin", plugin_file(OTHER, "sharp.py"), "--advantage-estimator", "sharp")
    result = relax("check", run_file(), *flags)
    assert result.code == 2
    losses = "one of: cispo, grpo, gspo, m2po, rloo, sapo"
    assert result.err.strip() == f"error: algorithm.policy_loss: 'sharp' brings no loss of its own. Fix: {losses}"


def test_a_field_that_two_chosen_plugins_declare_differently(relax, run_file, plugin_file):
    source = OTHER.replace("sharpness: float = 1.0", "clip_ratio_low: float = 0.5").replace("config.sharpness", "1")
    flags = ("--plugin", plugin_file(source, "sharp.py"), "--advantage-estimator", "sharp", "--policy-loss", "grpo")
    result = relax("check", run_file(), *flags)
    assert result.code == 3
    assert "'sharp' and 'grpo' declare different fields of one name" in result.err


@pytest.mark.parametrize(
    ("flags", "values"),
    [
        (("--eps-clip", "0.3"), {"clip_ratio_low": 0.3, "clip_ratio_high": 0.3}),
        (("--eps-clip", "0.1", "--eps-clip-high", "0.4"), {"clip_ratio_low": 0.1, "clip_ratio_high": 0.4}),
        (("--clip_ratio_c=null",), {"clip_ratio_c": None}),
        (("--disable-rewards-normalization",), {"normalize_rewards": False}),
        (("--no-normalize-rewards",), {"normalize_rewards": False}),
        (("--normalize-advantages", "true"), {"normalize_advantages": True}),
        (("--calculate-per-token-loss",), {"loss_agg_mode": "token-mean"}),
        (("--algorithm.opsm.enable", "--delta", "0.2"), {"opsm": {"enable": True, "delta": 0.2}}),
        (
            ("--use-tis",),
            {
                "is_correction": {
                    "enable": True,
                    "level": "token",
                    "action": "clip",
                    "lower_bound": 0.0,
                    "upper_bound": 2.0,
                }
            },
        ),
        (
            ("--use-kl-loss", "--kl-loss-coef", "0.01", "--kl-loss-type", "k2"),
            {
                "ref_kl": {
                    "enable": True,
                    "coef": 0.01,
                    "kl_type": "k2",
                    "use_unbiased_kl": False,
                    "update_interval": -1,
                }
            },
        ),
    ],
)
def test_the_flags_that_users_know(run_file, flags, values):
    from relax_core.cli.flags import flag_table, parse
    from relax_core.registry import Registry
    from relax_core.runfile import read, resolve

    overrides, _ = parse(list(flags), flag_table(Registry.load()), {})
    resolved = resolve(read(run_file()), overrides)
    algorithm = resolved.config.algorithm.model_dump()
    assert {name: algorithm[name] for name in values} == values


@pytest.mark.parametrize(
    ("flags", "path", "value"),
    [
        (("--num-rollout", "7"), "trainer.num_rollout", 7),
        (("--n-samples-per-prompt", "3"), "rollout.n_samples_per_prompt", 3),
        (("--rollout-batch-size", "5"), "rollout.rollout_batch_size", 5),
        (("--clip-grad", "0.5"), "trainer.clip_grad", 0.5),
        (("--lr", "1e-5"), "trainer.lr", 1e-5),
        (("--stop", "END"), "rollout.stop", ["END"]),
        (("--stop", "[a, b]"), "rollout.stop", ["a", "b"]),
        (("--output.dir", "7"), "output.dir", "7"),
        (("--output.dir", "null"), "output.dir", None),
        (("--data.source_args", "{size: 3}"), "data.source_args", {"size": 3}),
        (("--no-shuffle",), "data.shuffle", False),
        (("--hybrid",), "trainer.mode", "hybrid"),
    ],
)
def test_every_field_is_a_flag(run_file, flags, path, value):
    from relax_core.cli.flags import flag_table, parse
    from relax_core.registry import Registry

    assert parse(list(flags), flag_table(Registry.load()), {}) == ({path: value}, [])


def test_every_leaf_of_the_configuration_has_a_flag_and_a_docstring():
    from relax_core.cli.flags import flag_table
    from relax_core.registry import Registry

    table = flag_table(Registry.load())
    by_path = {flag.paths[0]: flag for name, flag in table.items() if "." in name}
    assert {"algorithm.clip_ratio_low", "algorithm.ref_kl.coef", "trainer.lr", "output.dir"} <= set(by_path)
    assert [path for path, flag in by_path.items() if not flag.summary] == []


def test_flags_may_stand_before_the_run_file(relax, run_file):
    assert relax("check", "--use-tis", "--lr", "1e-4", run_file()).code == 0


def test_help_lists_the_generated_flags(relax):
    result = relax("train", "--help")
    assert result.code == 0
    for flag in ("--eps-clip", "--num-rollout", "--trainer.lr", "--algorithm.ref-kl.coef", "--use-tis", "--resume"):
        assert flag in result.out


def test_the_help_of_the_program_imports_no_torch():
    code = "import sys\nfrom relax_core.cli.app import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    heavy = (
        "print([name for name in ('torch', 'transformers', 'pydantic.main', 'matplotlib') if name in sys.modules][:2])"
    )
    run = subprocess.run([sys.executable, "-c", code + heavy], capture_output=True, text=True, check=True)
    assert "torch" not in run.stdout.splitlines()[-1]
    assert "Train a policy" in run.stdout


def test_importing_relax_core_imports_no_torch():
    code = "import relax_core, sys; from relax_core import AlgorithmSpec, hookimpl; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_plugins_list_as_json(relax):
    report = json.loads(relax("plugins", "list", "--json").out)
    assert report["version"] == 1
    plugins = {each["name"]: each for each in report["plugins"]}
    assert plugins["grpo"]["roles"] == ["estimator", "loss"]
    assert plugins["ref_kl"]["status"] == "loaded"


def test_plugins_info_says_what_is_declared(relax):
    text = relax("plugins", "info", "is_correction").out
    assert "algorithm.is_correction.upper_bound: float = 2.0" in text
    assert "requires_rollout_log_probs = True" in text
    assert "--use-tis" in text
    report = json.loads(relax("plugins", "info", "grpo", "--json").out)
    assert report["paper"] == "arXiv:2402.03300"
    assert {
        "name": "algorithm.clip_ratio_high",
        "type": "float",
        "default": 0.28,
        "summary": "Upper clip margin of the importance ratio.",
    } in report["fields"]


def test_plot_writes_a_picture_and_a_curve(relax, tmp_path):
    records = [
        {"step": i, "rollout/reward_mean": i / 10, "train/loss": -i, "rollout/response_length_mean": 5}
        for i in range(1, 11)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    result = relax("plot", tmp_path)
    assert result.code == 0
    assert result.out.splitlines()[0] == "reward 0.100 ▁▂▃▃▄▅▆▆▇█ 1.000  (10 steps)"
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_run_file_of_the_documentation_is_accepted(relax, run_file):
    """Word for word."""
    text = RUN + (
        "algorithm:\n"
        "  advantage_estimator: grpo\n"
        "  advantage_norm_mode: group_zscore\n"
        "  policy_loss: grpo\n"
        "  loss_agg_mode: token-mean\n"
        "  clip_ratio_low: 0.2\n"
        "  clip_ratio_high: 0.28\n"
        "  is_correction: {enable: true, action: clip, level: token, lower_bound: 0.5, upper_bound: 2.0}\n"
        "  opsm: {enable: true, delta: 0.1}\n"
    )
    assert relax("check", run_file(text)).code == 0


@pytest.mark.parametrize(
    ("flags", "values"),
    [
        (("--eval-interval", "5", "--eval-path", "x.jsonl"), {"interval": 5, "path": "x.jsonl"}),
        (("--eval-temperature", "0.6", "--eval-top-p", "0.9"), {"temperature": 0.6, "top_p": 0.9}),
        (("--eval-top-k", "3", "--eval-max-response-len", "9"), {"top_k": 3, "max_new_tokens": 9}),
        (("--n-samples-per-eval-prompt", "4",), {"n_samples_per_prompt": 4}),
        (("--skip-eval-before-train",), {"at_start": False}),
        (("--evaluation.num-prompts", "7", "--evaluation.task", "t"), {"num_prompts": 7, "task": "t"}),
    ],
)  # fmt: skip
def test_flags_of_evaluations(run_file, flags, values):
    from relax_core.cli.flags import flag_table, parse
    from relax_core.registry import Registry
    from relax_core.runfile import read, resolve

    overrides, _ = parse(list(flags), flag_table(Registry.load()), {})
    evaluation = resolve(read(run_file()), overrides).config.evaluation
    assert evaluation.model_dump(include=set(values)) == values


def test_every_other_flag_is_as_if_there_were_no_evaluations(monkeypatch):
    from relax_core.cli import flags
    from relax_core.config import RunConfig
    from relax_core.registry import Registry

    def table():
        return {name: (flag.paths, flag.sets) for name, flag in flags.flag_table(Registry.load()).items()}

    whole = table()
    others = {name: (info.annotation, info) for name, info in RunConfig.model_fields.items() if name != "evaluation"}
    monkeypatch.setattr(flags, "RunConfig", create_model("Others", **others))
    monkeypatch.setattr(flags, "FLAGS", [each for each in flags.FLAGS if "eval" not in each.name])
    assert table() == {name: each for name, each in whole.items() if "eval" not in name}
    assert whole["--temperature"] == (("rollout.temperature",), {})
    assert whole["--task"] == (("data.task",), {})
