"""A teacher for the tiny task: the tiny model after a few seconds of supervised training on right answers."""

from __future__ import annotations

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from tiny_model import byte_tokenizer, random_model
from tiny_task import COUNTS, KINDS

STEPS = 300
BATCH = 64
IGNORED = -100


def build(directory: Path) -> None:
    """Write the trained model and its tokenizer; always the same weights."""
    import torch

    tokenizer, model, source = byte_tokenizer(), random_model(), random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    for _ in range(STEPS):
        rows = [answered(source) for _ in range(BATCH)]
        ids = [tokenizer(prompt + answer)["input_ids"] + [tokenizer.eos_token_id] for prompt, answer in rows]
        width = max(map(len, ids))
        inputs = torch.tensor([each + [tokenizer.pad_token_id] * (width - len(each)) for each in ids])
        labels = torch.tensor(
            [
                [IGNORED] * len(prompt) + each[len(prompt) :] + [IGNORED] * (width - len(each))
                for (prompt, _), each in zip(rows, ids, strict=True)
            ]
        )
        optimizer.zero_grad()
        model(input_ids=inputs, labels=labels).loss.backward()
        optimizer.step()
    tokenizer.save_pretrained(directory)
    model.save_pretrained(directory)


def answered(source: random.Random) -> tuple[str, str]:
    """A prompt of the task and a right answer."""
    kind, count = source.choice(list(KINDS)), source.choice(COUNTS)
    return f"{kind} {count}", "".join(source.choices(KINDS[kind], k=count))
