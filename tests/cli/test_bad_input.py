"""What a user gets wrong: one line that says what, who and the fix, the right exit code, and never a traceback."""

from __future__ import annotations

import pytest

from tests.conftest import RUN

PLUGIN = """
from relax_core import AlgorithmSpec, Estimator, Advantage, Loss, PolicyLoss, hookimpl

@hookimpl
def algorithm():
    return AlgorithmSpec("{name}", "Somebody's algorithm", estimator=Estimator(), loss=Loss())

@hookimpl
def compute_advantage(rollout):
    return Advantage(rollout.to_tokens(rollout.rewards))

@hookimpl
def policy_loss(batch):
    return PolicyLoss(-batch.ratio() * batch.advantages)
"""


def only_line(text: str) -> str:
    (line,) = text.strip().splitlines()
    return line


def test_unknown_estimator(relax, run_file):
    result = relax("train", run_file(), "--advantage-estimator", "grpoo")
    assert result.code == 2
    expected = "error: algorithm.advantage_estimator: unknown estimator 'grpoo'. Fix: did you mean 'grpo'?"
    assert only_line(result.err) == expected


def test_an_estimator_that_a_loss_brings_with_it_is_suggested_too(relax, run_file):
    result = relax("train", run_file(), "--advantage-estimator", "gspoo")
    expected = "error: algorithm.advantage_estimator: unknown estimator 'gspoo'. Fix: did you mean 'gspo'?"
    assert only_line(result.err) == expected


def test_unknown_key(relax, run_file):
    path = run_file(RUN + "algorithm:\n  clip_ratio_lo: 0.1\n")
    result = relax("check", path)
    assert result.code == 2
    expected = f"error: {path}:8: algorithm.clip_ratio_lo: unknown key. Fix: did you mean 'clip_ratio_low'?"
    assert only_line(result.err) == expected


def test_every_unknown_key_is_named_at_once(relax, run_file):
    path = run_file(RUN.replace("lr:", "lrr:").replace("rollout_batch_size", "rollout_batchsize"))
    result = relax("check", path)
    assert result.code == 2
    assert [line.split(": unknown")[0].split(": ")[-1] for line in result.err.strip().splitlines()] == [
        "rollout.rollout_batchsize",
        "trainer.lrr",
    ]


def test_unknown_flag(relax, run_file):
    result = relax("train", run_file(), "--eps-clp", "0.2")
    assert result.code == 2
    assert only_line(result.err) == "error: relax: unknown flag '--eps-clp'. Fix: did you mean '--eps-clip'?"


def test_a_flag_without_its_value(relax, run_file):
    result = relax("train", run_file(), "--lr")
    assert result.code == 2
    assert only_line(result.err) == "error: --lr: needs a value. Fix: write --lr VALUE"


def test_missing_file(relax, tmp_path):
    result = relax("train", tmp_path / "none.yaml")
    assert result.code == 2
    assert only_line(result.err) == f"error: {tmp_path}/none.yaml: no such file. Fix: name an existing run file"


def test_a_directory_instead_of_a_file(relax, tmp_path):
    result = relax("train", tmp_path)
    assert result.code == 2
    assert "cannot be read" in only_line(result.err)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("model: [1\n", 2, "expected"),
        ("a: 1\na: 2\n", 2, "duplicate key"),
        ("a:\n\t- b\n", 2, "cannot start any token"),
    ],
)
def test_malformed_yaml(relax, run_file, text, line, reason):
    path = run_file(text)
    result = relax("train", path)
    assert result.code == 2
    assert only_line(result.err).startswith(f"error: {path}:{line}: malformed YAML: ")
    assert reason in result.err


