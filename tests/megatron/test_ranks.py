"""Ranks as processes: what happens when one of them fails or is gone, and that none is left behind."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from threading import Timer

import psutil
import pytest
import torch

from relax_core.errors import LoadError, PluginError, RunError
from tests.megatron.conftest import TOKENS, megatron, prepared, ranks_of, resolved, runtime_of

RAISES = """
from relax_core import *

@hookimpl
def algorithm():
    return AlgorithmSpec("raises", "Raises in its loss", config=AlgorithmConfig, loss=Loss(supports_context_parallel=True))

@hookimpl
def policy_loss(batch):
    raise ValueError("no loss today")
"""
COUNTS = """
import torch
from relax_core import *

@hookimpl
def algorithm():
    return AlgorithmSpec("counts", "Counts its calls", config=AlgorithmConfig, loss=Loss(supports_context_parallel=True))

class Calls:
    def __init__(self):
        self.number = 0

    def state_dict(self):
        return {"number": self.number}

    def load_state_dict(self, saved):
        self.number = saved["number"]

@hookimpl
def policy_loss(batch, context):
    context.keep("kept", Calls).number += 1
    context.state["calls"] = context.state.get("calls", 0) + 1
    seen = torch.full_like(batch.advantages, context.state["calls"])
    return PolicyLoss(-batch.ratio() * batch.advantages, {"calls": Max(seen)})
"""


def update(engine, run, step=0):
    runtime = runtime_of(run)
    batch = prepared(runtime, torch.full((sum(map(len, TOKENS.responses)),), -3.0))
    return engine.update(TOKENS, batch, runtime, step)


@pytest.fixture(scope="module")
def dp2():
    with ranks_of("dp2") as ranks:
        yield ranks


def own(model, plugin_file, source, name):
    algorithm = {
        "advantage_estimator": "grpo",
        "policy_loss": name,
        "plugins": [str(plugin_file(source, f"{name}.py"))],
    }
    return resolved(model, "dp2", algorithm, trainer={"micro_batch_size": 4})


def test_a_plugin_file_is_loaded_by_every_rank_and_its_state_comes_back(dp2, model, plugin_file):
    run = own(model, plugin_file, COUNTS, "counts")
    engine, runtime = megatron(run, dp2), runtime_of(run)
    batch = prepared(runtime, torch.full((sum(map(len, TOKENS.responses)),), -3.0))
    for step in range(2):
        found = engine.update(TOKENS, batch, runtime, step)
    assert found.metrics.reduce(batch.group)["train/calls"] == 2.0
    assert runtime.binding.loss.state == {"calls": 2, "kept": {"number": 2}}


def test_another_version_of_a_plugin_in_a_rank_is_refused(model, plugin_file):
    """35."""
    run = resolved(model, "one")
    for plugin in run.registry.plugins:
        if plugin.name == "grpo":
            object.__setattr__(plugin, "version", "9.9")
    with ranks_of("one") as ranks, pytest.raises(LoadError) as error:
        megatron(run, ranks)
    assert str(error.value) == (
        "plugins: rank 0 has plugin 'grpo' from relax-rl 0.1.0, the driver from relax-rl 9.9. "
        "Fix: install one version everywhere"
    )


def test_a_plugin_that_raises_in_a_rank_is_named(model, plugin_file):
    run = own(model, plugin_file, RAISES, "raises")
    with ranks_of("dp2") as ranks, pytest.raises(PluginError) as error:
        update(megatron(run, ranks), run)
    assert str(error.value) == "plugin 'raises': policy_loss raised ValueError: no loss today (raises.py:10)"
    assert [each.process.poll() is None for each in ranks.ranks] == [False, False]


@pytest.mark.ledger("Megatron's ranks of an embedded run, one of which is killed: it is named, and none is left behind")
def test_a_rank_that_is_killed_in_the_middle_of_a_step_is_named(model, ledger):
    run = resolved(model, "dp2")
    with ranks_of("dp2") as ranks:
        engine = megatron(run, ranks)
        victim = ranks.ranks[1].process
        os.kill(victim.pid, signal.SIGSTOP)  # the other waits for it in a collective
        timer = Timer(1.0, lambda: os.kill(victim.pid, signal.SIGKILL))
        timer.start()
        with pytest.raises(RunError) as error:
            update(engine, run)
        timer.join()
    ledger["faults"] += 1
    assert str(error.value) == (
        "megatron engine: rank 1 of 2 was ended by signal 9 during 'update'. "
        "Fix: go on from the last checkpoint with --resume"
    )
    assert [each.process.poll() is None for each in ranks.ranks] == [False, False]
    ledger["survived"] += 1


@pytest.mark.ledger("Megatron's ranks while a checkpoint's writers live: ended or killed, none of them is left behind")
@pytest.mark.parametrize("end", ["close", "kill"])
def test_what_a_checkpoint_started_ends_with_its_rank(model, tmp_path, ledger, end):
    run = resolved(model, "dp2")
    with ranks_of("dp2") as ranks:
        megatron(run, ranks).save(tmp_path)
        groups = [each.process.pid for each in ranks.ranks]
        living = [each for group in groups for each in members(group)]
        assert len(living) > len(groups)
        if end == "kill":
            os.kill(groups[0], signal.SIGKILL)
            ledger["faults"] += 1
            with pytest.raises(RunError, match="rank 0 of 2 was ended by signal 9"):
                ranks.call("refresh_reference")
    assert psutil.wait_procs(living, timeout=10)[1] == []
    ledger["survived"] += ledger["faults"]


def members(group):
    """The processes of a process group."""
    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError):
            found += [process] if os.getpgid(process.pid) == group else []
    return found
