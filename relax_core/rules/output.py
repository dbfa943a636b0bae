"""Rules about what a run leaves behind."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

from relax_core.rules import Finding, Run, rule, rules_in

NEEDS = {
    "wandb": ("wandb", "wandb"),
    "mlflow": ("mlflow", "mlflow"),
    "prometheus_port": ("prometheus_client", "prometheus"),
}
"""The module that a setting of `output` needs, and the extra that brings it."""


@rule("RLX116", "What the metrics are sent to is installed")
def trackers_are_there(run: Run) -> Iterable[Finding]:
    for name, (module, extra) in NEEDS.items():
        if getattr(run.topology.run.output, name) is not None and not _installed(module):
            fix = f"pip install 'relax-rl[{extra}]', or leave it out"
            yield f"output.{name}", f"{module} is not installed", fix


def _installed(module: str) -> bool:
    """A bare directory of that name, as W&B leaves one, is no module."""
    found = find_spec(module)
    return found is not None and found.origin is not None


RULES = rules_in(globals())
