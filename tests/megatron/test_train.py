"""`relax train` on the tiny task, on Megatron's ranks: the same run as on the embedded engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from safetensors.torch import load_file

from tests.conftest import EXAMPLES
from tests.megatron.conftest import LAYOUTS

SMALL = ("--rollout-batch-size", "4", "--n-samples-per-prompt", "8", "--num-rollout", "3", "--micro-batch-size", "4",
         "--no-tensorboard", "--adam-eps", "1e-4", "--save-interval", "2")  # fmt: skip
LEFT_OUT = ("train/is_approx_k3_kl", "train/is_logprob_abs_diff", "train/is_logprob_abs_diff_fresh")
"""Rounding between what samples and what trains: asserted to be small, not to be the same."""


def flags_of(layout):
    return [text for name, value in LAYOUTS[layout].items() for text in (f"--topology.{name}", str(value).lower())]


def metrics(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def weights(directory):
    return load_file(directory / "checkpoints" / "step_000003" / "model.safetensors")


@pytest.fixture
def train(relax, model_cache):
    def run(directory, *flags):
        arguments = (
            "train",
            EXAMPLES / "tiny.yaml",
            "--cache-dir",
            model_cache,
            "--output.dir",
            directory,
            *SMALL,
            *flags,
        )
        result = relax(*arguments)
        assert result.code == 0, result.err
        return directory

    return run


def assert_same(actual, expected):
    assert len(actual) == len(expected) == 3
    for mine, theirs in zip(actual, expected, strict=True):
        assert mine.keys() == theirs.keys()
        for name in set(LEFT_OUT) & mine.keys():  # a step without an update has none
            assert mine.pop(name) < 1e-5
            theirs.pop(name)
        assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-6)


def assert_weights(actual, expected):
    assert actual.keys() == expected.keys()
    for name, weight in actual.items():
        assert (weight - expected[name]).norm() <= 1e-4 * expected[name].norm(), name


ALGORITHMS = {
    "grpo": ("--advantage-estimator", "grpo"),
    "gspo": ("--advantage-estimator", "gspo", "--loss-agg-mode", "seq-mean-token-mean"),
    "rloo": ("--advantage-estimator", "rloo"),
    "reinforce_plus_plus": (
        *("--advantage-estimator", "reinforce_plus_plus", "--normalize-advantages"),
        *("--loss-agg-mode", "seq-mean-token-sum-norm"),
    ),
}


@pytest.mark.parametrize(
    "algorithm", [name if name == "grpo" else pytest.param(name, marks=pytest.mark.slow) for name in ALGORITHMS]
)
@pytest.mark.parametrize(
    "layout", [name if name == "tp2sp" else pytest.param(name, marks=pytest.mark.slow) for name in LAYOUTS]
)
def test_a_run_is_that_of_the_embedded_engine(train, tmp_path, layout, algorithm):
    chosen = ALGORITHMS[algorithm]
    mine = train(tmp_path / "megatron", "--trainer.engine", "megatron", *flags_of(layout), *chosen)
    theirs = train(tmp_path / "torch", *chosen)
    assert_same(metrics(mine), metrics(theirs))
    assert_weights(weights(mine), weights(theirs))


OTHERS = {
    "critic": ("--advantage-estimator", "ppo", "--critic-lr", "1e-2"),
    "reference": ("--use-kl-loss", "--kl-loss-coef", "0.1", "--ref-load", f"{EXAMPLES}/tiny_teacher.py:build"),
}


@pytest.mark.slow
@pytest.mark.parametrize("flags", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("layout", ["tp2", "cp2"])
def test_a_run_with_other_models(train, tmp_path, layout, flags):
    mine = train(tmp_path / "megatron", "--trainer.engine", "megatron", *flags, *flags_of(layout))
    theirs = train(tmp_path / "torch", *flags)
    assert_same(metrics(mine), metrics(theirs))
    assert_weights(weights(mine), weights(theirs))


def test_a_plugin_file_is_found_by_the_ranks_however_it_is_named(train, tmp_path):
    readme = (EXAMPLES.parent / "README.md").read_text()
    source = readme.split("<!-- custom algorithm -->")[1].split("```python")[1].split("```")[0]
    (tmp_path / "my_algo.py").write_text(source)
    flags = ("--plugin", "my_algo.py", "--advantage-estimator", "centred", "--clip-ratio", "0.3")
    mine = train(tmp_path / "megatron", "--trainer.engine", "megatron", *flags_of("dp2"), *flags)
    assert_same(metrics(mine), metrics(train(tmp_path / "torch", *flags)))


def test_a_killed_rank_ends_the_run_with_one_error(tmp_path, model_cache):
    """Within the minute: the run has five steps' worth of time to be killed in, and 200 to run."""
    arguments = ["train", EXAMPLES / "tiny.yaml", "--cache-dir", model_cache, "--output.dir", tmp_path / "run", *SMALL,
                 "--trainer.engine", "megatron", *flags_of("dp2"), "--num-rollout", "2000"]  # fmt: skip
    source = "import sys; from relax_core.cli.app import main; main(sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", source, *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "run" / "metrics.jsonl").exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.2)
    ranks = ranks_of(process.pid)
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 4
    said = [line for line in errors.splitlines() if line.startswith("error:")]
    assert len(said) == 1
    assert said[0].startswith("error: megatron engine: rank 1 of 2 was ended by signal 9 during '")
    assert "Traceback" not in errors
    for each in ranks:
        with pytest.raises(ProcessLookupError):
            os.kill(each, 0)


def ranks_of(parent):
    """The processes that a run started, in the order of their starting."""
    import psutil

    return [
        each.pid for each in psutil.Process(parent).children() if "relax_core.engines.megatron.rank" in each.cmdline()
    ]


def test_an_argument_of_megatrons_is_checked_by_its_name(relax, run_file):
    text = f"""
    model: {{path: "{EXAMPLES}/tiny_model.py:build", cache_dir: CACHE}}
    data: {{source: "{EXAMPLES}/tiny_task.py:examples", reward: "{EXAMPLES}/tiny_task.py:reward"}}
    trainer: {{engine: megatron, megatron_args: {{overlap_grad_reduc: true, lr: 1, use_distributed_optimizer: true}}}}
    """
    result = relax("check", run_file(text))
    assert result.code == 1
    assert (
        "RLX162 trainer.megatron_args.use_distributed_optimizer: without Transformer Engine or Apex it could not go on from "
        "its checkpoint. Fix: leave it out, or install transformer-engine" in result.out
    )
    found = [line for line in result.out.splitlines() if "RLX160" in line]
    assert len(found) == 2
    assert found[0].endswith("trainer.megatron_args.lr: this run decides it elsewhere. Fix: write trainer.lr")
    assert found[1].endswith(
        "trainer.megatron_args.overlap_grad_reduc: Megatron-core has no such argument. Fix: did you mean 'overlap_grad_reduce'?"
    )


@pytest.mark.parametrize(("flags", "code"), [(("--topology.tensor-model-parallel-size", "4"), "RLX152")])
def test_a_built_model_is_looked_at_before_a_process_starts(relax, model_cache, tmp_path, flags, code):
    arguments = ("train", EXAMPLES / "tiny.yaml", "--cache-dir", model_cache, "--output.dir", tmp_path / "run")
    result = relax(*arguments, "--trainer.engine", "megatron", *flags)
    assert result.code == 2
    assert result.err.splitlines()[-1] == (
        f"error: {code} topology.tensor_model_parallel_size: 2 key-value heads of model.path cannot be cut into 4 equal "
        "parts. Fix: write one of 1, 2"
    )
