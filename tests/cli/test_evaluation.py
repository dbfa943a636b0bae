"""Evaluations of a run: what they measure, that training does not notice them, and who reads what they leave."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from relax_core.data.rewards import Sample
from relax_core.orchestration.model_path import model_directory
from relax_core.references import load_callable
from relax_core.rollout.hf import HFSampler
from relax_core.rollout.seeds import held_out_place, seed_of
from tests.cli.test_train import metrics
from tests.conftest import EXAMPLES, RUN

NEW = 6
ROWS = [
    {"id": f"{count}-{kind}", "prompt": f"write {kind} {count}", "answer": {"kind": kind, "count": count}}
    for count, kind in ((2, "small"), (3, "capital"), (1, "capital"))
]
EVERY = {f"eval/{name}" for name in
         ("reward_mean", "reward_std", "response_length_mean", "truncated_ratio", "reward_errors")}  # fmt: skip
HELD_OUT = ("--eval-path", "held_out.jsonl", "--eval-interval")
COUNTED = """
from itertools import cycle
scores = cycle([1.0, 0.5, 0.25, 0.0])
def reward(sample):
    return next(scores)
"""


@pytest.fixture
def train(relax, run_file, tmp_path):
    """Train with these flags and three held-out prompts beside the run file; gives the run directory."""
    (tmp_path / "held_out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))

    def run(*flags: object, name: str = "run", text: str = RUN) -> Path:
        result = relax("train", run_file(text), "--num-threads", 1, *flags, "--output.dir", tmp_path / name)
        assert result.code == 0, result.err
        (tmp_path / f"{name}.err").write_text(result.err)
        return tmp_path / name

    return run


def evaluated(directory: Path) -> dict[int, dict[str, float]]:
    """The eval metrics by step, of the steps that have some."""
    found = {each["step"]: {key: each[key] for key in each if key.startswith("eval/")} for each in metrics(directory)}
    return {step: each for step, each in found.items() if each}


def trained(directory: Path) -> list[dict[str, float]]:
    """The lines of steps, without eval metrics."""
    return [
        {key: each[key] for key in each if not key.startswith("eval/")} for each in metrics(directory) if each["step"]
    ]


@torch.no_grad()
def greedy(model, prompt: list[int], stop: int) -> list[int]:
    """The likeliest continuation, by whole forward passes."""
    ids = list(prompt)
    while len(ids) - len(prompt) < NEW and ids[-1] != stop:
        ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def expected(path: Path) -> dict[str, float]:
    """What an evaluation of the model in a directory has to say, by hand."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(path).eval(), AutoTokenizer.from_pretrained(path)
    reward = load_callable("tiny_task.py:reward", who="test", base=EXAMPLES)
    rewards, lengths, cut = [], [], 0
    for row in ROWS:
        prompt = tokenizer(row["prompt"])["input_ids"]
        ids = greedy(model, prompt, tokenizer.eos_token_id)
        reason = "stop" if ids[-1] == tokenizer.eos_token_id else "length"
        text = tokenizer.decode(ids, skip_special_tokens=True)
        rewards.append(reward(Sample(row["id"], row["prompt"], text, row["answer"], {}, prompt, ids, reason)))
        lengths.append(len(ids))
        cut += reason == "length"
    return {
        "eval/reward_mean": statistics.fmean(rewards),
        "eval/reward_std": statistics.stdev(rewards),
        "eval/response_length_mean": statistics.fmean(lengths),
        "eval/truncated_ratio": cut / len(ROWS),
        "eval/reward_errors": 0.0,
    }


def test_each_evaluation_is_of_the_weights_after_its_step(train, model_cache):
    """The reward has to move, or weights of another step would do as well."""
    flags = ("--lr", 4e-3, "--rollout-batch-size", 8, "--n-samples-per-prompt", 16, "--max-new-tokens", NEW)
    flags = (*flags, "--num-rollout", 5, "--save-interval", 1)
    directory = train(*flags, *HELD_OUT, 2)
    found = evaluated(directory)
    assert sorted(found) == [0, 2, 4, 5]
    start = model_directory(f"{EXAMPLES}/tiny_model.py:build", who="test", base=EXAMPLES, cache=model_cache)
    assert found[0] == pytest.approx(expected(start))
    for step in (2, 4, 5):
        assert found[step] == pytest.approx(expected(directory / "checkpoints" / f"step_{step:06d}"))
    assert len({tuple(each.values()) for each in found.values()}) > 2


