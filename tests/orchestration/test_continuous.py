"""The bound on staleness as a property: in whatever order groups end, none is late, lost or used twice."""

import time
from concurrent.futures import Future
from io import BytesIO
from itertools import count
from threading import Lock
from types import SimpleNamespace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from relax_core.data.examples import Example
from relax_core.data.prompts import Prompt
from relax_core.orchestration.collect import Response, decoded
from relax_core.orchestration.continuous import Continuous
from relax_core.orchestration.generation import Generation
from relax_core.rollout.types import Completion

SIZE = 3


class Engine:
    """Ends the groups that it was asked for in the order that it is told; no two responses are the same, from `first` on."""

    def __init__(self, first: int) -> None:
        self.version, self.sampled, self.lock = 0, count(first), Lock()
        self.under_way: dict[int, tuple[int, Future]] = {}

    def submit(self, prompt, params, place):
        future = Future()
        with self.lock:
            self.under_way[place] = (self.version, future)
        return future

    def end(self, choice: int) -> None:
        with self.lock:
            place = sorted(self.under_way)[choice % len(self.under_way)]
            version, future = self.under_way.pop(place)
        future.set_result(
            [Completion([place, next(self.sampled)], [-0.5, -place / 8], "stop", [version, self.version])]
        )


class Scored(Continuous):
    """Without models: a response is worth what no other is, and every third group is dropped."""

    def scored(self, groups):
        found = decoded([(each.place, self._prompt(each), each.responses[0]) for each in groups], self.parts.tokenizer)
        for each in found:
            each.score = each.reward = each.completion.token_ids[1] / 2
        return found, len(groups)

    def _filter(self, responses, step):
        return [each for each in responses if each.group % 3]

    def _prompt(self, group):
        return Prompt(Example(f"row-{group.place}", "?", None, {}), [1], "?")

    def _params(self):
        return None


TOKENIZER = SimpleNamespace(batch_decode=lambda rows, **options: [str(row) for row in rows])


def generation(bound: int, steps: int, first: int = 0, size: int = SIZE) -> tuple[Scored, Engine]:
    engine = Engine(first)
    rollout = SimpleNamespace(rollout_batch_size=size, max_refills=50, partial_rollout=False)
    config = SimpleNamespace(
        rollout=rollout, trainer=SimpleNamespace(num_rollout=steps), topology=SimpleNamespace(timeout=20)
    )
    topology = SimpleNamespace(run=config, max_staleness=bound)
    return Scored(SimpleNamespace(topology=topology, sampler=engine, tokenizer=TOKENIZER, environment=None), ()), engine


def train(run: Scored, engine: Engine, choices, steps: range) -> list[Response]:
    """What these steps train on, while the engine ends groups in the order of the choices."""
    seen: list[Response] = []
    for step in steps:
        engine.version = step
        thread = run._scoring.submit(run.next, step)
        while not thread.done():
            assert len(engine.under_way) <= (run.bound + 1) * run.size
            if engine.under_way:
                engine.end(next(choices, 0))
                time.sleep(0.002)  # for the run to take what it has, before there is more
        kept = thread.result(20).kept
        assert len(kept) == run.size
        assert all(0 <= step - each.completion.versions[0] <= run.bound for each in kept)
        seen += kept
    return seen


@settings(max_examples=40, deadline=None)
@given(bound=st.integers(0, 3), orders=st.lists(st.integers(0, 99), min_size=200, max_size=200))
@example(bound=1, orders=[-1] * 200)  # the newest first: the oldest would be late if nobody waited for them
@example(bound=2, orders=[-1] * 200)
def test_no_group_is_late_lost_or_used_twice(bound, orders):
    steps = 6
    run, engine = generation(bound, steps)
    seen = [each.group for each in train(run, engine, iter(orders), range(steps))]
    assert len(seen) == len(set(seen)) == steps * SIZE
    assert all(place % 3 == 0 for place in left_out(run, seen)), "only groups that were dropped are missing"
    run.close()


def left_out(run, seen):
    return set(range(run.cursor)) - set(seen) - set(run._started) - {group.place for group in run.unfinished}


def through_a_file(state):
    """As a checkpoint has it: plain values alone."""
    buffer = BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@settings(max_examples=40, deadline=None)
@given(bound=st.integers(0, 3), at=st.integers(0, 5), orders=st.lists(st.integers(0, 99), min_size=200, max_size=200))
@example(bound=2, at=3, orders=[-1] * 200)
@example(bound=3, at=5, orders=[0] * 200)
def test_a_run_that_goes_on_keeps_what_had_ended_and_samples_the_rest_anew(bound, at, orders):
    steps, choices = 6, iter(orders)
    run, engine = generation(bound, steps)
    seen = train(run, engine, choices, range(at))
    for _ in range(next(choices) % (len(engine.under_way) + 1)):
        engine.end(next(choices))
    run._scoring.shutdown()  # what has ended is scored
    state = through_a_file(run.state())
    ended = {place: each for place, each in run._started.items() if each.ended >= 0}
    again, other = generation(bound, steps, first=1000)
    again.restore(state)
    assert through_a_file(again.state()) == state
    assert {place: each.deadline for place, each in again._started.items()} == {
        place: each.deadline for place, each in ended.items()
    }
    after = train(again, other, choices, range(at, steps))
    places = [each.group for each in (*seen, *after)]
    assert len(places) == len(set(places)) == steps * SIZE
    assert all(place % 3 == 0 for place in left_out(again, places)), "only groups that were dropped are missing"
    for each in after:
        if each.group in ended:
            assert [each] == list(ended[each.group].responses), "tokens, log-probs, versions, score and text"
        else:
            assert each.completion.token_ids[1] >= 1000
    again.close()


@pytest.mark.parametrize(("bound", "size", "kept"), [(2, SIZE, 6), (1, SIZE, 3), (0, SIZE, 0), (2, 1, 2), (3, SIZE, 6)])
def test_a_run_that_goes_on_with_another_bound_or_batch_takes_up_no_group_that_would_be_late(bound, size, kept):
    """Six groups begun at step 0 have ended at step 1: a batch of them is due at each step until the bound."""
    run, engine = generation(2, 6)
    run._start(0, SIZE)
    train(run, engine, iter([0] * 3), range(1))
    while engine.under_way:
        engine.end(0)
    run._scoring.shutdown()
    state = through_a_file(run.state())
    left = sorted(run._started)
    assert [each["begun"] for each in state["ended"]] == [0] * 6
    again, other = generation(bound, 6, first=1000, size=size)
    again.restore(state)
    assert len(again._started) == kept
    assert sorted([*again._started, *(group.place for group in again.unfinished)]) == left
    train(again, other, iter([]), range(1, 6))
    again.close()


def test_a_checkpoint_names_what_was_begun_and_not_used():
    run, engine = generation(1, 4)
    run._start(0, SIZE)
    assert sorted(engine.under_way) == list(range(2 * SIZE))
    state = run.state()
    assert state["cursor"] == 2 * SIZE
    assert [each["place"] for each in state["unfinished"]] == list(range(2 * SIZE))
    again, other = generation(1, 4)
    again.restore(state)
    again._start(2, SIZE)
    assert sorted(other.under_way) == list(range(2 * SIZE)), "those first, before any new one"
    assert isinstance(run, Generation)
