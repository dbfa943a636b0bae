"""Engines that are started once and serve every test here: a Qwen3, and a Llama with tied and padded embeddings.

They are closed when the last test of this directory ends, as they hold a process group that other tests do not expect.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from relax_core.config import RunConfig, TrainerSection
from relax_core.engines.hf_model import load_model, load_tokenizer
from relax_core.engines.torch import TorchEngine, TorchSettings
from relax_core.engines.types import Tokens
from relax_core.references import load_callable
from relax_core.rollout.factory import rollout_engine
from relax_core.rollout.types import Completion
from tests.conftest import EXAMPLES

KNOWN = 260  # ids of the tokenizer
LONG = [40 + i % 60 for i in range(70)]  # more than two blocks of the cache
PROMPTS = [LONG, [7, 80, 9], LONG[:40], [11]]


def build_qwen3(directory: Path) -> None:
    load_callable("tiny_model.py:build", who="test", base=EXAMPLES)(directory)


def build_llama(directory: Path) -> None:
    load_callable("tiny_model.py:byte_tokenizer", who="test", base=EXAMPLES)().save_pretrained(directory)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 320}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "initializer_range": 0.15}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = LlamaConfig(**sizes, **heads, **ids, max_position_embeddings=512, tie_word_embeddings=True)
    torch.manual_seed(0)
    LlamaForCausalLM(config).float().save_pretrained(directory)


BUILDERS = {"qwen3": build_qwen3, "llama": build_llama}


@dataclass
class Pair:
    """A model under training and the engine that samples from a copy of it."""

    model: Any
    tokenizer: Any
    engine: Any
    version: int = 0

    def change(self, scale: float = 0.05) -> None:
        """Move every weight, as an update would, and more."""
        generator = torch.Generator().manual_seed(1 + self.version)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(scale * torch.randn(parameter.shape, generator=generator))

    def publish(self) -> None:
        self.version += 1
        self.engine.update_weights(self.model.named_parameters(), self.version)

    def scores(self, prompts: list[list[int]], responses: list[list[int]], temperature: float) -> torch.Tensor:
        """[T] log-probs of the engine that trains."""
        settings = TorchSettings(TrainerSection(), temperature, updates=1)
        return TorchEngine(self.model, self.tokenizer, settings).score(Tokens(prompts, responses), "actor")

    def gap(self, prompts: list[list[int]], groups: list[list[Completion]], temperature: float) -> float:
        """The largest difference of the two engines' log-probs."""
        rows = [(prompt, each) for prompt, group in zip(prompts, groups, strict=True) for each in group]
        trained = self.scores([row[0] for row in rows], [row[1].token_ids for row in rows], temperature)
        sampled = torch.tensor([value for row in rows for value in row[1].log_probs])
        return float((trained - sampled).abs().max())


def start(directory: Path, **rollout: Any) -> Pair:
    """A pair on a fresh copy of the model in `directory`."""
    options = {"max_batch": 32, "engine_args": {"block_size": 32}, "update_chunk_mb": 1, **rollout}
    sections = {"data": {}, "trainer": {"num_threads": 1}, "rollout": {"engine": "vllm", **options}}
    config = RunConfig.model_validate({"model": {"path": str(directory)}, **sections})
    model, tokenizer = load_model(directory, who="test"), load_tokenizer(directory, who="test")
    return Pair(model, tokenizer, rollout_engine(config, model, tokenizer, directory, 200, "cpu"))


@pytest.fixture(scope="package", autouse=True)
def one_thread():
    """So small models are slower on more, and much slower where other processes compete for the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def directories(tmp_path_factory) -> dict[str, Path]:
    """A model directory of each kind."""
    found = {}
    for kind, build in BUILDERS.items():
        found[kind] = tmp_path_factory.mktemp(kind)
        build(found[kind])
    return found


@pytest.fixture(scope="package")
def qwen3(directories):
    pair = start(directories["qwen3"])
    yield pair
    pair.engine.close()


@pytest.fixture(scope="package")
def llama(directories):
    pair = start(directories["llama"])
    yield pair
    pair.engine.close()


@pytest.fixture(params=BUILDERS)
def pair(request) -> Pair:
    return request.getfixturevalue(request.param)
