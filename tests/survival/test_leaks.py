"""A long run needs no more memory and no more files than a short one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import RUN


def resident(process) -> int:
    """Kilobytes in memory."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def handles(process) -> int:
    return len(list(Path(f"/proc/{process}/fd").iterdir()))


@pytest.mark.slow
def test_memory_and_file_handles_of_500_steps_are_those_of_50(run_file, tmp_path):
    code = "from relax_core.cli.app import main; main()"
    command = [sys.executable, "-c", code, "train", run_file(RUN), "--output.dir", tmp_path / "run"]
    command += ["--num-rollout", "500", "--num-threads", "1", "--save-interval", "25", "--keep-checkpoints", "2"]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    seen = {}
    for line in process.stderr:
        step = line.split("/")[0].removeprefix("step ")
        if step in ("50", "499"):
            seen[step] = resident(process.pid), handles(process.pid)
    assert process.wait() == 0
    (early, files), (late, files_later) = seen["50"], seen["499"]
    assert files_later == files
    assert late <= 1.05 * early, f"{early} kB after 50 steps, {late} kB after 499"
