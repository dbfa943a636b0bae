"""What plugins remember: kept from step to step, resumed exactly, and refused at once where a checkpoint cannot hold it."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import pytest
import torch

from relax_core.context import Context
from relax_core.engines.wire import decode, encode
from relax_core.errors import PluginError
from relax_core.states import plain_states, put_states
from tests.cli.test_train import metrics
from tests.conftest import RUN

HEAD = """
import numpy as np
import torch
from relax_core import *

@hookimpl
def algorithm():
    return AlgorithmSpec("remembers", "Remembers what it has seen", component=Component(config=ComponentConfig))

"""
SHAPE = (
    HEAD
    + """
@hookimpl
def shape_rewards(rollout, context):
    BODY
    return rollout.rewards
"""
)
PAGE = (Path(__file__).parents[2] / "docs" / "hooks.md").read_text()
OWN = "class Own:\n        pass\n    "


class Mean:
    """A mean that goes on."""

    def __init__(self) -> None:
        self.seen = torch.zeros(2)

    def add(self, value: float) -> float:
        self.seen += torch.tensor([value, 1.0])
        return float(self.seen[0] / self.seen[1])

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, saved):
        self.seen = saved["seen"].clone()


@dataclass
class Plugin:
    """As much of a bound plugin as a state needs."""

    name: str = "remembers"
    state: dict[str, Any] = field(default_factory=dict)

    @property
    def context(self) -> Context:
        return Context(0, 1, torch.Generator(), self.state)


@pytest.fixture
def train(relax, run_file, plugin_file, tmp_path):
    """Train with a component of this source."""

    def run(source, *flags, name="run"):
        chosen = ("--plugin", plugin_file(source, "remembers.py"), "--algorithm.remembers.enable")
        return relax("train", run_file(RUN), *chosen, "--output.dir", tmp_path / name, *flags)

    return run


def test_the_object_of_the_page_is_resumed_exactly(train, tmp_path):
    (code,) = re.findall(r"<!-- keeps an object -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert train(HEAD + code, "--num-rollout", 4, "--save-interval", 2, name="whole").code == 0
    assert train(HEAD + code, "--num-rollout", 2).code == 0
    resumed = train(HEAD + code, "--num-rollout", 4, "--resume", tmp_path / "run")
    assert resumed.code == 0, resumed.err
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    saved = torch.load(tmp_path / "run" / "checkpoints" / "step_000004" / "loop.pt", weights_only=True)
    assert saved["plugins"]["remembers"]["mean"]["count"] == 4 * 8


def test_an_object_is_one_within_a_process_and_loaded_in_another():
    here, there = Plugin(), Plugin()
    assert here.context.keep("mean", Mean) is here.context.keep("mean", Mean)
    assert [here.context.keep("mean", Mean).add(value) for value in (1.0, 3.0)] == [1.0, 2.0]
    put_states([there], decode(encode(plain_states([here]))))
    assert there.context.keep("mean", Mean).add(5.0) == 3.0
    assert here.context.keep("mean", Mean).add(8.0) == 4.0, "the two share something"


def test_a_state_is_put_back_whole():
    plugin = Plugin(state={"old": 1, "both": 1})
    put_states([plugin], {"remembers": {"both": 2, "new": 2}, "another": {"old": 3}})
    assert plugin.state == {"both": 2, "new": 2}
    put_states([plugin], {})
    assert plugin.state == {}


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 3, 2.5, 1 + 2j, "a", b"a", [1, (2, {3})], {"a": {1: [2]}}, OrderedDict(a=1)),
        *(torch.ones(2), torch.nn.Parameter(torch.ones(2))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_passes_is_what_comes_back(value):
    found = decode(encode(plain_states([Plugin(state={"x": value})])))["remembers"]["x"]
    assert type(found) is type(value)
    assert torch.equal(found, value) if isinstance(value, torch.Tensor) else found == value


@pytest.mark.parametrize("value", [np.float64(1), [np.int64(1)], {"a": {Fraction(1): 1}}, len, Mean()])
def test_what_is_refused_would_not_come_back(value):
    with pytest.raises(UnpicklingError):
        decode(encode({"x": value}))
    with pytest.raises(PluginError, match=r"plugin 'remembers': its state 'x' holds a value of type \w+, which no"):
        plain_states([Plugin(state={"x": value})])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (f"{OWN}context.state['seen'] = [Own()]", "its state 'seen' holds a value of type shape_rewards.<locals>.Own"),
        ("context.state['seen'] = np.float64(1)", "its state 'seen' holds a value of type float64"),
    ],
)
def test_a_state_that_no_checkpoint_holds_ends_the_step_that_put_it_there(train, tmp_path, body, said):
    result = train(SHAPE.replace("BODY", body))
    assert result.code == 4
    (line,) = [line for line in result.err.splitlines() if line.startswith("error: ")]
    assert line == (
        f"error: plugin 'remembers': {said}, which no checkpoint can hold. Fix: keep numbers, strings, tensors, lists and "
        "dicts, or an object by context.keep(name, make)"
    )
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        ("", "shape_rewards raised TypeError: keep('it'): It has no state_dict() and load_state_dict() (context.py:"),
        (
            "state_dict = lambda self: 1 / 0",
            "state_dict() of its 'it' raised ZeroDivisionError: division by zero (remembers",
        ),
        (
            "state_dict = lambda self: {'x': self}",
            "its state 'it' holds a value of type shape_rewards.<locals>.It, which no",
        ),
    ],
)
def test_an_object_that_cannot_be_kept_is_named(train, methods, said):
    load = "load_state_dict = lambda self, saved: None" if methods else "pass"
    body = f"class It:\n        {methods or 'pass'}\n        {load}\n    context.keep('it', It)"
    result = train(SHAPE.replace("BODY", body))
    assert result.code == 4
    assert f"error: plugin 'remembers': {said}" in result.err
    assert "Traceback" not in result.err


def test_what_an_object_does_not_load_is_the_plugins_error(train, tmp_path):
    body = "class It:\n        state_dict = lambda self: {}\n        load_state_dict = lambda self, saved: saved['x']\n    "
    source = SHAPE.replace("BODY", f"{body}context.keep('it', It)")
    assert train(source, "--num-rollout", 1).code == 0
    result = train(source, "--num-rollout", 2, "--resume", tmp_path / "run")
    assert result.code == 4
    assert "error: plugin 'remembers': shape_rewards raised KeyError: 'x' (remembers.py:" in result.err
