"""What `docs/versioning.md` promises of this version."""

from __future__ import annotations

import re

from relax_core.conformance.case import replay
from relax_core.registry import Registry
from relax_core.scaffold.render import template_version
from relax_core.spec import HOOK_API
from tests.scaffold.environment import ROOT

PAGE = (ROOT / "docs" / "versioning.md").read_text()
TERSE = """
from relax_core import Advantage, AlgorithmSpec, Estimator, hookimpl

@hookimpl
def algorithm():
    return AlgorithmSpec("terse", "Names one argument", estimator=Estimator(default_loss="grpo"){extra})

@hookimpl
def compute_advantage(rollout):
    return Advantage(rollout.to_tokens(rollout.rewards))
"""


def test_the_page_names_the_numbers_that_are_in_force():
    assert re.findall(r"It is now \*\*(\d+)\*\*", PAGE) == [str(HOOK_API)]
    assert re.findall(r'template = "(\d+)"', PAGE) == [template_version()]


def test_a_hook_that_names_fewer_arguments_than_there_are_is_called(plugin_file):
    registry = Registry.load([plugin_file(TERSE.format(extra=""), "terse.py")])
    sequence = {"group": 0, "reward": 2.0, "mask": [1], "old_logp": [-1.0], "logp": [-1.0]}
    assert replay({"algorithm": "terse", "sequences": [sequence]}, registry)["advantages"] == [[2.0]]


def test_another_number_is_shown_as_incompatible_and_cannot_be_chosen(relax, run_file, install):
    install("later", "terse", TERSE.format(extra=f", hook_api={HOOK_API + 1}"))
    (plugin,) = [each for each in Registry.load().plugins if each.name == "terse"]
    assert (plugin.status, plugin.reason) == ("incompatible", f"hook_api {HOOK_API + 1}, this is {HOOK_API}")
    result = relax("train", run_file(), "--advantage-estimator", "terse")
    assert result.code == 3
    assert "'terse' is incompatible" in result.err
