"""What many tests need: plugins, run files, and the command line in this process."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import textwrap
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from relax_core.cli.app import main
from relax_core.registry import Registry
from tests.ledger import ledger, pytest_runtest_logreport, pytest_sessionfinish  # noqa: F401

EXTRAS = {
    "browser": ("playwright", "tests/browser"),
    "megatron": ("megatron.core", "tests/megatron"),
    "mlflow": ("mlflow", "tests/trackers/test_mlflow.py"),
    "ray": ("ray", "tests/ray"),
    "verifiers": ("verifiers", "tests/environments/verifiers"),
    "wandb": ("wandb", "tests/trackers/test_wandb.py"),
}
"""What the tests of a directory or a file need: an extra, and a module that is there once it is installed."""


PROGRAMS = {"browser": "chromium"}
"""What such tests run beside it."""


def missing_extras() -> dict[str, str]:
    """The extras that are not installed, or whose program is not, and the tests that need them."""
    return {
        name: place
        for name, (module, place) in EXTRAS.items()
        if not _has(module) or shutil.which(PROGRAMS.get(name, sys.executable)) is None
    }


def _has(module: str) -> bool:
    return find_spec(module.partition(".")[0]) is not None and find_spec(module) is not None


def pytest_ignore_collect(collection_path):
    """Tests of an extra that is not installed are no tests of this environment: not skipped, and said once."""
    root = Path(__file__).parents[1]
    return any(collection_path == root / place for place in missing_extras().values()) or None


def pytest_sessionstart(session):
    """Not `pytest_report_header`, which a quiet run leaves out."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(session.config, "workerinput"):
        for name, place in missing_extras().items():
            program = f" or {PROGRAMS[name]}" if name in PROGRAMS else ""
            reporter.write_line(f"{place}: not collected, the extra '{name}'{program} is not installed")


VECTORS = Path(__file__).parent / "vectors"
HAS_VLLM = importlib.util.find_spec("vllm") is not None
collect_ignore = [] if HAS_VLLM else ["vllm"]


def pytest_terminal_summary(terminalreporter):
    """A quiet run has no header, so what was not collected stands at its end."""
    if not HAS_VLLM:
        terminalreporter.write_line("tests/vllm was left out: vLLM is not installed (make vllm)")


@pytest.fixture(scope="session")
def registry() -> Registry:
    return Registry.load()


@pytest.fixture
def plugin_file(tmp_path):
    """Write a plugin file and give its path."""

    def write(source: str, name: str = "mine.py") -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(source))
        return path

    return write


def load_cases(matches) -> list[dict]:
    """The golden vectors for which `matches(case)` is true."""
    cases = [json.loads(path.read_text()) for path in sorted(VECTORS.glob("*.json"))]
    return [case for case in cases if matches(case)]


EXAMPLES = Path(__file__).parents[1] / "examples"

RUN = f"""
model: {{path: "{EXAMPLES}/tiny_model.py:build", cache_dir: CACHE}}
data: {{source: "{EXAMPLES}/tiny_task.py:examples", reward: "{EXAMPLES}/tiny_task.py:reward"}}
rollout: {{rollout_batch_size: 2, n_samples_per_prompt: 4, max_new_tokens: 4}}
trainer: {{num_rollout: 2, lr: 1e-3}}
output: {{tensorboard: false}}
"""


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


@pytest.fixture
def relax(capsys, tmp_path, monkeypatch):
    """Run the console script's function with these arguments, in a directory of the test's own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Result:
        with pytest.raises(SystemExit) as exit_:
            main([str(each) for each in arguments])
        captured = capsys.readouterr()
        return Result(int(exit_.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def model_cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def run_file(tmp_path, model_cache):
    """Write a run file; without text, a small one that works."""

    def write(text: str = RUN, name: str = "run.yaml") -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text).replace("CACHE", str(model_cache)))
        return path

    return write


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a distribution with one plugin on the path, as pip would, or with something else of another group."""

    def put(distribution: str, name: str, source: str, version: str = "1.0", group: str = "relax.plugins") -> None:
        site = tmp_path / f"site-{distribution}"
        info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        module = f"{distribution.replace('-', '_')}_plugin"
        (site / f"{module}.py").write_text(textwrap.dedent(source))
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}\n")
        monkeypatch.delitem(sys.modules, module, raising=False)
        monkeypatch.syspath_prepend(str(site))

    return put