def test_training_does_not_notice_evaluations_and_no_plugin_sees_them(train, plugin_file):
    """Neither shaping, nor dropping of groups, nor the diagnostics of rloo."""
    plugin = plugin_file(
        """
        import torch
        from relax_core import AlgorithmSpec, Component, ComponentConfig, hookimpl

        class Config(ComponentConfig):
            pass

        @hookimpl
        def algorithm():
            return AlgorithmSpec("shaped", "Shapes, drops and counts", component=Component(config=Config))

        @hookimpl
        def shape_rewards(rollout, config, context):
            context.state["calls"] = context.state.get("calls", 0) + 1
            return rollout.rewards + 100 * context.state["calls"]

        @hookimpl
        def keep_group(rollout, context):
            return torch.full_like(rollout.rewards, context.state["calls"] % 2, dtype=torch.bool)
        """,
        "shaped.py",
    )
    flags = ("--advantage-estimator", "rloo", "--plugin", plugin, "--algorithm.shaped.enable", "--max-refills", 1)
    without = train(*flags, name="without")
    within = train(*flags, *HELD_OUT, 1, "--eval-temperature", 1, name="within")
    assert trained(within) == metrics(without)
    assert "rollout/rloo/baseline_mean" in metrics(within)[1]
    assert {frozenset(each) for each in evaluated(within).values()} == {frozenset(EVERY)}
    assert max(each["eval/reward_mean"] for each in evaluated(within).values()) < 1
    assert (within / "samples.jsonl").read_text() == (without / "samples.jsonl").read_text()


def test_equal_weights_give_equal_numbers_whenever_they_are_evaluated(train):
    flags = ("--lr", 0, "--eval-temperature", 1, "--n-samples-per-eval-prompt", 8, *HELD_OUT, 1)
    first, *others = evaluated(train(*flags, name="a")).values()
    assert others == [first, first]
    assert evaluated(train(*flags, "--seed", 1, name="b"))[0] != first


def test_no_seed_of_a_held_out_prompt_is_one_of_training():
    places = [held_out_place(index) for index in range(1000)]
    assert not {seed_of(0, place) for place in places} & {seed_of(0, place) for place in range(1000)}
    assert len(set(places)) == 1000


def test_the_mean_the_spread_and_the_best_by_hand(train, tmp_path):
    (tmp_path / "counted.py").write_text(COUNTED)
    text = RUN.replace(f"{EXAMPLES}/tiny_task.py:reward", "counted.py:reward")
    flags = ("--evaluation.num_prompts", 2, "--n-samples-per-eval-prompt", 2, "--eval-temperature", 1)
    found = evaluated(train(*flags, *HELD_OUT, 1, "--num-rollout", 1, text=text))
    assert sorted(found) == [0, 1]
    for each in found.values():
        assert each["eval/reward_mean"] == (1 + 0.5 + 0.25 + 0) / 4
        assert each["eval/reward_std"] == pytest.approx(statistics.stdev([1, 0.5, 0.25, 0]))
        assert each["eval/reward_best"] == (1 + 0.25) / 2
        assert each["eval/response_length_mean"] == 4
        assert each["eval/truncated_ratio"] == 1


def test_settings_of_its_own_and_the_rest_from_data(train, tmp_path):
    (tmp_path / "test.jsonl").write_text('{"q": "a", "right": "b"}\n' * 3)
    (tmp_path / "train.jsonl").write_text('{"q": "c", "right": "d"}\n')
    (tmp_path / "seen.py").write_text(
        "seen = []\ndef reward(sample):\n    seen.append(sample)\n    return float(len(seen) % 2)\n"
    )
    text = RUN.replace("data: {source:", "data: {path: train.jsonl, prompt_key: q, answer_key: right, "
                       "reward: 'seen.py:reward'} #")  # fmt: skip
    flags = ("--eval-path", "test.jsonl", "--eval-interval", 5, "--eval-max-response-len", 9, "--eval-top-k", 1)
    found = train(*flags, "--eval-temperature", 0.3, "--skip-eval-before-train", text=text)
    assert [each["step"] for each in metrics(found)] == [1, 2]
    (last,) = evaluated(found).values()
    assert last["eval/response_length_mean"] == 9
    assert last["eval/reward_std"] == pytest.approx(statistics.stdev([1, 0, 1]))


