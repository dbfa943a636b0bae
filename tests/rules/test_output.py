"""What the metrics are to be sent to is there before a run starts."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec

import pytest

from relax_core.rules.output import NEEDS


@pytest.mark.parametrize(
    ("flags", "module", "extra"),
    [
        (("--wandb", "offline"), "wandb", "wandb"),
        (("--mlflow", "http://127.0.0.1:5000"), "mlflow", "mlflow"),
        (("--prometheus-port", 0), "prometheus_client", "prometheus"),
    ],
)
def test_a_tracker_that_is_not_installed(relax, run_file, monkeypatch, flags, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    result = relax("train", run_file(), *flags)
    assert result.code == 1
    setting = f"output.{flags[0].removeprefix('--').replace('-', '_')}"
    assert result.err == (
        f"error: RLX116 {setting}: {module} is not installed. Fix: pip install 'relax-rl[{extra}]', or leave it out\n"
    )


def test_a_directory_of_that_name_is_no_module(relax, run_file, tmp_path, monkeypatch):
    (tmp_path / "bare_directory").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_spec("bare_directory") is not None
    monkeypatch.setitem(NEEDS, "wandb", ("bare_directory", "wandb"))
    found = json.loads(relax("check", run_file(), "--wandb", "offline", "--json").out)["findings"]
    assert [each["code"] for each in found] == ["RLX116"]


def test_nothing_is_missing_where_nothing_is_asked_for(relax, run_file, monkeypatch):
    for module in ("wandb", "mlflow", "prometheus_client"):
        monkeypatch.setitem(sys.modules, module, None)
    assert relax("check", run_file()).code == 0


def test_two_ways_of_weights_and_biases_and_no_other(relax, run_file):
    result = relax("check", run_file(), "--wandb", "sometimes")
    assert result.code == 2
    assert "output.wandb: should be 'online' or 'offline', not 'sometimes'" in result.err
