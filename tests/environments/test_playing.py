"""Trajectories: what they hold, how they end, and that many of them are under way at once."""

from __future__ import annotations

import asyncio
import threading
import time
from itertools import count

import pytest

from relax_core import Trajectory
from relax_core.conformance.scripted import VERSION, ScriptedEngine
from relax_core.environments import engines
from relax_core.environments.engines import Batches, Streams
from relax_core.environments.trajectory import Limits
from relax_core.errors import RunError
from tests.environments.playing import play, text_of


async def two_turns(prompt, sampler):
    trajectory = Trajectory(prompt)
    sampler.observe(trajectory, "go ")
    await sampler.sample(trajectory)
    trajectory.turn_reward(0.25)
    sampler.observe(trajectory, "ok ")
    await sampler.sample(trajectory, max_tokens=2)
    trajectory.turn_reward(-1)
    return trajectory


def test_a_trajectory_holds_every_token_with_its_mask_version_and_reward():
    (found,) = play(two_turns, ["abc", "defg"])
    assert text_of(found) == "go abcok de"
    assert "".join("+" if live else "." for live in found.raw_mask) == "...+++...++"
    assert found.versions == [VERSION] * 11, "those before the first turn as it"
    assert [value == 0 for value in found.log_probs] == [not live for live in found.raw_mask]
    assert found.turn_rewards == [0, 0, 0, 0, 0, 0.25, 0, 0, 0, 0, -1.0]
    assert (found.finish_reason, found.reward, found.counts) == ("length", None, {"turns": 2})


async def forgetful(prompt, sampler):
    """Reads its first turn and a note in place of all else."""
    trajectory = Trajectory(prompt)
    turn = await sampler.sample(trajectory)
    await sampler.call(trajectory, str.upper, "x")
    sampler.reset(trajectory, "forgotten at once")
    sampler.reset(trajectory, turn.token_ids, "!")
    sampler.observe(trajectory, "-")
    await sampler.sample(trajectory)
    return trajectory


class Listening(ScriptedEngine):
    """Keeps what it was asked after."""

    def generate(self, prompts, params, places=None):
        self.heard = [*getattr(self, "heard", []), *(bytes(each).decode() for each in prompts)]
        return super().generate(prompts, params, places)


def test_after_a_reset_the_policy_reads_what_it_was_given_and_the_trajectory_keeps_all():
    engine = Listening(["abc", "de"])
    (found,) = play(forgetful, engine=engine)
    assert engine.heard == ["ask:", "abc!-"]
    assert text_of(found) == "abcX-de"
    assert found.resets == ((4, [*b"abc!"]),)
    assert found.observations == [(3, "upper"), (4, "")]
    assert bytes(found.context).decode() == "abc!-de"
    assert found.room == 200 - 7 - 4, "what it was given is paid for"
    assert [bytes(found.read_before(place)).decode() for place in (0, 3, 4, 6)] == ["ask:", "ask:abc", "abc!", "abc!-d"]


async def full(prompt, sampler):
    """Goes on until it may read no more, and then from a note on."""
    trajectory = Trajectory(prompt)
    while trajectory.may_go_on:
        await sampler.sample(trajectory)
        sampler.observe(trajectory, "...............")
        if trajectory.context_room == 0:
            sampler.reset(trajectory, "note")
    return trajectory


def test_what_is_read_at_once_is_bounded_and_a_reset_makes_room():
    engine = Listening(["abcdefghijkl"])
    (found,) = play(full, engine=engine, limits=Limits(3, 200, context=12))
    assert text_of(found) == "abcdefgh" * 3, "twelve tokens, of which four are read first"
    assert engine.heard == ["ask:", "note", "note"]


async def never_resets(prompt, sampler):
    trajectory = Trajectory(prompt)
    while trajectory.may_go_on:
        await sampler.sample(trajectory)
    return trajectory


async def resets_for_ever(prompt, sampler):
    trajectory = Trajectory(prompt)
    while True:
        await sampler.sample(trajectory, max_tokens=1)
        sampler.reset(trajectory, "a note")


