"""Packages built and installed for real, without a network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import EXAMPLES, Result

ROOT = Path(__file__).parents[2]
PACKAGES = EXAMPLES / "packages"
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
"""No network: what pip needs is there. (A 0 switches the isolation off.)"""
SOURCES = ("relax_core", "relax_plugins", "cookiecutter-algorithm", "pyproject.toml", "README.md", "LICENSE")
TOOLS = ("mypy", "pytest")
AGGREGATION = {"dr_grpo": "seq-mean-token-sum-norm", "gmpo": "seq-mean-token-mean"}
SMALL = ("--num-rollout", 3, "--rollout-batch-size", 2, "--n-samples-per-prompt", 4)
LEFTOVERS = shutil.ignore_patterns("__pycache__", ".*_cache", "*.egg-info", "build")


def call(*command: object, cwd: Path | None = None, **environment: str) -> Result:
    """Run a command as a user would, with these environment variables."""
    variables = {**os.environ, **OFFLINE, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=variables, capture_output=True, text=True)
    return Result(done.returncode, done.stdout, done.stderr)


def copy_of(source: Path, target: Path, names: tuple[str, ...] = ()) -> Path:
    """Copy a package's sources, so that a build writes nothing beside them; `names` leaves out the others."""
    target.mkdir(parents=True)
    for name in names or [each.name for each in source.iterdir() if not each.name.endswith("_cache")]:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, symlinks=True, ignore=LEFTOVERS)
        else:
            shutil.copy(source / name, target / name)
    return target


def wheel_of(source: Path, folder: Path, names: tuple[str, ...] = ()) -> Path:
    """Build a wheel in `folder`."""
    copy = copy_of(source, folder / "source" / source.name, names)
    before = set(folder.glob("*.whl"))
    built = call(sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", folder, copy)
    assert built.code == 0, built.err
    (wheel,) = set(folder.glob("*.whl")) - before
    return wheel


@dataclass(frozen=True)
class Sandbox:
    """A virtual environment. Nothing that runs in it sees the checkout."""

    folder: Path

    def run(self, command: str, *arguments: object, cwd: Path | None = None, **environment: str) -> Result:
        """Run one of its commands."""
        return call(self.folder / "bin" / command, *arguments, cwd=cwd or self.folder, **environment)

    def pip(self, *arguments: object) -> Result:
        done = self.run("python", "-m", "pip", *arguments)
        assert done.code == 0, done.err
        return done


def borrow(folder: Path) -> None:
    """Let an environment use the libraries and tools of the present one, as if they had been installed there.

    What a `.pth` file names is searched last, and the editable install there is not followed. The setuptools that came
    with the environment is too old for torch and would hide the present one.
    """
    call(folder / "bin" / "python", "-m", "pip", "uninstall", "--yes", "setuptools")
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "beside.pth").write_text(sysconfig.get_path("purelib"))
    for tool in TOOLS:
        script = folder / "bin" / tool
        script.write_text(f"#!{folder}/bin/python\nimport runpy\nrunpy.run_module('{tool}', run_name='__main__')\n")
        script.chmod(0o755)
    (folder / "bin" / "ruff").symlink_to(Path(sys.executable).parent / "ruff")


def listed(sandbox: Sandbox, **environment: str) -> dict[str, list[dict]]:
    """Every plugin that the sandbox lists, by name; several of one name are a list."""
    done = sandbox.run("relax", "plugins", "list", "--json", **environment)
    assert done.code == 0, done.err
    found = {}
    for plugin in json.loads(done.out)["plugins"]:
        found.setdefault(plugin["name"], []).append(plugin)
    return found


def flags(name: str, folder: Path, cache: Path) -> tuple[object, ...]:
    """Of a small run of an example package's algorithm."""
    return (
        *("--advantage-estimator", name, "--loss-agg-mode", AGGREGATION[name]),
        *(*SMALL, "--output.dir", folder, "--cache-dir", cache),
    )
