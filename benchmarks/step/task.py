"""The same step for everybody: a random Qwen2 of 4 layers, 4 prompts of 32 tokens, 8 responses of 128 tokens to each."""

from __future__ import annotations

import json
import random
import string
from pathlib import Path
from typing import Any

PROMPTS, PROMPT_TOKENS = 4, 32
SAMPLES, NEW_TOKENS = 8, 128
LEARNING_RATE = 1e-4


def reward(response: str) -> float:
    """How many different words it has, over all of them."""
    words = response.split()
    return len(set(words)) / max(1, len(words))


def of_sample(sample: Any) -> float:
    """`reward`, as relax asks for one."""
    return reward(sample.response)


def build(directory: Path, vocabulary: int) -> None:
    """Write model, tokenizer and prompts."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
    )
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).float().save_pretrained(directory)
    _tokenizer(vocabulary).save_pretrained(directory)
    rows = [{"prompt": each, "answer": ""} for each in prompts()]
    (directory / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))


def prompts() -> list[str]:
    """Letters at random, each a token."""
    chosen = random.Random(0)
    return ["".join(chosen.choices(string.ascii_lowercase, k=PROMPT_TOKENS)) for _ in range(PROMPTS)]


def _tokenizer(vocabulary: int) -> object:
    """Bytes, and words that no text is made of, as many as it takes; the first two ids end a response and pad."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = ["<eos>", "<pad>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    words = [*known, *(f"Ġw{each}" for each in range(len(known), vocabulary))]
    tokenizer = Tokenizer(models.BPE({word: each for each, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>")
