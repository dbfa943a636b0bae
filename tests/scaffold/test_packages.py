"""Third-party packages for real: their wheels, and the project's, in a fresh virtual environment."""

from __future__ import annotations

import json
import zipfile

import pytest

from relax_core.scaffold import render
from tests.cli.transcripts import TWO_TURNS, recorded
from tests.scaffold.environment import EXAMPLES, PACKAGES, ROOT, flags, listed, wheel_of


def test_relax_comes_from_the_wheel_and_not_from_the_checkout(sandbox):
    done = sandbox.run(
        "python", "-c", "import relax_core, relax_plugins; print(relax_core.__file__, relax_plugins.__file__)"
    )
    assert all(path.startswith(str(sandbox.folder)) for path in done.out.split()), done


def test_the_wheel_holds_the_whole_template(project_wheel):
    inside, template = "relax_core/scaffold/template/", ROOT / "cookiecutter-algorithm"
    names = {name.removeprefix(inside) for name in zipfile.ZipFile(project_wheel).namelist() if name.startswith(inside)}
    files = {path.relative_to(template).as_posix() for path in template.rglob("*") if path.is_file()}
    assert names == {name for name in files if "__pycache__" not in name}


def test_they_are_listed_with_their_distributions(installed):
    found = listed(installed)
    for name in ("dr_grpo", "gmpo"):
        (plugin,) = found[name]
        facts = (plugin["status"], plugin["distribution"], plugin["version"], plugin["roles"])
        assert facts == ("loaded", f"relax-{name.replace('_', '-')}", "0.1.0", ["estimator", "loss"])
    assert found["grpo"][0]["distribution"] == "relax-rl"


@pytest.mark.parametrize("name", ["dr_grpo", "gmpo"])
def test_it_trains(installed, name, tmp_path, model_cache):
    done = installed.run("relax", "train", EXAMPLES / "tiny.yaml", *flags(name, tmp_path / "run", model_cache))
    assert done.code == 0, done.err
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(metrics) == 3
    assert any(row["train/grad_norm"] > 0 for row in metrics)
    assert f"relax-{name.replace('_', '-')}" in (tmp_path / "run" / "run.json").read_text()


@pytest.mark.parametrize("name", ["dr_grpo", "gmpo"])
def test_it_is_valid(installed, name):
    done = installed.run("relax", "plugins", "validate", name)
    assert done.code == 0, done.out + done.err


@pytest.mark.parametrize("name", ["dr_grpo", "gmpo"])
def test_its_own_tests_pass_there(installed, name):
    source = PACKAGES / f"relax-{name.replace('_', '-')}"
    done = installed.run("pytest", "-p", "no:cacheprovider", cwd=source)
    assert done.code == 0, done.out


def test_an_environment_is_found_and_valid_from_its_wheel(sandbox, generated, tmp_path):
    wheel = wheel_of(generated("word-hunt", "environment"), tmp_path)
    sandbox.pip("install", "--no-deps", "--quiet", "--target", tmp_path / "site", wheel)
    done = sandbox.run("relax", "plugins", "validate", "word_hunt", PYTHONPATH=str(tmp_path / "site"))
    assert (done.code, done.out) == (0, "word_hunt: 5 checks, 0 errors, 0 warnings\n"), done.err


def test_an_aggregation_that_changes_the_objective_is_refused(installed):
    done = installed.run("relax", "check", EXAMPLES / "tiny.yaml", "--advantage-estimator", "dr_grpo")
    assert done.code == 1
    assert "'token-mean' changes the objective of 'dr_grpo'. Fix: write seq-mean-token-sum-norm" in done.out


def test_the_installed_command_makes_a_package_from_the_template_in_the_wheel(sandbox, tmp_path):
    done = sandbox.run("relax", "new", "my-first", "--no-input", cwd=tmp_path)
    assert done.code == 0, done.err
    made = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert made == dict(render.files(render.answers({"name": "my-first"})))


def test_the_installed_command_writes_a_page_from_the_files_in_the_wheel(sandbox, tmp_path):
    recorded(tmp_path / "run", TWO_TURNS)
    done = sandbox.run("relax", "show", "run", "--html", "page.html", cwd=tmp_path)
    assert (done.code, done.out) == (0, "page.html\n"), done.err
    assert "tool calculator" in (tmp_path / "page.html").read_text()


def test_the_licence_of_a_new_package_is_the_projects():
    for path in (ROOT / "cookiecutter-algorithm" / render.ROOT, *PACKAGES.iterdir()):
        assert (path / "LICENSE").read_text() == (ROOT / "LICENSE").read_text(), path