@pytest.mark.parametrize(
    ("generate", "limits", "length"),
    [
        (never_resets, Limits(9, 200, context=12), 8),
        (resets_for_ever, Limits(99, 22), 4),
        (resets_for_ever, Limits(99, 200, context=6), 1),
    ],
)
def test_one_that_may_read_no_more_is_cut_there(generate, limits, length):
    (found,) = play(generate, ["x" * 50], limits=limits)
    assert (len(found.token_ids), found.finish_reason) == (length, "length")


async def to_nothing(prompt, sampler):
    trajectory = Trajectory(prompt)
    await sampler.sample(trajectory)
    sampler.reset(trajectory, "", ())


def test_a_context_is_not_replaced_by_nothing():
    with pytest.raises(RunError, match=r"a context was replaced by nothing. Fix: give a text, or token ids"):
        play(to_nothing, ["abc"])


async def endless(prompt, sampler):
    trajectory = Trajectory(prompt)
    while True:
        await sampler.sample(trajectory)
        await sampler.call(trajectory, lambda: "....")


@pytest.mark.parametrize(("limits", "length"), [(Limits(3, 99), 3 * 3 + 3 * 4), (Limits(9, 12), 12)])
def test_one_that_would_go_on_for_ever_is_cut_at_its_budget(limits, length):
    (found,) = play(endless, ["abc"], limits=limits)
    assert len(found.token_ids) == length
    assert found.finish_reason == "length"


async def at_its_end(prompt, sampler):
    trajectory = Trajectory(prompt)
    while trajectory.may_go_on:
        if (await sampler.sample(trajectory)).text == "b":
            break
        sampler.observe(trajectory, "-")
    return trajectory


def test_one_that_ends_by_itself_in_its_last_turn_was_not_cut():
    (found,) = play(at_its_end, ["x", "b"], limits=Limits(2, 99))
    assert (text_of(found), found.finish_reason) == ("x-b", "stop")
    (cut,) = play(at_its_end, ["x", "b"], limits=Limits(1, 99))
    assert (text_of(cut), cut.finish_reason) == ("x-", "length")


async def waiting(prompt, sampler):
    trajectory = Trajectory(prompt)
    await sampler.sample(trajectory)
    await asyncio.Event().wait()


def test_one_that_is_out_of_time_ends_with_what_it_has():
    (found,) = play(waiting, ["abc"], limits=Limits(3, 99, seconds=0.3))
    assert (text_of(found), found.finish_reason, found.reward) == ("abc", "length", None)


async def broken(prompt, sampler):
    trajectory = Trajectory(prompt, reward=1.0)
    await sampler.sample(trajectory)
    raise KeyError("city")


def test_an_environment_that_raises_stops_the_run_or_is_counted():
    with pytest.raises(
        RunError, match=r"(?s)environment: 'test' failed on row 'row-1'.*test_playing\.py.*KeyError: 'city'"
    ):
        play(broken, ["abc"])
    (found,) = play(broken, ["abc"], on_error="zero")
    assert (text_of(found), found.reward, found.counts["environment_errors"]) == ("abc", 0.0, 1)


async def returning_text(prompt, sampler):
    return "done"


async def sampling_nothing(prompt, sampler):
    return Trajectory(prompt)


async def of_another(prompt, sampler):
    await sampler.sample(trajectory := Trajectory(prompt))
    other = Trajectory(prompt)
    other._turns += trajectory.turns
    return other


async def rewarding_nan(prompt, sampler):
    await sampler.sample(trajectory := Trajectory(prompt))
    trajectory.reward = float("nan")
    return trajectory


async def with_two(prompt, sampler):
    await sampler.sample(Trajectory(prompt))
    await sampler.sample(Trajectory(prompt))


