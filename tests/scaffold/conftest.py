"""A fresh virtual environment with this project's wheel, and the libraries of the present one beside it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from relax_core.scaffold import render
from tests.scaffold.environment import PACKAGES, ROOT, SOURCES, Sandbox, borrow, call, wheel_of


@pytest.fixture(scope="session")
def project_wheel(tmp_path_factory) -> Path:
    return wheel_of(ROOT, tmp_path_factory.mktemp("project"), SOURCES)


@pytest.fixture(scope="session")
def example_wheels(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("packages")
    return [wheel_of(source, folder) for source in sorted(PACKAGES.iterdir())]


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory, project_wheel) -> Sandbox:
    """With the project's wheel alone."""
    folder = tmp_path_factory.mktemp("sandbox")
    made = call(sys.executable, "-m", "venv", "--system-site-packages", folder)
    assert made.code == 0, made.err
    sandbox = Sandbox(folder)
    sandbox.pip("install", "--no-deps", "--quiet", project_wheel)
    borrow(folder)
    return sandbox


@pytest.fixture(scope="session")
def installed(sandbox, example_wheels):
    sandbox.pip("install", "--no-deps", "--quiet", *example_wheels)
    return sandbox


@pytest.fixture
def generated(tmp_path):
    """Write a package from the template."""

    def make(name: str, kind: str = "loss") -> Path:
        values = render.answers({"name": name, "kind": kind})
        render.write(values, tmp_path)
        return tmp_path / values["distribution"]

    return make
