"""The engine's process is killed in the middle of a run: one error, no hang, and the last checkpoint goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import EXAMPLES
from tests.ledger import prompts_of, survived

RELAX = [sys.executable, "-c", "from relax_core.cli.app import main; main()"]
RUN = """
model: {path: "EXAMPLES/tiny_model.py:build", cache_dir: CACHE}
data: {source: "EXAMPLES/tiny_task.py:examples", reward: "EXAMPLES/tiny_task.py:reward"}
rollout: {engine: vllm, separate_process: true, rollout_batch_size: 2, n_samples_per_prompt: 4, max_new_tokens: 4}
trainer: {num_rollout: 100000, num_threads: 1, lr: 1e-3}
output: {tensorboard: false, save_interval: 1, samples_per_step: 8}
"""


def children(parent: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = status.read_text().split(" ", 1)
        except OSError:
            continue
        if int(rest.rsplit(")", 1)[1].split()[1]) == parent:
            found.append(int(pid))
    return found


def engine_of(run: int) -> int:
    names = {pid: Path(f"/proc/{pid}/comm").read_text() for pid in children(run)}
    (engine,) = [pid for pid, name in names.items() if name.startswith("VLLM")]
    return engine


def steps(directory: Path) -> int:
    path = directory / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def wait_for(condition, process) -> None:
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


@pytest.mark.ledger("an embedded run, the vLLM engine's process of which is killed: one error, then resumed")
def test_one_error_no_hang_and_the_last_checkpoint_goes_on(relax, run_file, tmp_path, ledger):
    path, directory = run_file(RUN.replace("EXAMPLES", str(EXAMPLES))), tmp_path / "run"
    command = [*RELAX, "train", str(path), "--output.dir", str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: steps(directory) >= 2, process)
    engine = engine_of(process.pid)
    (worker,) = children(engine)
    # Ctrl-C goes to every process of the terminal: the engine's do not take it, the run ends its step.
    for pid in (engine, worker):
        os.kill(pid, signal.SIGINT)
    seen = steps(directory)
    wait_for(lambda: steps(directory) >= seen + 2, process)
    os.kill(engine, signal.SIGKILL)
    ledger["faults"] += 1
    _, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    assert "Traceback" not in err
    errors = [line for line in err.splitlines() if line.startswith("error")]
    assert len(errors) == 1
    assert errors[0].startswith("error: vLLM engine: its process ended during ")
    assert errors[0].endswith("then go on from the last checkpoint: --resume")
    done = steps(directory)
    flags = ("--output.dir", directory, "--resume", directory, "--num-rollout", done + 2, "--separate-process", "false")
    again = relax("train", path, *flags)
    assert again.code == 0, again.err
    found = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [each["step"] for each in found] == list(range(1, done + 3))
    assert all(each["train/is_logprob_abs_diff"] < 1e-4 for each in found)
    alone = ("--output.dir", tmp_path / "alone", "--num-rollout", done + 2, "--rollout.engine", "hf")
    assert relax("train", path, *alone, "--separate-process", "false").code == 0
    survived(ledger, 1, directory, prompts_of(tmp_path / "alone"))
