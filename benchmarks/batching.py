"""How much of what a forward computes is trained on, with micro-batches by tokens and responses of very different lengths."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from report import Row, alone

from relax_core.config import TrainerSection
from relax_core.engines.placement import parts
from relax_core.engines.rows import lay_out
from relax_core.engines.types import Tokens

GROUPS, GROUP, PROMPT = 64, 8, 32
MEDIAN, TAIL = 200, 2000
"""Of the responses' lengths, which are log-normal: the median, and what one in a hundred is longer than."""
WIDTHS = (1024, 4096)


def measure(threads: int, rounds: int) -> Iterator[Row]:
    tokens, trainer = _tokens(), TrainerSection(use_dynamic_batch_size=True)
    live = sum(map(len, tokens.responses))
    for width in WIDTHS:
        layouts = [lay_out(part.tokens, width) for part in parts(tokens, trainer, width)]
        fraction = live / sum(each.ids.numel() for each in layouts)
        yield alone(f"live positions, hidden size {width}", "", [fraction], 0.9, at_least=True)


def _tokens() -> Tokens:
    chosen = random.Random(0)
    spread = math.log(TAIL / MEDIAN) / 2.326
    lengths = [max(1, round(chosen.lognormvariate(math.log(MEDIAN), spread))) for _ in range(GROUPS * GROUP)]
    prompts = [[group + 2] * PROMPT for group in range(GROUPS) for _ in range(GROUP)]
    return Tokens(prompts, [[1] * length for length in lengths])
