"""Every check there is."""

from __future__ import annotations

from relax_core.conformance import distributed
from relax_core.conformance.check import Check
from relax_core.conformance.numeric import (
    advantages,
    basics,
    groups,
    honesty,
    invariance,
    masking,
    metrics,
    objective,
    purity,
    results,
    topology,
)
from relax_core.conformance.static import configuration, hooks, imports, loading

STATIC = (loading, hooks, imports, configuration)
NUMERIC = (basics, invariance, masking, objective, purity, metrics, results, groups, advantages, topology, honesty)
CHECKS: tuple[Check, ...] = tuple(check for module in (*STATIC, *NUMERIC, distributed) for check in module.CHECKS)
