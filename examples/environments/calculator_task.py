"""Sums of three or four numbers, and a tiny model that has seen them done, with too many mistakes."""

from __future__ import annotations

import random
import sys
from itertools import accumulate
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_model import byte_tokenizer, random_model

DIGITS = range(1, 10)
STEPS, BATCH, IGNORED = 500, 64, -100
MISTAKE = 0.13
"""Probability of a wrong character in what the model is shown: what it learns from that is to be unsure."""


def examples(count: int = 400, seed: int = 1) -> list[dict[str, Any]]:
    """Sums whose steps take two or three calls; the answer is the number."""
    source = random.Random(seed)
    rows = [numbers(source) for _ in range(count)]
    return [{"id": f"sum-{i}", "prompt": question(row), "answer": sum(row)} for i, row in enumerate(rows)]


def numbers(source: random.Random) -> list[int]:
    """Three or four of them."""
    return source.choices(DIGITS, k=source.choice((3, 4)))


def question(row: list[int]) -> str:
    """`3+4+5:`"""
    return "+".join(map(str, row)) + ":"


def solution(row: list[int]) -> list[tuple[str, bool]]:
    """The steps, and whether the policy writes each: `3+4=`, `7;`, `7+5=`, `12;`, `12`."""
    sums = list(accumulate(row))
    parts = []
    for before, number, after in zip(sums, row[1:], sums[1:], strict=False):
        parts += [(f"{before}+{number}=", True), (f"{after};", False)]
    return [*parts, (str(sums[-1]), True)]


def build(directory: Path) -> None:
    """Write the tiny model after supervised training on solutions with mistakes; always the same weights."""
    import torch

    tokenizer, model, source = byte_tokenizer(), random_model(), random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    for _ in range(STEPS):
        rows = [shown(source, tokenizer) for _ in range(BATCH)]
        width = max(len(ids) for ids, _ in rows)
        inputs = torch.tensor([ids + [tokenizer.pad_token_id] * (width - len(ids)) for ids, _ in rows])
        labels = torch.tensor([labels + [IGNORED] * (width - len(labels)) for _, labels in rows])
        optimizer.zero_grad()
        model(input_ids=inputs, labels=labels).loss.backward()
        optimizer.step()
    tokenizer.save_pretrained(directory)
    model.save_pretrained(directory)


def shown(source: random.Random, tokenizer: Any) -> tuple[list[int], list[int]]:
    """Token ids of a question with its solution, and the labels: what the policy writes, sometimes wrong."""
    row = numbers(source)
    ids = tokenizer(question(row))["input_ids"]
    labels = [IGNORED] * len(ids)
    for text, written in solution(row):
        part = tokenizer(text)["input_ids"]
        ids += part
        labels += [_mistaken(each, source, tokenizer) if written else IGNORED for each in part]
    return [*ids, tokenizer.eos_token_id], [*labels, tokenizer.eos_token_id]


def _mistaken(token: int, source: random.Random, tokenizer: Any) -> int:
    if source.random() >= MISTAKE:
        return token
    (other,) = tokenizer(source.choice("0123456789+="))["input_ids"]
    return int(other)
