"""What the calculator says of a rank's memory, against what its process has resident after an update on the CPU."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from relax_core.engines.megatron.engine import start_ranks
from relax_core.runtime import Runtime
from relax_core.scaling.devices import DEVICES, Assumptions
from relax_core.scaling.estimate import estimate
from relax_core.scaling.shape import shape_of
from relax_core.startup import topology_of
from tests.megatron.conftest import bound, megatron, resolved
from tests.scaling.measured import rollout_of, sequences, write_model

pytestmark = pytest.mark.slow
SIZES = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 6}
PROMPT, RESPONSE, SEQUENCES = 64, 192, 8


def status(pid: int, name: str) -> int:
    """Bytes of a process, by the kernel's name for them."""
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def test_two_tensor_parallel_ranks_grow_by_what_is_predicted(tmp_path):
    path = write_model(tmp_path, **SIZES)
    rollout = {"rollout_batch_size": SEQUENCES // 2, "n_samples_per_prompt": 2, "max_new_tokens": RESPONSE}
    data = {"task": "none", "max_prompt_tokens": PROMPT}
    run = resolved(path, "tp2", trainer={"micro_batch_size": 4}, rollout=rollout)
    config = run.config.model_copy(update={"data": run.config.data.model_copy(update=data)})
    shape = shape_of(json.loads((path / "config.json").read_text()), "test")
    load = estimate(topology_of(config, bound(run)), {"actor": shape}, DEVICES["cpu"], Assumptions()).loads[0]
    tokens, runtime = sequences(SEQUENCES, PROMPT, RESPONSE), Runtime.of(run.config, bound(run))
    batch, ranks = rollout_of(runtime, tokens), start_ranks(run.config.topology)
    try:
        pids = [each.process.pid for each in ranks.ranks]
        before = [status(pid, "RssAnon") for pid in pids]
        engine = megatron(run, ranks)
        for step in range(2):
            engine.update(tokens, batch, runtime, step)
        after = [status(pid, "RssAnon") - start for pid, start in zip(pids, before, strict=True)]
        high = [
            status(pid, "VmHWM") - status(pid, "RssFile") - status(pid, "RssShmem") - start
            for pid, start in zip(pids, before, strict=True)
        ]
    finally:
        ranks.close()
    print(
        "MEASURED", load.held, [x / 1e6 for x in after], [x / 1e6 for x in high], load.lasting / 1e6, load.total / 1e6
    )
    assert load.total == pytest.approx(max(high), rel=0.2)
