"""Where the processes of a Ray run go: bundles and nodes, counted by hand."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_core.config import RunConfig
from relax_core.plan import Actor, Bundle, Cluster, Node, Plan, placed, plan_of, spread
from relax_core.topology import Topology

GPU_NODES = Cluster((Node(64, 8),) * 8)


def topology(*, roles=(), rollout=None, trainer=None, resources=None, **sizes) -> Topology:
    """A run of Megatron's ranks and vLLM's engines; `sizes` by the first letters of their settings."""
    names = {"dp": "data_parallel", "tp": "tensor_model_parallel", "pp": "pipeline_model_parallel"}
    given = {f"{names[name]}_size": size for name, size in sizes.items()}
    config = {
        "model": {"path": "model"},
        "data": {"path": "prompts.jsonl"},
        "rollout": {"engine": "vllm", **(rollout or {})},
        "trainer": {"engine": "megatron", **(trainer or {})},
        "topology": {"orchestrator": "ray", "resources": resources or {}, **given},
    }
    return Topology(RunConfig.model_validate(config), frozenset({"actor", "rollout", *roles}))


def homes(plan: Plan) -> dict[str, list[int]]:
    """The bundle of each actor, by role."""
    return {role.name: [actor.bundle for actor in role.actors] for role in plan.roles}


def test_two_ranks_an_engine_and_a_reward_process_on_cpus():
    plan = plan_of(topology(dp=2), gpus=False)
    assert plan.bundles == (Bundle(1, 0),) * 4
    assert homes(plan) == {"actor": [0, 1], "rollout": [2], "advantages": [3]}
    assert placed(plan, Cluster((Node(4, 0),))) == (0, 0, 0, 0)
    assert placed(plan, Cluster((Node(3, 0), Node(1, 0)))) == (0, 0, 0, 1)


def test_sixty_four_ranks_with_engines_in_turn_on_their_gpus():
    resources = {"rollout": {"actors": 8, "colocated": True, "cpus": 2}, "actor": {"cpus": 0.5}}
    plan = plan_of(topology(dp=8, tp=8, rollout={"tensor_parallel_size": 8}, resources=resources), gpus=True)
    # 8 trainers of half a CPU and one engine of 8 processes of 2: 20 CPUs beside 8 GPUs.
    assert plan.bundles == (*(Bundle(20, 8),) * 8, Bundle(1, 0))
    assert homes(plan) == {"actor": [r // 8 for r in range(64)], "rollout": [*range(8)], "advantages": [8]}
    assert {actor.gpus for actor in plan.roles[1].actors} == {0}
    assert placed(plan, GPU_NODES) == (0, 1, 2, 3, 4, 5, 6, 7, 0)


def test_engines_apart_have_a_bundle_each():
    resources = {"rollout": {"actors": 3, "cpus": 1.5}}
    plan = plan_of(topology(dp=2, tp=2, rollout={"tensor_parallel_size": 2}, resources=resources), gpus=True)
    assert plan.bundles == (Bundle(2, 2), Bundle(2, 2), *(Bundle(3, 2),) * 3, Bundle(1, 0))
    assert homes(plan) == {"actor": [0, 0, 1, 1], "rollout": [2, 3, 4], "advantages": [5]}
    assert placed(plan, Cluster((Node(8, 4),) * 3)) == (0, 0, 1, 1, 2, 0)


def test_a_critic_apart_has_as_many_processes_as_the_actor_and_a_reference_none():
    resources = {"critic": {"colocated": False, "cpus": 2, "gpus": 0.5}}
    plan = plan_of(topology(tp=2, pp=2, roles=("critic", "reference"), resources=resources), gpus=True)
    assert plan.bundles == (Bundle(2, 2), Bundle(2, 2), Bundle(4, 1), Bundle(4, 1), Bundle(1, 1), Bundle(1, 0))
    expected = {"actor": [0, 0, 1, 1], "critic": [2, 2, 3, 3], "reference": [], "rollout": [4], "advantages": [5]}
    assert homes(plan) == expected
    assert {role.name: role.within for role in plan.roles if role.within} == {"reference": "actor"}


def test_a_bundle_holds_the_processes_of_the_larger_of_trainer_and_colocated_engine():
    rollout = {"tensor_parallel_size": 4}
    resources = {"rollout": {"actors": 2, "colocated": True}, "critic": {"colocated": False}}
    plan = plan_of(topology(dp=4, tp=2, roles=("critic",), rollout=rollout, resources=resources), gpus=True)
    # The critic has no engines beside it: pairs of ranks are enough.
    assert homes(plan)["actor"] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert homes(plan)["critic"] == [2, 2, 3, 3, 4, 4, 5, 5]
    assert homes(plan)["rollout"] == [0, 1]


def test_an_engine_lives_where_its_processes_are():
    """Engine e takes turns with ranks 2e and 2e + 1, and a bundle holds four."""
    resources = {"rollout": {"actors": 3, "colocated": True}}
    plan = plan_of(topology(dp=2, tp=4, rollout={"tensor_parallel_size": 2}, resources=resources), gpus=True)
    assert homes(plan)["rollout"] == [0, 0, 1]
    assert plan.bundles == (Bundle(4 + 4, 4), Bundle(4 + 2, 4), Bundle(1, 0))


@pytest.mark.parametrize(
    ("sizes", "rollout", "actors"),
    [({"tp": 2}, 3, 1), ({"dp": 3}, 2, 2), ({"dp": 2}, 4, 1)],
    ids=["neither divides", "too many", "too large"],
)
def test_engines_without_processes_to_share_have_no_plan(sizes, rollout, actors):
    resources = {"rollout": {"actors": actors, "colocated": True}}
    assert plan_of(topology(**sizes, rollout={"tensor_parallel_size": rollout}, resources=resources), gpus=True) is None


def test_the_torch_engine_is_one_process_and_the_hf_engine_another():
    run = topology(dp=2, trainer={"engine": "torch"}, rollout={"engine": "hf", "tensor_parallel_size": 2})
    assert plan_of(run, gpus=True).bundles == (Bundle(1, 1), Bundle(1, 1), Bundle(1, 0))


@pytest.mark.parametrize(("device", "gpus", "asked"), [("cpu", True, 0), ("cuda", False, 1), ("auto", True, 1)])
def test_a_trainer_asks_for_what_it_computes_on(device, gpus, asked):
    assert plan_of(topology(trainer={"device": device}), gpus).roles[0].actors == (Actor(0, 1, asked),)


def test_what_is_asked_for_by_name_is_asked_for_on_any_cluster():
    plan = plan_of(topology(resources={"advantages": {"actors": 2, "gpus": 0.5}, "actor": {"gpus": 0}}), gpus=False)
    assert plan.bundles == (Bundle(1, 0), Bundle(1, 0), Bundle(1, 0.5), Bundle(1, 0.5))


def test_a_bundle_that_fits_nowhere_leaves_the_room_to_the_next():
    plan = Plan((Bundle(3, 0), Bundle(5, 0), Bundle(1, 0)), ())
    assert placed(plan, Cluster((Node(4, 0),))) == (0, None, 0)


def test_a_bundle_does_not_fit_by_cpus_alone():
    assert placed(Plan((Bundle(1, 2),), ()), Cluster((Node(8, 1), Node(8, 2)))) == (1,)


def test_ten_tenths_are_one():
    """0.1 + 0.2 > 0.3, and 1 - 10 × 0.1 < 0."""
    assert placed(Plan((Bundle(0.1, 0),) * 10, ()), Cluster((Node(1, 0),))) == (0,) * 10
    assert placed(Plan((Bundle(0.1 + 0.2, 0),), ()), Cluster((Node(0.3, 0),))) == (0,)
    assert placed(Plan((Bundle(0.1, 0),) * 11, ()), Cluster((Node(1, 0),)))[-1] is None


amounts = st.integers(0, 4).map(float)


@given(
    st.lists(st.tuples(amounts, amounts), max_size=12), st.lists(st.tuples(amounts, amounts), min_size=1, max_size=4)
)
def test_the_first_node_with_room_takes_a_bundle(asked, has):
    """Against first-fit, written plainly."""
    left, expected = [list(each) for each in has], []
    for cpus, gpus in asked:
        node = next((i for i, room in enumerate(left) if room[0] >= cpus and room[1] >= gpus), None)
        expected.append(node)
        if node is not None:
            left[node] = [left[node][0] - cpus, left[node][1] - gpus]
    found = placed(Plan(tuple(Bundle(*each) for each in asked), ()), Cluster(tuple(Node(*each) for each in has)))
    assert list(found) == expected


@pytest.mark.parametrize(
    ("nodes", "text"),
    [([0, 0], "0"), ([3, 0], "0, 3"), (range(6), "0–5"), ([0, 1, 4, 5, 6, 9], "0–1, 4–6, 9"), ([], "")],
)
def test_nodes_as_text(nodes, text):
    assert spread(nodes) == text


def test_a_plan_needs_neither_ray_nor_torch():
    source = "import sys, json, relax_core.plan; print(json.dumps([n for n in ('ray', 'torch') if n in sys.modules]))"
    found = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert json.loads(found.stdout) == []
