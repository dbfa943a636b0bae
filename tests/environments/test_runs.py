"""Whole runs with an environment, on a tiny model of random weights."""

from __future__ import annotations

import json

import pytest

from tests.conftest import EXAMPLES

RUN = f"""
model: {{path: "{EXAMPLES}/tiny_model.py:build", cache_dir: CACHE}}
data: {{source: "{EXAMPLES}/tiny_task.py:examples", reward: "{EXAMPLES}/tiny_task.py:reward"}}
rollout:
  rollout_batch_size: 2
  n_samples_per_prompt: 4
  max_new_tokens: 24
  environment: {{name: echo.py, max_turn_tokens: 3, max_observation_tokens: 7, max_turns: 4}}
trainer: {{num_rollout: 3, lr: 1e-3, num_threads: 1}}
evaluation: {{interval: 2, source: "{EXAMPLES}/tiny_task.py:examples", num_prompts: 3}}
output: {{tensorboard: false, samples_per_step: 100}}
"""

ECHO = '''
from relax_core import EnvironmentConfig, Trajectory


class Config(EnvironmentConfig):
    reward: float | None = None
    """The reward of every trajectory."""
    forget: bool = False
    """After its second turn it reads the prompt and that turn alone."""


async def generate(prompt, sampler, config):
    trajectory = Trajectory(prompt, config.reward)
    while trajectory.may_go_on and len(trajectory.turns) < 3:
        turn = await sampler.sample(trajectory)
        if len(trajectory.turns) == 2:
            await sampler.call(trajectory, int, "x")
            if config.forget:
                sampler.reset(trajectory, prompt.token_ids, turn.token_ids)
        else:
            await sampler.call(trajectory, str.upper, "ok;")
        trajectory.turn_reward(len(turn.token_ids))
    return trajectory
'''


ROOM = ("--rollout-max-response-len", 60)


@pytest.fixture
def train(relax, run_file, tmp_path):
    """Run with flags; gives the lines of metrics, and of samples."""

    def run(name: str, *flags: object) -> tuple[list[dict], list[dict]]:
        path = run_file(RUN)
        path.with_name("echo.py").write_text(ECHO)
        result = relax("train", path, "--output.dir", tmp_path / name, *flags)
        assert result.code == 0, result.err
        found = [(tmp_path / name / f"{each}.jsonl").read_text().splitlines() for each in ("metrics", "samples")]
        return tuple([json.loads(line) for line in lines] for lines in found)

    return run


def test_a_run_counts_what_happened_and_keeps_what_is_whose(train):
    metrics, samples = train("run")
    assert [each["step"] for each in metrics] == [0, 1, 2, 3]
    for each in metrics[1:]:
        assert each["rollout/turns_mean"] == 3.0
        assert (each["rollout/tool_calls"], each["rollout/tool_errors"]) == (8 * 3, 8)
        assert (each["rollout/tool_truncated"], each["rollout/tool_timeouts"]) == (8, 0)
        assert each["train/is_logprob_abs_diff"] < 1e-5
    for each in samples:
        written = [token for token, live in zip(each["token_ids"], each["raw_mask"], strict=True) if live]
        assert len(each["token_ids"]) == each["tokens"] == len(written) + 3 + 7 + 3
        assert sum(each["turn_rewards"]) == len(written)


def test_the_evaluation_plays_it_too(train):
    metrics, _ = train("run", "--rollout.environment.args", "{reward: 0.75}")
    assert metrics[0]["eval/reward_mean"] == 0.75
    assert metrics[0]["eval/response_length_mean"] > 13
    assert all(each["rollout/reward_mean"] == 0.75 for each in metrics[1:])


def test_a_trajectory_whose_context_was_replaced_is_one_response(train):
    metrics, samples = train("run", "--rollout.environment.args", "{forget: true, reward: 0.5}", *ROOM)
    for each in metrics[1:]:
        assert (each["rollout/turns_mean"], each["rollout/reward_mean"]) == (3.0, 0.5)
        assert each["train/is_logprob_abs_diff"] < 1e-5, "the trainer reads what the sampler read"
    assert len({(each["step"], each["trajectory_id"]) for each in samples}) == len(samples) == 3 * 8
    for each in samples:
        [[place, context]] = each["resets"]
        turns = "".join("+" if live else "." for live in each["raw_mask"]).split(".")
        assert context[-len(turns[3]) :] == each["token_ids"][place - 7 - len(turns[3]) : place - 7]
        assert [part["kind"] for part in each["segments"]] == [
            *("policy", "observation", "policy", "observation", "context", "policy", "observation"),
        ]
        assert [part["tool"] for part in each["segments"] if part["kind"] == "observation"] == ["upper", "int", "upper"]


