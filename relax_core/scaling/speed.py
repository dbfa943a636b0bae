"""How long a step's parts take at least, from what the devices can do and the part of it that is assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from relax_core.plan import trained_processes
from relax_core.scaling.devices import Assumptions, Device
from relax_core.scaling.memory import Load
from relax_core.scaling.shape import Shape
from relax_core.scaling.sizes import Sizes

MEMORY, ARITHMETIC = "memory bandwidth", "arithmetic"


@dataclass(frozen=True, slots=True)
class Generation:
    """`at_once` sequences in each engine; `tokens_per_second` of all engines together; `bound` is what limits decoding."""

    seconds: float
    tokens_per_second: float
    at_once: int
    bound: str


@dataclass(frozen=True, slots=True)
class Training:
    """Every pass of a step over its tokens; `bubble` is the part of the time that pipeline stages wait."""

    seconds: float
    tokens_per_second: float
    bubble: float


@dataclass(frozen=True, slots=True)
class Sync:
    """The weights that a step sends: `copies` of `copy_bytes`, all at once."""

    copies: int
    copy_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Speed:
    """Of one step; `idle` is the part of the devices' time in which they do nothing."""

    generation: Generation
    training: Training
    sync: Sync
    seconds: float
    idle: float


def speed(
    sizes: Sizes, shapes: Mapping[str, Shape], engine: Load, device: Device, assumed: Assumptions
) -> Speed | None:
    """None where the engine's cache has no room for one sequence."""
    if not engine.sequences:
        return None
    generation = _generation(sizes, shapes["actor"], engine, device, assumed)
    training, sync = _training(sizes, shapes, device, assumed), _sync(sizes, shapes["actor"], assumed)
    waits = sizes.topology.mode == "sync" or sizes.shares_devices
    both = (generation.seconds, training.seconds)
    seconds = (sum(both) if waits else max(both)) + sync.seconds
    trainers = trained_processes(sizes.topology)
    busy = trainers * training.seconds + engine.count * generation.seconds
    devices = max(trainers, engine.count) if sizes.shares_devices else trainers + engine.count
    return Speed(generation, training, sync, seconds, 1 - busy / (devices * seconds))


def _generation(sizes: Sizes, shape: Shape, engine: Load, device: Device, assumed: Assumptions) -> Generation:
    """Every response at its longest: prompts once for each group, then a token for each sequence from each pass."""
    sequences, ranks = sizes.topology.sequences_per_rollout, sizes.engine_ranks
    share = ceil(sequences / sizes.engines)
    at_once = min(sizes.decoded, engine.sequences or 1, share)
    flops = ranks * device.flops * assumed.prefill
    read = _read(sizes, shape, at_once) / (ranks * device.bandwidth * assumed.decoding)
    computed = at_once * 2 * shape.multiplied / flops
    prefill = 2 * shape.multiplied * sizes.prompt * ceil(share / sizes.topology.n_samples_per_prompt) / flops
    seconds = ceil(share / at_once) * sizes.response * max(read, computed) + prefill
    return Generation(seconds, sequences * sizes.response / seconds, at_once, MEMORY if read > computed else ARITHMETIC)


def _read(sizes: Sizes, shape: Shape, at_once: int) -> float:
    """Bytes that one pass of decoding reads: weights, of experts those that some sequence takes, and half-full caches."""
    size, touched = sizes.sampled_itemsize, 1.0
    if shape.experts:
        touched = 1 - (1 - shape.experts_per_token / shape.experts) ** at_once
    feed_forward = touched * max(shape.experts, 1) * shape.expert
    weights = shape.layers * (shape.attention + shape.shared + feed_forward) + shape.table
    mean = sizes.prompt + sizes.response / 2
    return weights * size + at_once * mean * shape.cache_bytes(size)


def _training(sizes: Sizes, shapes: Mapping[str, Shape], device: Device, assumed: Assumptions) -> Training:
    """6 operations a parameter and token for an update, 8 where activations are recomputed, 2 for a pass without a graph."""
    trainer = sizes.topology.run.trainer
    update = 8 if trainer.gradient_checkpointing else 6
    scored = 0 if trainer.use_rollout_log_probs else 2
    passes = {"actor": update + scored, "critic": update + 2, "reference": 2, "teacher": 2}
    tokens = sizes.topology.sequences_per_rollout * (sizes.prompt + sizes.response)
    operations = sum(each * tokens * _per_pass(sizes, shapes[role]) for role, each in passes.items() if role in shapes)
    stages, micro = sizes.pipeline, sizes.micro_batches
    bubble = (stages - 1) / (micro + stages - 1)
    seconds = operations / (trained_processes(sizes.topology) * device.flops * assumed.training * (1 - bubble))
    return Training(seconds, tokens / seconds, bubble)


def _per_pass(sizes: Sizes, shape: Shape) -> float:
    """Half the operations of a forward on one token: its parameters, and the half of its sequence that it attends to."""
    return shape.multiplied + shape.layers * shape.query * (sizes.prompt + sizes.response)


def _sync(sizes: Sizes, shape: Shape, assumed: Assumptions) -> Sync:
    """Every engine gets a copy in the trainer's type, unless it reads the trainer's own weights."""
    copies = 0 if sizes.shares_weights else sizes.engines
    copy_bytes = shape.parameters * (sizes.itemsize if sizes.is_megatron else 4)
    return Sync(copies, copy_bytes, copy_bytes / assumed.link if copies else 0.0)
