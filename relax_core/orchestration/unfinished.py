"""Groups whose responses go on in the next step, and how a checkpoint remembers them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from relax_core.rollout.types import Completion


@dataclass(frozen=True, slots=True)
class Group:
    """A prompt, by its `place` in the run's endless sequence of prompts, and its responses so far (none at first)."""

    place: int
    responses: Sequence[Completion] = field(default=())

    @property
    def ended(self) -> bool:
        """Whether every response is at its end."""
        return bool(self.responses) and all(each.finish_reason != "abort" for each in self.responses)

    def state(self) -> dict[str, Any]:
        """Plain values, for a checkpoint."""
        return {"place": self.place, "responses": [each.row() for each in self.responses]}

    @classmethod
    def restored(cls, state: dict[str, Any]) -> Group:
        """What `state` was of."""
        return cls(state["place"], [Completion(*row) for row in state["responses"]])
