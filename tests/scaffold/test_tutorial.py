"""The tutorial, followed to the letter: every command in one shell, in a new virtual environment."""

from __future__ import annotations

import re
import sys

import pytest

from relax_core.scaffold import render
from tests.scaffold.environment import ROOT, SOURCES, borrow, call, copy_of

PAGE = (ROOT / "docs" / "tutorial.md").read_text()
BLOCK = re.compile(r"(?:<!-- file: (\S+) -->\n)?```(\w+)\n(.*?)```\n", re.DOTALL)
ACTIVATE = ". venv/bin/activate\n"


def script() -> str:
    """The page as a shell script that writes its files where the text says so."""
    parts = []
    for path, language, text in BLOCK.findall(PAGE):
        parts.append(text if language == "bash" else f"cat > {path} <<'END-OF-FILE'\n{text}END-OF-FILE\n")
    return "".join(parts)


@pytest.fixture(scope="module")
def followed(tmp_path_factory, model_cache):
    """What the commands wrote, and where."""
    folder = tmp_path_factory.mktemp("tutorial")
    checkout = copy_of(ROOT, folder / "relax", (*SOURCES, "constraints.txt", "examples"))
    tiny = checkout / "examples" / "tiny.yaml"
    tiny.write_text(tiny.read_text().replace("tiny_model.py:build", f"tiny_model.py:build\n  cache_dir: {model_cache}"))
    before, after = script().split(ACTIVATE)
    made = call("bash", "-euc", before, cwd=folder)
    assert made.code == 0, made.err
    borrow(folder / "venv")
    done = call("bash", "-euc", ACTIVATE + after, cwd=folder)
    assert done.code == 0, done.out + done.err
    return folder, done


def test_every_block_is_either_a_command_or_a_file():
    kinds = [(bool(path), language) for path, language, _ in BLOCK.findall(PAGE)]
    assert len(kinds) * 2 == PAGE.count("```")
    assert set(kinds) == {(False, "bash"), (True, "python")}


def test_every_command_exists(relax):
    names = set(re.findall(r"^relax ((?:plugins )?[a-z]+)", script(), re.MULTILINE))
    assert len(names) > 5
    for words in names:
        assert relax(*words.split(), "--help").code == 0, words


def test_its_algorithm_passes_the_tests_that_it_writes(tmp_path):
    """In the package that `relax new` makes, without the installation around it."""
    render.write(render.answers({"name": "half-blame"}), tmp_path)
    package = tmp_path / "relax-half-blame"
    for path, _, text in BLOCK.findall(PAGE):
        if path:
            (package / path).write_text(text)
    pip = (sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", "--target", tmp_path / "site")
    assert call(*pip, package).code == 0
    done = call(sys.executable, "-m", "pytest", cwd=package, PYTHONPATH=str(tmp_path / "site"))
    assert done.code == 0, done.out


@pytest.mark.slow
def test_it_ends_with_a_trained_algorithm_that_is_installed(followed):
    folder, done = followed
    run = folder / "relax-half-blame" / "run"
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 3
    assert "blame: 0.25" in (run / "config.yaml").read_text()
    assert (run / "curves.png").stat().st_size > 0
    last = done.out[done.out.rindex("NAME ") :]
    assert re.search(r"^half_blame +loaded +estimator\+loss +relax-half-blame 0\.1\.0 ", last, re.MULTILINE)


@pytest.mark.slow
def test_its_own_tests_were_run_and_passed(followed):
    assert re.search(r"^[0-9]+ passed", followed[1].out, re.MULTILINE)


@pytest.mark.slow
def test_relax_was_the_one_that_the_tutorial_installed(followed):
    folder, _ = followed
    where = call(folder / "venv" / "bin" / "python", "-c", "import relax_core; print(relax_core.__file__)", cwd=folder)
    assert where.out.startswith(str(folder / "venv"))
