"""Generated configurations, flags, datasets and plugin files: an exit code and a message, never a traceback."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relax_core.cli.app import main
from relax_core.config import DataSection
from relax_core.data.examples import load_examples
from relax_core.data.prompts import PromptSource
from relax_core.engines.hf_model import load_tokenizer
from relax_core.errors import LoadError, UsageError
from relax_core.orchestration.model_path import model_directory
from tests.cli.test_bad_input import PLUGIN
from tests.conftest import EXAMPLES, RUN

CONFIGURATIONS, FLAGS, DATASETS, PLUGINS = 900, 300, 600, 300
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)
ANY_BYTES = st.binary(max_size=200)


def fuzz(examples):
    """How the slow suite runs these: the same inputs every time."""
    health = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(max_examples=examples, deadline=None, derandomize=True, database=None, suppress_health_check=health)


@dataclass(frozen=True)
class Ending:
    code: int
    out: str
    err: str


@contextlib.contextmanager
def tried(ledger):
    """One input; an exception that nothing caught is a traceback."""
    ledger.update(inputs=1, tracebacks=0)
    try:
        yield
    except AssertionError:
        raise
    except Exception:
        ledger["tracebacks"] += 1
        raise


def run(ledger, *arguments: object) -> Ending:
    """The console script; anything that it lets through but an exit is a traceback, and fails the test."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main([str(each) for each in arguments])
    ledger["tracebacks"] += "Traceback" in err.getvalue()
    return Ending(int(ended.value.code or 0), out.getvalue(), err.getvalue())


def assert_told(ending: Ending, *codes: int) -> None:
    """One of these exit codes, and a message with any but 0."""
    assert ending.code in codes, (ending.code, ending.err)
    assert ending.code == 0 or ending.err.strip() or ending.out.strip()
    assert "Traceback" not in ending.err


def places(tree, path=()):
    """Every path in a tree of mappings."""
    for key, value in tree.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from places(value, (*path, key))


def home(tree, path):
    for key in path[:-1]:
        tree = tree[key]
    return tree


GOOD = yaml.safe_load(RUN) | {
    "algorithm": {"advantage_estimator": "grpo", "is_correction": {"enable": True, "upper_bound": 2.0}},
    "topology": {"context_parallel_size": 1},
}


@fuzz(CONFIGURATIONS)
@given(
    seed=st.integers(0, 2**32),
    value=VALUES,
    kind=st.sampled_from(["replace", "typo", "drop", "add", "bytes"]),
    raw=ANY_BYTES,
)
@pytest.mark.slow
@pytest.mark.ledger("run files: values, names and sections changed at random, and random bytes")
def test_configurations(tmp_path, ledger, seed, value, kind, raw):
    draw, tree, path = random.Random(seed), copy.deepcopy(GOOD), tmp_path / "run.yaml"
    place = draw.choice(list(places(tree)))
    parent = home(tree, place)
    misspelt = f"{place[-1]}_{draw.choice('xyz')}"
    if kind == "replace":
        parent[place[-1]] = value
    elif kind == "typo":
        parent[misspelt] = parent.pop(place[-1])
    elif kind == "drop":
        del parent[place[-1]]
    elif kind == "add":
        parent[misspelt] = value
    path.write_bytes(raw if kind == "bytes" else yaml.safe_dump(tree, allow_unicode=True).encode())
    with tried(ledger):
        ending = run(ledger, "check", path)
    assert_told(ending, 0, 1, 2, 3)
    if kind in ("typo", "add", "bytes"):
        assert ending.code == 2, "a name that there is not was taken"


