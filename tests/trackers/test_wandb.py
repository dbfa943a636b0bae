"""Weights & Biases without its service: what is kept for `wandb sync`."""

from __future__ import annotations

import json
import struct

from wandb.proto import wandb_internal_pb2

from tests.cli.test_train import metrics
from tests.conftest import RUN

BLOCK, HEAD = 32768, 7
LAST = (1, 4)
"""Kinds of pieces that a record ends with: a whole one, the last one of several."""


def records(directory):
    """What a run has kept, in its order: records in pieces, none of which crosses a block (LevelDB's log)."""
    (path,) = (directory / "wandb").glob("offline-run-*/*.wandb")
    data, place, whole = path.read_bytes(), HEAD, b""
    assert data[:4] == b":W&B"
    while place + HEAD <= len(data):
        if BLOCK - place % BLOCK < HEAD:
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + HEAD])
        whole += data[place + HEAD : place + HEAD + length]
        place += HEAD + length
        if kind in LAST:
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def name_of(item):
    return item.key or "/".join(item.nested_key)


def test_every_number_is_kept_and_the_configuration_too(relax, run_file, tmp_path):
    result = relax("train", run_file(RUN), "--wandb", "offline", "--output.dir", "run", "--seed", 5)
    assert result.code == 0, result.err
    kept = list(records(tmp_path / "run"))
    rows = [{name_of(item): json.loads(item.value_json) for item in each.history.item}
            for each in kept if each.WhichOneof("record_type") == "history"]  # fmt: skip
    found = [(row["_step"], row["rollout/reward_mean"], row["train/loss"]) for row in rows]
    expected = [(each["step"], each["rollout/reward_mean"], each["train/loss"]) for each in metrics(tmp_path / "run")]
    assert found == expected
    (run,) = [each.run for each in kept if each.WhichOneof("record_type") == "run"]
    assert run.run_id == json.loads((tmp_path / "run" / "run.json").read_text())["id"]
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert config["trainer"]["seed"] == 5
    (end,) = [each.exit for each in kept if each.WhichOneof("record_type") == "exit"]
    assert end.exit_code == 0


def test_a_run_that_fails_is_shown_as_such(relax, run_file, tmp_path):
    (tmp_path / "reward.py").write_text("def reward(sample):\n    return 1 / 0\n")
    arguments = ("--wandb", "offline", "--data.reward", "reward.py:reward", "--output.dir", "run")
    assert relax("train", run_file(RUN), *arguments).code == 4
    (end,) = [each.exit for each in records(tmp_path / "run") if each.WhichOneof("record_type") == "exit"]
    assert end.exit_code == 1


def test_no_secret_of_the_environment_is_told(relax, run_file, tmp_path, monkeypatch):
    secrets = {"HF_TOKEN": "hf_0123456789abcdef", "WANDB_API_KEY": "0f1e2d3c4b5a69788796a5b4c3d2e1f0a1b2c3d4"}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    arguments = ("--model.cache-dir", tmp_path / secrets["HF_TOKEN"], "--output.dir", "run")
    assert relax("train", run_file(RUN), "--wandb", "offline", *arguments).code == 0
    written = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert [path for path in written if any(each.encode() in path.read_bytes() for each in secrets.values())] == []
    (run,) = [each.run for each in records(tmp_path / "run") if each.WhichOneof("record_type") == "run"]
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert config["model"]["cache_dir"] == f"{tmp_path}/$HF_TOKEN"
