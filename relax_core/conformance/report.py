"""What checking a plugin came to."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: the check's stable `id`, what was `observed` against what is `allowed`, and what to do."""

    id: str
    plugin: str
    severity: Severity
    cause: str
    observed: str
    allowed: str
    fix: str
    reproduce: str

    def lines(self) -> list[str]:
        """As a block of text."""
        return [
            f"{self.id} {self.severity}: {self.plugin}: {self.cause}",
            *(f"  {name:<9} {value}" for name, value in self._details() if value),
        ]

    def _details(self) -> list[tuple[str, str]]:
        return [(name, getattr(self, name)) for name in ("observed", "allowed", "fix", "reproduce")]


@dataclass(frozen=True, slots=True)
class Report:
    """Every finding about one plugin, and the ids of the checks that had something to look at.

    `loaded` is false where the plugin could not be imported, so that most of it was never seen.
    """

    plugin: str
    findings: tuple[Finding, ...]
    checked: tuple[str, ...]
    loaded: bool = True

    @property
    def ok(self) -> bool:
        """Whether nothing but warnings was found."""
        return not any(finding.severity == "error" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """As data."""
        findings = [asdict(finding) for finding in self.findings]
        checked = list(self.checked)
        return {"plugin": self.plugin, "ok": self.ok, "loaded": self.loaded, "checked": checked, "findings": findings}