@fuzz(FLAGS)
@given(
    words=st.lists(
        st.sampled_from(
            [
                "--lr",
                "--eps-clip",
                "--engine",
                "--trainer.engine",
                "--use-tis",
                "--no-use-tis",
                "--nope",
                "--",
                "-x",
                "=",
                "--lr=",
                "--stop",
                "--task-args",
                "--algorithm.opd.enable",
                "--plugin",
                "--json",
                "--top-k=3",
            ]
        )
        | st.text(max_size=6),
        max_size=4,
    )
)
@pytest.mark.slow
@pytest.mark.ledger("flags of `relax check`: known ones, unknown ones, without values, random text")
def test_flags(tmp_path, ledger, words):
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(GOOD))
    with tried(ledger):
        assert_told(run(ledger, "check", path, *words), 0, 1, 2, 3)


ROW = st.dictionaries(st.sampled_from(["prompt", "answer", "id", "metadata", "x"]), VALUES, max_size=4)
LINE = ROW.map(json.dumps) | VALUES.map(json.dumps) | st.text(max_size=20)
MESSAGES = st.lists(st.dictionaries(st.sampled_from(["role", "content"]), VALUES, max_size=2), max_size=3)


@pytest.fixture(scope="module")
def tokenizer(model_cache):
    path = model_directory(f"{EXAMPLES}/tiny_model.py:build", who="model.path", base=Path(), cache=model_cache)
    return load_tokenizer(path, who="model.path", trust_remote_code=False)


@fuzz(DATASETS)
@given(
    lines=st.lists(LINE | MESSAGES.map(lambda each: json.dumps({"prompt": each, "answer": 1})), max_size=4),
    raw=ANY_BYTES,
    kind=st.sampled_from([".jsonl", ".parquet", ".csv", "bytes"]),
)
@pytest.mark.slow
@pytest.mark.ledger("datasets: JSON lines, Parquet and CSV of random rows and random bytes")
def test_datasets(tmp_path, ledger, tokenizer, lines, raw, kind):
    path = tmp_path / f"rows{'.jsonl' if kind == 'bytes' else kind}"
    path.write_bytes(raw if kind != ".jsonl" else "\n".join(lines).encode("utf-8", "surrogatepass"))
    data = DataSection(path=str(path))
    with tried(ledger), contextlib.suppress(UsageError, LoadError):
        PromptSource(load_examples(data, tmp_path), tokenizer, data, 0, 100)


SOURCE = PLUGIN.format(name="mine")
ENDINGS = (
    "raise SystemExit(7)",
    "import sys; sys.exit()",
    "1 / 0",
    "hookimpl = None",
    "algorithm = 3",
    "del algorithm",
    "import nowhere",
    "\x00",
    "algorithm = lambda: None",
    "def algorithm(): yield 1",
)


@fuzz(PLUGINS)
@given(
    seed=st.integers(0, 2**32), kind=st.sampled_from(["drop", "swap", "cut", "end", "text"]), text=st.text(max_size=40)
)
@pytest.mark.slow
@pytest.mark.ledger("plugin files: lines dropped, swapped and cut, endings that exit or break, random text")
def test_plugin_files(tmp_path, ledger, seed, kind, text):
    draw, lines = random.Random(seed), SOURCE.splitlines()
    i, j = draw.randrange(len(lines)), draw.randrange(len(lines))
    if kind == "drop":
        del lines[i]
    elif kind == "swap":
        lines[i], lines[j] = lines[j], lines[i]
    elif kind == "cut":
        lines[i] = lines[i][: draw.randrange(1 + len(lines[i]))]
    elif kind == "end":
        lines.append(draw.choice(ENDINGS))
    path = tmp_path / "mine.py"
    path.write_text("\n".join(lines) if kind != "text" else text, encoding="utf-8", errors="surrogatepass")
    run_file = tmp_path / "run.yaml"
    run_file.write_text(yaml.safe_dump(GOOD))
    with tried(ledger):
        assert_told(run(ledger, "plugins", "list", "--plugin", path), 0, 3)
        assert_told(run(ledger, "plugins", "validate", path, "--tier", "static"), 0, 1, 3, 5)
        assert_told(run(ledger, "check", run_file, "--plugin", path), 0, 1, 2, 3)
