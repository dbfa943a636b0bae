"""`relax plugins validate` of environments: those that are right pass, and each mistake is found by its own check."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import pytest

from tests.conftest import EXAMPLES

ROOT = EXAMPLES.parent

RAISES = """
    from relax_core import Trajectory

    async def generate(prompt, sampler):
        trajectory = Trajectory(prompt)
        turn = await sampler.sample(trajectory)
        trajectory.reward = float(turn.text)
        return trajectory
"""
FORGES = """
    from relax_core import Trajectory

    async def generate(prompt, sampler):
        trajectory = Trajectory(prompt)
        turn = await sampler.sample(trajectory)
        trajectory._ids[0] = 65
        return trajectory
"""
GOES_ON = """
    import asyncio
    from relax_core import Trajectory

    async def generate(prompt, sampler):
        trajectory = Trajectory(prompt)
        for _ in range(9):
            try:
                await sampler.sample(trajectory)
                return trajectory
            except asyncio.CancelledError:
                pass
"""
GUESSES = """
    import random
    from relax_core import Trajectory

    async def generate(prompt, sampler):
        trajectory = Trajectory(prompt)
        sampler.observe(trajectory, str(random.random()))
        await sampler.sample(trajectory)
        return trajectory
"""
FORGETS = """
    from relax_core import Trajectory

    async def generate(prompt, sampler):
        trajectory = Trajectory(prompt)
        while trajectory.may_go_on:
            turn = await sampler.sample(trajectory)
            sampler.reset(trajectory, prompt.token_ids, " ", turn.token_ids[-3:])
        return trajectory
"""
READS_ELSE = """
    from relax_core import Trajectory

    async def generate(prompt, sampler):
        trajectory = Trajectory(prompt)
        await sampler.sample(trajectory)
        sampler.reset(trajectory, "note")
        await sampler.sample(trajectory)
        trajectory._resets[-1] = (trajectory._resets[-1][0], [66])
        return trajectory
"""
OVERDRAWS = """
    from relax_core import Trajectory

    async def generate(prompt, sampler):
        trajectory = Trajectory(prompt)
        while trajectory.may_go_on:
            await sampler.sample(trajectory, max_tokens=2)
        if prompt.limits.tokens < 50:
            trajectory._observe([65] * 30, "")
        return trajectory
"""


def environment_of_the_docs() -> str:
    text = (ROOT / "docs" / "environments.md").read_text()
    (code,) = re.findall(r"<!-- environment -->\n```python\n(.*?)```", text, re.DOTALL)
    return code


@pytest.fixture
def findings(relax, plugin_file):
    """The ids of what is found in an environment of this source."""

    def validate(source: str) -> list[str]:
        told = json.loads(relax("plugins", "validate", plugin_file(source), "--json").out)
        return [each["id"] for each in told["reports"][0]["findings"]]

    return validate


def test_the_calculator_is_right(relax):
    path = EXAMPLES / "environments" / "calculator.py"
    assert relax("plugins", "validate", path).out == f"{path}: 5 checks, 0 errors, 0 warnings\n"


def test_what_the_page_shows_is_right(findings):
    assert findings(environment_of_the_docs()) == []


def test_one_that_replaces_the_context_is_right(findings):
    assert findings(FORGETS) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (RAISES, "RLX911"),
        (FORGES, "RLX912"),
        (READS_ELSE, "RLX912"),
        (OVERDRAWS, "RLX913"),
        (GOES_ON, "RLX914"),
        (GUESSES, "RLX915"),
    ],
)
def test_a_mistake_is_found_by_its_own_check(findings, source, found):
    assert found in findings(source)


def test_a_finding_says_what_and_where(relax, plugin_file):
    path = plugin_file(RAISES)
    result = relax("plugins", "validate", path, "--only", "RLX911")
    assert result.code == 1
    assert f"RLX911 error: {path}: a trajectory did not end as the contract asks" in result.out
    assert 'mine.py", line 7' in result.out
    assert f"reproduce relax plugins validate {path} --only RLX911" in result.out


def test_settings_without_defaults_are_refused(relax, plugin_file):
    source = textwrap.dedent(RAISES).replace("import Trajectory", "import EnvironmentConfig, Trajectory")
    source = source.replace("(prompt, sampler)", "(prompt, sampler, config)")
    path = plugin_file(source + "\nclass Config(EnvironmentConfig):\n    city: str\n")
    result = relax("plugins", "validate", path)
    assert (result.code, result.err) == (
        3, "error: relax plugins validate: city: Field required. Fix: give every field of Config a default\n"
    )  # fmt: skip


def test_the_example_of_the_readme_is_the_contract(findings):
    (code,) = re.findall(
        r"## Several turns, with tools\n\n(.*?)\n\nAn env", (Path(ROOT) / "README.md").read_text(), re.DOTALL
    )
    assert findings("from relax_core import Trajectory\ncalculate = len\n" + textwrap.dedent(code)) == []
