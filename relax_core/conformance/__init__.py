"""How an algorithm is proven before it costs anything.

from relax_core.conformance import suite
test_conformance = suite("my_algorithm")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relax_core.conformance.parametrized import suite
    from relax_core.conformance.report import Finding, Report
    from relax_core.conformance.validation import validate

__all__ = ["Finding", "Report", "suite", "validate"]

_HOME = {"Finding": "report", "Report": "report", "suite": "parametrized", "validate": "validation"}


def __getattr__(name: str) -> Any:
    """Names are imported when they are first used: a test file that is collected imports no torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'relax_core.conformance' has no attribute '{name}'")
    return getattr(import_module(f"relax_core.conformance.{_HOME[name]}"), name)
