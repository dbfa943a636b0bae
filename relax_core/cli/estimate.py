"""The estimate of a run, as tables and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from relax_core.cli.table import aligned
from relax_core.scaling.estimate import Estimate
from relax_core.scaling.memory import KINDS, Load
from relax_core.scaling.speed import Speed

GB = 1e9


def lines_of(told: Estimate) -> Iterator[str]:
    """Memory, speed, and what both rest on."""
    yield f"{told.shape.parameters / GB:.2f} billion parameters, on {told.device.name}"
    yield ""
    yield from memory_lines(told)
    yield ""
    yield from speed_lines(told.speed)
    yield ""
    yield from _basis(told)


def memory_lines(told: Estimate) -> Iterator[str]:
    """A row a role, a column a kind, in GB; then what a device holds at its highest point."""
    kinds = [kind for kind in KINDS if any(load.held.get(kind) for load in told.loads)]
    rows = [["GB A PROCESS", "PROCESSES", *map(str.upper, kinds), "TOTAL"]]
    rows += [[load.role, str(load.count), *_amounts(load, kinds), _gb(load.total)] for load in told.loads]
    yield from aligned(rows)
    for who, size in told.peaks:
        of = "" if told.device.memory is None else f" of {told.device.memory / GB:.0f}"
        yield f"{who}: {size / GB:.1f}{of} GB on a device at most"
    if host := told.loads[0].host:
        yield f"actor: {host / GB:.1f} GB in the host's memory beside it, for weights that are swapped in"


def _amounts(load: Load, kinds: Sequence[str]) -> list[str]:
    return [_gb(load.held[kind]) if load.held.get(kind) else "-" for kind in kinds]


def _gb(size: float) -> str:
    return f"{size / GB:.2f}"


def speed_lines(speed: Speed | None) -> Iterator[str]:
    """Seconds and tokens a second of a step's parts, and what bounds each."""
    if speed is None:
        yield "no estimate of the speed: the engines have no room to sample"
        return
    made, trained, sync = speed.generation, speed.training, speed.sync
    bubble = f", {trained.bubble:.1%} of it a pipeline's bubble" if trained.bubble else ""
    yield from aligned(
        [
            ["PART", "SECONDS", "TOKENS/S", "BOUND BY"],
            [
                "generation",
                f"{made.seconds:.1f}",
                f"{made.tokens_per_second:.0f}",
                f"{made.bound}, {made.at_once} at once",
            ],
            ["training", f"{trained.seconds:.1f}", f"{trained.tokens_per_second:.0f}", f"arithmetic{bubble}"],
            ["weight sync", f"{sync.seconds:.1f}", "-", f"{sync.copies} copies of {sync.copy_bytes / GB:.1f} GB"],
            ["step", f"{speed.seconds:.1f}", "-", f"devices idle {speed.idle:.0%} of the time"],
        ]
    )


def _basis(told: Estimate) -> Iterator[str]:
    device, assumed, sizes = told.device, told.assumed, told.sizes
    yield f"peaks: {device.flops / 1e12:g} TFLOP/s, {device.bandwidth / GB:g} GB/s ({device.source})"
    yield (
        f"assumed: {assumed.training:.0%} of the arithmetic in training, {assumed.prefill:.0%} in prefill, "
        f"{assumed.decoding:.0%} of the bandwidth in decoding, {assumed.link / GB:g} GB/s for each copy of the weights"
    )
    if sizes.on_gpus:
        yield f"assumed: {_gb(assumed.process)} GB of each trainer's process and {_gb(assumed.engine)} GB of each engine's"
    yield f"assumed: every prompt has {sizes.prompt} tokens and every response {sizes.response}"
    yield from (f"note: {note}" for note in told.notes)


def as_json_text(told: Estimate, findings: Sequence[str]) -> str:
    """The estimate as JSON, in bytes and seconds; `findings` are parallel sizes that do not divide the model."""
    loads = [
        {"role": load.role, "processes": load.count, "bytes": dict(load.held), "total": load.total}
        | {"host_bytes": load.host, "sequences": load.sequences}
        for load in told.loads
    ]
    return json.dumps(
        {
            "version": 1,
            "ok": not findings and not told.problems,
            "device": asdict(told.device),
            "assumptions": asdict(told.assumed),
            "parameters": told.shape.parameters,
            "prompt_tokens": told.sizes.prompt,
            "response_tokens": told.sizes.response,
            "memory": loads,
            "peaks": dict(told.peaks),
            "speed": None if told.speed is None else asdict(told.speed),
            "problems": [*findings, *told.problems],
            "notes": list(told.notes),
        },
        indent=2,
    )