@pytest.mark.parametrize("text", ["", "- a\n", "just words\n"])
def test_a_run_file_that_is_no_mapping(relax, run_file, text):
    result = relax("train", run_file(text))
    assert result.code == 2
    assert "not a mapping of sections" in only_line(result.err)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--lr", "fast"), "flag --trainer.lr: trainer.lr: should be a valid number, not 'fast'"),
        (("--rollout.top_p", "2"), "flag --rollout.top_p: rollout.top_p: should be less than or equal to 1, not 2"),
        (("--num-rollout", "2.5"), "trainer.num_rollout: should be a valid integer, not 2.5"),
        (("--loss-agg-mode", "mean"), "algorithm.loss_agg_mode: should be token-mean, seq-mean-token-mean"),
        (("--is-correction", "3"), "unknown flag '--is-correction'"),
    ],
)
def test_wrong_type(relax, run_file, arguments, message):
    result = relax("check", run_file(), *arguments)
    assert result.code == 2
    assert message in only_line(result.err)


def test_a_section_that_is_no_mapping(relax, run_file):
    result = relax("check", run_file(RUN + "algorithm: grpo\n"))
    assert result.code == 2
    assert "algorithm: should be a valid dictionary" in only_line(result.err)


def test_missing_model(relax, run_file):
    result = relax("train", run_file(), "--model.path", "no/such/model")
    assert result.code == 3
    assert "model.path: no model directory 'no/such/model'" in only_line(result.err)


def test_a_model_directory_without_weights(relax, run_file, tmp_path):
    (tmp_path / "hollow").mkdir()
    (tmp_path / "hollow" / "config.json").write_text("{}")
    result = relax("train", run_file(), "--model.path", tmp_path / "hollow")
    assert result.code == 3
    assert "cannot be loaded" in only_line(result.err)


def test_missing_extra(relax, run_file, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "reasoning_gym", None)
    text = RUN.replace("source:", "task: leg_counting, task_args: {size: 4}, # ").replace("}\nrollout", "\n}\nrollout")
    result = relax("train", run_file(text))
    assert result.code == 3
    assert only_line(result.err).endswith("Fix: install with pip install 'relax-rl[tasks]'")


