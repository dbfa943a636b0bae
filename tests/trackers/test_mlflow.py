"""MLflow, by a store of files on this machine."""

from __future__ import annotations

import pytest
from mlflow.tracking import MlflowClient

from tests.cli.test_train import metrics
from tests.conftest import RUN


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A tracking URI without a server, and a client of it; MLflow wants it said that files are meant."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = f"file:{tmp_path}/store"
    return uri, MlflowClient(tracking_uri=uri)


def the_run(client):
    (run,) = client.search_runs([client.get_experiment_by_name("relax").experiment_id])
    return run


def history(client, run, name):
    return [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, name)]


def test_every_number_arrives_and_the_configuration_too(relax, run_file, tmp_path, store):
    uri, client = store
    result = relax("train", run_file(RUN), "--mlflow", uri, "--output.dir", "run", "--seed", 5)
    assert result.code == 0, result.err
    run, written = the_run(client), metrics(tmp_path / "run")
    for name in ("rollout/reward_mean", "train/loss"):
        assert history(client, run, name) == [(each["step"], each[name]) for each in written]
    assert run.data.params["trainer.seed"] == "5"
    assert run.info.status == "FINISHED"
    assert set(run.data.tags) == {"relax.run", "mlflow.runName"}


def test_a_run_that_goes_on_goes_on_there_too(relax, run_file, tmp_path, store):
    uri, client = store
    assert relax("train", run_file(RUN), "--mlflow", uri, "--output.dir", "run").code == 0
    result = relax("train", run_file(RUN), "--mlflow", uri, "--num-rollout", 3, "--resume", "run")
    assert result.code == 0, result.err
    expected = [(each["step"], each["train/loss"]) for each in metrics(tmp_path / "run")]
    assert history(client, the_run(client), "train/loss") == expected
    assert len(expected) == 3


def test_a_run_that_fails_is_shown_as_such(relax, run_file, tmp_path, store):
    uri, client = store
    (tmp_path / "reward.py").write_text("def reward(sample):\n    return 1 / 0\n")
    assert relax("train", run_file(RUN), "--mlflow", uri, "--data.reward", "reward.py:reward").code == 4
    assert the_run(client).info.status == "FAILED"


def test_no_secret_of_the_environment_is_told(relax, run_file, tmp_path, store, monkeypatch):
    uri, client = store
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789abcdef")
    arguments = ("--model.cache-dir", tmp_path / "hf_0123456789abcdef", "--output.dir", "run")
    assert relax("train", run_file(RUN), "--mlflow", uri, *arguments).code == 0
    assert the_run(client).data.params["model.cache_dir"] == f"{tmp_path}/$HF_TOKEN"
    written = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert len(written) > 100
    assert [path for path in written if b"hf_0123456789abcdef" in path.read_bytes()] == []


def test_a_store_that_there_is_not_is_refused(relax, run_file):
    result = relax("train", run_file(RUN), "--mlflow", "nonsense://here")
    assert result.code == 2
    assert "error: output.mlflow: cannot begin: " in result.err
    assert "Fix: set up what it needs, or leave it out" in result.err
