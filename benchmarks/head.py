"""The log-prob head: ours against `log_softmax` and `gather` over all logits, forward and backward."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import turns
from report import Row, compared

from relax_core.numerics.log_probs import token_log_probs

TOKENS, HIDDEN, VOCABULARY = 4096, 1024, 128_000


def measure(threads: int, rounds: int) -> Iterator[Row]:
    for dtype in ("float32", "bfloat16"):
        for entropy in (False, True):
            arguments = [dtype, str(threads), *(["entropy"] if entropy else [])]
            commands = {name: [sys.executable, __file__, name, *arguments] for name in ("relax", "plain")}
            costs = turns.in_turns(commands, rounds, threads)
            named = f"{dtype}, entropy" if entropy else dtype
            for key, unit, target in (("seconds", "s", 1.4), ("extra_mb", "MB", 0.125)):
                ours, theirs = ([each[key] for each in costs[name]] for name in ("relax", "plain"))
                what = "head" if key == "seconds" else "head's memory"
                yield compared(f"{what}, log_softmax, {named}", unit, ours, theirs, target)


def plain(hidden: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, entropy: bool) -> list[torch.Tensor]:
    every = (hidden @ weight.T).float().log_softmax(-1)
    chosen = every.gather(-1, ids[:, None])[:, 0]
    return [chosen, -(every.exp() * every).sum(-1)] if entropy else [chosen]


def ours(hidden: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, entropy: bool) -> list[torch.Tensor]:
    found = token_log_probs(hidden, weight, None, ids, entropy=entropy)
    return [each for each in found if each is not None]


def serve(compute: Callable[..., list[torch.Tensor]], dtype: torch.dtype, entropy: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, HIDDEN, generator=generator).to(dtype).requires_grad_()
    weight = (torch.randn(VOCABULARY, HIDDEN, generator=generator) / HIDDEN**0.5).to(dtype).requires_grad_()
    ids = torch.randint(0, VOCABULARY, (TOKENS,), generator=generator)
    factors = torch.randn(2, TOKENS, generator=generator)

    def step() -> dict[str, float]:
        hidden.grad = weight.grad = None
        before = _reset_peak()
        results = compute(hidden, weight, ids, entropy)
        sum((each * factor).sum() for each, factor in zip(results, factors, strict=False)).backward()
        return {"extra_mb": _status("VmHWM") - before}

    turns.serve(step)


def _reset_peak() -> float:
    """Megabytes that the process has now; its peak is counted anew."""
    time.sleep(0.1)
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(name))


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[3]))
    serve(ours if sys.argv[1] == "relax" else plain, getattr(torch, sys.argv[2]), "entropy" in sys.argv)
