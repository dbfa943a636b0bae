"""Each kind of package is green as generated."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from relax_core.registry import Registry
from relax_core.scaffold import render
from relax_core.scaffold.names import LONGEST
from tests.scaffold.environment import ROOT, call

ROLES = {"estimator-and-loss": ["estimator", "loss"], "loss": ["loss"], "mask": ["component"], "weight": ["component"]}
KINDS = (*ROLES, "environment")
TOOLS = {
    "ruff check": ("ruff", "check", "--no-cache", "."),
    "ruff format": ("ruff", "format", "--no-cache", "--check", "."),
    "mypy": ("mypy", "--follow-imports", "silent"),
}


@pytest.fixture(scope="module")
def packages(tmp_path_factory) -> dict[str, Path]:
    """One package of each kind."""
    folder = tmp_path_factory.mktemp("packages")
    for kind in KINDS:
        render.write(render.answers({"name": f"new-{kind}", "kind": kind}), folder)
    return {kind: folder / f"relax-new-{kind}" for kind in KINDS}


@pytest.fixture(scope="module")
def site(packages, tmp_path_factory) -> Path:
    """All of them installed in one directory."""
    folder = tmp_path_factory.mktemp("site")
    pip = (sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", "--target", folder)
    done = call(*pip, *packages.values())
    assert done.code == 0, done.err
    return folder


def test_these_are_the_kinds_of_the_template():
    assert render.questions()["kind"] == list(KINDS)


@pytest.mark.parametrize("kind", ROLES)
def test_it_is_found_by_discovery(kind, site, monkeypatch):
    monkeypatch.syspath_prepend(str(site))
    name = f"new_{kind.replace('-', '_')}"
    (plugin,) = [each for each in Registry.load().plugins if each.name == name]
    assert (plugin.status, plugin.origin) == ("loaded", f"relax-new-{kind} 0.1.0")
    assert list(plugin.spec.roles) == ROLES[kind]
    documented = [field.description for field in plugin.spec.config.model_fields.values()]
    assert documented
    assert all(documented)


def test_an_environment_is_found_by_its_name(relax, site, run_file, monkeypatch):
    monkeypatch.syspath_prepend(str(site))
    validated = relax("plugins", "validate", "new_environment")
    assert (validated.code, validated.out) == (0, "new_environment: 5 checks, 0 errors, 0 warnings\n")
    hint = '{hint: "Write a call, or the answer. "}'
    checked = relax("check", run_file(), "--environment", "new_environment", "--rollout.environment.args", hint)
    assert checked.code == 0, checked.out
    assert "new_environment" not in [each.name for each in Registry.load().plugins]


@pytest.mark.parametrize("kind", KINDS)
def test_its_own_tests_pass(kind, packages, site):
    done = call(
        *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider"),
        cwd=packages[kind],
        PYTHONPATH=f"{site}:{ROOT}",
    )
    assert done.code == 0, done.out


@pytest.fixture(scope="module")
def mypy_cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("mypy")


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("kind", KINDS)
def test_its_code_is_clean(kind, tool, packages, mypy_cache):
    command, *arguments = TOOLS[tool]
    paths = {"MYPYPATH": str(ROOT), "MYPY_CACHE_DIR": str(mypy_cache)}
    done = call(sys.executable, "-m", command, *arguments, cwd=packages[kind], **paths)
    assert done.code == 0, done.out


@pytest.mark.parametrize("name", ["a", "a" * LONGEST])
@pytest.mark.parametrize("kind", KINDS)
def test_the_length_of_a_name_moves_no_line_break(kind, name, tmp_path):
    render.write(render.answers({"name": name, "kind": kind}), tmp_path)
    for tool in ("ruff check", "ruff format"):
        done = call(sys.executable, "-m", *TOOLS[tool], cwd=tmp_path / f"relax-{name}")
        assert done.code == 0, done.out
