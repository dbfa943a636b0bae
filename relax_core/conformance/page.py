"""The checks as documentation."""

from __future__ import annotations

from relax_core.conformance.catalogue import CHECKS
from relax_core.conformance.check import TIERS


def entries() -> str:
    """An entry for each id, by tier."""
    parts = []
    for tier in TIERS:
        parts.append(f"## {tier.capitalize()}")
        for check in sorted((each for each in CHECKS if each.tier == tier), key=lambda each: each.id):
            kind = " (warning)" if check.severity == "warning" else ""
            parts.append(f"### {check.id}{kind}\n\n{check.title}.\n\nLikely fix: {check.fix}.")
    return "\n\n".join(parts)
