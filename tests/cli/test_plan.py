"""`relax plan`: what it prints, what it refuses, and what it does not import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
MODELS = EXAMPLES / "scaling"
RUNS = {"64_gpus": ("Qwen3-32B", 64), "1024_gpus": ("Llama-3.1-70B", 1024)}
SMALL = {
    "model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 32, "intermediate_size": 128, "vocab_size": 260, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture
def config(tmp_path) -> tuple[str, Path]:
    """The shape of the tiny model, as a flag."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SMALL))
    return "--model-config", path


def test_the_tiny_run_on_a_cpu(relax, run_file, config):
    result = relax("plan", run_file(), *config, "--device", "cpu", "--max-prompt-tokens", 28)
    assert result.code == 0, result.err
    # 2 · (2·64·(128 + 64) + 3·64·128 + 2·64 + 2·32) + 2·260·64 + 64 = 132,032 parameters, 16 bytes each;
    # a cache of 8 sequences of 28 + 4 tokens, 2·2·64 float32 each.
    assert result.out.splitlines()[:6] == [
        "0.00 billion parameters, on cpu",
        "",
        "GB A PROCESS  PROCESSES  WEIGHTS  GRADIENTS  OPTIMIZER  ACTIVATIONS  CACHE  TOTAL",
        "actor         1          0.00     0.00       0.00       0.00         -      0.00",
        "rollout       1          -        -          -          -            0.00   0.00",
        "actor + rollout: 0.0 GB on a device at most",
    ]
    assert result.out.splitlines()[-1] == "assumed: every prompt has 28 tokens and every response 4"


def test_json_has_bytes(relax, run_file, config):
    result = relax("plan", run_file(), *config, "--device", "cpu", "--max-prompt-tokens", 28, "--json")
    told = json.loads(result.out)
    assert (told["version"], told["ok"], told["parameters"]) == (1, True, 132_032)
    actor, rollout = told["memory"]
    assert [actor["bytes"][kind] for kind in ("weights", "gradients", "optimizer")] == [528_128, 528_128, 1_056_256]
    assert rollout["bytes"]["cache"] == 8 * 32 * 2 * 2 * 64 * 4
    assert set(told["speed"]) == {"generation", "training", "sync", "seconds", "idle"}
    assert told["peaks"] == {"actor + rollout": actor["total"]}


@pytest.mark.parametrize("run", RUNS)
def test_the_examples_fit_on_as_many_devices_as_they_say(relax, run):
    model, devices = RUNS[run]
    result = relax("plan", MODELS / f"{run}.yaml", "--model-config", MODELS / f"{model}.json", "--json")
    told = json.loads(result.out)
    assert result.code == 0, result.err
    assert sum(load["processes"] for load in told["memory"]) == devices


def test_what_does_not_fit_is_a_finding(relax):
    flags = ("--model-config", MODELS / "Qwen3-32B.json", "--device", "l40s", "--tensor-model-parallel-size", 2)
    result = relax("plan", MODELS / "64_gpus.yaml", *flags)
    assert result.code == 1
    assert result.err == (
        "error: actor: 159.5 GB do not fit into the 48 GB of an l40s. Fix: write a larger tensor_model_parallel_size, "
        "gradient_checkpointing: true, or fewer tokens in a micro-batch\n"
    )


def test_sizes_that_do_not_divide_the_model_are_findings(relax):
    flags = ("--model-config", MODELS / "Qwen3-32B.json", "--pipeline-model-parallel-size", 7)
    result = relax("plan", MODELS / "64_gpus.yaml", *flags)
    assert result.code == 1
    assert result.err == (
        "error: RLX153 topology.pipeline_model_parallel_size: 64 layers of model.path cannot be cut into 7 equal stages. "
        "Fix: write one of 1, 2, 4, 8, 16, 32, 64\n"
    )


def test_a_model_directory_says_its_sizes_itself(relax, run_file, config, tmp_path):
    result = relax("plan", run_file(), "--model.path", tmp_path, "--json")
    assert json.loads(result.out)["parameters"] == 132_032


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("--device", "h10"),
            "--device: no device 'h10'. Fix: did you mean 'h100'? There are a100, h100, h200, l40s, cpu",
        ),
        (
            ("--assume", "speed=2"),
            "--assume: 'speed=2' is no assumption. Fix: write one of training, prefill, decoding, link, process, engine, "
            "an = and a number above 0: training=0.35",
        ),
        (
            ("--assume", "training=nan"),
            "--assume: 'training=nan' is no assumption. Fix: write one of training, prefill, decoding, link, process, "
            "engine, an = and a number above 0: training=0.35",
        ),
        (
            ("--model-config", "none.json"),
            "none.json: no configuration can be read there. Fix: give a model's config.json",
        ),
    ],
)
def test_what_cannot_be_read_is_a_usage_error(relax, run_file, config, flags, message):
    result = relax("plan", run_file(), *config, *flags)
    assert (result.code, result.out, result.err) == (2, "", f"error: {message}\n")


def test_a_model_that_is_not_there_needs_its_sizes(relax, run_file):
    result = relax("plan", run_file("model: {path: nowhere}\ndata: {task: none}\n"))
    assert result.code == 2
    assert result.err == (
        "error: model.path: the sizes of 'nowhere' are not known before it is there. "
        "Fix: give its config.json: --model-config FILE\n"
    )


def test_an_assumption_changes_the_result(relax, run_file, config):
    seconds = [
        json.loads(relax("plan", run_file(), *config, "--assume", f"training={part}", "--json").out)["speed"][
            "training"
        ]
        for part in (0.2, 0.4)
    ]
    assert seconds[0]["seconds"] == pytest.approx(2 * seconds[1]["seconds"])


def test_it_imports_nothing_heavy():
    heavy = ("torch", "ray", "vllm", "transformers")
    source = f"import sys, relax_core.cli.estimate; print([name for name in {heavy} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert run.stdout == "[]\n", run.stderr
