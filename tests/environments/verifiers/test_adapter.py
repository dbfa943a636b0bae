"""Environments of `verifiers`, played as they are with turns by hand."""

from __future__ import annotations

import signal
import sys

import pytest
from pydantic import ValidationError

from relax_core.conformance.playing import play
from relax_core.conformance.scripted import Bytes
from relax_core.environments.loading import load_environment
from relax_core.environments.verifiers import examples
from relax_core.environments.verifiers.tool_calls import tool_calls
from relax_core.errors import LoadError, RunError

ID = "relax_test_sums"
OPENING = "user: 3+4?\nassistant: "
ADD = '<tool_call>{"name": "add", "arguments": {"a": 3, "b": 4}}</tool_call>'


def played(turns, kind="tools", prompt=OPENING, **args):
    """A trajectory of the first row, and its text, with what the policy wrote between angle brackets."""
    args = {"kind": kind, **args}
    row = examples(ID, args)[0]
    found = play("verifiers", turns, {**row, "prompt": prompt}, {"id": ID, "args": args})
    marks = "".join("<>"[not live] for live in found.raw_mask)
    pieces, text = [], Bytes().decode(found.token_ids)
    for place, mark in enumerate(marks):
        if place == 0 or mark != marks[place - 1]:
            pieces.append(["", mark == "<"])
        pieces[-1][0] += text[place]
    return found, [f"<{piece}>" if live else piece for piece, live in pieces]


def test_a_tool_is_called_and_its_answer_stands_where_the_template_puts_it():
    found, pieces = played([ADD, "It is 7."])
    assert pieces == [f"<{ADD}>", "\ntool: 7\nassistant: ", "<It is 7.>"]
    assert (found.reward, found.counts["tool_calls"], found.resets) == (1.0, 1, ())
    assert found.observations == [(len(ADD), "add")]


@pytest.mark.parametrize(
    ("call", "told", "counted"),
    [
        ('<tool_call>{"name": "add"</tool_call>', "Expecting value: line 1 column 1 (char 0)", {}),
        ('<tool_call>{"name": "sub", "arguments": {}}</tool_call>', "'sub'", {}),
        ('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', "missing 1 required", {"tool_errors": 1}),
    ],
)
def test_a_call_that_fails_is_told_to_the_policy(call, told, counted):
    found, pieces = played([call, "no"])
    assert (pieces[0], pieces[2]) == (f"<{call}>", "<no>")
    assert found.reward == 0.0
    assert {name: found.counts[name] for name in counted} == counted
    if told.startswith("Expecting"):
        assert pieces[1].startswith("\ntool: Expecting")
    else:
        assert told in pieces[1]


def test_a_tool_that_hangs_is_left_behind():
    found, pieces = played(['<tool_call>{"name": "sleep", "arguments": {}}</tool_call>', "7"])
    assert pieces[1] == "\ntool: no result within 5 s\nassistant: "
    assert (found.counts["tool_timeouts"], found.reward) == (1, 1.0)


def test_text_goes_on_as_text():
    found, pieces = played(["1", "40", "42"], "guess", "guess:")
    assert pieces == ["<1>", "[higher]", "<40>", "[higher]", "<42>"]
    assert (found.reward, found.finish_reason) == (1.0, "stop")


def test_a_history_that_was_rewritten_replaces_the_context():
    found, pieces = played(["1", "2", "42"], "guess", "guess:", rewrites=True)
    assert pieces == ["<1242>"]
    assert [(place, bytes(ids).decode()) for place, ids in found.resets] == [(1, "again 1:"), (2, "again 2:")]


def test_a_prompt_that_the_environment_writes_otherwise_is_read_as_it_writes_it():
    found, pieces = played(["7"], "single", "3+4?")
    assert [(place, bytes(ids).decode()) for place, ids in found.resets] == [
        (0, "system: Add.\nuser: 3+4?\nassistant: ")
    ]
    assert (pieces, found.reward) == (["<7>"], 1.0)


def test_a_budget_that_is_spent_ends_it_and_the_rubric_scores_what_is_there():
    found, _ = played(["x" * 90, "y" * 90, "z" * 90], "guess", "guess:")
    assert (len(found.token_ids), found.finish_reason, found.reward) == (200, "length", 0.0)


def test_other_sampling_than_the_runs_is_refused():
    with pytest.raises(RunError, match="the environment asks for another temperature"):
        played(["7"], "hot")


def test_what_breaks_in_the_environment_is_its_failure_not_a_score():
    with pytest.raises(RunError, match=r"(?s)'verifiers' failed on row 'relax_test_sums-0'.*no sandbox"):
        played([ADD, "7"], "failing")


def test_a_row_of_other_data_is_refused():
    with pytest.raises(
        RunError, match=r"row 'row' is not one of the environment's. Fix: write data.source: relax_core"
    ):
        play("verifiers", ["7"], {"prompt": OPENING}, {"id": ID})


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"id": "no_such_thing"}, "verifiers loads no 'no_such_thing': Could not import 'no_such_thing'"),
        ({"id": ID, "args": {"kind": "group"}}, "best of 'relax_test_sums' scores a group at once"),
        ({"id": ID, "args": {"kind": "unscored"}}, "the rubric of 'relax_test_sums' scores nothing"),
    ],
)
def test_what_cannot_be_played_is_refused_at_the_start(args, message):
    environment = load_environment("verifiers", None)
    ((name, problem, fix),) = environment.problems(args)
    assert name == "id"
    assert problem.startswith(message)
    assert fix
    with pytest.raises(ValidationError, match="id\n  Field required"):
        environment.arguments({})


def test_without_the_extra_one_line_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "verifiers", None)
    message = r"id: the environment 'other' needs the package verifiers, which is not installed. Fix: install with pip install"
    with pytest.raises(LoadError, match=message):
        examples("other")


def test_rows_have_what_the_environment_and_the_template_need():
    first, second = examples(ID)
    assert (first["id"], second["answer"]) == (f"{ID}-0", "11")
    assert first["prompt"] == [{"role": "user", "content": "3+4?"}]
    assert [each["function"]["name"] for each in first["tools"]] == ["add", "sleep"]
    assert [each["id"] for each in examples(ID, count=1)] == [f"{ID}-0"]
    with pytest.raises(LoadError, match=r"there is no part 'test'. Fix: write train or eval"):
        examples(ID, part="test")


def test_an_environment_does_not_take_over_how_the_run_ends():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    examples(ID, {"kind": "single"}, count=2)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_calls_by_hand():
    assert tool_calls("no call", 1) == ("no call", [])
    text, calls = tool_calls('so <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call><tool_call>[1]', 2)
    assert text == "so"
    assert [each["id"] for each in calls] == ["call-2-0", "call-2-1"]
    assert [each["function"] for each in calls] == [
        {"name": "f", "arguments": '{"x": 1}'},
        {"name": "", "arguments": "[1]"},
    ]
