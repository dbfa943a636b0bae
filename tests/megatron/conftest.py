"""Ranks that a session starts once for each layout, and engines on them beside the embedded one."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
import torch

from relax_core.binding import bind
from relax_core.config import TopologySection
from relax_core.engines.hf_model import load_config, load_model, load_tokenizer
from relax_core.engines.megatron.engine import MegatronEngine, start_ranks
from relax_core.engines.ranked import Groups, Role, Setting
from relax_core.engines.torch import TorchEngine, TorchSettings
from relax_core.engines.types import Tokens
from relax_core.references import load_callable
from relax_core.runfile import ResolvedRun, RunFile, resolve
from relax_core.runtime import Runtime
from tests.cases.build import rollout

EXAMPLES = Path(__file__).parents[2] / "examples"

LAYOUTS = {
    "one": {},
    "dp2": {"data_parallel_size": 2},
    "tp2": {"tensor_model_parallel_size": 2},
    "tp2sp": {"tensor_model_parallel_size": 2, "sequence_parallel": True},
    "pp2": {"pipeline_model_parallel_size": 2},
    "cp2": {"context_parallel_size": 2},
    "tp2pp2": {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2},
    "tp2dp2": {"tensor_model_parallel_size": 2, "data_parallel_size": 2},
    "cp2dp2": {"context_parallel_size": 2, "data_parallel_size": 2},
}

TOKENS = Tokens(
    prompts=[[10, 11, 12]] * 2 + [[20, 21]] * 2 + [[30, 31, 32, 33, 34]] * 2 + [[40]] * 2,
    responses=[
        [50, 51, 52, 53],
        [54],
        [60, 61],
        [62, 63, 64],
        [70, 71, 72, 73, 74, 75, 76],
        [77, 78],
        [80, 0, 81],
        [82],
    ],
)
GROUPS = [0, 0, 1, 1, 2, 2, 3, 3]
LENGTHS = [len(each) for each in TOKENS.responses]
EVERY_SECOND = [[index % 2 == 0] * length for index, length in enumerate(LENGTHS)]
"""Under DP 2 one rank has nothing live."""


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    load_callable("tiny_model.py:build", who="test", base=EXAMPLES)(directory)
    return directory


@contextmanager
def ranks_of(layout: str):
    """The processes of a layout, for as long as the block takes."""
    group = start_ranks(TopologySection(**LAYOUTS[layout]))
    try:
        yield group
    finally:
        group.close()


def resolved(path: Path, layout: str = "one", algorithm: dict | None = None, **sections) -> ResolvedRun:
    """A run on this model, in float32 and at a learning rate that shows."""
    trainer = {"engine": "megatron", "lr": 1e-3, "micro_batch_size": 2, "num_threads": 1, **sections.pop("trainer", {})}
    model = {"path": str(path), **sections.pop("model", {})}
    values = {"model": model, "data": {"task": "none"}, "trainer": trainer, "topology": LAYOUTS[layout]}
    return resolve(RunFile(path / "run.yaml", {**values, "algorithm": algorithm or {}, **sections}, {}))


def bound(run: ResolvedRun):
    return bind(run.registry, run.choice, run.config.algorithm)


def shape(path: Path) -> dict:
    return load_config(path, who="test")


def megatron(run: ResolvedRun, ranks, roles: dict | None = None, **setting) -> MegatronEngine:
    """An engine on ranks that are there already."""
    path = Path(run.config.model.path)
    models = {"actor": Role(path, shape(path), "model.path"), **(roles or {})}
    tokenizer = tokenizer_of(path)
    known = max(tokenizer.get_vocab().values()) + 1
    return MegatronEngine(Setting(run, bound(run), models, known, updates=10, **setting), tokenizer, Groups(ranks))


@cache
def tokenizer_of(path: Path):
    return load_tokenizer(path, who="test")


def embedded(run: ResolvedRun, **frozen) -> TorchEngine:
    """The embedded engine of the same run."""
    path, binding = Path(run.config.model.path), bound(run)
    settings = TorchSettings(run.config.trainer, run.config.rollout.temperature, 10, binding.needs("requires_entropy"))
    return TorchEngine(load_model(path, who="test"), tokenizer_of(path), settings, **frozen)


def runtime_of(run: ResolvedRun) -> Runtime:
    return Runtime.of(run.config, bound(run))


def prepared(bound_runtime: Runtime, old: torch.Tensor, mask=None, **values):
    """A rollout of `TOKENS` by a policy whose log-probs were these, with rewards that differ within every group."""
    pieces = [each.tolist() for each in torch.split(old, LENGTHS)]
    rewards = [1.0, 0.0, 0.5, 2.0, -1.0, 0.3, 0.2, 0.9]
    given = {name: [each.tolist() for each in torch.split(value, LENGTHS)] for name, value in values.items()}
    made = rollout(pieces, rewards=rewards, groups=GROUPS, mask=mask, dtype=torch.float32, **given)
    return bound_runtime.prepare(made)[0]
