"""`relax check` of a run that Ray places: the table, its JSON, and the cluster that it is checked against."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

ON = "--assume-cluster"
RAY = ("--orchestrator", "ray", "--trainer.engine", "megatron")
SIXTY_FOUR = ("--data-parallel-size", 8, "--tensor-model-parallel-size", 8)
COLOCATED = ("--topology.resources.rollout.colocated", "--topology.resources.rollout.actors", 8)
TWO = (*RAY, "--data-parallel-size", 2)


def test_sixty_four_processes_on_sixty_four_gpus(relax, run_file):
    result = relax("check", run_file(), *RAY, *SIXTY_FOUR, *COLOCATED, ON, "nodes=8,gpus=8")
    assert result.code == 0
    assert result.out.splitlines()[:-1] == [
        "ROLE        ACTORS  GPUS     CPUS  NODES",
        "actor       64      64       64    0–7",
        "rollout     8       actor's  8     0",
        "advantages  1       0        1     0",
    ]
    assert result.out.splitlines()[-1].endswith("0 errors, 0 warnings")


def test_a_role_in_anothers_processes_says_so(relax, run_file):
    flags = (*TWO, "--advantage-estimator", "ppo", ON, "nodes=2,gpus=0,cpus=2")
    assert relax("check", run_file(), *flags).out.splitlines()[:-1] == [
        "ROLE        ACTORS    GPUS  CPUS  NODES",
        "actor       2         0     2     0",
        "critic      in actor  -     -     -",
        "rollout     1         0     1     1",
        "advantages  1         0     1     1",
    ]


def test_what_finds_no_place_stands_in_the_table_and_before_it(relax, run_file):
    result = relax("check", run_file(), *TWO, "--topology.resources.rollout.actors", 3, ON, "nodes=2,gpus=0,cpus=2")
    assert result.code == 1
    finding, *table, count = result.out.splitlines()
    assert finding.startswith("error: RLX171 topology.resources.rollout.cpus: no room for rollout: 3 CPUs in all, ")
    assert table == [
        "ROLE        ACTORS  GPUS  CPUS  NODES",
        "actor       2       0     2     0",
        "rollout     3       0     3     1, no place",
        "advantages  1       0     1     no place",
    ]
    assert count.endswith("1 errors, 0 warnings")


def test_the_plan_as_json(relax, run_file):
    flags = (*TWO, "--topology.resources.actor.cpus", 0.5, "--advantage-estimator", "ppo")
    report = json.loads(relax("check", run_file(), *flags, ON, "nodes=1,gpus=0,cpus=2", "--json").out)
    assert report["plan"] == {
        "cluster": [{"cpus": 2.0, "gpus": 0.0}],
        "bundles": [
            {"cpus": 0.5, "gpus": 0.0, "node": 0},
            {"cpus": 0.5, "gpus": 0.0, "node": 0},
            {"cpus": 1.0, "gpus": 0.0, "node": 0},
            {"cpus": 1.0, "gpus": 0.0, "node": None},
        ],
        "roles": [
            {"role": "actor", "in": None, "actors": 2, "gpus": 0.0, "cpus": 1.0, "bundles": [0, 1]},
            {"role": "critic", "in": "actor", "actors": 0, "gpus": 0, "cpus": 0, "bundles": []},
            {"role": "rollout", "in": None, "actors": 1, "gpus": 0.0, "cpus": 1.0, "bundles": [2]},
            {"role": "advantages", "in": None, "actors": 1, "gpus": 0.0, "cpus": 1.0, "bundles": [3]},
        ],
    }
    assert [each["code"] for each in report["findings"]] == ["RLX171"]


@pytest.mark.parametrize(
    "flags",
    [(), (*TWO, *COLOCATED, ON, "nodes=1,gpus=8")],
    ids=["a local run", "engines that cannot share"],
)
def test_where_there_is_no_plan_there_is_no_table(relax, run_file, flags):
    assert json.loads(relax("check", run_file(), *flags, "--json").out)["plan"] is None
    assert "ROLE" not in relax("check", run_file(), *flags).out


def test_an_assumed_cluster_stands_for_the_one_at_an_address(relax, run_file):
    flags = (*TWO, "--address", "10.0.0.1:6379", ON, "nodes=2,gpus=2,cpus=8")
    report = json.loads(relax("check", run_file(), *flags, "--json").out)
    assert report["plan"]["cluster"] == [{"cpus": 8.0, "gpus": 2.0}] * 2


@pytest.mark.parametrize("command", ["check", "train"])
def test_without_a_cluster_it_is_this_machine(relax, run_file, command):
    result = relax(command, run_file(), *RAY, "--topology.resources.actor.cpus", 99999.0)
    assert result.code == 1
    told = f"99999 CPUs in all, 99999 on one node, 100001 with the other roles; the cluster has {os.cpu_count()} in all"
    assert told in result.out + result.err


@pytest.mark.parametrize(
    "text",
    ["", "8x8", "nodes=8", "gpus=8,nodes=8", "nodes=0,gpus=8", "nodes=2,gpus=-1", "nodes=2,gpus=1,cpus=0",
     "nodes=2,gpus=1,cpus=", "nodes=2,gpus=1,ram=3", "nodes=999999999,gpus=8", "nodes=2,gpus=８"],
)  # fmt: skip
def test_a_cluster_that_is_not_described(relax, run_file, text):
    result = relax("check", run_file(), *RAY, f"{ON}={text}")
    assert (result.code, result.out) == (2, "")
    fix = "write nodes=8,gpus=8 or nodes=8,gpus=8,cpus=96, GPUs and CPUs those of each node"
    assert result.err == f"error: {ON}: '{text}' does not describe a cluster. Fix: {fix}\n"


def test_a_local_run_says_that_it_needs_no_cluster(relax, run_file):
    result = relax("check", run_file(), ON, "nodes=1,gpus=0")
    assert result.code == 0
    assert result.err == f"warning: {ON}: the local orchestrator does not read it\n"


def test_the_check_of_a_ray_run_imports_no_ray(run_file):
    source = "import sys; from relax_core.cli.app import main\ntry: main(sys.argv[1:])\nexcept SystemExit as end: print(end)\n"
    command = [sys.executable, "-c", source + "print('ray' in sys.modules)", "check", str(run_file())]
    flags = (*RAY, *SIXTY_FOUR, ON, "nodes=9,gpus=8")
    run = subprocess.run([*command, *map(str, flags)], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-2:] == ["0", "False"]
