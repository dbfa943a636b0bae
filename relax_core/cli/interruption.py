"""Ctrl-C: once to end after the step, twice to end at once."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

INTERRUPTED = 130


class Interruption:
    """The first Ctrl-C asks the run to stop after its step; the second one stops it at once."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self, *_: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        print("\ninterrupted: finishing this step, then saving (again to stop at once)", file=sys.stderr)


@contextmanager
def listening() -> Iterator[Interruption]:
    """Take over Ctrl-C inside the block."""
    interruption = Interruption()
    before = signal.signal(signal.SIGINT, interruption)
    try:
        yield interruption
    finally:
        signal.signal(signal.SIGINT, before)
