"""What is secret in the environment is found nowhere: not on the terminal, not in the run directory, not at a tracker."""

from __future__ import annotations

import json

import pytest
import yaml

from relax_core.errors import UsageError
from relax_core.orchestration.log import logged, say, warn
from relax_core.redaction import redacted, redacted_values
from relax_core.topology import Violation
from tests.conftest import EXAMPLES, RUN

SECRETS = {
    "HF_TOKEN": "hf_0123456789abcdef",
    "WANDB_API_KEY": "0f1e2d3c4b5a69788796a5b4c3d2e1f0a1b2c3d4",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCY",
    "CLIENT_SECRET": 's3cr3t+with=signs\\and"quotes"',
    "DB_PASSWORD_FILE": "correct horse battery staple",
    "MLFLOW_TRACKING_PASSWORD": "päßwörter-sind-geheim",
}
LEAKING = """
import os

SECRETS = [os.environ[name] for name in {names}]

def examples(token):
    return [{{"prompt": f"small {{each}}", "answer": {{"kind": "small", "count": 7, "key": each}}}} for each in SECRETS]

def reward(sample):
    if {fails}:
        raise RuntimeError("401 for " + ", ".join(SECRETS))
    return float(len(sample.response) % 2)
"""


@pytest.fixture
def secrets(monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


def leaks(text: str) -> list[str]:
    """The variables whose values stand in a text, as they are or as JSON or YAML would write them."""
    return [name for name, value in SECRETS.items()
            if any(each in text for each in (value, json.dumps(value)[1:-1], value.replace("'", "''")))]  # fmt: skip


def test_a_value_that_is_looked_for_is_found_wherever_it_stands(secrets):
    everything = " ".join(SECRETS.values())
    assert set(leaks(everything)) == set(leaks(json.dumps(everything))) == set(SECRETS)
    assert redacted(everything) == " ".join(f"${name}" for name in SECRETS)


def test_names_that_look_secret_and_names_that_do_not(monkeypatch):
    for name in ("MY_KEY", "MY_TOKEN", "MY_SECRET", "MYPASSWORDS", "key", "Token", "my_password"):
        monkeypatch.setenv(name, f"value-of-{name}")
        assert redacted(f"a value-of-{name} b") == f"a ${name} b"
    for name in ("KEYBOARD", "TOKENIZERS_PARALLELISM", "MONKEY", "SECRETARY"):
        monkeypatch.setenv(name, f"value-of-{name}")
        assert redacted(f"value-of-{name}") == f"value-of-{name}"


def test_a_short_value_is_a_word_like_others(monkeypatch):
    monkeypatch.setenv("SORT_KEY", "reward")
    assert redacted("the reward") == "the reward"


def test_a_secret_within_another_does_not_break_it(monkeypatch):
    monkeypatch.setenv("A_TOKEN", "12345678")
    monkeypatch.setenv("B_TOKEN", "0123456789")
    assert redacted("0123456789 12345678") == "$B_TOKEN $A_TOKEN"


def test_values_in_trees(secrets):
    tree = {"a": [SECRETS["HF_TOKEN"], 1, None], "b": {"c": f"x{SECRETS['HF_TOKEN']}"}, "d": True}
    assert redacted_values(tree) == {"a": ["$HF_TOKEN", 1, None], "b": {"c": "x$HF_TOKEN"}, "d": True}


def test_messages(secrets, capsys):
    value = SECRETS["HF_TOKEN"]
    assert UsageError(f"no {value}", who=value, fix=value).message == "$HF_TOKEN: no $HF_TOKEN. Fix: $HF_TOKEN"
    assert str(UsageError(value)) == "$HF_TOKEN"
    assert Violation("RLX999", "a", value, "b").message == "RLX999 a: $HF_TOKEN. Fix: b"
    warn(value)
    assert capsys.readouterr().err == "warning: $HF_TOKEN\n"


def test_the_log(secrets, tmp_path):
    with logged(tmp_path / "log.jsonl", "run"):
        warn(SECRETS["HF_TOKEN"])
        say("step", note={"a": SECRETS["CLIENT_SECRET"]})
    with pytest.raises(ValueError, match="0123"), logged(tmp_path / "log.jsonl", "run"):
        raise ValueError(SECRETS["HF_TOKEN"])
    text = (tmp_path / "log.jsonl").read_text()
    assert leaks(text) == []
    found = [json.loads(line) for line in text.splitlines()]
    assert (found[0]["message"], found[1]["note"]) == ("$HF_TOKEN", {"a": "$CLIENT_SECRET"})
    assert found[2]["message"].startswith("ValueError: $HF_TOKEN (")


@pytest.fixture
def leaking(tmp_path, run_file, relax, secrets):
    """Train on what tells every secret, in data and settings; gives the result and every file that was written."""

    def run(*flags, fails=False):
        (tmp_path / "leaking.py").write_text(LEAKING.format(names=list(SECRETS), fails=fails))
        text = RUN.replace(f"{EXAMPLES}/tiny_task.py", "leaking.py").replace(
            "tensorboard: false", "samples_per_step: 9"
        )
        settings = f"source_args: {{token: {json.dumps(SECRETS['HF_TOKEN'])}}}, reward:"
        path = run_file(text.replace("reward:", settings, 1))
        result = relax("train", path, "--output.dir", "run", *flags)
        return result, [each for each in (tmp_path / "run").rglob("*") if each.is_file()]

    return run


@pytest.mark.parametrize("fails", [False, True], ids=["a run that ends", "a run that fails"])
def test_nothing_that_a_run_says_or_writes_has_a_secret(leaking, tmp_path, fails):
    result, files = leaking("--prometheus-port", 0, fails=fails)
    assert result.code == (4 if fails else 0), result.err
    assert leaks(result.out + result.err) == []
    assert {"config.yaml", "run.json", "log.jsonl"} < {path.name for path in files}
    assert {path.name: found for path in files if (found := leaks(path.read_bytes().decode("utf-8", "replace")))} == {}
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert config["data"]["source_args"] == {"token": "$HF_TOKEN"}
    if fails:
        assert "RuntimeError: 401 for $HF_TOKEN, $WANDB_API_KEY, $AWS_SECRET_ACCESS_KEY" in result.err
    else:
        assert "small $HF_TOKEN" in (tmp_path / "run" / "samples.jsonl").read_text()


def test_such_a_run_goes_on(leaking, relax, tmp_path):
    assert leaking()[0].code == 0
    result = relax("train", tmp_path / "run.yaml", "--num-rollout", 3, "--output.dir", "run", "--resume", "run")
    assert result.code == 0, result.err
    assert "warning: changed since the run was begun: trainer.num_rollout was 2, is 3" in result.err
    assert "source_args" not in result.err
