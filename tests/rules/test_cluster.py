"""What is known to be wrong with a run that Ray places before a process starts."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relax_core.plan import Cluster, Node, placed, plan_of
from relax_core.rules.shortage import shortages
from tests.conftest import EXAMPLES
from tests.test_plan import topology

RAY = ("--orchestrator", "ray", "--assume-cluster", "nodes=8,gpus=8")
RUN = f"""
model: {{path: model}}
data: {{source: "{EXAMPLES}/tiny_task.py:examples", reward: "{EXAMPLES}/tiny_task.py:reward"}}
trainer: {{engine: megatron, num_rollout: 2}}
"""
COLOCATED = "--topology.resources.rollout.colocated"
ENGINES = "--topology.resources.rollout.actors"
TENSOR, ENGINE = "--tensor-model-parallel-size", ("--rollout.engine", "vllm", "--rollout.tensor-parallel-size")
REFERENCE = ("--use-kl-loss", "--ref-load", "model", "--topology.resources.reference.colocated", "false")
PARTIAL = ("--partial-rollout", "--use-dynamic-global-batch-size", "--token-budget", 4, "--policy-loss", "cispo")

BROKEN = [
    ((*RAY, COLOCATED, TENSOR, 2, *ENGINE, 3, "--data-parallel-size", 2), "RLX172", "error: rollout.tensor_parallel_size: "
     "engines of 3 ranks cannot take turns with trainers of 2: neither size divides the other. "
     "write one of 1, 2, or a multiple of 2"),
    ((*RAY, COLOCATED, *ENGINE, 2), "RLX172", "error: rollout.tensor_parallel_size: an engine of 2 ranks does not fit into "
     "the actor's 1 processes. write 1 or less, or resources.rollout.colocated: false"),
    ((*RAY, COLOCATED, ENGINES, 5, TENSOR, 8, *ENGINE, 2), "RLX172", "error: topology.resources.rollout.actors: 5 engines of "
     "2 ranks do not fit into the actor's 8 processes. write 4 or less"),
    ((*RAY, COLOCATED, "--hybrid"), "RLX173", "error: topology.resources.rollout.colocated: in mode 'hybrid' the engines "
     "sample while the actor trains, and cannot take turns with it. write colocated: false, or trainer.mode: sync"),
    ((*RAY, *REFERENCE, "--update-interval", 5), "RLX174", "error: topology.resources.reference.colocated: a reference that "
     "follows the policy takes its weights within the actor's processes. write colocated: true"),
    (("--address", "auto"), "RLX175", "warning: topology.address: the local orchestrator does not read it. leave it out, or "
     "write orchestrator: ray"),
    (("--topology.resources.actor.cpus", 2.0), "RLX175", "warning: topology.resources: the local orchestrator does not read "
     "it. leave it out, or write orchestrator: ray"),
    ((*RAY, "--topology.resources.critic.cpus", 2.0), "RLX175", "warning: topology.resources.critic.cpus: this run has no "
     "critic. leave it out"),
    ((*RAY, *REFERENCE[:-2], "--topology.resources.reference.gpus", 1.0), "RLX175", "warning: "
     "topology.resources.reference.gpus: the reference lives in the actor's processes. write it for "
     "topology.resources.actor, or write resources.reference.colocated: false"),
    ((*RAY, COLOCATED, "--topology.resources.rollout.gpus", 1.0), "RLX175", "warning: topology.resources.rollout.gpus: "
     "colocated engines take turns on the actor's GPUs. leave it out, or write colocated: false"),
    ((*RAY, "--address", "10.0.0.1:6379", "--dashboard"), "RLX176", "warning: topology.dashboard: the cluster at "
     "10.0.0.1:6379 has bound its ports already. leave it out, or leave out topology.address"),
    ((*RAY, "--advantage-estimator", "ppo", "--fully-async"), "RLX177", "error: trainer.mode: 'ppo' has a critic, which is "
     "not trained in mode 'async'. write trainer.mode: sync, or choose an estimator without one"),
    ((*RAY, "--hybrid", "--max-staleness", 3), "RLX178", "error: trainer.max_staleness: mode 'hybrid' generates one rollout "
     "ahead, whose samples are 1 version old, not 3. write max_staleness: 1"),
    ((*RAY, "--hybrid", "--max-staleness", 0), "RLX178", "error: trainer.max_staleness: mode 'hybrid' generates one rollout "
     "ahead, whose samples are 1 version old, not 0. write max_staleness: 1"),
    ((*RAY, *PARTIAL, "--fully-async"), "RLX179", "error: rollout.partial_rollout: mode 'async' goes on with responses while "
     "the weights change, by itself. write partial_rollout: false, or trainer.mode: sync"),
    ((*RAY, *PARTIAL, "--hybrid"), "RLX179", "error: rollout.partial_rollout: mode 'hybrid' finishes the responses of every "
     "rollout. write partial_rollout: false, or trainer.mode: sync"),
    ((*RAY, "--use-dynamic-global-batch-size"), "RLX115", "error: trainer.use_dynamic_global_batch_size: a synchronous "
     "rollout always has all its sequences. write use_dynamic_global_batch_size: false"),
]  # fmt: skip


@pytest.fixture
def findings(relax, run_file):
    """`severity: message` by code."""

    def check(*flags: object) -> dict[str, str]:
        found = json.loads(relax("check", run_file(RUN), "--json", *flags).out)["findings"]
        return {
            each["code"]: f"{each['severity']}: {each['setting']}: {each['problem']}. {each['fix']}" for each in found
        }

    return check


@pytest.mark.parametrize(("flags", "code", "message"), BROKEN, ids=[f"{each[1]}-{n}" for n, each in enumerate(BROKEN)])
def test_a_finding_with_its_fix(findings, flags, code, message):
    assert findings(*flags)[code] == message


@pytest.mark.parametrize(
    "flags",
    [
        RAY,
        (*RAY, "--hybrid"),
        (*RAY, "--hybrid", "--max-staleness", 1),
        (*RAY, "--fully-async", "--max-staleness", 3),
        (*RAY, "--address", "auto"),
        (*RAY, "--dashboard", "--topology.host", "0.0.0.0"),
        (*RAY, "--advantage-estimator", "ppo"),
        (*RAY, *REFERENCE),
        (*RAY, COLOCATED, ENGINES, 4, TENSOR, 8, *ENGINE, 2),
        (*RAY, "--topology.resources.rollout.gpus", 0.5, "--topology.resources.actor.cpus", 2.0),
        ("--fully-async",),
    ],
)
def test_what_ray_can_run_is_not_found_fault_with(findings, flags):
    assert [code for code in findings(*flags) if "RLX170" <= code <= "RLX179"] == []


@pytest.mark.parametrize(("flags", "refused"), [((), True), (("--orchestrator", "ray"), False)])
def test_the_local_orchestrator_alone_is_synchronous(findings, flags, refused):
    assert ("RLX105" in findings(*flags, "--fully-async")) is refused


def test_a_partial_rollout_has_updates_of_any_size(findings):
    assert "RLX115" not in findings(*RAY, *PARTIAL)


def test_without_the_extra_the_run_says_how_to_install_it(run_file):
    source = "import sys; sys.modules['ray'] = None; from relax_core.cli.app import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", source, "check", str(run_file(RUN)), "--orchestrator", "ray"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1
    expected = "RLX170 topology.orchestrator: the extra 'ray' is not installed. Fix: pip install 'relax-rl[ray]'"
    assert expected in result.stdout


def told(run, *nodes: tuple[float, float]) -> list[str]:
    cluster = Cluster(tuple(Node(*each) for each in nodes))
    return [
        f"{setting}: {problem}. {fix}"
        for setting, problem, fix in shortages(plan_of(run, cluster.has_gpus), cluster, run)
    ]


def test_cpus_that_are_short_are_shared_alike():
    (message,) = told(topology(dp=2), (2, 0))
    assert message == (
        "topology.resources.rollout.cpus: no room for rollout: 1 CPUs in all, 1 on one node, 4 with the other roles; "
        "the cluster has 2 in all, 2 on one node. write topology.resources.actor.cpus: 0.5, "
        "topology.resources.rollout.cpus: 0.5, topology.resources.advantages.cpus: 0.5 or less"
    )


def test_the_roles_of_one_bundle_are_named_together():
    resources = {
        "actor": {"cpus": 8},
        "rollout": {"colocated": True, "actors": 2, "cpus": 12},
        "reference": {"cpus": 4},
    }
    (message,) = told(topology(dp=2, tp=2, roles=("reference",), resources=resources), (14, 2), (64, 2))
    # Two bundles of 2 × 8; both engines, of one rank each, are in the first. The second goes onto no node of 14.
    assert message == (
        "topology.resources.actor.cpus: no room for actor and rollout: 56 CPUs in all, 40 on one node, 57 with the other "
        "roles; the cluster has 78 in all, 64 on one node. write topology.resources.actor.cpus: 7, "
        "topology.resources.rollout.cpus: 10.5, topology.resources.advantages.cpus: 0.875 or less"
    )


@pytest.mark.parametrize(
    ("run", "nodes", "message"),
    [
        (topology(dp=9, tp=8, rollout={"tensor_parallel_size": 8}, resources={"rollout": {"actors": 2}}), [(64, 8)] * 8,
         "topology.resources.actor.gpus: no room for actor: 72 GPUs in all, 8 on one node, 88 with the other roles; "
         "the cluster has 64 in all, 8 on one node. take 11 nodes of 8 GPUs, or write topology.data_parallel_size: 8 or less"),
        (topology(tp=8), [(64, 4)] * 4,
         "topology.resources.actor.gpus: no room for actor: 8 GPUs in all, 8 on one node, 9 with the other roles; the cluster "
         "has 16 in all, 4 on one node. take nodes of 8 GPUs, or write topology.tensor_model_parallel_size: 4 or less"),
        # The third rank finds no GPU either, but no number of such nodes would hold the engine.
        (topology(dp=3, rollout={"tensor_parallel_size": 4}), [(64, 2)],
         "topology.resources.rollout.gpus: no room for rollout: 4 GPUs in all, 4 on one node, 7 with the other roles; the "
         "cluster has 2 in all, 2 on one node. take nodes of 4 GPUs, or write rollout.tensor_parallel_size: 2 or less"),
        (topology(tp=4, rollout={"tensor_parallel_size": 2}, resources={"rollout": {"colocated": True}}), [(64, 2)] * 2,
         "topology.resources.actor.gpus: no room for actor and rollout: 4 GPUs in all, 4 on one node, 4 with the other roles; "
         "the cluster has 4 in all, 2 on one node. take nodes of 4 GPUs, or write topology.tensor_model_parallel_size: 2 or "
         "less"),
        (topology(dp=8, rollout={"tensor_parallel_size": 4}, resources={"rollout": {"actors": 3}}), [(64, 8)] * 2,
         "topology.resources.rollout.gpus: no room for rollout: 12 GPUs in all, 4 on one node, 20 with the other roles; the "
         "cluster has 16 in all, 8 on one node. take 3 nodes of 8 GPUs, or write topology.resources.rollout.actors: 2 or less"),
        (topology(dp=4, rollout={"tensor_parallel_size": 4}, resources={"rollout": {"colocated": True}}), [(64, 2)] * 2,
         "topology.resources.actor.gpus: no room for actor and rollout: 4 GPUs in all, 4 on one node, 4 with the other roles; "
         "the cluster has 4 in all, 2 on one node. take nodes of 4 GPUs, or write rollout.tensor_parallel_size: 2 or less"),
        (topology(dp=2, roles=("critic",), resources={"critic": {"colocated": False}}), [(64, 3)],
         "topology.resources.critic.gpus: no room for critic: 2 GPUs in all, 1 on one node, 5 with the other roles; the "
         "cluster has 3 in all, 3 on one node. take 2 nodes of 3 GPUs, or write topology.resources.critic.colocated: true"),
        (topology(trainer={"device": "cuda"}), [(4, 0)],
         "topology.resources.actor.gpus: no room for actor: 1 GPUs in all, 1 on one node, 2 with the other roles; the cluster "
         "has 0 in all, 0 on one node. take nodes of 1 GPUs, or write trainer.device: auto"),
        (topology(resources={"advantages": {"gpus": 0.5}}), [(4, 0)],
         "topology.resources.advantages.gpus: no room for advantages: 0.5 GPUs in all, 0.5 on one node, 0.5 with the other "
         "roles; the cluster has 0 in all, 0 on one node. take nodes of 0.5 GPUs, or write "
         "topology.resources.advantages.gpus: 0"),
        (topology(tp=4, resources={"actor": {"gpus": 0.5}}), [(8, 1)] * 4,
         "topology.resources.actor.gpus: no room for actor: 2 GPUs in all, 2 on one node, 3 with the other roles; the cluster "
         "has 4 in all, 1 on one node. take nodes of 2 GPUs, or write topology.resources.actor.gpus: 0.25 or less"),
    ],
)  # fmt: skip
def test_gpus_that_are_short(run, nodes, message):
    assert told(run, *nodes) == [message]


def test_gpus_and_cpus_that_are_short_are_told_at_once():
    found = told(topology(dp=4), (2, 2))
    assert [each.split(":")[0] for each in found] == ["topology.resources.actor.gpus", "topology.resources.actor.cpus"]


def test_more_processes_than_parts_of_a_cpu():
    assert told(topology(dp=4096, trainer={"device": "cpu"}), (0.1, 0))[0].endswith(". take a cluster of 4098 CPUs")


@settings(deadline=None)
@given(
    ranks=st.integers(1, 6), tensor=st.sampled_from([1, 2]), engines=st.integers(1, 4), cpus=st.sampled_from([0.3, 1, 2.5]),
    nodes=st.lists(st.integers(1, 6).map(float), min_size=1, max_size=3),
)  # fmt: skip
def test_what_is_written_as_told_fits(ranks, tensor, engines, cpus, nodes):
    """And with a thousandth more a CPU it does not."""

    def run(**asked: float):
        named = {name: {"cpus": value} for name, value in asked.items()}
        named["rollout"]["actors"] = engines
        return topology(dp=ranks, tp=tensor, resources=named)

    cluster, first = Cluster(tuple(Node(each, 0) for each in nodes)), run(actor=cpus, rollout=1.0, advantages=1.0)
    for _, _, fix in shortages(plan_of(first, False), cluster, first):
        asked = {role: float(value) for role, value in re.findall(r"resources\.(\w+)\.cpus: ([\d.]+)", fix)}
        assert asked.keys() == {"actor", "rollout", "advantages"}
        assert None not in placed(plan_of(run(**asked), False), cluster)
        more = {role: value * 1.001 + 2e-4 for role, value in asked.items()}
        assert None in placed(plan_of(run(**more), False), cluster)
