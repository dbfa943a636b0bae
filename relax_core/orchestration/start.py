"""The run of a configuration, by the orchestrator that it names."""

from __future__ import annotations

from relax_core.binding import Binding
from relax_core.orchestration.assemble import assemble
from relax_core.orchestration.run import Run
from relax_core.runfile import ResolvedRun


def start(resolved: ResolvedRun, binding: Binding) -> Run:
    """Load the models, start the processes, and have everything ready for the first step."""
    if resolved.config.topology.orchestrator == "ray":
        from relax_core.orchestration.ray.cluster import prepare

        prepare(resolved.config.topology)
        from relax_core.orchestration.ray.run import RayRun

        return RayRun(resolved, binding)
    return Run(resolved, binding, assemble(resolved, binding))
