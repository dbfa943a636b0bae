"""The bound on staleness as a property: in whatever order groups end, none is late, lost or used twice."""

import time
from concurrent.futures import Future
from threading import Lock
from types import SimpleNamespace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from relax_core.orchestration.continuous import Continuous
from relax_core.orchestration.generation import Generation
from relax_core.rollout.types import Completion

SIZE = 3


class Engine:
    """Ends the groups that it was asked for in the order that it is told."""

    def __init__(self) -> None:
        self.version, self.lock = 0, Lock()
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
        future.set_result([Completion([place], [0.0], "stop", [version])])


class Scored(Continuous):
    """Without models: a response is its place, and every third group is dropped."""

    def scored(self, groups):
        return [SimpleNamespace(group=each.place, completion=each.responses[0], score=1.0) for each in groups], 0

    def _filter(self, responses, step):
        return [each for each in responses if each.group % 3]

    def _prompt(self, group):
        return SimpleNamespace(token_ids=[1])

    def _params(self):
        return None


def generation(bound: int, steps: int) -> tuple[Scored, Engine]:
    engine = Engine()
    rollout = SimpleNamespace(rollout_batch_size=SIZE, max_refills=4, partial_rollout=False)
    config = SimpleNamespace(
        rollout=rollout, trainer=SimpleNamespace(num_rollout=steps), topology=SimpleNamespace(timeout=20)
    )
    topology = SimpleNamespace(run=config, max_staleness=bound)
    return Scored(SimpleNamespace(topology=topology, sampler=engine, environment=None), ()), engine


@settings(max_examples=40, deadline=None)
@given(bound=st.integers(0, 3), orders=st.lists(st.integers(0, 99), min_size=200, max_size=200))
@example(bound=1, orders=[-1] * 200)  # the newest first: the oldest would be late if nobody waited for them
@example(bound=2, orders=[-1] * 200)
def test_no_group_is_late_lost_or_used_twice(bound, orders):
    steps, choices = 6, iter(orders)
    run, engine = generation(bound, steps)
    seen: list[int] = []
    for step in range(steps):
        found = Future()

        def work(step=step, found=found):
            found.set_result(run.next(step))

        thread = run._scoring.submit(work)
        while not found.done() and not thread.done():
            assert len(engine.under_way) <= (bound + 1) * SIZE
            if engine.under_way:
                engine.end(next(choices, 0))
                time.sleep(0.002)  # for the run to take what it has, before there is more
        thread.result(20)
        kept = found.result()
        assert len(kept.kept) == SIZE
        assert all(0 <= step - each.completion.versions[0] <= bound for each in kept.kept)
        seen += [each.group for each in kept.kept]
        engine.version = step + 1
    assert len(seen) == len(set(seen)) == steps * SIZE
    left = set(range(run.cursor)) - set(seen) - set(run._started)
    assert all(place % 3 == 0 for place in left), "only groups that were dropped are missing"
    run.close()


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