BROKEN = (
    "def reward(sample):\n    if sample.prompt.startswith('write'):\n        raise ValueError('no')\n    return 1.0\n"
)


def test_a_reward_that_fails_is_counted_or_ends_the_run(train, relax, run_file, tmp_path):
    (tmp_path / "broken.py").write_text(BROKEN)
    text = RUN.replace(f"{EXAMPLES}/tiny_task.py:reward", "broken.py:reward")
    found = evaluated(train("--on-reward-error", "zero", *HELD_OUT, 1, text=text))
    assert found[0]["eval/reward_errors"] == 3.0
    assert found[0]["eval/reward_mean"] == 0.0
    result = relax("train", run_file(text), *HELD_OUT, 1, "--output.dir", tmp_path / "stopped")
    assert result.code == 4
    assert "error: data.reward: 'broken.py:reward' failed on sample 2-small" in result.err
    assert metrics(tmp_path / "stopped") == []


def test_the_engine_is_awake_when_it_evaluates(train, monkeypatch):
    """As one that shares a GPU with the trainer has it: asleep from `sleep` to the next weights."""
    awake = [True]
    generate, update = HFSampler.generate, HFSampler.update_weights

    def sample(self, *arguments, **options):
        assert awake[0]
        return generate(self, *arguments, **options)

    def wake(self, *arguments):
        awake[0] = True
        return update(self, *arguments)

    monkeypatch.setattr(HFSampler, "sleep", lambda self: awake.__setitem__(0, False))
    monkeypatch.setattr(HFSampler, "generate", sample)
    monkeypatch.setattr(HFSampler, "update_weights", wake)
    assert sorted(evaluated(train(*HELD_OUT, 1))) == [0, 1, 2]


def test_no_more_is_decoded_at_once_than_a_rollout_has(train, monkeypatch):
    rows, decode = [], HFSampler._decode
    monkeypatch.setattr(
        HFSampler, "_decode", lambda self, prompts, *rest: rows.append(len(prompts)) or decode(self, prompts, *rest)
    )
    train(*HELD_OUT, 2, "--n-samples-per-eval-prompt", 7, "--eval-temperature", 1)
    assert rows == [8, 8, 5, 8, 8, 8, 8, 5]


def test_a_resumed_run_gives_the_lines_of_an_unbroken_one(train, relax, run_file, tmp_path):
    flags = ("--eval-temperature", 1, *HELD_OUT, 2)
    whole = train(*flags, "--num-rollout", 4, name="whole")
    train(*flags, name="halves")
    result = relax("train", run_file(), "--num-threads", 1, *flags, "--num-rollout", 4, "--resume", tmp_path / "halves")
    assert result.code == 0, result.err
    assert metrics(tmp_path / "halves") == metrics(whole)
    assert [each["step"] for each in metrics(whole)] == [0, 1, 2, 3, 4]


