"""Processes of a run that die: it goes on, with the numbers that it would have had, and no prompt is lost or used twice."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.ledger import prompts_of, survived
from tests.ray.conftest import MEGATRON, ROWS, RUN, assert_same, lines
from tests.ray.processes import descendants, name_of

STEPS = 8
FLAGS = ("--num-rollout", STEPS, "--save-interval", 2)
ASYNC = ("--fully-async", "--max-staleness", 2)


class Started:
    """A run in a process of its own, with a cluster of its own."""

    def __init__(self, path: Path, directory: Path, *flags: object) -> None:
        path.with_name("rows.py").write_text(ROWS)
        command = [Path(sys.executable).with_name("relax"), "train", path, "--output.dir", directory, *FLAGS, *flags]
        self.directory = directory
        self.log = directory.with_suffix(".log").open("w+")
        self.process = subprocess.Popen(list(map(str, command)), stderr=self.log, cwd=directory.parent)

    def wait_for_step(self, step: int) -> None:
        while self.process.poll() is None and len(self.steps()) < step:
            time.sleep(0.02)

    def steps(self) -> list[dict]:
        return lines(self.directory) if (self.directory / "metrics.jsonl").exists() else []

    def kill(self, name: str) -> None:
        """A random process of this name among those of the run."""
        found = [pid for pid in descendants(self.process.pid) if name_of(pid).startswith(name)]
        os.kill(random.choice(found), signal.SIGKILL)

    def end(self) -> str:
        code = self.process.wait(240)
        self.log.seek(0)
        said = self.log.read()
        assert code == 0, said
        assert "Traceback" not in said
        return said


@pytest.fixture
def whole(train, tmp_path):
    """The directory of a run that was left alone: it uses each of its prompts once, whatever samples and trains."""
    train("whole", *FLAGS, "--orchestrator", "local")
    used = prompts_of(tmp_path / "whole")
    assert (len(used), used.total()) == (STEPS * 4, STEPS * 4)
    return tmp_path / "whole"


@pytest.fixture
def each_prompt_once(ledger, whole):
    """Count a run that a fault has met: every step has a batch, and its prompts are those of the run left alone."""

    def count(directory: Path) -> None:
        assert [row["step"] for row in lines(directory)] == list(range(1, STEPS + 1))
        survived(ledger, 1, directory, prompts_of(whole))

    return count


@pytest.mark.ledger("a Ray run, an actor of which is killed: the engine's or a rank's")
@pytest.mark.parametrize("actor", ["SamplingActor", "RankActor"])
def test_an_actor_that_dies_changes_no_number(actor, run_file, tmp_path, ledger, whole, each_prompt_once):
    run = Started(run_file(RUN), tmp_path / "killed")
    run.wait_for_step(3)
    run.kill(f"ray::{actor}")
    ledger["faults"] += 1
    said = run.end()
    assert "died during" in said or actor == "SamplingActor"
    each_prompt_once(tmp_path / "killed")
    assert_same(lines(tmp_path / "killed"), lines(whole))


@pytest.mark.slow
@pytest.mark.ledger(
    "a Ray run of Megatron ranks and vLLM, sync and async, an actor of which is killed at a random moment"
)
@pytest.mark.parametrize("mode", [(), ASYNC], ids=["sync", "async"])
@pytest.mark.parametrize("actor", ["SamplingActor", "RankActor"])
def test_ten_kills_at_random_moments(actor, mode, run_file, tmp_path, ledger, each_prompt_once):
    """In each mode five runs, of Megatron ranks and a vLLM engine, one process of which is killed at a random moment."""
    random.seed(f"{actor}{mode}")
    for number in range(5):
        directory = tmp_path / f"run{number}"
        run = Started(run_file(RUN), directory, *MEGATRON, "--data-parallel-size", 2, *mode)
        run.wait_for_step(random.randrange(1, STEPS - 3))
        time.sleep(random.random() / 2)
        run.kill(f"ray::{actor}")
        ledger["faults"] += 1
        run.end()
        each_prompt_once(directory)


@pytest.mark.slow
@pytest.mark.ledger("a Ray run, the vLLM engine's own process of which is killed")
def test_an_engine_whose_own_process_dies_is_started_again(run_file, tmp_path, ledger, each_prompt_once):
    engine = ("--rollout.engine", "vllm", "--separate-process", "true")
    run = Started(run_file(RUN), tmp_path / "killed", *engine)
    run.wait_for_step(3)
    run.kill("VLLM::EngineCore")
    ledger["faults"] += 1
    run.end()
    each_prompt_once(tmp_path / "killed")


@pytest.mark.slow
@pytest.mark.ledger("a Ray run, sync and async, the driver of which is killed at a random moment; then resumed")
def test_ten_deaths_of_the_driver(run_file, tmp_path, ledger, each_prompt_once):
    """No process of the run outlives it; the run goes on from its last checkpoint."""
    random.seed(7)
    all_started: list[int] = []
    for number in range(10):
        directory, mode = tmp_path / f"run{number}", ASYNC if number % 2 else ()
        run = Started(run_file(RUN), directory, *mode)
        run.wait_for_step(random.randrange(2, STEPS - 2))
        time.sleep(random.random() / 5)
        started = descendants(run.process.pid)
        run.process.kill()
        run.process.wait()
        ledger["faults"] += 1
        assert_gone(started, 20, but="Agent")
        all_started += started
        Started(run_file(RUN), directory, *mode, "--resume", directory).end()
        each_prompt_once(directory)
    # Ray's two agents ask a cluster that is dead for a minute, and then leave too.
    assert_gone(all_started, 150)


def assert_gone(pids: list[int], seconds: float, but: str = "nothing") -> None:
    deadline = time.monotonic() + seconds
    while left := [name_of(pid) for pid in pids if name_of(pid) and but not in name_of(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.2)
