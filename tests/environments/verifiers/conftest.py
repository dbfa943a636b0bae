from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """The environments beside this file can be imported, as an installed package can."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
