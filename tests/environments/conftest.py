from __future__ import annotations

import pytest

from relax_core.references import load_callable
from tests.conftest import EXAMPLES


@pytest.fixture(scope="session")
def tiny_tokenizer():
    return load_callable("tiny_model.py:byte_tokenizer", who="test", base=EXAMPLES)()
