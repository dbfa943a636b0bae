"""What is wrong before the first step is said, with who and what; nothing is left behind."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import ray
import torch

from tests.ray.conftest import ROWS, RUN, lines
from tests.ray.processes import descendants, sockets_of

PLUGIN = """
    from relax import AlgorithmSpec, Loss, PolicyLoss, hookimpl

    @hookimpl
    def algorithm():
        return AlgorithmSpec("centred", "A loss that is somewhere else another one", loss=Loss())

    @hookimpl
    def policy_loss(batch, config):
        return PolicyLoss(-batch.ratio() * batch.advantages)
"""


def site(path, version):
    """A directory that holds an installed plugin of that version."""
    info = path / f"relax_centred-{version}.dist-info"
    info.mkdir(parents=True)
    (path / "relax_centred.py").write_text(
        textwrap.dedent(PLUGIN).replace("from relax import", "from relax_core import")
    )
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: relax-centred\nVersion: {version}\n")
    (info / "entry_points.txt").write_text("[relax.plugins]\ncentred = relax_centred\n")
    return path


def relax(*arguments, cwd, **env):
    """The command in a process of its own, with a cluster of its own."""
    command = [str(Path(sys.executable).with_name("relax")), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, timeout=300)


def test_a_worker_with_another_version_of_a_plugin_is_named(run_file, tmp_path):
    path = run_file(
        RUN.replace(
            "rollout: {cpus: 0.2}", f"rollout: {{cpus: 0.2, env: {{PYTHONPATH: {site(tmp_path / 'b', '1.1')}}}}}"
        )
    )
    path.with_name("rows.py").write_text(ROWS)
    found = relax("train", path, "--policy-loss", "centred", cwd=tmp_path, PYTHONPATH=str(site(tmp_path / "a", "1.0")))
    assert found.returncode == 3
    assert found.stdout == ""
    assert found.stderr == (
        "error: plugins: rollout 0 has plugin 'centred' from relax-centred 1.1, the driver from relax-centred 1.0. "
        "Fix: install one version everywhere\n"
    )


def test_a_cluster_that_is_not_there(run_file, tmp_path):
    path = run_file(RUN)
    path.with_name("rows.py").write_text(ROWS)
    found = relax("check", path, "--address", "127.0.0.1:1", cwd=tmp_path)
    assert found.returncode == 3
    assert "topology.address: no Ray cluster at '127.0.0.1:1'" in found.stderr
    assert "Fix: start one with `ray start --head`, or leave topology.address out" in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.usefixtures("cluster")
def test_a_cluster_that_is_full(train, relax, run_file, tmp_path):
    """The cluster of the tests has 4 CPUs, whatever this machine has; somebody else holds all but a tenth of one."""
    path = run_file(RUN)
    path.with_name("rows.py").write_text(ROWS)
    held = ray.util.placement_group([{"CPU": 3.9}])
    assert held.wait(20)
    found = relax("train", path, "--address", "auto", "--start-timeout", 1)
    ray.util.remove_placement_group(held)
    assert found.code == 4
    assert found.err.endswith(
        "ray: 0.6 CPUs and 0 GPUs were not given in 1 s; 0.1 CPUs and 0 GPUs are free. "
        "Fix: make room in the cluster, or raise topology.start_timeout\n"
    )


@pytest.mark.usefixtures("cluster")
def test_a_cluster_that_exists_is_asked_what_it_has(run_file, relax):
    path = run_file(RUN.replace("advantages: {cpus: 0.2}", "advantages: {cpus: 4}"))
    found = relax("check", path, "--address", "auto")
    assert found.code == 1
    assert "RLX171" in found.out
    assert "4 CPUs" in found.out


@pytest.mark.usefixtures("cluster")
def test_a_reward_that_takes_too_long_is_named(run_file, relax, tmp_path):
    (tmp_path / "slow.py").write_text("import time\n\ndef reward(sample):\n    time.sleep(30)\n    return 1.0\n")
    path = run_file(RUN)
    path.with_name("rows.py").write_text(ROWS)
    found = relax("train", path, "--data.reward", f"{tmp_path}/slow.py:reward", "--timeout", 8, "--output.dir", "run")
    assert found.code == 4
    assert "ray: advantages 0 did not answer 'score' in 8 s. Fix: go on from the last checkpoint" in found.err


@pytest.mark.usefixtures("cluster")
def test_a_plugin_file_travels_and_its_dropped_groups_are_replaced(train, plugin_file, tmp_path):
    """Groups are dropped by their size in tokens; a step takes others instead, and says how many it left.

    What the plugin keeps in the actor that calls it is in the driver's checkpoint.
    """
    path = plugin_file("""
        from relax_core import AlgorithmConfig, AlgorithmSpec, Component, hookimpl

        class Config(AlgorithmConfig):
            enable: bool = False

        @hookimpl
        def algorithm():
            return AlgorithmSpec("odd", "Keep groups of an odd number of tokens", config=Config, component=Component())

        class Calls:
            number = 0

            def state_dict(self):
                return {"number": self.number}

            def load_state_dict(self, saved):
                self.number = saved["number"]

        @hookimpl
        def keep_group(rollout, config, context):
            context.keep("calls", Calls).number += 1
            return rollout.group_sum(rollout.lengths.double()) % 2 == 1
    """)
    found = train("run", "--plugin", path, "--algorithm.odd.enable", "true", "--fully-async", "--max-staleness", 1)
    assert sum(row["rollout/dropped_groups"] for row in found) > 0
    kept = {}
    for row in lines(tmp_path / "run", "samples.jsonl"):
        kept.setdefault((row["step"], row["id"]), []).append(row["tokens"])
    assert all(sum(tokens) % 2 == 1 for tokens in kept.values())
    assert len({prompt for _, prompt in kept}) == len(kept)
    saved = torch.load(tmp_path / "run" / "checkpoints" / "step_000003" / "loop.pt", weights_only=True)
    assert saved["plugins"]["odd"]["calls"]["number"] >= len(found)


@pytest.mark.usefixtures("cluster")
def test_every_port_of_a_cluster_of_ones_own_is_on_the_loopback_interface():
    mine = sockets_of(os.getpid(), *descendants(os.getpid()))
    listening = {
        line.split()[1].partition(":")[0]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
        if line.split()[3] == "0A" and line.split()[9] in mine
    }
    assert listening
    assert all(address.endswith("0100007F") for address in listening), listening
