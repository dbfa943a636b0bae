"""Disks, data and models that go wrong under a run: one message, what was there before is still there, and no traceback."""

from __future__ import annotations

import json
import os

import pytest
from pyarrow import Table, parquet

from tests.cli.test_train import metrics
from tests.conftest import EXAMPLES, RUN

FIX = "Fix: make room there or let it be written, and go on with --resume"
BREAKS = """
import os
from pathlib import Path

calls = []

def reward(sample):
    calls.append(sample)
    if len(calls) == 9:  # the second step's first
        {breaks}
    return float(len(calls) % 2)
"""
FULL = "path = Path('run/{name}'); path.unlink(missing_ok=True); path.symlink_to('/dev/full')"
SEALED = "[os.chmod(each, 0o500) for each in (*Path('run').glob('*'), 'run')]; os.geteuid() or os.seteuid(65534)"
GONE = "import shutil; shutil.move('run', 'elsewhere')"


@pytest.fixture
def broken(relax, run_file, tmp_path):
    """Train, and break something as the second step begins."""
    user = os.geteuid()

    def run(breaks, *flags):
        (tmp_path / "breaks.py").write_text(BREAKS.format(breaks=breaks))
        arguments = ("--data.reward", "breaks.py:reward", "--save-interval", 1, "--output.dir", "run")
        return relax("train", run_file(RUN), *arguments, *flags)

    yield run
    os.seteuid(user)


def told(result):
    (line,) = [line for line in result.err.splitlines() if line.startswith("error: ")]
    return line


@pytest.mark.parametrize("name", ["metrics.jsonl", "timings.jsonl", "samples.jsonl"])
def test_a_disk_that_is_full_in_the_middle_of_a_run(broken, relax, run_file, tmp_path, name):
    result = broken(FULL.format(name=name))
    assert result.code == 4
    assert told(result) == f"error: output.dir: 'run/{name}' cannot be written: No space left on device. {FIX}"
    assert "Traceback" not in result.err
    failed = json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[-1])
    assert (failed["event"], failed["level"]) == ("failed", "error")
    assert (tmp_path / "run" / "checkpoints" / "step_000001").is_dir()


def test_a_run_goes_on_when_there_is_room_again(broken, relax, run_file, tmp_path):
    assert broken(FULL.format(name="timings.jsonl")).code == 4
    (tmp_path / "run" / "timings.jsonl").unlink()
    arguments = ("--data.reward", f"{EXAMPLES}/tiny_task.py:reward", "--save-interval", 1, "--output.dir", "run")
    result = relax("train", run_file(RUN), *arguments, "--resume", "run", "--allow-changes")
    assert result.code == 0, result.err
    assert [each["step"] for each in metrics(tmp_path / "run")] == [1, 2]


def test_a_directory_that_becomes_read_only_in_the_middle_of_a_run(broken):
    result = broken(SEALED)
    assert result.code == 4
    assert told(result) == f"error: output.dir: 'run/metrics.jsonl' cannot be written: Permission denied. {FIX}"
    assert "Traceback" not in result.err


def test_a_directory_that_is_moved_away_in_the_middle_of_a_run(broken):
    result = broken(GONE)
    assert result.code == 4
    assert told(result) == f"error: output.dir: 'run/metrics.jsonl' cannot be written: No such file or directory. {FIX}"