@pytest.mark.parametrize("args", ["{}", "{forget: true}"])
def test_a_resumed_run_gives_the_numbers_of_a_whole_one(train, tmp_path, args):
    flags = ("--rollout.environment.args", args, *ROOM)
    whole, _ = train("whole", *flags)
    train("parts", "--num-rollout", 2, *flags)
    resumed, _ = train("parts", "--resume", tmp_path / "parts", *flags)
    for ours, theirs in zip(resumed, whole, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-5)


@pytest.fixture
def checked(relax, run_file):
    def check(*flags: object, source: str = ECHO) -> list[str]:
        path = run_file(RUN)
        path.with_name("echo.py").write_text(source)
        return relax("check", path, *flags).out.splitlines()

    return check


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--environment", "echoes"), "error: RLX130 rollout.environment.name: no environment is called 'echoes'. "
         "Fix: write an installed name, `path/to/file.py` or `package.module`; installed: verifiers"),
        (("--rollout.environment.args", "{rewrad: 1.0}"), "error: RLX130 rollout.environment.args.rewrad: unknown key. "
         "Fix: did you mean 'reward'?"),
        (("--rollout.environment.args", "{reward: high}"), "error: RLX130 rollout.environment.args.reward: should be a "
         "valid number. Fix: correct it"),
        (("--partial-rollout",), "error: RLX131 rollout.partial_rollout: an environment plays a response to its end, and "
         "cannot go on with a part of one. Fix: write partial_rollout: false"),
        (("--environment", "null"), "warning: RLX132 rollout.environment.max_turns: no environment is named. "
         "Fix: give rollout.environment.name, or leave it out"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_before_the_run(checked, flags, message):
    assert message in checked(*flags)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def generate(prompt, sampler): ...", "generate of 'echo.py' is no async function"),
        ("async def play(prompt, sampler): ...", "'echo.py' has no function 'generate'"),
        ("async def generate(prompt): ...",
         "generate of 'echo.py' cannot be called as generate(prompt, sampler): too many positional arguments"),
        ("class Config: ...\nasync def generate(prompt, sampler, config): ...",
         "Config of 'echo.py' is no EnvironmentConfig"),
    ],
)  # fmt: skip
def test_what_is_no_environment_is_said_before_the_run(checked, source, message):
    assert any(message in line for line in checked(source=source))


def test_an_installed_environment_is_found_by_its_name(checked, relax, tmp_path, monkeypatch):
    site = tmp_path / "site"
    info = site / "echoes-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "echoes_environment.py").write_text(ECHO)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: echoes\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[relax.environments]\nechoes = echoes_environment\n")
    monkeypatch.syspath_prepend(str(site))
    assert not any("error" in line for line in checked("--environment", "echoes")[:-1])
    assert checked("--environment", "echos")[0] == (
        "error: RLX130 rollout.environment.name: no environment is called 'echos'. Fix: did you mean 'echoes'?"
    )
    assert relax("plugins", "validate", "echoes").out == "echoes: 5 checks, 0 errors, 0 warnings\n"


def test_a_window_that_the_model_or_a_prompt_does_not_fit_into_is_refused(relax, run_file):
    path = run_file(RUN)
    path.with_name("echo.py").write_text(ECHO)
    window = "--rollout.environment.max-context-tokens"
    assert relax("train", path, window, 600).err.endswith(
        "error: rollout.environment.max_context_tokens: 600 is more than the 512 that the model can read. Fix: lower it\n"
    )
    (last,) = relax("train", path, window, 4).err.splitlines()[-1:]
    assert "tokens, more than the limit of 3 (" in last
    assert "Fix: raise data.max_prompt_tokens, raise rollout.environment.max_context_tokens, or take it out of" in last
