"""Small models of other families than the tiny one's, with its tokenizer."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from relax_core.references import load_callable

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.15,
    "max_position_embeddings": 256,
}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


def tied_llama(directory: Path) -> Path:
    """Llama 3's rotary embedding, tied embeddings, and one id more than the tokenizer has: an odd number."""
    config = LlamaConfig(**SMALL, vocab_size=261, tie_word_embeddings=True, rope_parameters=LLAMA3)
    return _save(LlamaForCausalLM, config, directory)


def wider(directory: Path) -> Path:
    """As the tiny model, and wider."""
    return _save(LlamaForCausalLM, LlamaConfig(**SMALL, vocab_size=260), directory)


def mixture(directory: Path) -> Path:
    """A mixture of four experts."""
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}
    return _save(Qwen3MoeForCausalLM, Qwen3MoeConfig(**SMALL, **experts, head_dim=8, vocab_size=260), directory)


def _save(kind, config, directory: Path) -> Path:
    load_callable("tiny_model.py:byte_tokenizer", who="test", base=EXAMPLES)().save_pretrained(directory)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        kind(config).float().save_pretrained(directory)
    return directory
