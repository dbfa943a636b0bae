"""Models large enough that what is not counted is small beside them, and PyTorch's own account of what a run allocates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, models
from torch.profiler import ProfilerActivity, profile
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from relax_core.engines.types import Tokens
from tests.cases.build import rollout

VOCABULARY = 8192
SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class Family:
    config: type
    model: type


FAMILIES = {"llama": Family(LlamaConfig, LlamaForCausalLM), "qwen3": Family(Qwen3Config, Qwen3ForCausalLM)}


def write_model(directory: Path, family: str = "llama", **sizes: object) -> Path:
    """A model of random weights with a tokenizer that knows every id."""
    kind = FAMILIES[family]
    tokenizer = Tokenizer(models.WordLevel({str(i): i for i in range(VOCABULARY)}, unk_token="0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="1", pad_token="2").save_pretrained(directory)
    kind.model(kind.config(**{**SIZES, **sizes})).save_pretrained(directory)
    return directory


def sequences(count: int, prompt: int, response: int) -> Tokens:
    """As many sequences of equal lengths, two and two with one prompt."""
    ids = torch.randint(3, VOCABULARY, (count, prompt + response), generator=torch.Generator().manual_seed(5)).tolist()
    return Tokens([ids[i - i % 2][:prompt] for i in range(count)], [row[prompt:] for row in ids])


def rollout_of(runtime, tokens: Tokens):
    """What an update is given: rewards that differ within groups of two, and log-probs that are all the same."""
    pieces = [[-9.0] * len(each) for each in tokens.responses]
    count = len(pieces)
    made = rollout(
        pieces, rewards=[i % 2 for i in range(count)], groups=[i // 2 for i in range(count)], dtype=torch.float32
    )
    return runtime.prepare(made)[0]


def highest(action: Callable[[], object]) -> int:
    """Bytes that `action` had allocated at its highest point; what it lets go of that was there before does not count."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        action()
    events = [each for each in found.profiler.kineto_results.events() if each.name() == "[memory]"]
    total = peak = 0
    for each in sorted(events, key=lambda event: event.start_ns()):
        total += each.nbytes()
        peak = max(peak, total)
    return peak
