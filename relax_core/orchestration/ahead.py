"""Mode hybrid: the next rollout is sampled while this one is trained on, by the weights that this one was sampled with."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from relax_core.orchestration.assemble import Parts
from relax_core.orchestration.generation import Generation, Round
from relax_core.spec import SequenceField, TokenField


class Ahead(Generation):
    """One rollout ahead at most; new weights wait for its end, so that one seed is one run."""

    def __init__(self, parts: Parts, fields: Sequence[SequenceField | TokenField]) -> None:
        super().__init__(parts, fields)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rollout")
        self._next: Future[Round] | None = None

    def next(self, step: int) -> Round:
        """The rollout that was sampled ahead, or a new one at first; the one after it is begun."""
        result = self.run(step) if self._next is None else self._next.result()
        ahead = step + 1 < self.config.trainer.num_rollout
        self._next = self._thread.submit(self.run, step + 1) if ahead else None
        return result

    def before_new_weights(self) -> None:
        """Wait for the end of the rollout that is under way."""
        if self._next is not None:
            wait([self._next])

    def state(self) -> dict[str, Any]:
        """What a checkpoint has to hold, the rollout that is ahead included."""
        self.before_new_weights()
        ahead = None if self._next is None else self._next.result().state()
        return {**super().state(), "ahead": ahead}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        self.before_new_weights()  # it would go on changing what is restored
        super().restore(state)
        self._next = None
        if state.get("ahead") is not None:
            self._next = Future()
            self._next.set_result(self.restored(state["ahead"]))

    def close(self) -> None:
        """What is under way is not waited for."""
        self._thread.shutdown(wait=False, cancel_futures=True)
