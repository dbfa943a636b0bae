"""Numbers and rewards that go wrong in actors are told as they are in one process."""

import json

import pytest

from tests.orchestration.test_incidents import LOSS, THIRD
from tests.ray.conftest import ROWS, RUN, lines

pytestmark = pytest.mark.usefixtures("cluster")
LOCAL = ("--orchestrator", "local")
REWARD = """
def reward(sample):
    number = int(sample.id.partition("-")[2])
    return float("nan") if number % 2 else 1 / 0
"""
ACTORS = ("--topology.resources.advantages.actors", 3)


@pytest.fixture
def told(relax, run_file, plugin_file, tmp_path):
    """Train the brittle plugin with these expressions in it: the code, and what was said, without the run's directory."""

    def run(name, *flags, advantages="advantages", per_token="per_token", reward=None):
        source = LOSS.replace("ADVANTAGES", advantages).replace("PER_TOKEN", per_token).replace("ENTROPY", "False")
        path = run_file(RUN)
        path.with_name("rows.py").write_text(ROWS)
        chosen = ("--plugin", plugin_file(source, "brittle.py"), "--advantage-estimator", "brittle")
        if reward:
            (tmp_path / "reward.py").write_text(reward)
            chosen += ("--data.reward", "reward.py:reward")
        result = relax("train", path, *chosen, "--output.dir", tmp_path / name, *flags)
        said = [
            line for line in result.err.splitlines() if line.startswith(("error: ", "warning: data", "data.reward"))
        ]
        return result.code, [line.replace(str(tmp_path / name), "RUN") for line in said]

    return run


@pytest.mark.parametrize(
    "broken",
    [
        {"per_token": THIRD},
        {"advantages": "torch.where(rollout.sequence_ids == 5, torch.inf, advantages)"},
        {"per_token": "per_token + 0 * (batch.log_probs - batch.log_probs.detach()).abs().sqrt()"},
    ],
    ids=["loss", "advantage", "gradient"],
)
def test_what_is_not_finite_in_a_rank_is_located_as_in_one_process(told, tmp_path, broken):
    code, (said,) = told("ray", **broken)
    assert code == 4
    assert "is not finite: " in said
    assert (code, [said]) == told("local", *LOCAL, **broken)
    mine, theirs = (next((tmp_path / name / "incidents").iterdir()) for name in ("ray", "local"))
    for ours, other in zip(sequences(mine), sequences(theirs), strict=True):
        assert ours.keys() == other.keys()
        assert all(ours[name] == pytest.approx(other[name], rel=1e-5, nan_ok=True) for name in ours)


def sequences(case):
    return json.loads(case.read_text())["sequences"]


def test_an_update_in_a_rank_may_be_skipped(told, tmp_path):
    code, _ = told("ray", "--on-nonfinite", "skip", per_token=THIRD)
    assert code == 0
    assert [row.get("train/nonfinite_updates") for row in lines(tmp_path / "ray")] == [None, 1.0, None]


def test_rewards_that_fail_in_actors_are_told_with_their_samples(told, tmp_path):
    """Sixteen responses to four prompts, scored by three actors: the order is the samples', whoever was first."""
    flags = ("--on-reward-error", "zero", "--num-rollout", 1)
    code, said = told("ray", *flags, *ACTORS, reward=REWARD)
    assert code == 0
    used = [int(row["id"].removeprefix("row-")) for row in lines(tmp_path / "ray", "samples.jsonl")]
    assert {number % 2 for number in used} == {0, 1}, "both kinds of error are met"
    odd, even = (next(number for number in used if number % 2 == rest) for rest in (1, 0))
    assert set(said) == {
        f"warning: data.reward: failed on sample row-{odd}, which counts as 0: ValueError: it returned nan (float), which "
        "is not a finite number",
        f"warning: data.reward: failed on sample row-{even}, which counts as 0: ZeroDivisionError: division by zero "
        "(reward.py:4)",
    }
    assert (code, said) == told("local", *flags, *LOCAL, reward=REWARD)
    assert [lines(tmp_path / name)[0]["rollout/reward_errors"] for name in ("ray", "local")] == [16.0, 16.0]


def test_a_reward_that_is_no_number_ends_the_run_with_its_sample(told):
    """Of the actors that met one, the first that says so: every odd row gives one."""
    code, found = told("ray", *ACTORS, reward=REWARD.replace("1 / 0", "1.0"))
    assert code == 4
    start, row = found[0].split("row-")
    assert start == "error: data.reward: 'reward.py:reward' failed on sample "
    assert int(row) % 2 == 1
    assert "error: ValueError: it returned nan (float), which is not a finite number" in found
