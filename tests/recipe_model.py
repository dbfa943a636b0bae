"""The tiny model, grown fond of two tokens: it answers `2` and stops often enough for a reward, and never always."""

from __future__ import annotations

from pathlib import Path

import torch

from relax_core.references import load_callable

EXAMPLES = Path(__file__).parents[1] / "examples"


def build(directory: Path) -> None:
    """Half of what it samples is `2`, half is the end: a hidden size that is large everywhere, which these two read."""
    tokenizer = load_callable("tiny_model.py:byte_tokenizer", who="test", base=EXAMPLES)()
    model = load_callable("tiny_model.py:random_model", who="test", base=EXAMPLES)()
    likely = [tokenizer.convert_tokens_to_ids("2"), tokenizer.eos_token_id]
    with torch.no_grad():
        model.get_input_embeddings().weight[:, 0] = 50.0
        model.lm_head.weight[:, 0] = 0.0
        model.lm_head.weight[likely] = 0.0
        model.lm_head.weight[likely, 0] = 1.0
    tokenizer.save_pretrained(directory)
    model.save_pretrained(directory)
