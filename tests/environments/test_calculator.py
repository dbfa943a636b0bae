"""The calculator reads sums of products and nothing else, and its task takes two or three calls."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relax_core.references import load_callable
from tests.conftest import EXAMPLES


def named(name: str, file: str = "calculator"):
    return load_callable(f"environments/{file}.py:{name}", who="test", base=EXAMPLES)


@pytest.mark.parametrize(
    ("text", "value"),
    [("3+4", "7"), (" 2 * (3 - 5)", "-4"), ("7/2/7", "1/2"), ("-(-3)", "3"), ("2+3*4-1", "13"), ("12", "12")],
)
def test_values(text, value):
    assert named("calculate")(text) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a number is missing before 'the end'"),
        ("3+", "a number is missing before 'the end'"),
        ("3)", r"'\)' is left over"),
        ("(3", "a bracket is not closed"),
        ("3 4", "'4' is left over"),
        ("__import__('os')", "not an expression"),
        ("9**9", r"a number is missing before '\*'"),
        ("1" * 61, "not an expression"),
    ],
)
def test_what_is_no_expression(text, message):
    with pytest.raises(ValueError, match=message):
        named("calculate")(text)


EXPRESSIONS = st.recursive(
    st.integers(0, 99).map(lambda each: (str(each), Fraction(each))),
    lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(
        lambda each: (
            f"({each[0][0]}{each[1]}{each[2][0]})",
            {"+": each[0][1] + each[2][1], "-": each[0][1] - each[2][1], "*": each[0][1] * each[2][1]}[each[1]],
        )
    ),
    max_leaves=8,
)


@given(EXPRESSIONS)
def test_it_computes_what_the_expression_means(expression):
    text, value = expression
    if len(text) <= 60:
        assert named("calculate")(text) == str(value)


def test_the_steps_of_the_task_are_true_and_two_or_three():
    rows = named("examples", "calculator_task")()
    assert len({row["id"] for row in rows}) == len(rows) == 400
    for row in rows:
        numbers = [int(each) for each in row["prompt"].rstrip(":").split("+")]
        assert row["answer"] == sum(numbers)
        parts = named("solution", "calculator_task")(numbers)
        calls = [(text, after) for (text, written), (after, _) in pairwise(parts) if text[-1] == "="]
        assert len(calls) in (2, 3)
        assert all(named("calculate")(text[:-1]) + ";" == after for text, after in calls)
        assert parts[-1] == (str(sum(numbers)), True)
