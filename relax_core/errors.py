"""Everything that `relax` raises on purpose: one root, and a message that says who, what, and the fix."""

from __future__ import annotations

import traceback
from difflib import get_close_matches
from pathlib import Path

from relax_core.redaction import redacted

FOREIGN = (Exception, SystemExit)
"""What code that is not ours may end with: a `sys.exit()` in a plugin is its fault, and ends nothing else."""


class RelaxError(Exception):
    """A mistake that a user can correct. `exit_code` is what the command line ends with."""

    exit_code = 4

    def __init__(self, what: str, *, who: str = "", fix: str = "") -> None:
        self.what = what
        self.who = who
        self.fix = fix
        super().__init__(self.message)

    @property
    def message(self) -> str:
        """`who: what. Fix: fix` on one line, without the parts that are empty, and without secrets."""
        head = f"{self.who}: {self.what}" if self.who else self.what
        return redacted(f"{head}. Fix: {self.fix}" if self.fix else head)


class UsageError(RelaxError):
    """A flag, a file or a configuration that cannot be read, does not parse or has unknown names."""

    exit_code = 2


class LoadError(RelaxError):
    """A plugin, a model, a dataset or a reward that could not be loaded."""

    exit_code = 3


class RunError(RelaxError):
    """A run that stopped after it had started."""

    exit_code = 4


class PluginError(RunError):
    """A hook returned something that the contract does not allow."""


def describe(error: BaseException) -> str:
    """`Type: message (file.py:line)`, the place being where it was raised; a syntax error names its own."""
    trace = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith("<")]
    known = trace and not isinstance(error, SyntaxError)
    where = f" ({Path(trace[-1].filename).name}:{trace[-1].lineno})" if known else ""
    return f"{type(error).__name__}: {error}{where}"


def nearest(name: str, known: list[str]) -> str:
    """`did you mean 'x'?` for the known name closest to `name`; empty when none is close."""
    matches = get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean '{matches[0]}'?" if matches else ""
