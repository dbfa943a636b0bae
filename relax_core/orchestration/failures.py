"""Rewards that fail and count as 0: the metrics have their number, and here each kind of error is told once."""

from __future__ import annotations

from threading import Lock

from relax_core.data.rewards import RewardBatch
from relax_core.orchestration.log import warn

MOST = 20
"""Texts that are told: one that names its sample would be told for every sample."""


class Failures:
    """What was told so far. Rewards are scored in many threads."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._lock = Lock()

    def tell(self, scored: RewardBatch) -> None:
        """Warn of every text that is new, with the sample that gave it first."""
        with self._lock:
            for text, sample in scored.failures.items():
                if text not in self._told and len(self._told) < MOST:
                    self._told.add(text)
                    last = "; errors with other texts are counted, and not told any more" * (len(self._told) == MOST)
                    warn(f"data.reward: failed on sample {sample}, which counts as 0: {text}{last}")
