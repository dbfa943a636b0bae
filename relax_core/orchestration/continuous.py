"""Mode async: groups are sampled all the time, as many as the bound on staleness lets be, and trained on as they end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from threading import Condition
from typing import Any, cast

from relax_core.data.prompts import Prompt
from relax_core.errors import RunError
from relax_core.orchestration.assemble import Parts
from relax_core.orchestration.collect import Response
from relax_core.orchestration.generation import Generation, Round
from relax_core.orchestration.unfinished import Group
from relax_core.rollout.types import Completion, ContinuousEngine
from relax_core.spec import SequenceField, TokenField


@dataclass(slots=True, eq=False)
class Started:
    """A group that is sampled since step `begun`, or waits to be trained on: by `deadline` at the latest. `ended` counts up."""

    begun: int
    deadline: int
    ended: int = -1
    responses: Sequence[Response] = ()
    errors: int = 0


class Continuous(Generation):
    """At most (max_staleness + 1) batches are begun and not trained on, so no group is ever too old to be used.

    A batch is the groups that ended first among those that are due first. With max_staleness 0 it is the synchronous one.
    """

    def __init__(self, parts: Parts, fields: Sequence[SequenceField | TokenField]) -> None:
        super().__init__(parts, fields)
        self.bound, self.size = parts.topology.max_staleness, self.config.rollout.rollout_batch_size
        self._started: dict[int, Started] = {}
        self._changed, self._order = Condition(), count()
        self._coming = 0
        self._failure: BaseException | None = None
        self._scoring = ThreadPoolExecutor(thread_name_prefix="score")

    @property
    def depth(self) -> int:
        """Groups that are sampled, or wait to be trained on."""
        return len(self._started)

    def next(self, step: int) -> Round:
        """The rollout that step `step` trains on; while it does, others are sampled."""
        result = self.run(step)
        self._start(step, 0)
        self._coming = step + 1
        return result

    def state(self) -> dict[str, Any]:
        """What a checkpoint has to hold: groups that have ended, whole; those under way are sampled anew."""
        with self._changed:
            ended = [self._started[place] for place in self._by_deadline()]
            under_way = [Group(place) for place, each in sorted(self._started.items()) if each.ended < 0]
            return {
                "cursor": self.cursor,
                "unfinished": [group.state() for group in (*under_way, *self.unfinished)],
                "coming": self._coming,
                "ended": [
                    {"begun": each.begun, **Round(list(each.responses), errors=each.errors).state()} for each in ended
                ],
            }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        with self._changed:
            self._started.clear()
            self._failure = None
            super().restore(state)
            self._coming = state.get("coming", 0)
            self.unfinished[:0] = list(self._take_up(state.get("ended", [])))

    def _take_up(self, ended: Sequence[dict[str, Any]]) -> Iterator[Group]:
        """Groups with their responses, in the order of their deadlines; gives those that would be late, to be sampled anew.

        None is where the bound and the batch are those of the checkpoint: each step until a deadline uses a batch.
        """
        for each in ended:
            found, deadline = self.restored(each), each["begun"] + self.bound
            place = found.kept[0].group
            if len(self._started) < (deadline - self._coming + 1) * self.size:
                self._started[place] = Started(each["begun"], deadline, next(self._order), found.kept, found.errors)
            else:
                yield Group(place)

    def close(self) -> None:
        """What is under way is not waited for."""
        self._scoring.shutdown(wait=False, cancel_futures=True)

    def _sampled(self, groups: int, step: int) -> tuple[list[Response], int]:
        self._start(step, groups)
        timeout, found = self.config.topology.timeout, list[Started]()
        with self._changed:
            while not (chosen := self._batch(groups, step)):
                if self._failure is not None:
                    raise self._failure
                if not self._changed.wait(timeout):
                    problem = f"no group ended in {timeout:g} s, {len(self._started)} are under way"
                    raise RunError(problem, who="rollout", fix="raise topology.timeout, or go on with --resume")
            found = [self._started.pop(place) for place in chosen]
        return [response for each in found for response in each.responses], sum(each.errors for each in found)

    def _start(self, step: int, missing: int) -> None:
        """Begin as many groups as may be, while step `step` still lacks `missing`: what is left of them is trained on in time."""
        ahead = min(self.bound, self.config.trainer.num_rollout - step - 1)
        with self._changed:
            for group in self._next_groups(ahead * self.size + missing - len(self._started)):
                started = self._started[group.place] = Started(step, step + self.bound)
                future = self._asked(self._prompt(group), group.place)
                future.add_done_callback(partial(self._sampled_one, group.place, started))

    def _asked(self, prompt: Prompt, place: int) -> Future[list[Completion]]:
        if self.parts.environment is not None:
            return self.parts.environment.submit(prompt, self._params(), place)
        engine = cast("ContinuousEngine", self.parts.sampler)
        return engine.submit(prompt.token_ids, self._params(), place)

    def _next_groups(self, wanted: int) -> list[Group]:
        groups = self.unfinished[: max(0, wanted)]
        del self.unfinished[: len(groups)]
        new = range(self.cursor, self.cursor + max(0, wanted) - len(groups))
        self.cursor += len(new)
        return [*groups, *map(Group, new)]

    def _batch(self, size: int, step: int) -> list[int]:
        """`size` groups that ended, by place, without which none will be late; none where there are no such yet."""
        ended = self._by_deadline()
        left = [each for place, each in self._started.items() if place not in ended[:size]]
        due = [sum(each.deadline <= step + later for each in left) for later in range(self.bound + 1)]
        late = any(number > later * self.size for later, number in enumerate(due))
        return [] if late or len(ended) < size else sorted(ended[:size])

    def _by_deadline(self) -> list[int]:
        """The groups that have ended, by place: those first that are due first, and of them those that ended first."""
        ended = [(each.deadline, each.ended, place) for place, each in self._started.items() if each.ended >= 0]
        return [place for *_, place in sorted(ended)]

    def _sampled_one(self, place: int, started: Started, future: Future[list[Completion]]) -> None:
        try:
            completions = future.result()
            self._scoring.submit(self._score, place, started, completions)
        except BaseException as error:
            self._fail(error)

    def _score(self, place: int, started: Started, completions: list[Completion]) -> None:
        try:
            responses, errors = self.scored([Group(place, completions)])
        except BaseException as error:
            self._fail(error)
            return
        with self._changed:
            started.responses, started.errors, started.ended = responses, errors, next(self._order)
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()