def test_empty_dataset(relax, run_file, tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n")
    text = RUN.replace("source:", "path: empty.jsonl, reward: exact_match } #")
    result = relax("train", run_file(text))
    assert result.code == 3
    assert "data.path empty.jsonl: there is not a single example" in only_line(result.err)


def test_missing_dataset(relax, run_file):
    text = RUN.replace("source:", "path: none.jsonl, reward: exact_match } #")
    result = relax("train", run_file(text))
    assert result.code == 2
    assert "data.path: there is no file none.jsonl" in only_line(result.err)


def test_a_prompt_longer_than_the_context(relax, run_file):
    result = relax("train", run_file(), "--max-new-tokens", "508")
    assert result.code == 3
    assert "tokens, more than the limit of 4" in only_line(result.err)


def test_two_plugins_of_one_name(relax, run_file, install):
    install("alpha-rl", "centred", PLUGIN.format(name="centred"))
    install("beta-rl", "centred", PLUGIN.format(name="centred"), "2.0")
    result = relax("train", run_file(), "--advantage-estimator", "centred")
    assert result.code == 3
    assert (
        "error: algorithm.advantage_estimator: 'centred' is shadowed: 'centred' is claimed by alpha-rl 1.0 and "
        "beta-rl 2.0. Fix: uninstall one, or switch one off" in result.err
    )


def test_two_plugins_of_one_name_leave_other_runs_alone(relax, run_file, install):
    install("alpha-rl", "centred", PLUGIN.format(name="centred"))
    install("beta-rl", "centred", PLUGIN.format(name="centred"), "2.0")
    assert relax("check", run_file()).code == 0


def test_a_file_does_not_silently_replace_an_installed_plugin(relax, run_file, plugin_file):
    result = relax("check", run_file(), "--plugin", plugin_file(PLUGIN.format(name="grpo")))
    assert result.code == 3
    assert "'grpo' is claimed by" in result.err


def test_a_broken_plugin_that_the_run_does_not_use(relax, run_file, install):
    install("broken-rl", "wrong", "raise RuntimeError('no luck today')")
    listed = relax("plugins", "list")
    assert listed.code == 0
    assert any("wrong" in line and "broken" in line and "no luck today" in line for line in listed.out.splitlines())
    trained = relax("train", run_file(), "--output.dir", run_file().parent / "run")
    assert trained.code == 0
    assert "warning: plugin 'wrong' (broken-rl 1.0) is broken: RuntimeError: no luck today" in trained.err


def test_a_broken_plugin_that_the_run_does_use(relax, run_file, install):
    install("broken-rl", "wrong", "raise RuntimeError('no luck today')")
    result = relax("check", run_file(), "--advantage-estimator", "wrong")
    assert result.code == 3
    assert "'wrong' is broken: RuntimeError: no luck today" in result.err


def test_a_disabled_plugin_is_not_imported(relax, run_file, install, monkeypatch):
    install("broken-rl", "wrong", "raise RuntimeError('no luck today')")
    monkeypatch.setenv("RELAX_DISABLE_PLUGINS", "wrong")
    listed = relax("plugins", "list")
    assert any("wrong" in line and "disabled" in line for line in listed.out.splitlines())
    assert "no luck" not in listed.out
    assert relax("check", run_file()).err == ""


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("x = 1", "it has no algorithm() marked with @hookimpl"),
        (PLUGIN.format(name="other"), "its spec is named 'other', its entry point 'mine'"),
        (
            PLUGIN.format(name="mine").replace("policy_loss(", "policy_los("),
            "'policy_los' is not a hook did you mean 'policy_loss'?",
        ),
        (PLUGIN.format(name="mine").replace("(batch)", "(bach)"), "bach"),
        (PLUGIN.format(name="mine").replace("loss=Loss()", "loss=Loss(), hook_api=99"), "hook_api 99, this is 1"),
        ("import does_not_exist", "No module named 'does_not_exist'"),
        ("def f(:", "invalid syntax"),
    ],
)
def test_39_a_plugin_that_cannot_be_used_is_listed_with_its_reason(relax, install, source, reason):
    install("mine-rl", "mine", source)
    listed = relax("plugins", "list")
    assert listed.code == 0
    assert any(line.startswith("mine ") and reason in line for line in listed.out.splitlines())


def test_a_plugin_file_that_does_not_load(relax, run_file, plugin_file):
    result = relax("check", run_file(), "--plugin", plugin_file("import does_not_exist"))
    assert result.code == 3
    assert "No module named 'does_not_exist'" in only_line(result.err)


def test_a_plugin_file_that_is_not_there(relax, run_file):
    result = relax("check", run_file(), "--plugin", "none.py")
    assert result.code == 3
    assert "no such Python file: none.py" in only_line(result.err)


def test_a_hook_that_raises_names_the_plugin_and_the_line(relax, run_file, plugin_file, tmp_path):
    source = PLUGIN.format(name="mine").replace("return PolicyLoss", "batch.advantages / none\n    return PolicyLoss")
    arguments = ("--plugin", plugin_file(source), "--advantage-estimator", "mine", "--output.dir", tmp_path / "run")
    result = relax("train", run_file(), *arguments)
    assert result.code == 4
    expected = "error: plugin 'mine': policy_loss raised NameError: name 'none' is not defined (mine.py:14)"
    assert expected in result.err.splitlines()


def test_a_loss_that_reduces_is_told_so(relax, run_file, plugin_file, tmp_path):
    source = PLUGIN.format(name="mine").replace("* batch.advantages)", "* batch.advantages).per_token.mean()")
    source = source.replace(
        "PolicyLoss(-batch.ratio() * batch.advantages).per_token.mean()", "PolicyLoss((-batch.ratio()).mean())"
    )
    arguments = ("--plugin", plugin_file(source), "--advantage-estimator", "mine", "--output.dir", tmp_path / "run")
    result = relax("train", run_file(), *arguments)
    assert result.code == 4
    assert "plugin 'mine': PolicyLoss.per_token has shape [], not [" in result.err


