"""An environment runs in the driver, and gives the same numbers whoever orchestrates."""

import pytest

from tests.ray.conftest import RUN, assert_same, lines

pytestmark = pytest.mark.usefixtures("cluster")
ENVIRONMENT = "environment: {name: echo.py, max_turn_tokens: 3, max_observation_tokens: 4}"
TEXT = RUN.replace("max_new_tokens: 6", f"max_new_tokens: 16, {ENVIRONMENT}")
ECHO = """
from relax_core import Trajectory


async def generate(prompt, sampler):
    trajectory = Trajectory(prompt)
    while trajectory.may_go_on and len(trajectory.turns) < 2:
        await sampler.sample(trajectory)
        await sampler.call(trajectory, str.upper, "ok;")
    return trajectory
"""


@pytest.fixture
def play(train, tmp_path):
    """Run the tiny run with the environment and with flags; gives its lines of metrics."""

    def run(name, *flags):
        (tmp_path / "echo.py").write_text(ECHO)
        return train(name, *flags, text=TEXT)

    return run


def test_ray_and_the_local_orchestrator_play_the_same_trajectories(play):
    found = play("ray")
    assert [row["rollout/tool_calls"] for row in found] == [32, 32, 32]
    assert_same(found, play("local", "--orchestrator", "local"))


@pytest.mark.parametrize("engine", ["hf", pytest.param("vllm", marks=pytest.mark.slow)])
def test_groups_are_played_all_the_time_and_never_staler_than_allowed(play, tmp_path, engine):
    found = play("async", "--fully-async", "--max-staleness", 1, "--rollout.engine", engine)
    assert [row["rollout/turns_mean"] for row in found] == [2, 2, 2]
    assert max(row["rollout/staleness_max"] for row in found) <= 1
    assert found[0]["train/is_logprob_abs_diff"] < 1e-4
    for row in lines(tmp_path / "async", "samples.jsonl"):
        assert row["raw_mask"].count(0) == 6
