"""The main job, small: what a run leaves behind, flags, seeds, interruption, resumption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.conftest import EXAMPLES, RUN

ALGORITHM = """
algorithm:
  advantage_estimator: grpo
  advantage_norm_mode: group_zscore
  policy_loss: grpo
  loss_agg_mode: token-mean
  clip_ratio_low: 0.2
  clip_ratio_high: 0.28
  is_correction: {enable: true, action: clip, level: token, lower_bound: 0.5, upper_bound: 2.0}
  opsm: {enable: true, delta: 0.1}
"""


def metrics(directory: Path) -> list[dict]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def train(relax, run_file, tmp_path):
    """Train with these flags; gives the run directory."""

    def run(*flags: object, name: str = "run", text: str = RUN) -> Path:
        result = relax("train", run_file(text), *flags, "--output.dir", tmp_path / name)
        assert result.code == 0, result.err
        return tmp_path / name

    return run


def test_the_old_log_probs_of_one_update_are_its_own(train):
    """A limit of the mismatch has them computed before the update: the same numbers, to the last bit."""
    own, before = metrics(train(name="own")), metrics(train("--mismatch-stop", 10.0, name="before"))
    assert own == before
    assert [each["train/approx_kl"] for each in own] == [0.0, 0.0]


def test_a_second_update_has_moved_away_from_the_old_log_probs(train):
    assert metrics(train("--num-steps-per-rollout", 2, "--entropy-coef", 0.1))[0]["train/approx_kl"] != 0.0


def test_a_run_directory_holds_everything(train):
    directory = train("--tensorboard", text=RUN + ALGORITHM)
    found = metrics(directory)
    assert [each["step"] for each in found] == [1, 2]
    expected = {
        *("train/loss", "train/pg_loss", "train/approx_kl", "train/pg_clipfrac", "train/dual_clip_ratio", "train/lr"),
        *("train/nan_ratio", "train/grad_norm", "train/is_approx_k3_kl", "train/is_logprob_abs_diff"),
        *("train/is_clip_ratio", "train/is_nan_ratio", "train/opsm_drop_ratio", "rollout/reward_mean"),
        *("rollout/reward_std", "rollout/response_length_mean", "rollout/truncated_ratio", "rollout/staleness_mean"),
        *("rollout/staleness_max", "rollout/adv_zero_ratio"),
    }
    assert expected <= set(found[0])
    config = yaml.safe_load((directory / "config.yaml").read_text())
    assert config["algorithm"]["is_correction"]["upper_bound"] == 2.0
    assert config["trainer"]["num_rollout"] == 2
    described = json.loads((directory / "run.json").read_text())
    assert described["seed"] == 0
    assert set(described["plugins"]) == {"grpo", "is_correction", "opsm"}
    sample = json.loads((directory / "samples.jsonl").read_text().splitlines()[0])
    assert {"id", "prompt", "response", "answer", "reward", "tokens", "finish_reason"} < set(sample)
    board = EventAccumulator(str(directory)).Reload()
    assert [event.value for event in board.Scalars("rollout/reward_mean")] == pytest.approx(
        [each["rollout/reward_mean"] for each in found]
    )


def test_the_last_checkpoint_loads_with_from_pretrained(train):
    checkpoint = train("--save-interval", 1) / "checkpoints"
    assert sorted(path.name for path in checkpoint.iterdir()) == ["step_000001", "step_000002"]
    AutoModelForCausalLM.from_pretrained(checkpoint / "step_000002")
    assert AutoTokenizer.from_pretrained(checkpoint / "step_000002").decode([75]) != ""
    assert not list(checkpoint.rglob("*.bin"))


def test_one_seed_gives_identical_metrics_and_another_gives_others(train):
    texts = [
        (train("--seed", seed, name=name) / "metrics.jsonl").read_text()
        for name, seed in (("a", 3), ("b", 3), ("c", 4))
    ]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


def test_a_resolved_configuration_is_a_run_file(train, relax, tmp_path):
    directory = train("--lr", "2e-3", "--eps-clip", "0.1")
    result = relax("train", directory / "config.yaml", "--output.dir", tmp_path / "again")
    assert result.code == 0, result.err
    assert metrics(tmp_path / "again") == metrics(directory)


def test_a_resolved_configuration_names_its_files_from_anywhere(train, tmp_path):
    (tmp_path / "rewards.py").write_text("def reward(sample):\n    return float(len(sample.response))\n")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "answer": 1}\n')
    text = RUN.replace("data: {source:", "data: {path: rows.jsonl, reward: 'rewards.py:reward'} #")
    config = yaml.safe_load((train(text=text) / "config.yaml").read_text())
    assert config["data"]["path"] == f"{tmp_path}/rows.jsonl"
    assert config["data"]["reward"] == f"{tmp_path}/rewards.py:reward"
    assert config["data"]["source"] is None


def test_a_resumed_run_gives_the_numbers_of_an_unbroken_one(train, relax, run_file, tmp_path):
    whole = train("--num-rollout", 4, name="whole")
    train("--num-rollout", 2, "--lr-schedule", "constant", name="halves")
    result = relax("train", run_file(), "--num-rollout", 4, "--resume", tmp_path / "halves")
    assert result.code == 0, result.err
    assert metrics(tmp_path / "halves") == metrics(whole)


def test_what_was_written_after_the_checkpoint_is_taken_back(train, relax, run_file, tmp_path):
    whole = train("--num-rollout", 3, name="whole")
    train(name="halves")
    for name in ("metrics.jsonl", "samples.jsonl", "timings.jsonl"):
        with (tmp_path / "halves" / name).open("a") as file:
            file.write('{"step": 3, "rollout/reward_mean": 99.0}\n')
    assert relax("train", run_file(), "--num-rollout", 3, "--resume", tmp_path / "halves").code == 0
    assert metrics(tmp_path / "halves") == metrics(whole)


def test_an_interrupted_run_finishes_its_step_saves_and_says_how_to_go_on(run_file, tmp_path):
    path = run_file()
    command = [sys.executable, "-c", "from relax_core.cli.app import main; main()", "train", str(path)]
    command += ["--num-rollout", "100000", "--output.dir", str(tmp_path / "run")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert process.stderr is not None
    killer = threading.Timer(120, process.kill)
    killer.start()
    lines = []
    for line in process.stderr:
        lines.append(line.rstrip())
        if line.startswith("step 2/"):
            process.send_signal(signal.SIGINT)
    killer.cancel()
    assert process.wait() == 130, lines
    done = len(metrics(tmp_path / "run"))
    assert f"stopped after step {done}, saved in {tmp_path}/run" in lines
    assert f"go on with: relax train {tmp_path}/run/config.yaml --resume {tmp_path}/run" in lines
    assert (tmp_path / "run" / "checkpoints" / f"step_{done:06d}" / "model.safetensors").is_file()


def test_several_updates_a_rollout_with_recomputed_log_probs(train):
    one, two = metrics(train(name="one")), metrics(train("--num-steps-per-rollout", 2, name="two"))
    assert all(each["train/approx_kl"] == 0.0 for each in one)
    assert any(each["train/approx_kl"] != 0.0 for each in two)


def test_the_samplers_log_probs_agree_with_the_trainers(train):
    found = metrics(train("--temperature", 0.7))
    assert all(each["train/is_logprob_abs_diff"] < 1e-5 for each in found)


def test_old_log_probs_may_be_the_samplers(train):
    recomputed, taken = train(name="a"), train("--use-rollout-logprobs", name="b")
    assert metrics(taken)[0]["train/is_logprob_abs_diff"] == 0.0
    assert metrics(taken)[0]["train/loss"] == pytest.approx(metrics(recomputed)[0]["train/loss"], abs=1e-5)


def test_bfloat16_arithmetic_over_float32_parameters(train):
    directory = train("--dtype", "bfloat16")
    model = AutoModelForCausalLM.from_pretrained(directory / "checkpoints" / "step_000002")
    assert str(model.dtype) == "torch.float32"


def test_a_reference_kl_is_zero_until_the_policy_moves(train):
    path = f"{EXAMPLES}/tiny_model.py:build"
    found = metrics(train("--use-kl-loss", "--kl-loss-type", "k3", "--ref-load", path, "--n-samples-per-prompt", 16))
    assert found[0]["train/ref_kl"] == pytest.approx(0.0, abs=1e-7)
    assert found[1]["train/ref_kl"] > 1e-6


def test_a_reference_that_follows_stays_at_zero(train):
    path = f"{EXAMPLES}/tiny_model.py:build"
    flags = ("--use-kl-loss", "--ref-load", path, "--update-interval", 1)
    assert metrics(train(*flags))[1]["train/ref_kl"] == pytest.approx(0.0, abs=1e-7)


def test_groups_that_are_not_kept_are_replaced_and_counted(train, plugin_file):
    plugin = plugin_file(
        """
        from relax_core import AlgorithmSpec, Component, ComponentConfig, hookimpl

        class Config(ComponentConfig):
            pass

        @hookimpl
        def algorithm():
            return AlgorithmSpec("picky", "Keeps the groups whose first reward is shaped below 1",
                                 component=Component(config=Config))

        @hookimpl
        def shape_rewards(rollout, config, context):
            context.state["calls"] = context.state.get("calls", 0) + 1
            return rollout.rewards * 0 + context.state["calls"]

        @hookimpl
        def keep_group(rollout):
            return rollout.rewards > 1
        """,
        "picky.py",
    )
    flags = ("--plugin", plugin, "--algorithm.picky.enable", "--max-refills", 3, "--samples-per-step", 100)
    directory = train(*flags)
    assert [each["rollout/dropped_groups"] for each in metrics(directory)] == [2.0, 0.0]
    samples = [json.loads(line) for line in (directory / "samples.jsonl").read_text().splitlines()]
    assert [sum(each["step"] == step for each in samples) for step in (1, 2)] == [8, 8]
    nothing = metrics(train("--plugin", plugin, "--algorithm.picky.enable", "--max-refills", 0, name="nothing"))
    assert "train/loss" not in nothing[0]
    assert "train/loss" in nothing[1]


def test_prompts_from_a_file_with_exact_match(train, tmp_path):
    rows = [{"id": f"row{i}", "prompt": f"{i}", "answer": "no"} for i in range(3)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = RUN.replace("data: {source:", "data: {path: prompts.jsonl, reward: exact_match} #")
    samples = (train("--samples-per-step", 8, text=text) / "samples.jsonl").read_text().splitlines()
    assert {json.loads(line)["id"] for line in samples} == {"row0", "row1", "row2"}


def test_a_reasoning_gym_task_with_its_own_scorer(train):
    text = RUN.replace("data: {source:", "data: {task: leg_counting, task_args: {size: 3, seed: 1}, reward: task} #")
    assert len(metrics(train("--max-prompt-tokens", 500, text=text))) == 2


PPO = ("--advantage-estimator", "ppo", "--critic-lr", "0.01", "--lambd", "0.9")


def test_ppo_trains_its_critic_first_where_it_is_told_to(train):
    found = metrics(train(*PPO, "--num-critic-only-steps", 1))
    assert {"train/value_loss", "train/value_clipfrac", "train/critic_grad_norm", "train/critic_lr"} <= set(found[0])
    assert "train/loss" not in found[0]
    assert "train/loss" in found[1]
    assert found[1]["train/critic_lr"] == 0.01


def test_a_resumed_ppo_run_gives_the_numbers_of_an_unbroken_one(train, relax, run_file, tmp_path):
    whole = train(*PPO, "--num-rollout", 4, name="whole")
    train(*PPO, name="halves")
    result = relax("train", run_file(), *PPO, "--num-rollout", 4, "--resume", tmp_path / "halves")
    assert result.code == 0, result.err
    assert metrics(tmp_path / "halves") == metrics(whole)


def test_a_critic_may_start_from_another_one(train):
    checkpoint = train(*PPO, name="first") / "checkpoints" / "step_000002" / "critic"
    found = metrics(train(*PPO, "--critic-path", checkpoint, name="second"))
    assert found[0]["train/value_loss"] != metrics(train(*PPO, name="third"))[0]["train/value_loss"]


TEACHER = ("--algorithm.opd.enable", "--teacher-path", f"{EXAMPLES}/tiny_model.py:build")


def test_a_teacher_that_is_the_policy_itself_teaches_nothing_at_first(train):
    flags = (*TEACHER, "--algorithm.opd.mode", "loss", "--algorithm.opd.top_k", 8)
    found = metrics(train(*flags, "--loss-weight", 1))
    assert found[0]["train/opd_divergence"] == pytest.approx(0.0, abs=1e-9)
    assert "train/pg_loss" not in found[0]
    assert "train/pg_loss" in metrics(train(*flags, "--loss-weight", 0.5, name="mixed"))[0]


def test_a_teacher_in_the_advantage_alone(train):
    found = metrics(train(*TEACHER, "--only"))
    assert found[0]["rollout/adv_zero_ratio"] == 1.0
    assert found[0]["train/pg_loss"] == pytest.approx(0.0, abs=1e-9)


def test_more_candidates_than_the_vocabulary_has(relax, run_file):
    flags = (*TEACHER, "--algorithm.opd.mode", "loss", "--algorithm.opd.top_k", 300)
    result = relax("train", run_file(), *flags)
    assert result.code == 3
    assert "300 candidates a token are asked for, the vocabulary has 260. Fix: ask for 260 or fewer" in result.err


def test_a_teacher_with_another_tokenizer(relax, run_file, tmp_path):
    build = tmp_path / "other.py"
    build.write_text(
        "from transformers import PreTrainedTokenizerFast\n"
        "from tokenizers import Tokenizer, models\n"
        "def build(directory):\n"
        "    tokenizer = Tokenizer(models.WordLevel({'a': 0, '?': 1}, unk_token='?'))\n"
        "    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(directory)\n"
        "    (directory / 'config.json').write_text('{\"model_type\": \"qwen3\"}')\n"
    )
    result = relax("train", run_file(), "--algorithm.opd.enable", "--teacher-path", "other.py:build")
    assert result.code == 3
    assert "has another vocabulary than the policy. Fix: give a model with the policy's tokenizer" in result.err


def test_a_group_that_is_replaced_is_sampled_anew(train, plugin_file, tmp_path):
    """The same prompt twice: the second round must not draw what the first one drew."""
    plugin = plugin_file(
        """
        import torch
        from relax_core import AlgorithmSpec, Component, ComponentConfig, hookimpl

        class Config(ComponentConfig):
            pass

        @hookimpl
        def algorithm():
            return AlgorithmSpec("second", "Keeps the second round", component=Component(config=Config))

        @hookimpl
        def keep_group(rollout, context):
            context.state["calls"] = context.state.get("calls", 0) + 1
            return torch.full_like(rollout.rewards, context.state["calls"] > 1, dtype=torch.bool)
        """,
        "second.py",
    )
    (tmp_path / "one.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    text = RUN.replace("data: {source:", "data: {path: one.jsonl, reward: exact_match} #")
    text = text.replace("rollout_batch_size: 2", "rollout_batch_size: 1")
    flags = ("--num-rollout", 1, "--samples-per-step", 4)
    first = train(*flags, text=text, name="first")
    second = train(*flags, "--plugin", plugin, "--algorithm.second.enable", text=text, name="second")
    assert (first / "samples.jsonl").read_text() != (second / "samples.jsonl").read_text()
