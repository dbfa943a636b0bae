"""`relax plan`: what a run needs and how fast it may be, on devices that nobody has to have."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from relax_core.binding import Binding, bind
from relax_core.cli.check import FINDINGS, warn_of_unusable
from relax_core.cli.estimate import as_json_text, lines_of
from relax_core.errors import UsageError, nearest
from relax_core.rules import Run
from relax_core.rules.engine_facts import model_place, read_json
from relax_core.rules.megatron import heads_divide, layers_divide, replicas_have_work, sequence_parallel, widths_divide
from relax_core.runfile import ResolvedRun, read, resolve
from relax_core.scaling.devices import DEVICES, Assumptions, Device
from relax_core.scaling.estimate import Estimate, estimate
from relax_core.scaling.shape import Shape, shape_of
from relax_core.startup import topology_of
from relax_core.topology import Topology

RULES = (heads_divide, layers_divide, sequence_parallel, widths_divide, replicas_have_work)
SETTINGS = {"critic": "critic_path", "reference": "ref_hf_model_path", "teacher": "teacher_path"}


def tell(told: Estimate, findings: Sequence[str], as_json: bool) -> None:
    """Print what `planned` gave on stdout; exit 1 when a process would not fit, or the sizes do not divide the model."""
    print(as_json_text(told, findings) if as_json else "\n".join(lines_of(told)))
    for problem in (*findings, *told.problems):
        print(f"error: {problem}", file=sys.stderr)
    sys.exit(FINDINGS if findings or told.problems else 0)


def planned(
    run: Path,
    overrides: Mapping[str, Any],
    plugins: Sequence[Path],
    device: str,
    config: Path | None,
    assume: Sequence[str],
) -> tuple[Estimate, list[str]]:
    """The estimate of a run file, and the parallel sizes that do not divide its model."""
    chosen, assumed = _device(device), _assumed(assume)
    resolved = resolve(read(run), overrides, plugins)
    binding = bind(resolved.registry, resolved.choice, resolved.config.algorithm)
    warn_of_unusable(resolved.registry)
    topology, actor = topology_of(resolved.config, binding), _actor_config(resolved, config)
    shapes = _shapes(resolved, topology, shape_of(actor, str(config or "model.path")))
    return estimate(topology, shapes, chosen, assumed), _misfits(topology, binding, actor)


def _misfits(topology: Topology, binding: Binding, config: Mapping[str, Any]) -> list[str]:
    subject = Run(topology, binding, shapes={"model.path": config})
    return [violation.message for rule in RULES for violation in rule.violations(subject)]


def _device(name: str) -> Device:
    if name not in DEVICES:
        fix = f"{nearest(name, list(DEVICES))} There are {', '.join(DEVICES)}".strip()
        raise UsageError(f"no device '{name}'", who="--device", fix=fix)
    return DEVICES[name]


def _assumed(given: Sequence[str]) -> Assumptions:
    """`training=0.35` and the like, over what is assumed anyway."""
    names = [each.name for each in fields(Assumptions)]
    values: dict[str, float] = {}
    for text in given:
        name, _, number = text.partition("=")
        if name not in names or (value := _positive(number)) is None:
            fix = f"write one of {', '.join(names)}, an = and a number above 0: training=0.35"
            raise UsageError(f"'{text}' is no assumption", who="--assume", fix=fix)
        values[name] = value
    return replace(Assumptions(), **values)


def _positive(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None


def _actor_config(resolved: ResolvedRun, config: Path | None) -> Mapping[str, Any]:
    place = config or _config_of(resolved, resolved.config.model.path)
    if place is None:
        problem = f"the sizes of '{resolved.config.model.path}' are not known before it is there"
        raise UsageError(problem, who="model.path", fix="give its config.json: --model-config FILE")
    if not (found := read_json(place)):
        raise UsageError("no configuration can be read there", who=str(place), fix="give a model's config.json")
    return found


def _config_of(resolved: ResolvedRun, path: str | None) -> Path | None:
    place = None if path is None else model_place(resolved.base, path)
    return None if place is None else place / "config.json"


def _shapes(resolved: ResolvedRun, topology: Topology, actor: Shape) -> dict[str, Shape]:
    """Of every role with a model; where its directory is not there, it is taken to be like the actor."""
    shapes = {"actor": actor}
    for role, setting in SETTINGS.items():
        if role in topology.roles:
            place = _config_of(resolved, getattr(resolved.config.model, setting))
            shapes[role] = actor if place is None else shape_of(read_json(place), f"model.{setting}")
    return shapes
