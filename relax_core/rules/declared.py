"""The arguments that a heavy library takes, read from its source: importing it would take seconds."""

from __future__ import annotations

import ast
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path


@lru_cache
def declared_fields(package: str, file: str, name: str) -> frozenset[str]:
    """The annotated fields of class `name` in `file`, a path inside `package`; empty where it is not installed."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return frozenset()
    tree = ast.parse((Path(spec.origin).parent / file).read_text(encoding="utf-8"))
    (body,) = [node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    named = [node.target for node in body if isinstance(node, ast.AnnAssign)]
    return frozenset(target.id for target in named if isinstance(target, ast.Name))
