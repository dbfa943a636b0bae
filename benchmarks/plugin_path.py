"""From log-probs to a loss sum, through the plugins: against the same arithmetic written out, and by size."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from report import Row, alone, compared
from torch import Tensor

from relax_core.batch import Rollout, build
from relax_core.binding import bind
from relax_core.packing import loss_batch
from relax_core.runfile import read, resolve
from relax_core.runtime import Runtime

EXAMPLE = Path(__file__).parents[1] / "examples" / "tiny.yaml"
SEQUENCES, LENGTH, GROUP = 64, 2048, 8
SIZES = (5_000_000, 10_000_000)
LIMIT = 20.0
MARGIN, DUAL, DELTA, LOW, HIGH = (0.2, 0.28), 10.0, 0.1, 0.5, 2.0


def measure(threads: int, rounds: int) -> Iterator[Row]:
    torch.set_num_threads(threads)
    for name in ("grpo", "gspo"):
        runtime, rollout = runtime_of(name), prepared(SEQUENCES, LENGTH)
        log_probs = (rollout.old_log_probs + 0.01 * torch.randn(len(rollout.sequence_ids))).requires_grad_()

        def ours(runtime: Runtime = runtime, rollout: Rollout = rollout, values: Tensor = log_probs) -> float:
            output = runtime.loss(loss_batch(rollout, None, log_probs=values))
            output.metrics.reduce(rollout.group)
            return float(output.sum.detach())

        def theirs(name: str = name, rollout: Rollout = rollout, values: Tensor = log_probs) -> float:
            return written_out(name, rollout, values)

        assert abs(ours() - theirs()) < 1e-2 * SEQUENCES, "both compute the same sum"
        mine, plain = in_turns((ours, theirs), rounds)
        yield compared(f"plugin path, inlined, {name} with IS and OPSM", "s", mine, plain, 1.1)
    yield from sizes(rounds)


def sizes(rounds: int) -> Iterator[Row]:
    """What a token costs in a batch twice as large, and the advantages of many sequences."""
    runtime, works = runtime_of("grpo"), list[Callable[[], Any]]()
    for tokens in SIZES:
        rollout = prepared(tokens // LENGTH, LENGTH)
        log_probs = rollout.old_log_probs.clone().requires_grad_()
        works.append(
            lambda rollout=rollout, values=log_probs: runtime.loss(loss_batch(rollout, None, log_probs=values))
        )
    small, large = in_turns(works, max(2, rounds // 4))
    each = [[1e9 * value / size for value in seen] for size, seen in zip(SIZES, (small, large), strict=True)]
    yield compared("a token of 10 million, of 5 million", "ns", each[1], each[0], 1.2)
    many = prepared(4096, 8)
    (seen,) = in_turns((lambda: runtime.prepare(many),), rounds)
    yield alone("masks and advantages of 4,096 sequences", "ms", [value * 1e3 for value in seen], 5.0)


def runtime_of(loss: str) -> Runtime:
    """A policy loss with both corrections."""
    chosen = {"policy_loss": loss, "is_correction.enable": True, "opsm.enable": True, "opsm.delta": DELTA}
    resolved = resolve(read(EXAMPLE), {f"algorithm.{name}": value for name, value in chosen.items()})
    return Runtime.of(resolved.config, bind(resolved.registry, resolved.choice, resolved.config.algorithm))


def prepared(sequences: int, length: int) -> Rollout:
    """A rollout at random, with masks and advantages."""
    generator = torch.Generator().manual_seed(0)
    count = sequences * length
    old = -torch.rand(count, generator=generator) * 3
    tokens = {
        "raw_mask": torch.rand(count, generator=generator) < 0.9,
        "old_log_probs": old,
        "rollout_log_probs": old + 0.01 * torch.randn(count, generator=generator),
        "staleness": torch.zeros(count, dtype=torch.long),
    }
    values = {
        "rewards": torch.rand(sequences, generator=generator),
        "group_ids": torch.arange(sequences) // min(GROUP, sequences),
        "lengths": torch.full((sequences,), length),
    }
    rollout: Rollout = build(Rollout, torch.arange(sequences).repeat_interleave(length), tokens, values)
    return runtime_of("grpo").prepare(rollout)[0]


def written_out(name: str, rollout: Rollout, log_probs: Tensor) -> float:
    """The loss sum, and the metrics of it, without hooks."""
    mask, raw, advantages = rollout.loss_mask, rollout.raw_mask, rollout.advantages
    old, sampled, ids, zero = rollout.old_log_probs, rollout.rollout_log_probs, rollout.sequence_ids, torch.zeros(())
    count, size = mask.sum(), rollout.size

    def mean_of_sequence(x: Tensor, where: Tensor) -> Tensor:
        total = torch.zeros(size, dtype=torch.float64).index_add(0, ids, torch.where(where, x, zero).double())
        number = torch.zeros(size, dtype=torch.float64).index_add(0, ids, where.double())
        return (total / number.clamp(min=1)).to(x.dtype)

    log_probs = torch.where(raw, log_probs, zero)
    log_ratio = torch.where(mask, log_probs - old, zero).clamp(-LIMIT, LIMIT)
    if name == "gspo":
        log_ratio = mean_of_sequence(log_ratio.detach(), mask)[ids] + log_probs - log_probs.detach()
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - MARGIN[0], 1 + MARGIN[1])
    surrogate = torch.minimum(ratio * advantages, clipped * advantages)
    metrics = {"pg_clipfrac": (clipped * advantages < ratio * advantages, mask)}
    if name == "grpo":
        bounded = torch.maximum(surrogate, DUAL * advantages)
        metrics["dual_clip_ratio"] = ((advantages < 0) & (bounded > surrogate), mask)
        surrogate = torch.where(advantages < 0, bounded, surrogate)
    weight = (old - sampled).clamp(-LIMIT, LIMIT).exp().clamp(LOW, HIGH)
    departed = mean_of_sequence((old - log_probs.detach()).clamp(-LIMIT, LIMIT), raw)
    dropped = (departed > DELTA) & (mean_of_sequence(advantages, raw) < 0)
    weight = weight * (~dropped)[ids]
    loss = (torch.where(mask, -surrogate, zero) * weight).sum()
    gap, difference = log_probs.detach() - old, old - sampled
    metrics |= {
        "approx_kl": (-gap.clamp(-LIMIT, LIMIT), mask),
        "nan_ratio": (~(gap.abs() <= LIMIT), mask),
        "k3": (difference.neg().exp() - 1 + difference, raw),
        "gap": (difference.abs(), raw),
        "fresh": (difference.abs(), raw & (rollout.staleness == 0)),
    }
    found = [torch.where(where, x.detach().double(), 0.0).sum() / where.sum() for x, where in metrics.values()]
    [float(each) for each in (*found, dropped.double().mean(), loss.detach() / count)]
    return float(loss.detach())


def in_turns(works: tuple[Callable[[], Any], ...] | list[Callable[[], Any]], rounds: int) -> list[list[float]]:
    """Seconds of each, in turns, after one that is not counted."""
    found: list[list[float]] = [[] for _ in works]
    for number in range(rounds + 1):
        for work, seen in zip(works, found, strict=True):
            started = time.perf_counter()
            work()
            if number:
                seen.append(time.perf_counter() - started)
    return found