@pytest.mark.parametrize(
    ("generate", "message"),
    [
        (returning_text, "row 'row-1': generate returned str. Fix: return the Trajectory that it made"),
        (sampling_nothing, "row 'row-1': the policy sampled no token. "
         "Fix: await sampler.sample(trajectory) at least once"),
        (of_another, "row 'row-1': the trajectory is not the one that was sampled. "
         "Fix: return the one given to the sampler"),
        (rewarding_nan, "row 'row-1': the reward is nan. Fix: give a finite number, or None for data.reward"),
        (with_two, "two trajectories were given to one sampler. "
         "Fix: make one Trajectory(prompt) in each call of generate"),
    ],
)  # fmt: skip
def test_what_breaks_the_contract_is_one_clear_error(generate, message):
    with pytest.raises(RunError) as raised:
        play(generate, ["abc"], on_error="zero")
    assert str(raised.value) == f"environment: {message}"


def test_an_engine_that_fails_is_no_fault_of_the_environment():
    class Failing:
        def generate(self, prompts, params, places):
            raise RunError("it is gone", who="engine")

    async def careless(prompt, sampler):
        trajectory = Trajectory(prompt)
        try:
            await sampler.sample(trajectory)
        except Exception:
            return "nothing happened"

    with pytest.raises(RunError, match="engine: it is gone"):
        play(careless, engine=Failing(), on_error="zero")


def meeting(barrier):
    """Every trajectory's tool returns when all of them are in their tools."""

    async def generate(prompt, sampler):
        trajectory = Trajectory(prompt)
        await sampler.sample(trajectory)
        await sampler.call(trajectory, barrier.wait)
        await sampler.sample(trajectory)
        return trajectory

    return generate


@pytest.mark.parametrize("make", [Batches, lambda engine: Streams(engine, 8)], ids=["batches", "streams"])
def test_all_tools_run_at_once(make):
    """64 blocking calls that wait for one another: one after another they would time out."""
    found = play(
        meeting(threading.Barrier(64, timeout=50)), ["abc"], n=64, asking=make(ScriptedEngine(["abc"])), tool_timeout=55
    )
    assert sum(each.counts.get("tool_errors", 0) + each.counts.get("tool_timeouts", 0) for each in found) == 0


def test_the_batch_of_an_engine_in_lockstep_is_full():
    engine = ScriptedEngine()
    found = play(two_turns, n=64, engine=engine)
    assert engine.batches == [64, sum(len(each.turns) == 2 for each in found)]
    again = play(two_turns, n=64, asking=Streams(ScriptedEngine(), 4))
    assert [each.token_ids for each in found] == [each.token_ids for each in again], "whoever asks, and in what order"
    assert len({each.token_ids for each in found}) > 60, "each has a seed of its own"


def test_a_batch_waits_for_those_whose_tools_are_quick(monkeypatch):
    """Sixteen threads that end one after another are one batch of sixteen turns, not sixteen of one."""
    monkeypatch.setattr(engines, "QUIET", 20)
    monkeypatch.setattr(engines, "PATIENCE", 40)
    engine, turns = ScriptedEngine(["abc", "de"]), count()
    lock = threading.Lock()

    def one_after_another():
        with lock:
            time.sleep(0.002)
            return str(next(turns))

    async def generate(prompt, sampler):
        trajectory = Trajectory(prompt)
        await sampler.sample(trajectory)
        await sampler.call(trajectory, one_after_another)
        await sampler.sample(trajectory)
        return trajectory

    play(generate, n=16, engine=engine)
    assert engine.batches == [16, 16]


def test_nobody_waits_long_for_a_tool_that_is_slow():
    """One trajectory's tool returns only after the other has had its second turn."""
    engine, ended = ScriptedEngine(["abc", "de"]), threading.Event()

    async def generate(prompt, sampler):
        trajectory = Trajectory(prompt)
        await sampler.sample(trajectory)
        if sampler._index:
            await sampler.call(trajectory, ended.wait, 50)
        await sampler.sample(trajectory)
        ended.set()
        return trajectory

    found = play(generate, n=2, engine=engine, tool_timeout=55)
    assert engine.batches == [2, 1, 1]
    assert text_of(found[1]) == "abcTruede"
