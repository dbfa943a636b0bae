"""Whatever a tool does, the policy reads what came of it, and the trajectory goes on."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from relax_core import Trajectory
from relax_core.environments.trajectory import Limits
from tests.environments.playing import play, text_of


def raising():
    raise ValueError("no such\ncity")


def leaving():
    sys.exit(3)


def stopping():
    raise StopIteration


async def raising_later():
    await asyncio.sleep(0)
    raise KeyError("x")


def hanging():
    threading.Event().wait(60)


async def hanging_without_a_thread():
    await asyncio.Event().wait()


async def ignoring_its_end():
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(1)


def killed():
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    subprocess.run([sys.executable, "-S", "-c", code], check=True)


async def plain():
    return 12


def calling(tool):
    """One call between two turns."""

    async def generate(prompt, sampler):
        trajectory = Trajectory(prompt, reward=0.5)
        await sampler.sample(trajectory)
        await sampler.call(trajectory, tool, after="|")
        await sampler.sample(trajectory)
        return trajectory

    return generate


@pytest.mark.parametrize(
    ("tool", "seen", "count"),
    [
        (plain, "12", None),
        (lambda: None, "", None),
        (lambda: b"a\xff\xfeb", "a\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}b", None),
        (lambda: "lone \udce9", "lone ?", None),
        (raising, "error: ValueError: no such city", "tool_errors"),
        (raising_later, "error: KeyError: 'x'", "tool_errors"),
        (leaving, "error: RuntimeError: SystemExit: 3", "tool_errors"),
        (stopping, "error: RuntimeError: StopIteration", "tool_errors"),
        (hanging, "error: no result within 0.2 s", "tool_timeouts"),
        (hanging_without_a_thread, "error: no result within 0.2 s", "tool_timeouts"),
        (ignoring_its_end, "error: no result within 0.2 s", "tool_timeouts"),
    ],
)
def test_the_policy_reads_what_came_of_a_call(tool, seen, count):
    (trajectory,) = play(calling(tool), ["first ", "second"], tool_timeout=0.2 if count == "tool_timeouts" else 60)
    assert text_of(trajectory) == f"first {seen}|second"
    assert trajectory.raw_mask == (True,) * 6 + (False,) * len(f"{seen}|".encode()) + (True,) * 6
    expected = {"turns": 2, "tool_calls": 1} | ({count: 1} if count else {})
    assert trajectory.counts == expected
    assert trajectory.reward == 0.5


def test_a_killed_subprocess_is_told_with_its_signal():
    (trajectory,) = play(calling(killed), ["first ", "second"], limits=Limits(6, 500), tool_timeout=60)
    assert "died with <Signals.SIGKILL: 9>" in text_of(trajectory)
    assert trajectory.counts["tool_errors"] == 1


def test_a_megabyte_is_cut_to_what_may_be_shown():
    (trajectory,) = play(calling(lambda: "x" * 2**20), ["first ", "second"], max_observation_tokens=9)
    assert text_of(trajectory) == "first xxxxxxxx|second"
    assert trajectory.counts["tool_truncated"] == 1


def test_the_name_of_a_special_token_in_a_result_is_plain_text(tiny_tokenizer):
    from relax_core.config import EnvironmentSection
    from relax_core.environments.sampler import Sampler
    from relax_core.environments.trajectory import EnvironmentPrompt

    sampler = Sampler(None, tiny_tokenizer, None, EnvironmentSection())
    trajectory = Trajectory(EnvironmentPrompt("r", "", (1,), None, {}, Limits(1, 99)))
    asyncio.run(sampler.call(trajectory, lambda: "<eos>", before="<bos>", after="<eos>"))
    bos, *between, eos = trajectory.token_ids
    assert (bos, eos) == (1, 2)
    assert tiny_tokenizer.decode(between) == "<eos>"
    assert 2 not in between


def test_a_coroutine_that_is_late_is_cancelled():
    cancelled = []

    async def late():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def generate(prompt, sampler):
        trajectory = Trajectory(prompt)
        await sampler.sample(trajectory)
        await sampler.call(trajectory, late)
        await asyncio.sleep(0.01)
        sampler.observe(trajectory, f" {cancelled}")
        return trajectory

    (found,) = play(generate, ["first "], tool_timeout=0.2)
    assert text_of(found) == "first error: no result within 0.2 s [True]"
