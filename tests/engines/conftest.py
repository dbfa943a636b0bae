"""A tiny model that every test may take a fresh copy of."""

from __future__ import annotations

from pathlib import Path

import pytest

from relax_core.config import TrainerSection
from relax_core.engines.hf_model import load_model, load_tokenizer
from relax_core.engines.torch import TorchEngine, TorchSettings
from relax_core.engines.types import Tokens
from relax_core.references import load_callable

EXAMPLES = Path(__file__).parents[2] / "examples"

TOKENS = Tokens(
    prompts=[[10, 11, 12], [20, 21], [30, 31, 32, 33, 34], [40]],
    responses=[[50, 51, 52, 53], [60], [70, 71, 72, 73, 74, 75, 76], [80, 81]],
)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    load_callable("tiny_model.py:build", who="test", base=EXAMPLES)(directory)
    return directory


@pytest.fixture
def make_engine(tiny_model):
    """An engine on a fresh copy of the tiny model; keyword arguments are fields of `trainer` or of the settings."""

    def make(*, frozen=(), entropy=False, temperature=1.0, updates=10, moves_reference=False, **trainer) -> TorchEngine:
        section = TrainerSection(**{"lr": 1e-3, **trainer})
        settings = TorchSettings(section, temperature, updates, entropy, moves_reference)
        frozen = {name: load_model(tiny_model, who="test") for name in frozen}
        return TorchEngine(
            load_model(tiny_model, who="test"), load_tokenizer(tiny_model, who="test"), settings, **frozen
        )

    return make
