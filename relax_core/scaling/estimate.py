"""The estimate of a run: memory, speed, and what would not work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from relax_core.scaling.devices import Assumptions, Device
from relax_core.scaling.memory import Load, loads, shared
from relax_core.scaling.shape import Shape
from relax_core.scaling.sizes import PROMPT_TOKENS, Sizes
from relax_core.scaling.speed import Speed, speed
from relax_core.topology import Topology


@dataclass(frozen=True, slots=True)
class Estimate:
    """`loads` by role, `peaks` in bytes by who is on a device, `speed` where it can sample, `problems` that stop it."""

    device: Device
    assumed: Assumptions
    sizes: Sizes
    shape: Shape
    loads: tuple[Load, ...]
    peaks: tuple[tuple[str, int], ...]
    speed: Speed | None
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    """What stands in no field of the run and changes the result."""


def estimate(topology: Topology, shapes: Mapping[str, Shape], device: Device, assumed: Assumptions) -> Estimate:
    """Of a resolved run on devices of one kind. `shapes` has one for every role but `rollout`."""
    sizes = Sizes(topology, device.is_gpu)
    found = loads(sizes, shapes, device, assumed)
    peaks = tuple(shared(found, sizes))
    fast = speed(sizes, shapes, found[-1], device, assumed)
    problems = (*_too_large(peaks, device), *_no_room(sizes, found[-1], device))
    return Estimate(device, assumed, sizes, shapes["actor"], tuple(found), peaks, fast, problems, tuple(_notes(sizes)))


def _too_large(peaks: tuple[tuple[str, int], ...], device: Device) -> Iterator[str]:
    for who, size in peaks:
        if device.memory is not None and size > device.memory:
            needed, there = size / 1e9, device.memory / 1e9
            what = "write a larger tensor_model_parallel_size, gradient_checkpointing: true, or fewer tokens in a micro-batch"
            yield f"{who}: {needed:.1f} GB do not fit into the {there:.0f} GB of an {device.name}. Fix: {what}"


def _no_room(sizes: Sizes, engine: Load, device: Device) -> Iterator[str]:
    if not engine.sequences:
        fix = "write a larger rollout.gpu_memory_fraction or rollout.tensor_parallel_size"
        yield (
            f"rollout: beside the weights the cache of an engine has no room for one sequence of {sizes.longest} tokens "
            f"on an {device.name}. Fix: {fix}"
        )


def _notes(sizes: Sizes) -> Iterator[str]:
    if sizes.topology.run.data.max_prompt_tokens is None:
        yield f"data.max_prompt_tokens is not set: prompts are taken as {PROMPT_TOKENS} tokens long"
    silent = "use_distributed_optimizer" not in sizes.topology.run.trainer.megatron_args
    if silent and sizes.is_megatron and sizes.shards < sizes.replicas:
        how = "trainer.megatron_args: {use_distributed_optimizer: true} plans for it"
        yield f"every rank has the whole optimizer, as without Transformer Engine, which is not installed here; {how}"
