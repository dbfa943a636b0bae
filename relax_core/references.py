"""From the name of a callable in a run file to the callable: an installed name, a file, or a module."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from hashlib import sha256
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from relax_core.errors import FOREIGN, LoadError, nearest
from relax_core.sources import load_source

EXTRAS = {
    "gguf": "gguf",
    "math_verify": "math",
    "megatron": "megatron",
    "ray": "ray",
    "reasoning_gym": "tasks",
    "verifiers": "verifiers",
    "vllm": "vllm",
}
FORMS = "`path/to/file.py:function` or `package.module:function`"


def load_callable(reference: str, *, who: str, base: Path, group: str | None = None) -> Callable[..., Any]:
    """The callable that `reference` names, an installed entry point of `group` first, then a file, then a module.

    `who` is the setting that holds the reference; a file is looked for from `base`, then from the working directory.
    Every failure is a LoadError that names the setting.
    """
    installed = {entry.name: entry for entry in entry_points(group=group)} if group else {}
    if reference in installed:
        return checked(load_entry(installed[reference], who), reference, who)
    place, colon, name = reference.rpartition(":")
    if not (colon and place and name):
        raise unknown_name(reference, list(installed), who, group)
    module = load_file(find_file(place, who, base), who) if place.endswith(".py") else load_module(place, who)
    return checked(attribute(module, name, reference, who), reference, who)


def unknown_name(reference: str, installed: list[str], who: str, group: str | None) -> LoadError:
    names = f", or one of {', '.join(sorted(installed))}" if installed else ""
    hint = nearest(reference, installed)
    fix = f"{hint} Otherwise write {FORMS}{names}" if hint else f"write {FORMS}{names}"
    what = f"'{reference}' is not an installed name of {group}" if group else f"'{reference}' names no function"
    return LoadError(what, who=who, fix=fix)


def load_entry(entry: EntryPoint, who: str) -> Any:
    """What an entry point refers to; a LoadError of its module passes as it is."""
    try:
        return entry.load()
    except LoadError:
        raise
    except FOREIGN as error:
        owner = entry.dist.name if entry.dist else entry.value
        what = f"'{entry.name}' of {owner} could not be loaded: {type(error).__name__}: {error}"
        raise LoadError(what, who=who, fix=f"reinstall or update {owner}") from error


def find_file(place: str, who: str, base: Path) -> Path:
    """The file as seen from `base`, or else from the working directory."""
    candidates = (base / place, Path.cwd() / place)
    found = next((path for path in candidates if path.is_file()), None)
    if found is None:
        looked = " or ".join(dict.fromkeys(str(path.parent) for path in candidates))
        raise LoadError(f"there is no file {Path(place).name} in {looked}", who=who, fix=f"correct the path '{place}'")
    return found.resolve()


def load_file(path: Path, who: str) -> ModuleType:
    """The file as a module under a name of its own, run once."""
    name = f"_relax_{path.stem}_{sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    try:
        return load_source(path, name)
    except LoadError:
        raise
    except FOREIGN as error:
        raise_missing_extra(error, str(path), who)
        what = f"{path}:{failing_line(error, path)} raised {type(error).__name__}: {reason(error)}"
        raise LoadError(what, who=who, fix="correct the file") from error


def failing_line(error: BaseException, path: Path) -> int:
    """The last line of `path` that was on the stack; a syntax error carries its own."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return error.lineno or 1
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno or 1 for frame in reversed(frames) if frame.filename == str(path)), 1)


def reason(error: BaseException) -> str:
    return error.msg if isinstance(error, SyntaxError) else str(error)


def load_module(place: str, who: str) -> ModuleType:
    """The importable module `place`; what is wrong with it otherwise."""
    try:
        return importlib.import_module(place)
    except LoadError:
        raise
    except FOREIGN as error:
        raise_missing_extra(error, f"'{place}'", who)
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and (place == missing or place.startswith(f"{missing}.")):
            what, fix = f"there is no module '{missing}'", f"install the package that holds it, or write {FORMS}"
        else:
            what = f"importing '{place}' raised {type(error).__name__}: {reason(error)}"
            fix = "correct the module, or install what it imports"
        raise LoadError(what, who=who, fix=fix) from error


def missing_extra(module: str, what: str, *, who: str) -> LoadError:
    """The error of `what`, which needs `module`, with the extra to install."""
    fix = f"install with pip install 'relax-rl[{EXTRAS[module]}]'"
    return LoadError(f"{what} needs the package {module.replace('_', '-')}, which is not installed", who=who, fix=fix)


def raise_missing_extra(error: BaseException, what: str, who: str) -> None:
    """LoadError where `error` says that a package of one of the extras is not installed."""
    module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if module in EXTRAS:
        raise missing_extra(module, what, who=who) from error


def attribute(module: ModuleType, name: str, reference: str, who: str) -> Any:
    if not hasattr(module, name):
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        has = f"it has {', '.join(sorted(functions))}" if functions else "it has no functions"
        what = f"'{reference.rpartition(':')[0]}' has no function '{name}'"
        raise LoadError(what, who=who, fix=nearest(name, functions) or has)
    return getattr(module, name)


def checked(value: Any, reference: str, who: str) -> Callable[..., Any]:
    if not callable(value):
        fix = "name a function"
        raise LoadError(f"'{reference}' is of type {type(value).__name__} and cannot be called", who=who, fix=fix)
    function: Callable[..., Any] = value
    return function