def test_a_run_that_was_killed_before_its_first_checkpoint_evaluates_once(train, relax, run_file, tmp_path):
    whole = train(*HELD_OUT, 2, name="whole")
    begun = train(*HELD_OUT, 2, name="begun")
    for name in ("metrics.jsonl", "timings.jsonl"):
        (begun / name).write_text((begun / name).read_text().splitlines(keepends=True)[0])
    for path in sorted((begun / "checkpoints").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert relax("runs", "list", begun).out.splitlines()[1].split()[1:3] == ["0/2", "-"]
    told = relax("plot", begun)
    problem = f"error: RUN_DIR: '{begun}' has no finished step yet. Fix: wait for the first step"
    assert (told.code, told.err.strip()) == (2, problem)
    result = relax("train", run_file(), "--num-threads", 1, *HELD_OUT, 2, "--resume", begun)
    assert result.code == 0, result.err
    assert metrics(begun) == metrics(whole)


def test_prompts_that_are_too_long_are_refused_when_they_are_loaded(relax, run_file, train):
    result = relax("train", run_file(), *HELD_OUT, 1, "--eval-max-response-len", 505)
    assert result.code == 3
    assert result.err.endswith(
        "error: example 2-small: the prompt has 13 tokens, more than the limit of 7 (2 more are too long). "
        "Fix: raise data.max_prompt_tokens, lower evaluation.max_new_tokens, or take it out of the data\n"
    )


def test_errors_of_held_out_data_name_their_section(relax, run_file, tmp_path):
    result = relax("train", run_file(), "--eval-interval", 1, "--eval-path", "nowhere.jsonl")
    assert result.code == 2
    problem = f"evaluation.path: there is no file nowhere.jsonl in {tmp_path}"
    assert result.err.endswith(f"error: {problem}. Fix: correct the path\n")
    result = relax("train", run_file(), "--eval-interval", 1, "--evaluation.task", "leg_countin")
    assert "error: evaluation.task: reasoning-gym has no task 'leg_countin'" in result.err


def test_every_reader_stands_a_line_of_step_0(train, relax, tmp_path):
    a, b = train(*HELD_OUT, 2, name="a"), train(*HELD_OUT, 2, "--seed", 5, "--num-rollout", 3, name="b")
    lines = [line for line in (tmp_path / "a.err").read_text().splitlines() if line.startswith("step ")]
    start, end = (evaluated(a)[step]["eval/reward_mean"] for step in (0, 2))
    assert lines[0] == f"step 0/2 eval reward {start:.3f}"
    assert "eval" not in lines[1]
    assert f" eval reward {end:.3f} left 0:00" in lines[2]
    first, second, _ = relax("plot", a).out.splitlines()
    assert first.endswith("(2 steps)")
    assert second.startswith(f"eval reward {start:.3f} ")
    assert second.endswith(f" {end:.3f}  (2 evaluations)")
    listed = {line.split()[0]: line.split()[1] for line in relax("runs", "list", tmp_path).out.splitlines()}
    assert (listed[str(a)], listed[str(b)]) == ("2/2", "3/3")
    assert relax("runs", "show", a).out.splitlines()[0].endswith(": grpo, 2 of 2 steps, seed 0")
    told = json.loads(relax("runs", "diff", a, b, "--json").out)
    assert told["step"] == 2
    assert "train/loss" in {each["name"] for each in told["metrics"]}
    for each in told["metrics"]:
        assert (each["first"], each["second"]) == tuple(metrics(run)[2].get(each["name"]) for run in (a, b))
    timings = [json.loads(line) for line in (a / "timings.jsonl").read_text().splitlines()]
    assert [(each["step"], "perf/evaluate_seconds" in each) for each in timings] == [(0, True), (1, False), (2, True)]


def test_a_comparison_evaluates_as_its_runs_do(relax, run_file, tmp_path, train):
    flags = ("--num-threads", 1, "--output", tmp_path / "all", "--json", *HELD_OUT, 2)
    result = relax("compare", run_file(), "--algorithms", "grpo,rloo", "--seeds", 1, *flags)
    assert result.code == 0, result.err
    for each in json.loads(result.out)["algorithms"]:
        run = tmp_path / "all" / each["name"] / "seed-0"
        assert sorted(evaluated(run)) == [0, 2]
        rewards = [line["rollout/reward_mean"] for line in trained(run)]
        assert each["area"]["mean"] == pytest.approx(sum(rewards) / 2)
        assert each["final_reward"]["mean"] == rewards[-1]


def test_evaluations_may_change_when_a_run_is_gone_on_with(train, relax, run_file, tmp_path):
    directory = train()
    flags = ("--num-threads", 1, "--num-rollout", 4, *HELD_OUT, 1)
    result = relax("train", run_file(), *flags, "--resume", directory)
    assert result.code == 0, result.err
    assert "warning: changed since the run was begun: evaluation.interval was 0, is 1" in result.err
    assert sorted(evaluated(directory)) == [3, 4]
