"""One rank of a layout, with PyTorch's account of what it holds and of an update: python -m … RANK MEETING MODEL CASE."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from relax_core.engines.megatron.engine import sizes_of
from relax_core.reductions import Metrics
from relax_core.runtime import Runtime
from tests.megatron.conftest import bound, megatron, resolved
from tests.scaling.measured import highest, rollout_of, sequences

PROMPT, RESPONSE, SEQUENCES, MICRO = 64, 192, 8, 4
CASES = {
    "plain": ("tp2", {}),
    "sequence_parallel": ("tp2sp", {}),
    "recomputed": ("tp2", {"gradient_checkpointing": True}),
    "bfloat16": ("tp2", {"dtype": "bfloat16"}),
    "sharded": ("dp2", {"dtype": "bfloat16", "megatron_args": {"use_distributed_optimizer": True}}),
}
SILENT = {"metrics": Metrics().plain(), "grad_norm": 0.0, "lr": 0.0, "applied": True, "states": {}}
"""What the ranks answer that do not answer for all."""


class Here:
    """The ranks as an engine knows them: this process, which is one of them, and says nothing of the others."""

    name = "rank"

    def __init__(self, worker) -> None:
        self.worker = worker

    def call(self, command: str, **arguments):
        return [getattr(self.worker, command)(**arguments) or SILENT]


def run_of(path: Path, case: str):
    layout, trainer = CASES[case]
    rollout = {"rollout_batch_size": SEQUENCES // 2, "n_samples_per_prompt": 2, "max_new_tokens": RESPONSE}
    return layout, resolved(path, layout, trainer={"micro_batch_size": MICRO, **trainer}, rollout=rollout)


def held(trained) -> dict[str, int]:
    """Bytes that stay, by kind; a copy of the parameters that the optimizer keeps is part of its state."""
    parameters, (chained,) = list(trained.model.parameters()), trained.optimizer.chained_optimizers
    adam = chained.optimizer
    states = [each for state in adam.state.values() for each in state.values() if hasattr(each, "nbytes")]
    masters = [each for group in adam.param_groups for each in group["params"]]
    own = {each.untyped_storage().data_ptr() for each in parameters}
    states += [each for each in masters if each.untyped_storage().data_ptr() not in own]
    return {
        "weights": sum(each.nbytes for each in parameters),
        "gradients": sum(buffer.grad_data.nbytes for buffer in trained.module.buffers),
        "optimizer": sum(each.nbytes for each in states),
    }


def main(rank: int, meeting: str, path: Path, case: str) -> None:
    from relax_core.engines.megatron.worker import Worker

    _, run = run_of(path, case)
    worker = Worker(rank, 2, meeting, sizes_of(run.config.topology))
    engine, runtime = megatron(run, Here(worker)), Runtime.of(run.config, bound(run))
    tokens = sequences(SEQUENCES, PROMPT, RESPONSE)
    batch = rollout_of(runtime, tokens)
    engine.update(tokens, batch, runtime, 0)
    peak = highest(lambda: engine.update(tokens, batch, runtime, 1))
    print(json.dumps({**held(worker.models.trained["actor"]), "activations": peak}), flush=True)
    worker.leave()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4])
