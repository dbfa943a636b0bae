"""`relax new`: what it refuses, asks and says."""

from __future__ import annotations

import tomllib

import pytest
from typer.testing import CliRunner

from relax_core.cli.app import app
from relax_core.scaffold import render
from relax_core.scaffold.names import LONGEST
from tests.scaffold.environment import ROOT

SHAPE = "not words of a-z and 0-9 joined by '-' or '_'"


@pytest.mark.parametrize(
    ("name", "why", "fix"),
    [
        ("LengthPenalty", SHAPE, "length-penalty"),
        ("2fast", SHAPE, "fast"),
        ("Class", SHAPE, "class-loss"),
        ("my algorithm", SHAPE, "my-algorithm"),
        ("my--algorithm", SHAPE, "my-algorithm"),
        ("my-algorithm-", SHAPE, "my-algorithm"),
        ("../escape", SHAPE, "escape"),
        ("größe", SHAPE, "gr-e"),
        ("!", SHAPE, "length-penalty"),
        ("a" * (LONGEST + 1), f"longer than {LONGEST} characters", None),
        ("relax-mine", "the package is called relax-… by itself", "mine"),
        ("lambda", "a word of Python's", "lambda-loss"),
        ("plugins", "a field of the run file's algorithm section", "my-plugins"),
        ("loss-agg-mode", "a field of the run file's algorithm section", "my-loss-agg-mode"),
        ("grpo", "an installed plugin has that name (relax plugins list)", "my-grpo"),
        ("ref-kl", "an installed plugin has that name (relax plugins list)", "my-ref-kl"),
        ("rl", "relax-rl is installed already", "my-rl"),
        ("core", "relax-core is installed already", "my-core"),
    ],
)
def test_a_name_that_is_refused(relax, tmp_path, name, why, fix):
    result = relax("new", name, "--no-input", "--output", tmp_path)
    remedy = f"write {fix}" if fix else "choose a shorter one"
    assert result.code == 2
    assert result.err == f"error: relax new: '{name}' cannot be the name: {why}. Fix: {remedy}\n"
    assert list(tmp_path.iterdir()) == []


def test_the_name_of_a_third_partys_plugin_is_refused(relax, tmp_path, install):
    """Even of one that cannot be loaded."""
    install("somebody", "sharpen", "raise OSError('broken')")
    result = relax("new", "sharpen", "--no-input", "--output", tmp_path / "here")
    assert result.code == 2
    assert "'sharpen' cannot be the name: an installed plugin has that name" in result.err


def test_the_name_of_an_installed_environment_is_refused(relax, tmp_path, install):
    install("somebody", "word_hunt", "async def generate(prompt, sampler): ...", group="relax.environments")
    result = relax("new", "word-hunt", "--kind", "environment", "--no-input", "--output", tmp_path / "here")
    why = "an installed environment has that name. Fix: write my-word-hunt"
    assert (result.code, result.err) == (2, f"error: relax new: 'word-hunt' cannot be the name: {why}\n")
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize("author", ['Jo "X" Doe', "back\\slash", "Ann, Bob", "two\nlines", " ", "{{ 1 }}"])
def test_an_author_that_no_metadata_can_hold(relax, tmp_path, author):
    result = relax("new", "mine", "--no-input", "--author", author, "--output", tmp_path)
    assert result.code == 2
    assert "cannot stand in a package's metadata. Fix: write one name, without" in result.err
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_kind(relax, tmp_path):
    result = relax("new", "mine", "--kind", "reward", "--no-input", "--output", tmp_path)
    assert result.code == 2
    fix = "Fix: one of: estimator-and-loss, loss, mask, weight, environment"
    assert result.err == f"error: relax new --kind: there is no kind 'reward'. {fix}\n"
    assert list(tmp_path.iterdir()) == []


def test_nothing_that_exists_is_written_over(relax, tmp_path):
    (tmp_path / "relax-mine").mkdir()
    result = relax("new", "mine", "--no-input", "--output", tmp_path)
    fix = "choose another name or another --output"
    assert (result.code, result.err) == (2, f"error: relax new: {tmp_path}/relax-mine exists already. Fix: {fix}\n")
    assert list((tmp_path / "relax-mine").iterdir()) == []


def test_an_output_that_is_a_file(relax, tmp_path):
    (tmp_path / "file").touch()
    result = relax("new", "mine", "--no-input", "--output", tmp_path / "file")
    message = f"error: relax new --output: {tmp_path}/file is not a directory. Fix: name a directory\n"
    assert (result.code, result.err) == (2, message)


def test_it_asks_for_what_is_not_given(tmp_path):
    answers = "sharpen\nweight\nAnn O'Neil\n"
    result = CliRunner().invoke(app, ["new", "--output", str(tmp_path)], input=answers)
    assert result.exit_code == 0, result.output
    assert result.stderr.replace(": ", ":") == (
        "Name [my-algorithm]:"
        "Kind (estimator-and-loss, loss, mask, weight, environment) [estimator-and-loss]:"
        "Author [The authors of sharpen]:"
    )
    project = tomllib.loads((tmp_path / "relax-sharpen" / "pyproject.toml").read_text())["project"]
    assert project["authors"] == [{"name": "Ann O'Neil"}]
    assert "def post_loss_weight" in (tmp_path / "relax-sharpen/src/relax_sharpen/__init__.py").read_text()


def test_a_bad_name_ends_the_questions(tmp_path):
    result = CliRunner().invoke(app, ["new", "--output", str(tmp_path)], input="grpo\n")
    assert "'grpo' cannot be the name" in str(result.exception)
    assert "Kind" not in result.stderr


def test_no_answer(tmp_path):
    result = CliRunner().invoke(app, ["new", "mine", "--kind", "loss", "--output", str(tmp_path)], input="")
    fix = "Fix: give NAME, --kind and --author, or --no-input"
    assert str(result.exception) == f"relax new: no answer to 'Author'; nothing was written. {fix}"
    assert list(tmp_path.iterdir()) == []


def test_it_prints_the_next_three_commands(relax, tmp_path):
    result = relax("new", "mine", "--no-input", "--output", tmp_path)
    assert result.out.splitlines() == [
        f"{tmp_path}/relax-mine: estimator-and-loss 'mine'. Next:",
        f"  cd {tmp_path}/relax-mine",
        "  pip install --editable '.[dev]'",
        "  pytest",
    ]


def test_an_environment_is_one_of_the_entry_points(relax, tmp_path):
    result = relax("new", "word-hunt", "--kind", "environment", "--no-input", "--output", tmp_path)
    assert result.out.splitlines()[0] == f"{tmp_path}/relax-word-hunt: environment 'word_hunt'. Next:"
    project = tomllib.loads((tmp_path / "relax-word-hunt" / "pyproject.toml").read_text())["project"]
    assert project["entry-points"] == {"relax.environments": {"word_hunt": "relax_word_hunt"}}
    assert project["description"] == "word_hunt, an environment for relax"


def test_the_package_records_the_version_of_its_template(relax, tmp_path):
    relax("new", "mine", "--no-input", "--output", tmp_path)
    settings = tomllib.loads((tmp_path / "relax-mine" / "pyproject.toml").read_text())
    assert settings["tool"]["relax"] == {"template": render.template_version()}


def test_the_template_in_the_package_is_the_folder_at_the_top():
    assert render.TEMPLATE.resolve() == ROOT / "cookiecutter-algorithm"
