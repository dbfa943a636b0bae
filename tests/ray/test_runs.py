"""One seed is one run, whoever orchestrates it."""

import shutil

import pytest

from tests.ledger import prompts_of
from tests.ray.conftest import EXAMPLES, MEGATRON, assert_same, lines
from tests.vllm.test_runs import PARTIAL

pytestmark = pytest.mark.usefixtures("cluster")
RUN_MODEL = f"{EXAMPLES}/tiny_model.py:build"
LOCAL = ("--orchestrator", "local")


def test_ray_and_the_local_orchestrator_give_the_same_numbers(train):
    assert_same(train("ray"), train("local", *LOCAL))


@pytest.mark.parametrize(
    "layout", ["--tensor-model-parallel-size", pytest.param("--data-parallel-size", marks=pytest.mark.slow)]
)
def test_megatron_and_vllm_in_actors_give_the_numbers_of_local_ones(train, layout):
    """And the two engines agree on every token, at every step."""
    flags = (*MEGATRON, layout, 2)
    found = train("ray", *flags)
    assert_same(found, train("local", *flags, *LOCAL))
    assert max(row["train/is_logprob_abs_diff"] for row in found) < 1e-4


def test_an_asynchronous_run_without_staleness_is_the_synchronous_one(train):
    assert_same(train("async", "--fully-async", "--max-staleness", 0), train("sync", *LOCAL))


def test_groups_are_never_staler_than_allowed_and_each_prompt_is_used_once(train, tmp_path):
    found = train("async", "--fully-async", "--max-staleness", 2, "--num-rollout", 6, "--rollout.engine", "vllm")
    assert found[0]["rollout/staleness_max"] == 0
    assert 0 < max(row["rollout/staleness_max"] for row in found) <= 2
    used = prompts_of(tmp_path / "async")
    assert used.total() == len(used) == 6 * 4
    assert all(row["perf/queue_depth"] <= 2 * 4 for row in lines(tmp_path / "async", "timings.jsonl"))


def test_an_asynchronous_run_that_is_gone_on_with_uses_each_prompt_once(train, tmp_path):
    """Those too that had ended, or were under way, at the checkpoint; nothing of it is staler than allowed."""
    flags = ("--fully-async", "--max-staleness", 2, "--num-rollout", 5, "--save-interval", 1, "--keep-checkpoints", 0)
    train("run", *flags)
    for step in (3, 4, 5):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / f"step_{step:06d}")
    found = train("run", *flags, "--resume", tmp_path / "run")
    assert [row["step"] for row in found] == [1, 2, 3, 4, 5]
    assert max(row["rollout/staleness_max"] for row in found) <= 2
    used = prompts_of(tmp_path / "run")
    assert used.total() == len(used) == 5 * 4


def test_a_hybrid_run_is_one_rollout_ahead_and_resumes_to_the_same_numbers(train, tmp_path):
    flags = ("--hybrid", "--num-rollout", 4, "--save-interval", 2)
    whole = train("run", *flags)
    assert [row["rollout/staleness_mean"] for row in whole] == [0.0, 1.0, 1.0, 1.0]
    (tmp_path / "run" / "checkpoints" / "step_000004" / "loop.pt").unlink()
    assert_same(train("run", *flags, "--resume", tmp_path / "run"), whole)


def test_two_engines_and_a_reference_in_its_own_process_change_no_number(train):
    """Nor of an evaluation."""
    held_out = ("--eval-interval", 2, "--evaluation.source", f"{EXAMPLES}/tiny_task.py:examples")
    reference = ("--algorithm.ref_kl.enable", "true", "--ref-load", RUN_MODEL, *held_out)
    apart = ("--topology.resources.rollout.actors", 2, "--topology.resources.reference.colocated", "false",
             "--topology.resources.reference.cpus", 0.2)  # fmt: skip
    assert_same(train("ray", *reference, *apart), train("local", *reference, *LOCAL))


def test_a_critic_in_its_own_process_is_trained_in_step(train, tmp_path):
    """After a warm-up of the critic alone, and from both checkpoints."""
    flags = ("--advantage-estimator", "ppo", "--num-critic-only-steps", 1)
    apart = ("--topology.resources.critic.colocated", "false", "--topology.resources.critic.cpus", 0.2)
    mine = train("ray", *flags, *apart)
    assert ["train/grad_norm" in row for row in mine] == [False, True, True]
    whole = train("local", *flags, *LOCAL, "--num-rollout", 4)
    assert_same(mine, whole[:3])
    assert_same(train("ray", *flags, *apart, "--num-rollout", 4, "--resume", tmp_path / "ray"), whole)


@pytest.mark.slow
def test_a_partial_rollout_leaves_what_the_local_one_leaves(train):
    flags = (*PARTIAL, "--num-rollout", 4)
    found = train("ray", *flags)
    assert max(row["rollout/staleness_max"] for row in found) > 0
    assert_same(found, train("local", *flags, *LOCAL))
