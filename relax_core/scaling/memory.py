"""What every process of a run holds, in bytes, by kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from relax_core.plan import trained_processes
from relax_core.rollout.vllm.arguments import CPU_CACHE_BYTES
from relax_core.scaling.activations import activations
from relax_core.scaling.devices import Assumptions, Device
from relax_core.scaling.shape import Shape
from relax_core.scaling.sizes import Sizes

KINDS = ("weights", "gradients", "optimizer", "frozen", "activations", "cache", "other")
LASTING = ("weights", "gradients", "optimizer", "frozen", "other")
FROZEN = ("reference", "teacher")


@dataclass(frozen=True, slots=True)
class Load:
    """`count` processes of a `role`, and what each holds on its device by kind; `host`: what it holds beside it."""

    role: str
    count: int
    held: Mapping[str, int]
    host: int = 0
    sequences: int | None = field(default=None)
    """That fit into the cache of one engine, at their longest."""

    @property
    def total(self) -> int:
        return sum(self.held.values())

    @property
    def lasting(self) -> int:
        """What stays while another process has its turn on the device."""
        return sum(self.held.get(kind, 0) for kind in LASTING)


def loads(sizes: Sizes, shapes: Mapping[str, Shape], device: Device, assumed: Assumptions) -> list[Load]:
    """Of the actor's processes, of each role that has its own, and of the engines. `shapes` has one for every role."""
    found = [_actor(sizes, shapes, assumed)]
    for role in _apart(sizes, shapes):
        if role == "critic":
            found.append(Load(role, found[0].count, _trained(sizes, shapes[role], assumed, head=False)))
        else:
            held = {"frozen": _weights(sizes, shapes[role]), "activations": _activations(sizes, shapes[role])}
            found.append(Load(role, found[0].count, {**held, "other": _other(sizes, assumed)}))
    return [*found, _engine(sizes, shapes["actor"], device, assumed)]


def _apart(sizes: Sizes, shapes: Mapping[str, Shape]) -> list[str]:
    """The roles with processes of their own."""
    run = sizes.topology.run.topology
    resources = {role: getattr(run.resources, role) for role in ("critic", *FROZEN) if role in shapes}
    return [role for role, each in resources.items() if run.orchestrator == "ray" and not each.colocated]


def _actor(sizes: Sizes, shapes: Mapping[str, Shape], assumed: Assumptions) -> Load:
    """With the roles that live in its processes: a critic, and frozen models on the device or in the host's memory."""
    inside = set(shapes) - {"actor", *_apart(sizes, shapes)}
    held = _trained(sizes, shapes["actor"], assumed, head=True)
    if "critic" in inside:
        critic = _trained(sizes, shapes["critic"], assumed, head=False)
        held |= {kind: held[kind] + critic[kind] for kind in ("weights", "gradients", "optimizer")}
        held["activations"] = max(held["activations"], critic["activations"])
    frozen = {role: _weights(sizes, shapes[role]) for role in FROZEN if role in inside}
    swapped = {role for role in frozen if sizes.is_megatron and shapes[role] == shapes["actor"]}
    held["frozen"] = sum(size for role, size in frozen.items() if role not in swapped)
    host = sum(frozen[role] for role in swapped)
    return Load("actor", trained_processes(sizes.topology), held, host)


def _trained(sizes: Sizes, shape: Shape, assumed: Assumptions, *, head: bool) -> dict[str, int]:
    """Adam's two moments are float32, and so are the gradients, and a copy of parameters that are not."""
    count = shape.on_rank(sizes.tensor, sizes.pipeline, head=head)
    # PyTorch's AdamW takes its step in one more copy of the parameters, on a GPU, once the activations are gone.
    step = 4 * count if sizes.on_gpus and not sizes.is_megatron else 0
    states = 8 + (4 if _parameter_size(sizes) < 4 else 0)
    return {
        "weights": count * _parameter_size(sizes),
        "gradients": count * 4,
        "optimizer": -(-count * states // sizes.shards),
        "activations": max(_activations(sizes, shape), step),
        "other": _other(sizes, assumed),
    }


def _parameter_size(sizes: Sizes) -> int:
    """The embedded engine's parameters are float32, whatever its products are in."""
    return sizes.itemsize if sizes.is_megatron else 4


def _weights(sizes: Sizes, shape: Shape) -> int:
    return shape.on_rank(sizes.tensor, sizes.pipeline) * _parameter_size(sizes)


def _activations(sizes: Sizes, shape: Shape) -> int:
    return activations(shape, sizes.micro(shape))


def _other(sizes: Sizes, assumed: Assumptions) -> int:
    return int(assumed.process) if sizes.on_gpus else 0


def _engine(sizes: Sizes, shape: Shape, device: Device, assumed: Assumptions) -> Load:
    """One rank of an engine that samples. vLLM fills its part of a GPU with cache; the embedded one takes what it needs."""
    rollout, ranks = sizes.topology.run.rollout, sizes.engine_ranks
    weights = 0 if sizes.shares_weights else shape.on_rank(ranks, 1) * sizes.sampled_itemsize
    token = -(-shape.cache_bytes(sizes.sampled_itemsize) // min(ranks, shape.kv_heads))
    one, other = token * sizes.longest, 0
    cache = one * sizes.decoded
    if rollout.engine == "vllm" and device.memory is not None:
        other = int(assumed.engine)
        cache = max(0, int(rollout.gpu_memory_fraction * device.memory) - weights - other)
    elif rollout.engine == "vllm":
        cache = max(2 * one, min(cache, CPU_CACHE_BYTES))
    held = {"weights": weights, "cache": cache, "other": other}
    return Load("rollout", sizes.engines * ranks, held, sequences=cache // one)


def shared(found: list[Load], sizes: Sizes) -> Iterator[tuple[str, int]]:
    """Bytes that a device holds at the highest point, by who is on it: those that take turns leave what lasts."""
    *trained, engine = found
    for load in trained:
        if load.role == "actor" and sizes.shares_devices:
            yield "actor + rollout", max(load.total, load.lasting + engine.total)
        else:
            yield load.role, load.total
    if not sizes.shares_devices:
        yield engine.role, engine.total
