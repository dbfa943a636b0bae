"""What the calculator says of a rank's memory, against PyTorch's own account of two ranks on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from relax_core.scaling.devices import DEVICES, Assumptions
from relax_core.scaling.estimate import estimate
from relax_core.scaling.shape import shape_of
from relax_core.startup import topology_of
from tests.megatron.conftest import bound
from tests.megatron.measured_rank import CASES, PROMPT, run_of
from tests.scaling.measured import write_model

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), "qwen3")


def measured(model: Path, case: str, meeting: Path) -> list[dict[str, int]]:
    command = [sys.executable, "-m", "tests.megatron.measured_rank"]
    logs = [meeting.with_name(f"rank-{number}.log") for number in range(2)]
    ranks = []
    for number, log in enumerate(logs):
        arguments = [*command, str(number), meeting.as_uri(), str(model), case]
        with log.open("w") as errors:
            ranks.append(subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors))
    said = [rank.communicate(timeout=600)[0] for rank in ranks]
    for number, (rank, log) in enumerate(zip(ranks, logs, strict=True)):
        assert rank.returncode == 0, f"rank {number} ended with {rank.returncode}: {log.read_text()[-2000:]}"
    return [json.loads(each.splitlines()[-1]) for each in said]


def predicted(model: Path, case: str) -> dict[str, int]:
    _, run = run_of(model, case)
    data = run.config.data.model_copy(update={"max_prompt_tokens": PROMPT})
    topology = topology_of(run.config.model_copy(update={"data": data}), bound(run))
    shape = shape_of(json.loads((model / "config.json").read_text()), "test")
    return estimate(topology, {"actor": shape}, DEVICES["cpu"], Assumptions()).loads[0].held


@pytest.mark.parametrize("case", CASES)
def test_a_rank_holds_what_is_predicted(model, tmp_path, case):
    guess, found = predicted(model, case), measured(model, case, tmp_path / "meeting")
    for kind in ("weights", "gradients", "optimizer"):
        assert max(rank[kind] for rank in found) == pytest.approx(guess[kind], rel=0.01), kind
    assert sum(guess.values()) == pytest.approx(max(sum(rank.values()) for rank in found), rel=0.2)
