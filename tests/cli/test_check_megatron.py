"""Start-up rules of a run on Megatron's ranks: everything that is wrong, at once, with what to write instead."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cli.test_check import findings
from tests.conftest import EXAMPLES

SHAPE = {
    "model_type": "qwen3",
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "num_hidden_layers": 5,
    "vocab_size": 260,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
}
RUN = f"""
model: {{path: MODEL}}
data: {{source: "{EXAMPLES}/tiny_task.py:examples", reward: "{EXAMPLES}/tiny_task.py:reward"}}
rollout: {{rollout_batch_size: 2, n_samples_per_prompt: 4, max_new_tokens: 4}}
trainer: {{engine: megatron, num_rollout: 2, micro_batch_size: 1}}
"""
TENSOR, PIPELINE, CONTEXT = (f"--{name}-parallel-size" for name in ("tensor-model", "pipeline-model", "context"))

BROKEN = [
    ({}, (TENSOR, "2"), "RLX152", "topology.tensor_model_parallel_size: 3 key-value heads of model.path cannot be cut into 2 "
     "equal parts. Fix: write one of 1, 3"),
    ({}, (PIPELINE, "2"), "RLX153", "topology.pipeline_model_parallel_size: 5 layers of model.path cannot be cut into 2 equal "
     "stages. Fix: write one of 1, 5"),
    ({}, ("--sequence-parallel",), "RLX154", "topology.sequence_parallel: there are no tensor-parallel ranks to share a "
     "sequence with. Fix: write sequence_parallel: false"),
    ({"model_type": "qwen3_moe"}, (TENSOR, "3"), "RLX154", "topology.sequence_parallel: the experts of model.path under "
     "tensor parallelism need it. Fix: write sequence_parallel: true"),
    ({}, ("--max-new-tokens", "64"), "RLX155", "rollout.max_new_tokens: 64 tokens and a prompt do not fit into the 64 of "
     "model.path. Fix: write less than 64"),
    ({"vocab_size": 2, "intermediate_size": 9}, (TENSOR, "3"), "RLX156", "topology.tensor_model_parallel_size: "
     "the 2 ids of model.path are fewer than 3 ranks. Fix: write 2 or less"),
    ({"num_key_value_heads": 6, "intermediate_size": 9}, (TENSOR, "6"), "RLX156", "topology.tensor_model_parallel_size: the "
     "intermediate_size 9 of model.path cannot be cut into 6 equal parts. Fix: write one of 1, 3, 9"),
    ({}, ("--data-parallel-size", "9"), "RLX157", "topology.data_parallel_size: an update has 8 sequences, for 9 replicas. "
     "Fix: write 8 or less, or a larger trainer.global_batch_size"),
    ({}, ("--data-parallel-size", "3"), "RLX158", "topology.data_parallel_size: 8 sequences of an update are no equal shares "
     "for 3 replicas, of which some wait. Fix: write one of 1, 2, 4, 8"),
    ({}, (PIPELINE, "5", "--micro-batch-size", "4"), "RLX158", "trainer.micro_batch_size: 2 micro-batches in an update keep no "
     "more than 2 of 5 stages at work. Fix: write 1 or less"),
    ({}, ("--lr-warmup-iters", "2"), "RLX159", "trainer.lr_warmup_steps: 2 updates of warm-up in a run of 2, which Megatron's "
     "schedule refuses. Fix: write less than 2"),
    ({"model_type": "mamba"}, (), "RLX151", "model.path: the megatron engine has no 'mamba' model. Fix: give one of llama, "
     "qwen3, qwen3_moe, or write trainer.engine: torch"),
    ({"attention_bias": True}, (), "RLX151", "model.path: the megatron engine has no biases in its layers. "
     "Fix: write trainer.engine: torch"),
    ({"rope_scaling": {"rope_type": "yarn"}}, (), "RLX151", "model.path: the megatron engine has no rotary embedding of kind "
     "'yarn' with these values. Fix: write trainer.engine: torch"),
    ({"model_type": "qwen3_moe"}, (), "RLX161", "rollout.engine: the hf engine holds the experts of a layer in one tensor, and "
     "cannot take them one by one. Fix: write trainer.engine: torch, or choose a rollout engine that can"),
    ({}, ("--advantage-estimator", "m2po", CONTEXT, "2"), "RLX209", "topology.context_parallel_size: 'm2po' (loss) needs whole "
     "sequences, not a part on each of 2 ranks. Fix: write context_parallel_size: 1"),
    ({}, ("--trainer.engine", "torch", "--sequence-parallel"), "RLX106", "topology.sequence_parallel: the torch engine does "
     "not read it. Fix: leave it out, or write trainer.engine: megatron"),
]  # fmt: skip


@pytest.fixture
def megatron_run(run_file, tmp_path):
    def write(**shape) -> str:
        directory = tmp_path / "model"
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps({**SHAPE, **shape}))
        return run_file(RUN.replace("MODEL", str(directory)))

    return write


@pytest.mark.parametrize(
    ("shape", "flags", "code", "message"), BROKEN, ids=[f"{each[2]}-{n}" for n, each in enumerate(BROKEN)]
)
def test_a_finding_with_its_fix(relax, megatron_run, shape, flags, code, message):
    assert findings(relax("check", megatron_run(**shape), "--json", *flags))[code] == message


def test_everything_at_once(relax, megatron_run):
    flags = (TENSOR, "4", PIPELINE, "2", "--data-parallel-size", "9", "--max-new-tokens", "64")
    result = relax("check", megatron_run(), "--json", *flags)
    assert result.code == 1
    assert {"RLX152", "RLX153", "RLX155", "RLX157"} <= set(findings(result))


def test_the_reference_of_a_megatron_run_may_be_megatrons(relax, megatron_run):
    flags = ("--use-kl-loss", "--ref-dist-ckpt-path", "somewhere/dist_ckpt")
    assert "RLX203" not in findings(relax("check", megatron_run(), "--json", *flags))


def test_without_the_extra_the_run_says_how_to_install_it(megatron_run):
    source = (
        "import sys; sys.modules['megatron'] = None; from relax_core.cli.app import main; main(['check', sys.argv[1]])"
    )
    result = subprocess.run([sys.executable, "-c", source, str(megatron_run())], capture_output=True, text=True)
    assert result.returncode == 1
    expected = "RLX150 trainer.engine: the extra 'megatron' is not installed. Fix: pip install 'relax-rl[megatron]'"
    assert expected in result.stdout
