"""The log of a run: what happened, one JSON object an event, and stderr as it is without it."""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime

import pytest

from relax_core.errors import RunError
from relax_core.orchestration.log import logged, say, warn
from tests.conftest import RUN


def events(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def told(path):
    """Events without what differs between two runs."""
    return [{key: value for key, value in each.items() if key not in ("time", "run", "perf/tokens_per_second", "relax")}
            for each in events(path)]  # fmt: skip


def run_id(directory):
    return json.loads((directory / "run.json").read_text())["id"]


def test_a_run_from_its_start_to_its_end(relax, run_file, tmp_path):
    before = datetime.now(UTC)
    assert relax("train", run_file(RUN), "--output.dir", "run", "--save-interval", 1).code == 0
    rewards = [json.loads(line)["rollout/reward_mean"] for line in (tmp_path / "run" / "metrics.jsonl").open()]
    assert told(tmp_path / "run" / "log.jsonl") == [
        {"level": "info", "event": "started", "directory": "run", "steps": 2},
        {"level": "info", "event": "step", "step": 1, "rollout/reward_mean": rewards[0]},
        {"level": "info", "event": "checkpoint", "step": 1, "path": "run/checkpoints/step_000001"},
        {"level": "info", "event": "step", "step": 2, "rollout/reward_mean": rewards[1]},
        {"level": "info", "event": "checkpoint", "step": 2, "path": "run/checkpoints/step_000002"},
        {"level": "info", "event": "finished", "step": 2},
    ]
    found = events(tmp_path / "run" / "log.jsonl")
    assert {each["run"] for each in found} == {run_id(tmp_path / "run")}
    times = [datetime.fromisoformat(each["time"]) for each in found]
    assert times == sorted(times)
    assert all(each.utcoffset() is not None for each in times)
    assert before.replace(microsecond=0) <= times[0] <= times[-1] <= datetime.now(UTC)


def test_the_id_is_the_name_of_the_directory_and_something_of_its_own(relax, run_file, tmp_path):
    for name in ("a run", "other"):
        assert relax("train", run_file(RUN), "--output.dir", name, "--num-rollout", 1).code == 0
    assert re.fullmatch(r"a-run-[0-9a-f]{8}", run_id(tmp_path / "a run"))
    assert re.fullmatch(r"other-[0-9a-f]{8}", run_id(tmp_path / "other"))


def test_a_run_that_goes_on_keeps_its_id_and_its_log(relax, run_file, tmp_path):
    assert relax("train", run_file(RUN), "--output.dir", "run").code == 0
    identity, before = run_id(tmp_path / "run"), (tmp_path / "run" / "log.jsonl").read_text()
    result = relax("train", run_file(RUN), "--num-rollout", 3, "--output.dir", "run", "--resume", "run")
    assert result.code == 0, result.err
    assert run_id(tmp_path / "run") == identity
    after = (tmp_path / "run" / "log.jsonl").read_text()
    assert after.startswith(before)
    assert {each["run"] for each in events(tmp_path / "run" / "log.jsonl")} == {identity}
    new = told(tmp_path / "run" / "log.jsonl")[len(before.splitlines()) :]
    assert [each["event"] for each in new] == ["started", "warning", "rewound", "step", "checkpoint", "finished"]
    warning = "changed since the run was begun: trainer.num_rollout was 2, is 3"
    assert new[1] == {"level": "warning", "event": "warning", "message": warning}
    assert f"warning: {warning}" in result.err.splitlines()


def test_the_warnings_of_a_step(relax, run_file, tmp_path):
    (tmp_path / "reward.py").write_text("def reward(sample):\n    return 0.0\n")
    arguments = ("--data.reward", "reward.py:reward", "--warn-after", 1, "--num-rollout", 1, "--output.dir", "run")
    result = relax("train", run_file(RUN), *arguments)
    lines = [line for line in result.err.splitlines() if line.startswith("warning: step 1: ")]
    logged_ = [each for each in told(tmp_path / "run" / "log.jsonl") if each["event"] == "warning"]
    assert len(lines) > 0
    assert [f"warning: step {each['step']}: {each['message']}" for each in logged_] == lines
    assert {each["level"] for each in logged_} == {"warning"}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("--data.reward", "reward.py:reward"), 4), (("--model.path", "none"), 3)],
    ids=["while it trains", "while it loads"],
)
def test_a_run_that_fails_says_why(relax, run_file, tmp_path, arguments, code):
    (tmp_path / "reward.py").write_text("def reward(sample):\n    return 1 / 0\n")
    result = relax("train", run_file(RUN), *arguments, "--output.dir", "run")
    assert result.code == code
    last = told(tmp_path / "run" / "log.jsonl")[-1]
    message = last.pop("message")
    assert last == {"level": "error", "event": "failed"}
    lines = [f"error: {line}" for line in message.splitlines()]
    assert result.err.splitlines()[-len(lines) :] == lines


def test_an_error_that_is_nobodys_fault_is_named(tmp_path):
    with pytest.raises(ValueError, match="odd"), logged(tmp_path / "log.jsonl", "run"):
        raise ValueError("odd")
    (event,) = told(tmp_path / "log.jsonl")
    assert re.fullmatch(r"ValueError: odd \(test_log\.py:\d+\)", event["message"])


def test_a_second_interruption_is_no_failure(tmp_path):
    with pytest.raises(KeyboardInterrupt), logged(tmp_path / "log.jsonl", "run"):
        raise KeyboardInterrupt
    expected = {"level": "warning", "event": "stopped", "message": "nothing was saved after the last checkpoint"}
    assert told(tmp_path / "log.jsonl") == [expected]


def test_only_what_is_said_inside_is_logged_and_never_twice(tmp_path, capsys):
    say("before")
    with logged(tmp_path / "log.jsonl", "run"):
        warn("look out")
    warn("after")
    assert [each["event"] for each in told(tmp_path / "log.jsonl")] == ["warning"]
    assert capsys.readouterr().err == "warning: look out\nwarning: after\n"


def test_another_librarys_handler_says_nothing_more(tmp_path, capsys):
    handler = logging.StreamHandler()
    logging.getLogger().addHandler(handler)
    try:
        with logged(tmp_path / "log.jsonl", "run"):
            warn("look out")
    finally:
        logging.getLogger().removeHandler(handler)
    assert capsys.readouterr().err == "warning: look out\n"


def test_a_full_disk_ends_the_log_alone(tmp_path, capsys):
    (tmp_path / "log.jsonl").symlink_to("/dev/full")
    with logged(tmp_path / "log.jsonl", "run"):
        say("step", step=1)
        say("step", step=2)
    told_ = f"warning: '{tmp_path}/log.jsonl' cannot be written: [Errno 28] No space left on device; "
    assert capsys.readouterr().err == f"{told_}the run goes on without its log\n"


def test_a_log_that_cannot_be_begun_refuses_the_run(tmp_path):
    (tmp_path / "log.jsonl").mkdir()
    with pytest.raises(RunError) as raised, logged(tmp_path / "log.jsonl", "run"):
        pass
    fix = "make room there or let it be written, and go on with --resume"
    expected = f"output.dir: '{tmp_path}/log.jsonl' cannot be written: Is a directory. Fix: {fix}"
    assert raised.value.message == expected