def test_a_log_that_cannot_be_written_stops_nothing(relax, run_file, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log.jsonl").symlink_to("/dev/full")
    result = relax("train", run_file(RUN), "--output.dir", "run")
    assert result.code == 0
    (warning,) = [line for line in result.err.splitlines() if line.startswith("warning: ")]
    assert warning.endswith("run/log.jsonl' cannot be written: [Errno 28] No space left on device; "
                            "the run goes on without its log")  # fmt: skip
    assert [each["step"] for each in metrics(tmp_path / "run")] == [1, 2]


def test_a_dataset_that_vanishes_between_check_and_run(relax, run_file, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "answer": 1}\n')
    path = run_file(RUN.replace("source:", "path: rows.jsonl, reward: exact_match } #"))
    assert relax("check", path).code == 0
    (tmp_path / "rows.jsonl").unlink()
    result = relax("train", path, "--output.dir", "run")
    assert result.code == 2
    assert told(result).startswith("error: data.path: there is no file rows.jsonl")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.fixture
def model(relax, run_file, tmp_path, model_cache):
    """A model directory of the test's own, and a function that trains on it."""
    assert relax("train", run_file(RUN), "--num-rollout", 1, "--output.dir", "first").code == 0
    directory = tmp_path / "model"
    (tmp_path / "first" / "checkpoints" / "step_000001").rename(directory)
    return directory, lambda *flags: relax("train", run_file(RUN), "--model.path", directory, *flags)


def test_messages_for_a_tokenizer_without_a_chat_template(model, run_file, relax, tmp_path):
    directory, _ = model
    (directory / "chat_template.jinja").unlink(missing_ok=True)
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    row = {"prompt": [{"role": "user", "content": "a"}], "answer": 1}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    text = RUN.replace("source:", "path: rows.jsonl, reward: exact_match } #")
    result = relax("train", run_file(text), "--model.path", directory)
    assert result.code == 3
    assert told(result) == (
        "error: example 0: the tokenizer has no chat template, which this prompt needs. Fix: use a model whose tokenizer "
        "has one, or give prompts as text, without data.chat_template and data.system_prompt"
    )


@pytest.mark.parametrize("part", [0.0, 0.001, 0.5, 0.999])
def test_a_download_of_weights_that_was_interrupted(model, part):
    directory, train = model
    weights = (directory / "model.safetensors").read_bytes()
    (directory / "model.safetensors").write_bytes(weights[: int(part * len(weights))])
    result = train()
    assert result.code == 3
    line = told(result)
    assert line.startswith(f"error: model.path: '{directory}' cannot be loaded: ")
    assert line.endswith(". Fix: give a complete model directory: config, weights and tokenizer")
    assert "Traceback" not in result.err


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_download_of_another_file_that_was_interrupted(model, name):
    directory, train = model
    text = (directory / name).read_bytes()
    (directory / name).write_bytes(text[: len(text) // 2])
    result = train()
    assert result.code == 3
    assert told(result).startswith(f"error: model.path: '{directory}' cannot be loaded: ")
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("suffix", "said"),
    [("jsonl", "rows.jsonl:40: this line is not JSON: "), ("parquet", "rows.parquet is no parquet file")],
)
def test_a_download_of_a_dataset_that_was_interrupted(relax, run_file, tmp_path, suffix, said):
    rows = [{"prompt": "ab", "answer": "c"}] * 50
    if suffix == "parquet":
        parquet.write_table(Table.from_pylist(rows), tmp_path / "rows.parquet")
    else:
        (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    path = tmp_path / f"rows.{suffix}"
    path.write_bytes(path.read_bytes()[: int(0.79 * path.stat().st_size)])
    result = relax("train", run_file(RUN.replace("source:", f"path: rows.{suffix}, reward: exact_match }} #")))
    assert result.code == 3
    assert said in told(result)
    assert "Traceback" not in result.err


def test_a_download_that_has_not_come_to_the_weights(model):
    directory, train = model
    (directory / "model.safetensors").unlink()
    result = train()
    assert result.code == 3
    assert told(result).startswith(f"error: model.path: '{directory}' cannot be loaded: ")


def test_a_download_of_some_of_the_parts(model):
    directory, train = model
    (directory / "model.safetensors").rename(directory / "model-00001-of-00002.safetensors")
    index = {
        "metadata": {},
        "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"},
    }
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    result = train()
    assert result.code == 3
    assert "model-00002-of-00002.safetensors" in told(result)
