"""What a plugin may not drag in: the libraries that drive a cluster are imported where they are used."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from relax_core.conformance.check import Check, Problem, checks_in, static

if TYPE_CHECKING:
    from relax_core.conformance.subject import Subject

HEAVY = ("megatron", "vllm", "ray")


@static(
    "RLX721",
    "Importing the plugin imports no Megatron, vLLM or Ray",
    "import it inside the function that uses it: `relax plugins list` imports every plugin",
)
def light(subject: Subject) -> Iterator[Problem]:
    for path, line, name in _heavy_imports(subject):
        yield Problem(f"it imports {name} at import time", f"import {name} ({path.name}:{line})", "no such import")


def missing_heavy_library(subject: Subject) -> bool:
    """Whether the plugin does not load because such a library is not installed, which is the smaller of its faults."""
    return any(f"No module named '{name}" in subject.load_error for name in HEAVY) and any(_heavy_imports(subject))


def _heavy_imports(subject: Subject) -> Iterator[tuple[Path, int, str]]:
    """Place and library of each such import in the plugin's file and in those of its own package that it imports."""
    waiting, seen = [path for path in (source_of(subject),) if path is not None], set[Path]()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        for line, name in at_import(ast.parse(path.read_text(encoding="utf-8"))):
            if name.split(".")[0] in HEAVY:
                yield path, line, name.split(".")[0]
            elif (further := _sibling(path, name)) is not None:
                waiting.append(further)


def source_of(subject: Subject) -> Path | None:
    """The plugin's file, found without importing it where that fails."""
    if subject.module is not None:
        return subject.file
    if subject.plugin.distribution.endswith(".py"):
        return Path(subject.plugin.distribution)
    module = subject.entry.module if subject.entry is not None else ""
    try:
        found = importlib.util.find_spec(module) if module else None
    except ImportError:
        return None
    return Path(found.origin) if found is not None and found.origin else None


def at_import(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of every module that is imported when the file is: not inside functions, not for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for other in node.orelse:
                yield from at_import(ast.Module([other], []))
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, each.name) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            dots = "." * node.level
            yield node.lineno, dots + (node.module or "")
            yield from ((node.lineno, f"{dots}{node.module or ''}.{each.name}") for each in node.names)
        else:
            yield from at_import(node)


def _sibling(path: Path, name: str) -> Path | None:
    """The file of a module of the plugin's own package."""
    level = len(name) - len(name.lstrip("."))
    parts = [part for part in name.split(".") if part]
    if not parts:
        return None
    if level:
        home = path.parents[level - 1]
    elif (path.parent / "__init__.py").exists() and parts[0] == path.parent.name:
        home, parts = path.parent, parts[1:]
    else:
        return None
    candidates = (home.joinpath(*parts).with_suffix(".py"), home.joinpath(*parts, "__init__.py")) if parts else ()
    return next((each for each in candidates if each.is_file()), None)


CHECKS: tuple[Check, ...] = checks_in(globals())