def test_an_output_directory_that_holds_a_run(relax, run_file, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").touch()
    result = relax("train", run_file(), "--output.dir", tmp_path / "run")
    assert result.code == 2
    assert f"output.dir: '{tmp_path}/run' already holds a run" in result.err


def test_an_output_directory_that_cannot_be_written(relax, run_file, tmp_path):
    (tmp_path / "file").touch()
    result = relax("train", run_file(), "--output.dir", tmp_path / "file" / "run")
    assert result.code == 2
    assert "cannot be written: Not a directory" in result.err


def test_a_reward_that_raises_stops_the_run_with_the_sample(relax, run_file, tmp_path):
    (tmp_path / "reward.py").write_text("def reward(sample):\n    return 1 / 0\n")
    arguments = ("--data.reward", "reward.py:reward", "--output.dir", tmp_path / "run")
    result = relax("train", run_file(), *arguments)
    assert result.code == 4
    assert "'reward.py:reward' failed on sample " in result.err
    assert "ZeroDivisionError: division by zero" in result.err


def test_a_reward_that_raises_can_be_counted_instead(relax, run_file, tmp_path):
    (tmp_path / "reward.py").write_text("def reward(sample):\n    return 1 / 0\n")
    arguments = ("--data.reward", "reward.py:reward", "--on-reward-error", "zero", "--output.dir", tmp_path / "run")
    assert relax("train", run_file(), *arguments).code == 0
    assert '"rollout/reward_errors": 8.0' in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_resume_without_a_checkpoint(relax, run_file, tmp_path):
    result = relax("train", run_file(), "--resume", tmp_path / "none")
    assert result.code == 3
    assert f"--resume: '{tmp_path}/none' holds no whole checkpoint" in result.err


def test_plot_of_something_else(relax, tmp_path):
    result = relax("plot", tmp_path)
    assert result.code == 2
    assert "is not a run directory" in only_line(result.err)


def test_info_of_an_unknown_plugin(relax):
    result = relax("plugins", "info", "grp")
    assert result.code == 2
    assert only_line(result.err) == "error: relax plugins info: unknown plugin 'grp'. Fix: did you mean 'grpo'?"


def test_a_plugin_that_ends_the_process_is_broken_and_ends_nothing(relax, install):
    install("acme-quits", "quits", "raise SystemExit(7)\n")
    result = relax("plugins", "list")
    assert result.code == 0
    (line,) = [line.split() for line in result.out.splitlines() if line.startswith("quits")]
    assert line[1] == "broken"
    assert line[-3:-1] == ["SystemExit:", "7"]


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        ("compute_advantage", "plugin 'quits': compute_advantage raised SystemExit: 7 (mine.py:"),
        ("policy_loss", "plugin 'quits': policy_loss raised SystemExit: 7 (mine.py:"),
    ],
)
def test_a_hook_that_ends_the_process_is_a_fault_of_its_plugin(relax, run_file, plugin_file, hook, message):
    source = PLUGIN.format(name="quits")
    body = source[source.index(f"def {hook}") :].split("\n")[1]
    path = plugin_file(source.replace(body, "    raise SystemExit(7)"))
    result = relax(
        "train", run_file(), "--plugin", path, "--advantage-estimator", "quits", "--output.dir", path.parent / "run"
    )
    assert result.code == 4
    assert f"error: {message}" in result.err


def test_a_reward_that_ends_the_process_is_its_own_fault(relax, run_file, tmp_path):
    (tmp_path / "quits.py").write_text("def reward(sample):\n    raise SystemExit(7)\n")
    result = relax("train", run_file(), "--data.reward", "quits.py:reward", "--output.dir", tmp_path / "run")
    assert result.code == 4
    assert "error: data.reward: 'quits.py:reward' failed on sample " in result.err
