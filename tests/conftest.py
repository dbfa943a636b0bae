"""What many tests need: the installed plugins, and a way to write one down."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from relax_core.registry import Registry

VECTORS = Path(__file__).parent / "vectors"


@pytest.fixture(scope="session")
def registry() -> Registry:
    return Registry.load()


@pytest.fixture
def plugin_file(tmp_path):
    """Write a plugin file and give its path."""

    def write(source: str, name: str = "mine.py") -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(source))
        return path

    return write


def load_cases(matches) -> list[dict]:
    """The golden vectors for which `matches(case)` is true."""
    cases = [json.loads(path.read_text()) for path in sorted(VECTORS.glob("*.json"))]
    return [case for case in cases if matches(case)]
