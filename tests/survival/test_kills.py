"""A run that is killed at any moment, and gone on with, ends with the numbers of one that was left alone."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time

import pytest

from tests.cli.test_train import metrics
from tests.conftest import EXAMPLES, RUN
from tests.ledger import prompts_of, survived

STEPS, KILLS = 8, 15
COMMON = (
    *("--num-rollout", STEPS, "--save-interval", 1, "--keep-checkpoints", 2, "--num-threads", 1),
    *("--lr-schedule", "cosine", "--lr-warmup-steps", 2, "--samples-per-step", 8),
)
KINDS = {
    "critic": ("--advantage-estimator", "ppo", "--critic-lr", "0.01", "--num-critic-only-steps", 2),
    "reference": ("--use-kl-loss", "--ref-load", f"{EXAMPLES}/tiny_model.py:build", "--update-interval", 2),
}


def command(run, flags, directory):
    place = ("--resume", directory) if (directory / "metrics.jsonl").exists() else ("--output.dir", directory)
    code = "from relax_core.cli.app import main; main()"
    return [str(each) for each in (sys.executable, "-c", code, "train", run, *flags, *place)]


def killed(run, flags, directory, draw, in_checkpoint):
    """One process, killed a little after it began to train, or while it writes a checkpoint; True when it came to its end."""
    done = len(metrics(directory)) if (directory / "metrics.jsonl").exists() else 0
    with (directory.parent / "log").open("ab") as log:
        process = subprocess.Popen(
            command(run, flags, directory), stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
    while process.poll() is None and not reached(directory, done, in_checkpoint):
        time.sleep(0.002)
    time.sleep(0 if in_checkpoint else draw.uniform(0, 0.3))
    process.kill()
    return process.wait() == 0


def reached(directory, done, in_checkpoint):
    if in_checkpoint:
        return any((directory / "checkpoints").glob(".*.partial"))
    return (directory / "metrics.jsonl").exists() and len(metrics(directory)) > done


@pytest.mark.slow
@pytest.mark.ledger("an embedded run, killed between steps, within one, or while it writes a checkpoint; then resumed")
@pytest.mark.parametrize("kind", KINDS)
def test_fifteen_kills_of_each_kind_change_no_number(relax, run_file, tmp_path, ledger, kind):
    run, flags, draw = run_file(RUN), (*COMMON, *KINDS[kind]), random.Random(0)
    assert relax("train", run, *flags, "--output.dir", tmp_path / "whole").code == 0
    expected, prompts = metrics(tmp_path / "whole"), prompts_of(tmp_path / "whole")
    while (before := ledger["faults"]) < KILLS:
        directory = tmp_path / f"killed{before}"
        while ledger["faults"] < KILLS and not killed(run, flags, directory, draw, ledger["faults"] % 3 == 0):
            ledger["faults"] += 1
        result = relax("train", run, *flags, "--resume", directory)
        assert result.code == 0, result.err
        assert metrics(directory) == expected
        survived(ledger, ledger["faults"] - before, directory, prompts)
