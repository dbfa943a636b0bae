"""Model directories: given, or built once."""

from __future__ import annotations

from pathlib import Path

import pytest

from relax_core.errors import LoadError
from relax_core.orchestration.model_path import model_directory

BUILDER = """
def build(directory):
    (directory / "config.json").write_text("{}")
    with open(__file__ + ".calls", "a") as calls:
        calls.write("x")
"""


@pytest.fixture
def build(tmp_path):
    """Write a builder and find its model; gives the directory and how often the builder was called."""

    def find(source: str = BUILDER, name: str = "builder.py") -> tuple[Path, int]:
        (tmp_path / name).write_text(source)
        found = model_directory(f"{name}:build", who="model.path", base=tmp_path, cache=tmp_path / "cache")
        return found, len((tmp_path / f"{name}.calls").read_text())

    return find


def test_a_builder_is_called_once(build, tmp_path):
    directory, calls = build()
    assert (directory / "config.json").is_file()
    assert build() == (directory, calls) == (directory, 1)
    assert list((tmp_path / "cache").iterdir()) == [directory]


def test_another_builder_has_another_directory(build):
    assert build()[0] != build(BUILDER + "# changed\n", "other.py")[0]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "def build(directory):\n    1 / 0\n",
            "'builder.py:build' raised ZeroDivisionError: division by zero (builder.py:2)",
        ),
        ("def build(directory):\n    pass\n", "has no config.json"),
    ],
)
def test_a_builder_that_fails_leaves_nothing_behind(tmp_path, source, reason):
    (tmp_path / "builder.py").write_text(source)
    with pytest.raises(LoadError) as caught:
        model_directory("builder.py:build", who="model.path", base=tmp_path, cache=tmp_path / "cache")
    assert reason in caught.value.message
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_build_that_another_process_finished_first_is_kept(tmp_path):
    race = """
from pathlib import Path
def build(directory):
    (directory / "config.json").write_text("mine")
    theirs = directory.parents[1] / directory.name
    theirs.mkdir()
    (theirs / "config.json").write_text("theirs")
"""
    (tmp_path / "builder.py").write_text(race)
    found = model_directory("builder.py:build", who="model.path", base=tmp_path, cache=tmp_path / "cache")
    assert (found / "config.json").read_text() == "theirs"
    assert list((tmp_path / "cache").iterdir()) == [found]


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "builder.py").write_text(BUILDER)
    (tmp_path / "file").touch()
    with pytest.raises(LoadError, match=r"model\.cache_dir: '.*' cannot be written: (Not a directory|File exists)"):
        model_directory("builder.py:build", who="model.path", base=tmp_path, cache=tmp_path / "file" / "cache")


def test_a_directory_is_found_beside_the_run_file(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").touch()
    assert model_directory("model", who="model.path", base=tmp_path, cache=tmp_path) == tmp_path / "model"
