"""Callables by name: what resolves, and what each mistake says."""

from __future__ import annotations

import pickle
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from relax_core import references
from relax_core.errors import LoadError
from relax_core.references import load_callable

FILE = """
from dataclasses import dataclass

@dataclass
class Point:
    x: int

def make(x):
    return Point(x)

LIMIT = 3
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(FILE)
    return tmp_path


def message(reference: str, base: Path, group: str | None = None) -> str:
    with pytest.raises(LoadError) as caught:
        load_callable(reference, who="data.reward", base=base, group=group)
    return caught.value.message


def install(monkeypatch: pytest.MonkeyPatch, **names: str) -> None:
    entries = [EntryPoint(name, value, "relax.rewards") for name, value in names.items()]
    monkeypatch.setattr(references, "entry_points", lambda group: entries if group == "relax.rewards" else [])


def test_an_installed_name_comes_first(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, size="builtins:len")
    assert load_callable("size", who="data.reward", base=base, group="relax.rewards") is len


def test_a_module_function(base: Path) -> None:
    assert load_callable("os.path:basename", who="data.reward", base=base)("a/b") == "b"


def test_a_file_is_found_from_the_run_file_and_its_objects_pickle(base: Path) -> None:
    point = load_callable("mine.py:make", who="data.source", base=base)(3)
    assert pickle.loads(pickle.dumps(point)) == point


def test_a_file_is_found_from_the_working_directory(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(base)
    assert load_callable("mine.py:make", who="data.source", base=base / "elsewhere")(3).x == 3


def test_the_run_files_directory_goes_before_the_working_directory(
    base: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "mine.py").write_text("def make(x): return 'wrong file'")
    monkeypatch.chdir(other)
    assert load_callable("mine.py:make", who="data.source", base=base)(3).x == 3


def test_a_file_knows_where_it_is(base: Path) -> None:
    (base / "where.py").write_text("def where():\n    return __file__\n")
    assert load_callable("where.py:where", who="data.source", base=base)() == str(base / "where.py")


def test_files_of_one_name_are_two_modules(base: Path) -> None:
    (base / "sub").mkdir()
    (base / "sub" / "mine.py").write_text("def make(x): return -x")
    first, second = (load_callable(f"{name}:make", who="w", base=base) for name in ("mine.py", "sub/mine.py"))
    assert (first(1).x, second(1)) == (1, -1)


def test_a_misspelt_name_says_the_nearest(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, exact_match="builtins:len", math="builtins:abs")
    assert message("exact_mach", base, "relax.rewards") == (
        "data.reward: 'exact_mach' is not an installed name of relax.rewards. Fix: did you mean 'exact_match'? "
        "Otherwise write `path/to/file.py:function` or `package.module:function`, or one of exact_match, math"
    )


def test_a_name_without_a_group(base: Path) -> None:
    assert message("make", base) == (
        "data.reward: 'make' names no function. Fix: write `path/to/file.py:function` or `package.module:function`"
    )


def test_a_broken_entry_point_is_named(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, broken="os:no_such_thing")
    text = message("broken", base, "relax.rewards")
    assert text.startswith("data.reward: 'broken' of os:no_such_thing could not be loaded: AttributeError: ")


def test_a_missing_file(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(base)
    assert message("yours.py:make", base) == (
        f"data.reward: there is no file yours.py in {base}. Fix: correct the path 'yours.py'"
    )


def test_a_missing_function_says_the_nearest(base: Path) -> None:
    expected = "data.reward: 'mine.py' has no function 'mak'. Fix: did you mean 'make'?"
    assert message("mine.py:mak", base) == expected


def test_a_missing_function_says_what_there_is(base: Path) -> None:
    text = message("mine.py:zzz", base)
    assert text.endswith("has no function 'zzz'. Fix: it has Point, dataclass, make")


def test_something_that_cannot_be_called(base: Path) -> None:
    expected = "data.reward: 'mine.py:LIMIT' is of type int and cannot be called. Fix: name a function"
    assert message("mine.py:LIMIT", base) == expected


def test_a_file_that_raises_is_named_with_its_line(base: Path) -> None:
    (base / "raises.py").write_text("import json\n\njson.loads('{')\n")
    text = message("raises.py:f", base)
    assert text.startswith(f"data.reward: {base / 'raises.py'}:3 raised JSONDecodeError: Expecting property name")
    assert text.endswith("Fix: correct the file")


def test_a_file_that_does_not_parse_is_named_with_its_line(base: Path) -> None:
    (base / "typo.py").write_text("x = 1\ndef f(:\n")
    assert message("typo.py:f", base) == (
        f"data.reward: {base / 'typo.py'}:2 raised SyntaxError: invalid syntax. Fix: correct the file"
    )


def test_a_file_that_raised_is_read_again_once_corrected(base: Path) -> None:
    (base / "later.py").write_text("raise ValueError('not yet')")
    message("later.py:f", base)
    (base / "later.py").write_text("def f():\n    return 'corrected'\n")
    assert load_callable("later.py:f", who="w", base=base)() == "corrected"


def test_a_missing_module(base: Path) -> None:
    assert message("no_such_module.rewards:f", base) == (
        "data.reward: there is no module 'no_such_module'. Fix: install the package that holds it, "
        "or write `path/to/file.py:function` or `package.module:function`"
    )


def test_a_missing_module_of_an_extra_names_the_extra(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(references.sys.modules, "math_verify", None)
    assert message("math_verify:verify", base) == (
        "data.reward: 'math_verify' needs the package math-verify, which is not installed. "
        "Fix: install with pip install 'relax-rl[math]'"
    )


def test_a_file_that_imports_a_missing_extra_names_it(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(references.sys.modules, "reasoning_gym", None)
    (base / "gym.py").write_text("import reasoning_gym\n")
    assert message("gym.py:f", base).endswith("Fix: install with pip install 'relax-rl[tasks]'")
