"""A Python file as a module."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType


def load_source(path: Path, name: str) -> ModuleType:
    """Run the file as the module `name`, which dataclasses and pickle need to find again in `sys.modules`.

    Raises whatever the file raises; then the module is not registered.
    """
    loader = SourceFileLoader(name, str(path))
    spec = ModuleSpec(name, loader, origin=str(path))
    spec.has_location = True
    module = sys.modules[name] = module_from_spec(spec)
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
