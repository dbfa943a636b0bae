"""Tiny runs on a real Ray cluster: one for all tests of a process, on the loopback interface."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from relax_core.config import TopologySection
from relax_core.orchestration.ray.cluster import prepare

prepare(TopologySection())

import ray  # noqa: E402

EXAMPLES = Path(__file__).parents[2] / "examples"

collect_ignore = [] if find_spec("vllm") and find_spec("megatron") else ["test_recipe_runs.py"]

RUN = f"""
model: {{path: "{EXAMPLES}/tiny_model.py:build", cache_dir: CACHE}}
data: {{source: "rows.py:examples", reward: "{EXAMPLES}/tiny_task.py:reward"}}
rollout: {{rollout_batch_size: 4, n_samples_per_prompt: 4, max_new_tokens: 6}}
trainer: {{num_rollout: 3, lr: 1e-3, num_threads: 1, adam_eps: 1e-4}}
topology:
  orchestrator: ray
  resources:
    actor: {{cpus: 0.2}}
    rollout: {{cpus: 0.2}}
    advantages: {{cpus: 0.2}}
output: {{tensorboard: false, samples_per_step: 100}}
"""

ROWS = f"""
import sys
sys.path.insert(0, "{EXAMPLES}")
import tiny_task

def examples():
    known = list(tiny_task.examples())
    return [{{**known[i % len(known)], "id": f"row-{{i}}"}} for i in range(200)]
"""
"""As many prompts as no test uses up, so that each is used once."""

MEGATRON = ("--trainer.engine", "megatron", "--rollout.engine", "vllm")


@pytest.fixture(scope="session")
def cluster():
    """A cluster that runs join, since this process is connected to it."""
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR", object_store_memory=2**28)
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


@pytest.fixture
def train(relax, run_file, tmp_path):
    """Run the tiny run with flags; gives its lines of metrics."""

    def run(name: str, *flags: object, text: str = RUN, code: int = 0) -> list[dict]:
        path = run_file(text)
        path.with_name("rows.py").write_text(ROWS)
        result = relax("train", path, "--output.dir", tmp_path / name, *flags)
        assert result.code == code, result.err
        return lines(tmp_path / name)

    return run


def lines(run: Path, name: str = "metrics.jsonl") -> list[dict]:
    return [json.loads(line) for line in (run / name).read_text().split("\n") if line]


def assert_same(mine: list[dict], theirs: list[dict], tolerance: float = 1e-5) -> None:
    """Every metric of every step."""
    assert [row.keys() for row in mine] == [row.keys() for row in theirs]
    for ours, other in zip(mine, theirs, strict=True):
        assert ours == pytest.approx(other, rel=tolerance, abs=tolerance)


def prompts_of(run: Path) -> list[tuple[int, str]]:
    """Step and prompt of each group that was trained on."""
    return sorted({(row["step"], row["id"]) for row in lines(run, "samples.jsonl")})
